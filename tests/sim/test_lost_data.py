"""A member that comes back with an empty directory has forgotten its promises: nobody may count on it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.requests import MembersChange, MembersRequest
from trimtab.node.acquaintances import LostData
from trimtab.node.settings import Limits, Timing
from trimtab.sim.cluster import SimCluster
from trimtab.sim.disks import MemberDisk
from trimtab.sim.plan import draw
from trimtab.sim.world import World


class Outage:
    """Three members, a client, and somebody who replaces disks."""

    def __init__(self, world: World) -> None:
        self.world = world
        plan = dataclasses.replace(draw(1, "calm"), members=3, limits=Limits(), timing=Timing(tick_ms=20))
        self.cluster = SimCluster(world, plan)
        self.stops: list[str] = []
        self._client = world.process("client", "10.0.1.1")
        self._client.start()

    def start(self, *members: int) -> None:
        for member in members:
            self.cluster.start(self.cluster.members[member])
        self.world.run(self.world.now + 2)

    def kill(self, *members: int) -> None:
        for member in members:
            self.cluster.kill(self.cluster.members[member], True)

    def wipe(self, member: int) -> None:
        """An empty disk. The simulator's own invariants are off from here on: a lost disk breaks them by itself."""
        self.world.after_event = None
        self.world.fail = lambda why, evidence="": self.stops.append(why)  # type: ignore[method-assign]
        self.cluster.members[member].disk = MemberDisk(self.cluster.members[member].process)

    def ask(self, work: Callable[[MetastoreClient], Awaitable[Any]], members: tuple[int, ...] = (1, 2, 3)) -> Any:
        """What a client gets that knows these members, or the error it raises."""

        async def run() -> Any:
            addresses = [self.cluster.members[member].address for member in members]
            try:
                client = await MetastoreClient.connect(
                    addresses, rng=self.world.rng("client"), wall_ms=self._client.wall_ms, timeout_s=5
                )
            except Error as error:
                return error
            try:
                return await work(client)
            except Error as error:
                return error
            finally:
                await client.close()

        return self.world.run_until_done(self._client.spawn(run()), self.world.now + 60)

    def failure(self, member: int) -> BaseException | None:
        instance = self.cluster.members[member].instance
        assert instance is not None
        return instance.failure


@pytest.fixture
def outage() -> Iterator[Outage]:
    with World(7) as world:
        yield Outage(world)


def test_a_write_outlives_a_wiped_member_that_returns_to_one_that_missed_the_write(outage: Outage) -> None:
    """W is acknowledged by 1 and 2 while 3 is down. 1 and 2 die, 2 loses its disk: 2 and 3 must not be a majority."""
    outage.start(1, 2, 3)
    assert outage.ask(lambda client: client.put(b"before", b"1")) == 1
    outage.kill(3)
    assert outage.ask(lambda client: client.put(b"W", b"1"), (1, 2)) == 2
    outage.kill(1, 2)
    outage.wipe(2)
    outage.start(2, 3)
    assert isinstance(outage.failure(2), LostData)
    assert "to join under a new raft id" in str(outage.failure(2))
    assert outage.failure(3) is None
    assert isinstance(outage.ask(lambda client: client.get(b"W"), (2, 3)), Error), "nobody may say that W is not there"
    outage.start(1)
    found = outage.ask(lambda client: client.get(b"W"), (1, 3))
    assert found.value == b"1"


def test_the_members_still_know_a_wiped_one_after_they_restarted_themselves(outage: Outage) -> None:
    outage.start(1, 2, 3)
    outage.kill(1, 2, 3)
    outage.wipe(2)
    outage.start(3)
    outage.start(2)
    assert isinstance(outage.failure(2), LostData)


def test_a_member_with_its_own_directory_comes_back_as_often_as_it_likes(outage: Outage) -> None:
    outage.start(1, 2, 3)
    for number in range(3):
        outage.kill(2)
        outage.start(2)
        assert outage.ask(lambda client: client.put(b"k", b"v")) == number + 1
    assert outage.failure(2) is None


@pytest.mark.parametrize("lost", [1, 3])
def test_a_member_that_lost_its_data_is_removed_and_added_under_a_new_id(outage: Outage, lost: int) -> None:
    """What the manual tells an operator to do."""
    outage.start(1, 2, 3)
    outage.ask(lambda client: client.put(b"k", b"v"))
    outage.kill(lost)
    outage.wipe(lost)
    others = tuple(member for member in (1, 2, 3) if member != lost)
    outage.start(lost)
    assert isinstance(outage.failure(lost), LostData)
    outage.kill(lost)

    def change(what: MembersChange, raft_id: int, address: str = "") -> Any:
        return outage.ask(lambda client: client.change_members(MembersRequest([(what, raft_id)], address)), others)

    assert change(MembersChange.REMOVE, lost).voters == list(others)
    # The replacement stands where the lost one stood: same address, same empty disk, another number.
    place = outage.cluster.members[lost]
    place.settings = dataclasses.replace(place.settings, instance_id="i4")
    place.raft_id = 4
    outage.wipe(lost)
    outage.start(lost)
    change(MembersChange.ADD_LEARNER, 4, place.address)
    outage.world.run(outage.world.now + 3)
    assert change(MembersChange.PROMOTE, 4).voters == [*others, 4]
    outage.kill(others[0])
    outage.world.run(outage.world.now + 3)
    assert outage.ask(lambda client: client.get(b"k"), (others[1], lost)).value == b"v"
    assert outage.failure(lost) is None
