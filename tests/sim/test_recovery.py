"""Recovery from a lost majority: one survivor's directory becomes a cluster of one, and nothing in its log is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.node import recovery
from trimtab.node.settings import Limits, SettingsError, Timing
from trimtab.sim.cluster import GENESIS, SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import World
from trimtab.storage.model import ModelDisk


class Ruin:
    """Three members, of which a majority is lost for good, and an operator."""

    def __init__(self, world: World) -> None:
        self.world = world
        plan = dataclasses.replace(draw(1, "calm"), members=3, limits=Limits(), timing=Timing(tick_ms=20))
        self.cluster = SimCluster(world, plan)
        self._client = world.process("client", "10.0.1.1")
        self._client.start()

    def start(self, *members: int) -> None:
        for member in members:
            self.cluster.start(self.cluster.members[member])
        self.world.run(self.world.now + 2)

    def kill(self, *members: int) -> None:
        for member in members:
            self.cluster.kill(self.cluster.members[member], True)

    def disk(self, member: int) -> ModelDisk:
        return self.cluster.members[member].disk.model

    def operator(self, member: int, work: Callable[[ModelDisk], Awaitable[Any]]) -> Any:
        """Run something on the machine of a stopped member."""
        # The members' own invariants end here: an operator who overrules Raft breaks them knowingly.
        self.world.after_event = None
        process = self.cluster.members[member].process
        process.start()

        async def run() -> Any:
            return await work(self.disk(member))

        try:
            return self.world.run_until_done(process.spawn(run()), self.world.now + 60)
        finally:
            process.kill()

    def recover(self, member: int) -> recovery.Recovered:
        rng = self.world.rng("operator")
        done = self.operator(member, lambda disk: recovery.recover(disk, rng, 1_700_000_000_000))
        assert isinstance(done, recovery.Recovered)
        return done

    def ask(self, work: Callable[[MetastoreClient], Awaitable[Any]], *members: int) -> Any:
        async def run() -> Any:
            addresses = [self.cluster.members[member].address for member in members]
            client = await MetastoreClient.connect(
                addresses,
                rng=self.world.rng("client"),
                wall_ms=self._client.wall_ms,
                timeout_s=5,
                follow_leader=False,
            )
            try:
                return await work(client)
            finally:
                await client.close()

        return self.world.run_until_done(self._client.spawn(run()), self.world.now + 60)


@pytest.fixture
def ruin() -> Iterator[Ruin]:
    with World(3) as world:
        yield Ruin(world)


def test_a_lone_survivor_has_all_it_acknowledged_and_goes_on_alone(ruin: Ruin) -> None:
    ruin.start(1, 2, 3)
    for number in range(20):
        ruin.ask(lambda client, n=number: client.put(b"k%d" % n, b"%d" % n), 1, 2, 3)
    ruin.kill(1, 2, 3)
    found = ruin.operator(3, recovery.survey)
    assert found.voters == (1, 2, 3)
    done = ruin.recover(3)
    assert done.raft_id == 3
    ruin.start(3)
    for number in range(20):
        assert ruin.ask(lambda client, n=number: client.get(b"k%d" % n), 3).value == b"%d" % number
    ruin.ask(lambda client: client.put(b"after", b"1"), 3)
    status = ruin.ask(lambda client: client.status(), 3)
    assert [member.raft_id for member in status.members] == [3]


def test_an_entry_that_only_the_survivor_holds_is_kept_because_it_may_have_been_acknowledged(ruin: Ruin) -> None:
    """3 gets the append and dies before it hears that it is committed. 1 and 2, who know, are lost."""
    ruin.start(1, 2, 3)
    ruin.ask(lambda client: client.put(b"w", b"1"), 1, 2, 3)
    ruin.kill(3, 1, 2)
    before = ruin.operator(3, recovery.survey)
    done = ruin.recover(3)
    assert done.uncommitted_entries == before.last_index - before.committed
    ruin.start(3)
    assert ruin.ask(lambda client: client.get(b"w"), 3).value == b"1"


def test_the_lost_members_are_strangers_when_they_come_back(ruin: Ruin) -> None:
    """1 and 2 return with the old cluster in their directories: a majority of it, but not of the recovered one."""
    ruin.start(1, 2, 3)
    ruin.ask(lambda client: client.put(b"w", b"old"), 1, 2, 3)
    ruin.kill(1, 2, 3)
    ruin.recover(3)
    ruin.start(3)
    ruin.ask(lambda client: client.put(b"w", b"new"), 3)
    ruin.start(1)
    assert ruin.ask(lambda client: client.get(b"w"), 3).value == b"new"
    with pytest.raises(Error):
        # Alone it is no majority of the old cluster, and the recovered one does not listen to it.
        ruin.ask(lambda client: client.put(b"w", b"from the past"), 1)


def test_a_lost_member_that_comes_back_is_told_what_to_do_in_its_own_log(ruin: Ruin) -> None:
    said: dict[int, list[str]] = {1: [], 3: []}
    ruin.cluster._instance_says = lambda member, line: said[member.raft_id].append(line)  # type: ignore[method-assign]
    ruin.start(1, 3)
    ruin.kill(1, 3)
    ruin.recover(3)
    ruin.start(3, 1)
    for lines in said.values():
        assert any("if one was recovered (`trimtab recover`), start the others with empty" in line for line in lines)


@pytest.mark.parametrize("writes_before_the_crash", range(1, 5))
def test_a_recovery_that_is_interrupted_is_run_again(ruin: Ruin, writes_before_the_crash: int) -> None:
    ruin.start(1, 2, 3)
    ruin.ask(lambda client: client.put(b"w", b"1"), 1, 2, 3)
    ruin.kill(1, 2, 3)

    async def cut_short(disk: ModelDisk) -> None:
        left = [writes_before_the_crash]

        class Crash(BaseException):
            pass

        store_open = disk.open
        write_file = disk.write_file

        def counted(work: Any) -> Any:
            def run(*arguments: Any, **options: Any) -> Any:
                if not left[0]:
                    raise Crash
                left[0] -= 1
                return work(*arguments, **options)

            return run

        def opened(*arguments: Any, **options: Any) -> Any:
            store = store_open(*arguments, **options)
            store.write = counted(store.write)
            return store

        disk.open = opened  # type: ignore[method-assign]
        disk.write_file = counted(write_file)  # type: ignore[method-assign]
        try:
            await recovery.recover(disk, ruin.world.rng("first try"), 1_700_000_000_000)
        except Crash:
            pass
        finally:
            disk.open, disk.write_file = store_open, write_file  # type: ignore[method-assign]

    ruin.operator(2, cut_short)
    ruin.cluster.members[2].disk.died(power=True)
    found = ruin.operator(2, recovery.survey)
    assert found.identity.recovering, "nobody may start what is half done"
    assert found.genesis == GENESIS, "it is the old members that must not be there"
    ruin.recover(2)
    ruin.start(2)
    assert ruin.ask(lambda client: client.get(b"w"), 2).value == b"1"
    status = ruin.ask(lambda client: client.status(), 2)
    assert [member.raft_id for member in status.members] == [2]


def test_an_empty_directory_is_nothing_to_recover_from(ruin: Ruin) -> None:
    with pytest.raises(SettingsError, match="empty"):
        ruin.recover(1)
