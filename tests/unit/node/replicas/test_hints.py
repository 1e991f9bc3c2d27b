"""Writes that a replica missed: kept, pushed, bounded, marked. On virtual time, over the model of a disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.net.errors import NotConnected
from trimtab.node.replicas.hints import PREFIX, HintBounds, Hints
from trimtab.rows import protocol
from trimtab.rows.protocol import Failed, ReplicaWrite, ReplicaWritten, WriteKind
from trimtab.sim.world import World
from trimtab.storage.model import ModelDisk
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.node_log import NodeLog

LIFE_MS = 10_000


class Coordinator:
    """Instance 1 and its disk; instances 2 and 3 are replicas that do what they are told."""

    def __init__(self, world: World, bounds: HintBounds) -> None:
        self.world = world
        self.bounds = bounds
        self.disk = ModelDisk(
            lambda s, call: asyncio.get_running_loop().call_later(s, call), sync_latency=lambda: 0.005
        )
        self.members = {2, 3}
        self.up: set[int] = set()
        self.tables = {7, 8}
        self.refusing: dict[int, Failed] = {}
        self.got: list[tuple[int, ReplicaWrite]] = []
        self.parcels = 0
        self.stories: list[str] = []
        self.defects: list[BaseException] = []
        self.life = 0
        self.start()

    def start(self) -> None:
        self.life += 1
        self.log = NodeLog.open(self.disk)
        loop = asyncio.get_running_loop()
        self.mutations = MutationLog.open(
            self.log, new_id=lambda: 5, call_soon=loop.call_soon, fatal=self.defects.append
        )
        self.hints = Hints(
            self.mutations.records(PREFIX),
            self,
            self.bounds,
            life=self.life,
            story=self.stories.append,
            defect=self.defects.append,
        )
        self.unclean = self.hints.open(self.members)
        self.hints.start()

    def restart(self) -> None:
        """As after kill -9: what was handed to the operating system is still there."""
        self.hints.stop()
        self.mutations.close()
        self.log.close()
        self.start()

    def lose_power(self) -> None:
        self.hints.stop()
        self.mutations.close()
        self.log.close()
        self.disk.crash(random.Random(1))
        self.start()

    # Surroundings

    def wall_ms(self) -> int:
        return 1_000_000 + int(self.world.now * 1000)

    def is_member(self, raft_id: int) -> bool:
        return raft_id in self.members

    def takes_writes(self, raft_id: int) -> bool:
        return raft_id in self.up & self.members

    def settled(self) -> bool:
        return True

    def has_table(self, table: int) -> bool:
        return table in self.tables

    def versions(self) -> tuple[int, int]:
        return 3, 4

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(0.001)
        if raft_id not in self.up:
            raise NotConnected("it is down")
        assert method == protocol.REPLICA_WRITE
        writes = protocol.decode_replica_writes(body)
        assert (writes.topology, writes.catalog) == (3, 4)
        self.parcels += 1
        results = []
        for write in writes.writes:
            refusal = self.refusing.get(write.table)
            results.append(refusal)
            if refusal is None:
                self.got.append((raft_id, write))
        return protocol.encode(ReplicaWritten(results))

    def write(self, number: int, table: int = 7, size: int = 20) -> ReplicaWrite:
        return ReplicaWrite(table, 0, [b"%08d" % number, b"v" * size], self.wall_ms())

    def keys(self) -> list[int]:
        return [int(write.pairs[0]) for _, write in self.got]


def play(story: Callable[[Coordinator], Awaitable[Any]], bounds: HintBounds | None = None) -> None:
    with World(1) as world:
        process = world.process("i1", "10.0.0.1")
        process.start()

        async def main() -> None:
            coordinator = Coordinator(world, bounds or HintBounds(life_ms=LIFE_MS))
            await story(coordinator)
            coordinator.hints.stop()
            assert coordinator.defects == []

        world.run_until_done(process.spawn(main()), 10_000)


def test_hints_wait_for_the_target_and_reach_it_in_order() -> None:
    async def story(it: Coordinator) -> None:
        for number in range(2_500):
            it.hints.add(2, it.write(number))
        await asyncio.sleep(1)
        assert it.got == [] and it.hints.held_for(2)[0] == 2_500
        it.up.add(2)
        it.hints.wake(2)
        await it.hints.emptied(2, 5.0)
        assert it.keys() == list(range(2_500)) and it.parcels == 3
        assert {write.kind for _, write in it.got} == {WriteKind.HINT}
        assert it.hints.held_for(2) == (0, 0) and it.hints.oldest_ms() is None

    play(story)


def test_hints_survive_a_restart_and_a_clean_one_marks_nobody() -> None:
    async def story(it: Coordinator) -> None:
        for number in range(10):
            it.hints.add(2, it.write(number))
        await it.hints.close(clean=True)
        it.restart()
        assert not it.unclean and it.hints.marked() == []
        assert it.hints.held_for(2)[0] == 10
        it.up.add(2)
        it.hints.wake(2)
        await it.hints.emptied(2, 5.0)
        assert it.keys() == list(range(10))

    play(story)


def test_an_unclean_end_marks_every_other_member() -> None:
    async def story(it: Coordinator) -> None:
        await it.hints.sync()
        it.hints.add(2, it.write(1))
        it.lose_power()
        assert it.unclean and it.hints.marked() == [2, 3]
        since_ms, name = it.hints.mark_of(3)
        assert since_ms and name[0] == it.life
        await it.hints.close(clean=True)
        it.restart()
        assert it.hints.marked() == [2, 3], "the marks stay until the targets are repaired"

    play(story)


def test_too_many_hints_become_a_mark() -> None:
    async def story(it: Coordinator) -> None:
        for number in range(25):
            it.hints.add(2, it.write(number))
        assert it.hints.marked() == [2] and it.hints.held_for(2)[0] == 0
        assert "was away for too long" in it.stories[0]
        # While it is away nothing more is kept, and the mark knows that more was missed.
        before = it.hints.mark_of(2)[1]
        it.hints.add(2, it.write(100))
        assert it.hints.mark_of(2)[1] != before and it.hints.held_for(2)[0] == 0
        # Back, but not repaired yet: what it does not acknowledge is kept again.
        it.up.add(2)
        it.refusing[7] = Failed("overloaded", "not now")
        it.hints.add(2, it.write(101))
        assert it.hints.held_for(2)[0] == 1

    play(story, HintBounds(count=20))


def test_too_many_bytes_become_a_mark() -> None:
    async def story(it: Coordinator) -> None:
        it.hints.add(2, it.write(1, size=900))
        assert it.hints.marked() == []
        it.hints.add(2, it.write(2, size=900))
        assert it.hints.marked() == [2]

    play(story, HintBounds(bytes=1_500))


def test_a_mark_goes_only_if_nothing_was_missed_since_it_was_told() -> None:
    async def story(it: Coordinator) -> None:
        it.hints.add(2, it.write(1))
        it.hints.add(2, it.write(2))
        _, name = it.hints.mark_of(2)
        it.hints.add(2, it.write(3))
        assert not it.hints.clear_mark(2, name)
        _, name = it.hints.mark_of(2)
        assert it.hints.clear_mark(2, name) and it.hints.marked() == []
        await it.hints.close(clean=True)
        it.restart()
        assert it.hints.marked() == []

    play(story, HintBounds(count=1))


def test_the_name_of_a_mark_does_not_outlive_the_life_that_told_it() -> None:
    async def story(it: Coordinator) -> None:
        await it.hints.sync()
        it.restart()
        _, name = it.hints.mark_of(2)
        await it.hints.sync()
        it.restart()
        assert not it.hints.clear_mark(2, name)

    play(story)


def test_old_hints_become_a_mark() -> None:
    async def story(it: Coordinator) -> None:
        it.hints.add(2, it.write(1))
        await asyncio.sleep(8)
        it.hints.add(2, it.write(2))
        await asyncio.sleep(5)
        assert it.hints.held_for(2)[0] == 1 and it.hints.mark_of(2)[0] == 1_000_000
        it.up.add(2)
        it.hints.wake(2)
        await it.hints.emptied(2, 5.0)
        assert it.keys() == [2]

    play(story)


def test_hints_of_a_dropped_table_and_for_one_that_left_are_discarded() -> None:
    async def story(it: Coordinator) -> None:
        it.hints.add(2, it.write(1, table=8))
        it.hints.add(2, it.write(2))
        it.hints.add(3, it.write(3))
        it.tables.discard(8)
        it.members.discard(3)
        it.up.update((2, 3))
        await asyncio.sleep(5)
        assert it.keys() == [2] and it.hints.held_count == 0 and it.hints.marked() == []
        it.hints.add(3, it.write(4))
        assert it.hints.held_count == 0

    play(story)


def test_what_a_target_refuses_for_now_is_pushed_again() -> None:
    async def story(it: Coordinator) -> None:
        it.up.add(2)
        it.refusing[7] = Failed("overloaded", "not now")
        it.hints.add(2, it.write(1))
        it.hints.add(2, it.write(2, table=8))
        await asyncio.sleep(1)
        assert it.keys() == [2] and it.hints.held_for(2)[0] == 1
        del it.refusing[7]
        await it.hints.emptied(2, 10.0)
        assert it.keys() == [2, 1]

    play(story)


def test_hints_for_a_replica_that_has_moved_away_are_dropped_and_owed_to_nobody() -> None:
    async def story(it: Coordinator) -> None:
        it.up.add(2)
        it.refusing[7] = Failed("not_here", "instance 2 holds no replica of tablet 0 of table 7")
        it.hints.add(2, it.write(1))
        it.hints.add(2, it.write(2, table=8))
        await it.hints.emptied(2, 10.0)
        assert it.keys() == [2], "what it still holds it gets"
        assert it.hints.held_for(2) == (0, 0) and it.hints.marked() == []

    play(story)


def test_what_a_target_refuses_for_good_is_a_mark_and_keeps_nobody_waiting() -> None:
    async def story(it: Coordinator) -> None:
        it.up.add(2)
        it.refusing[8] = Failed("too_late", "it is too old")
        it.hints.add(2, it.write(1, table=8))
        it.hints.add(2, it.write(2))
        await it.hints.emptied(2, 10.0)
        assert it.keys() == [2] and it.hints.marked() == [2]

    play(story)


@pytest.mark.parametrize("room", [True, False])
def test_a_write_at_any_is_told_whether_its_hint_is_durable(room: bool) -> None:
    async def story(it: Coordinator) -> None:
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not room:
            it.hints.add(2, it.write(0))
        it.hints.add(2, it.write(1), told.set_result)
        assert not told.done()
        assert await told is room
        if room:
            it.lose_power()
            assert it.hints.held_for(2)[0] == 1

    play(story, HintBounds(count=1))


def test_a_full_disk_leaves_a_mark_in_place_of_the_hint() -> None:
    async def story(it: Coordinator) -> None:
        await it.hints.sync()
        it.disk.full = True
        it.hints.add(2, it.write(1))
        await asyncio.sleep(0.1)
        assert it.hints.held_for(2) == (0, 0) and it.hints.marked() == [2]
        it.disk.full = False

    play(story)
