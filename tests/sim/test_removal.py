"""A member that was removed hears of it, says so, and serves nothing; the others leave it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.requests import MembersChange, MembersRequest
from trimtab.node.settings import Limits, Timing
from trimtab.sim.cluster import SimCluster, SimMember
from trimtab.sim.plan import draw
from trimtab.sim.world import World

REMOVED = "this member was removed from the cluster; ask another"


class Operator:
    """Three members with one key, and somebody who removes some."""

    def __init__(self, world: World) -> None:
        self.world = world
        plan = dataclasses.replace(draw(1, "calm"), members=3, limits=Limits(), timing=Timing(tick_ms=20))
        self.cluster = SimCluster(world, plan)
        for member in self.cluster.members.values():
            self.cluster.start(member)
        self.client = world.process("operator", "10.0.1.1")
        self.client.start()
        self.wait(2)
        assert self.ask(lambda client: client.put(b"k", b"v")) == 1

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def member(self, number: int) -> SimMember:
        return self.cluster.members[number]

    @property
    def leader(self) -> int:
        leader = self.cluster.leader()
        assert leader is not None
        return leader.raft_id

    @property
    def follower(self) -> int:
        return next(number for number in (1, 2, 3) if number != self.leader)

    async def connect(self, members: tuple[int, ...], *, only: bool = False) -> MetastoreClient:
        return await MetastoreClient.connect(
            [self.member(number).address for number in members],
            rng=self.world.rng("operator"),
            wall_ms=self.client.wall_ms,
            timeout_s=5,
            follow_leader=not only,
        )

    def ask(
        self,
        work: Callable[[MetastoreClient], Awaitable[Any]],
        members: tuple[int, ...] = (1, 2, 3),
        *,
        only: bool = False,
    ) -> Any:
        """What a client gets that knows these members, or the error it raises."""

        async def run() -> Any:
            client = await self.connect(members, only=only)
            try:
                return await work(client)
            except Error as error:
                return error
            finally:
                await client.close()

        return self.world.run_until_done(self.client.spawn(run()), self.world.now + 60)

    def change(self, what: MembersChange, raft_id: int, members: tuple[int, ...] = (1, 2, 3)) -> Any:
        address = self.member(raft_id).address if what is MembersChange.ADD_LEARNER else ""
        return self.ask(lambda client: client.change_members(MembersRequest([(what, raft_id)], address)), members)

    def told(self, number: int) -> str:
        instance = self.member(number).instance
        assert instance is not None
        return instance.removed


@pytest.fixture
def operator() -> Iterator[Operator]:
    with World(3) as world:
        yield Operator(world)


def others(number: int) -> tuple[int, ...]:
    return tuple(each for each in (1, 2, 3) if each != number)


def test_a_removed_follower_serves_nothing_and_clients_go_on_with_another(operator: Operator) -> None:
    gone = operator.follower
    assert operator.change(MembersChange.REMOVE, gone).voters == list(others(gone))
    operator.wait(1)
    assert operator.told(gone) == REMOVED
    for local in (True, False):
        answer = operator.ask(lambda client, local=local: client.get(b"k", linearizable=not local), (gone,), only=True)
        assert isinstance(answer, Error) and REMOVED in str(answer)
    status = operator.ask(lambda client: client.status(), (gone,), only=True)
    assert status.removed == REMOVED
    found = operator.ask(lambda client: client.get(b"k"), (gone, *others(gone)))
    assert found.value == b"v"


def test_a_removed_leader_serves_nothing_and_another_leads(operator: Operator) -> None:
    gone = operator.leader
    operator.change(MembersChange.REMOVE, gone)
    operator.wait(2)
    assert operator.told(gone) == REMOVED
    assert operator.leader != gone
    assert operator.ask(lambda client: client.put(b"k", b"w"), others(gone)) > 1


def test_the_others_neither_dial_a_removed_member_nor_listen_to_it(operator: Operator) -> None:
    gone = operator.follower
    operator.change(MembersChange.REMOVE, gone)
    operator.wait(1)
    for number in others(gone):
        instance = operator.member(number).instance
        assert instance is not None
        assert gone not in instance.members.addresses and gone not in instance.host.links
    removed = operator.member(gone).instance
    assert removed is not None
    assert not [link for link in removed.host.links.values() if link.channel.connected]


def test_a_member_that_was_down_when_it_was_removed_is_told_when_it_returns(operator: Operator) -> None:
    gone = operator.follower
    operator.cluster.kill(operator.member(gone), True)
    operator.change(MembersChange.REMOVE, gone, others(gone))
    operator.wait(1)
    for number in others(gone):
        operator.cluster.kill(operator.member(number), True)
        operator.cluster.start(operator.member(number))
    operator.wait(1)
    operator.cluster.start(operator.member(gone))
    operator.wait(2)
    assert operator.told(gone) == REMOVED
    assert "removed from the cluster (member" in " ".join(text for _, _, text in operator.world.story)


def test_a_removed_newcomer_is_told_after_everybody_restarted(operator: Operator) -> None:
    newcomer = operator.cluster.new_member()
    operator.cluster.start(newcomer)
    operator.change(MembersChange.ADD_LEARNER, 4)
    operator.wait(2)
    assert operator.told(4) == ""
    operator.cluster.kill(newcomer, True)
    operator.change(MembersChange.REMOVE, 4)
    operator.wait(1)
    for number in (1, 2, 3):
        operator.cluster.kill(operator.member(number), True)
        operator.cluster.start(operator.member(number))
    operator.wait(2)
    operator.cluster.start(newcomer)
    operator.wait(2)
    assert operator.told(4) == REMOVED


def test_a_removed_member_knows_it_when_it_starts_alone(operator: Operator) -> None:
    gone = operator.leader
    operator.change(MembersChange.REMOVE, gone)
    operator.wait(1)
    for number in (1, 2, 3):
        operator.cluster.kill(operator.member(number), True)
    operator.cluster.start(operator.member(gone))
    operator.wait(1)
    assert operator.told(gone) == REMOVED


def test_an_open_watch_on_a_removed_member_goes_on_at_another(operator: Operator) -> None:
    gone = operator.follower
    seen: list[bytes] = []

    async def watch() -> None:
        client = await operator.connect((gone,))
        async for item in client.watch(b"w"):
            seen.extend(change.new.value for change in item.changes if change.new is not None)

    watching = operator.client.spawn(watch())
    operator.wait(1)
    operator.change(MembersChange.REMOVE, gone)
    operator.wait(1)
    operator.ask(lambda client: client.put(b"w", b"1"), others(gone))
    operator.wait(3)
    assert seen == [b"1"]
    watching.cancel()


def test_a_demoted_leader_steps_down_and_goes_on_receiving(operator: Operator) -> None:
    demoted = operator.leader
    answer = operator.change(MembersChange.DEMOTE, demoted)
    assert answer.learners == [demoted] and demoted not in answer.voters
    operator.wait(2)
    assert operator.leader != demoted
    operator.ask(lambda client: client.put(b"k", b"w"), others(demoted))
    operator.wait(1)
    assert operator.told(demoted) == ""
    found = operator.ask(lambda client: client.get(b"k", linearizable=False), (demoted,), only=True)
    assert found.value == b"w"
    operator.change(MembersChange.PROMOTE, demoted)
    operator.wait(1)
    assert operator.cluster.trouble() is None


def test_leadership_goes_to_whom_it_is_given(operator: Operator) -> None:
    heir = operator.follower
    operator.change(MembersChange.TRANSFER, heir)
    operator.wait(0.5)
    assert operator.leader == heir


def test_a_number_is_never_used_again_by_anyone(operator: Operator) -> None:
    gone = operator.follower
    operator.change(MembersChange.REMOVE, gone)
    operator.wait(1)
    assert isinstance(operator.change(MembersChange.ADD_LEARNER, gone, others(gone)), Error)
    newcomer = operator.cluster.new_member()
    operator.cluster.start(newcomer)
    operator.change(MembersChange.ADD_LEARNER, 4, others(gone))
    operator.wait(1)
    operator.change(MembersChange.REMOVE, 4, others(gone))
    operator.wait(1)
    assert isinstance(operator.change(MembersChange.ADD_LEARNER, 4, others(gone)), Error)


def test_a_member_that_was_away_can_answer_a_leader_it_has_never_heard_of(operator: Operator) -> None:
    """The cluster moved on to other members while it was down: only their hellos tell it where they are."""
    away = 3
    operator.cluster.kill(operator.member(away), True)
    known: tuple[int, ...] = (1, 2)
    for number in (4, 5):
        newcomer = operator.cluster.new_member()
        operator.cluster.start(newcomer)
        operator.change(MembersChange.ADD_LEARNER, number, known)
        operator.wait(2)
        operator.change(MembersChange.PROMOTE, number, known)
    operator.change(MembersChange.TRANSFER, 4, known)
    operator.wait(1)
    for number in (1, 2):
        assert number not in operator.change(MembersChange.REMOVE, number, (4, 5)).voters
        operator.wait(1)
        operator.cluster.kill(operator.member(number), True)
    assert operator.ask(lambda client: client.put(b"k", b"w"), (4, 5)) > 1
    operator.cluster.start(operator.member(away))
    operator.wait(4)
    assert operator.told(away) == ""
    found = operator.ask(lambda client: client.get(b"k", linearizable=False), (away,), only=True)
    assert found.value == b"w"
    assert operator.cluster.trouble() is None
