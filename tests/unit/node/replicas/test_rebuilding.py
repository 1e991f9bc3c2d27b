"""Replicas that are brought up to enough of their peers: those that missed something, and those that lost all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.node.replicas.memory_replicas import MemoryReplica, Neighbours, narrow_table, put

from trimtab.node.replicas.mending import Hopeless, Mending
from trimtab.node.replicas.rebuilding import Rebuilding
from trimtab.sim.world import World

NARROW = narrow_table()


class Stage:
    """Replica 1 is this instance's; so many others hold the same tablet."""

    def __init__(self, count: int) -> None:
        self.around = Neighbours(NARROW, count)
        self.own = self.around.held[1]
        self.stories: list[str] = []
        self.defects: list[BaseException] = []
        self.mending = Mending(1, self.around.repair(), self.around, story=self.stories.append)
        self.ready = True
        self.rebuilding = Rebuilding(
            self.mending,
            lost=lambda: [] if self.own.answers else [self.own],
            ready=lambda: self.ready,
            story=self.stories.append,
            defect=self.defects.append,
        )

    def give(self, number: int, *raft_ids: int) -> None:
        for raft_id in raft_ids:
            self.around.held[raft_id].add(put(NARROW, number, f"v{number}", 1_000_000))

    @property
    def asked(self) -> set[int]:
        return {raft_id for raft_id, _ in self.around.asked}


def play(count: int, story: Callable[[Stage], Awaitable[Any]]) -> None:
    with World(1) as world:
        process = world.process("i1", "10.0.0.1")
        process.start()

        async def main() -> None:
            stage = Stage(count)
            try:
                await story(stage)
            finally:
                stage.rebuilding.stop()
            assert stage.defects == []

        world.run_until_done(process.spawn(main()), 10_000)


def test_an_intact_replica_of_three_needs_one_other() -> None:
    async def story(stage: Stage) -> None:
        stage.give(1, 2, 3)
        stage.around.down.add(2)
        await stage.mending.mend_all([stage.own], gentle=False)
        assert len(stage.own.pairs) == 1 and stage.asked == {3} and stage.mending.progress() == ""

    play(3, story)


def test_a_lost_replica_of_three_needs_both_others() -> None:
    """What it had acknowledged together with one of them may be on that one only."""

    async def story(stage: Stage) -> None:
        stage.give(1, 2)
        stage.give(2, 3)
        stage.own.answers = False
        stage.around.down.add(3)
        stage.rebuilding.start()
        await asyncio.sleep(30)
        assert stage.own.finished == 0 and "needs 2 of 2 other replicas" in stage.stories[-1]
        stage.around.down.clear()
        await asyncio.sleep(30)
        assert stage.own.answers and stage.own.finished == 1 and len(stage.own.pairs) == 2
        assert stage.rebuilding.rebuilt == 1 and "serves again" in stage.stories[-1]

    play(3, story)


def test_one_that_is_being_rebuilt_is_no_source_for_another() -> None:
    async def story(stage: Stage) -> None:
        stage.own.answers = False
        stage.around.held[2].answers = False
        stage.rebuilding.start()
        await asyncio.sleep(20)
        assert not stage.own.answers and "is being rebuilt here" in stage.stories[-1]

    play(3, story)


@pytest.mark.parametrize("count", [1, 2])
def test_without_enough_others_it_stays_damaged_and_says_what_to_do(count: int) -> None:
    """Of two, both acknowledge a quorum, so one other has everything; the only one has nobody."""

    async def story(stage: Stage) -> None:
        stage.own.answers = False
        stage.rebuilding.start()
        await asyncio.sleep(5)
        if count == 1:
            assert not stage.own.answers and "restore the table from a copy" in stage.stories[-1]
            assert list(stage.rebuilding.damaged()) == [stage.own.name]
            with pytest.raises(Hopeless):
                await stage.mending.mend(stage.own, intact=False, gentle=False)
        else:
            assert stage.own.answers

    play(count, story)


def test_of_two_replicas_one_that_was_away_asks_the_other_if_it_can_and_does_not_wait_for_it() -> None:
    async def story(stage: Stage) -> None:
        stage.give(1, 2)
        stage.around.down.add(2)
        await stage.mending.mend_all([stage.own], gentle=False)
        assert len(stage.own.pairs) == 0
        stage.around.down.clear()
        await stage.mending.mend_all([stage.own], gentle=False)
        assert len(stage.own.pairs) == 1

    play(2, story)


def test_an_intact_replica_does_not_wait_for_those_who_left_for_good() -> None:
    """Two of three were lost with the majority: what the third has is all there is, and it serves it."""

    async def story(stage: Stage) -> None:
        stage.around.lost.update((2, 3))
        await asyncio.wait_for(stage.mending.mend_all([stage.own], gentle=False), 5.0)
        assert stage.mending.progress() == "" and not stage.asked

    play(3, story)


@pytest.mark.parametrize(("down", "enough"), [({3}, True), ({2, 3}, False)])
def test_one_that_is_not_read_yet_is_repaired_against_a_read_quorum_of_those_who_are(
    down: set[int], enough: bool
) -> None:
    async def story(stage: Stage) -> None:
        stage.around.replicas = lambda _table, _tablet: (2, 3, 4)  # type: ignore[method-assign]
        stage.give(1, 2)
        stage.give(2, 4)
        stage.around.down |= down
        assert await stage.mending.mend_now(stage.own) is enough
        assert stage.asked == {2, 3, 4} - down and len(stage.own.pairs) == len(stage.asked)

    play(4, story)


def test_one_that_is_not_read_yet_does_not_wait_for_those_who_left_for_good() -> None:
    """The only other one died after it had been copied: what has arrived is all there is."""

    async def story(stage: Stage) -> None:
        stage.around.replicas = lambda _table, _tablet: (2,)  # type: ignore[method-assign]
        stage.around.down.add(2)
        assert not await stage.mending.mend_now(stage.own)
        stage.around.lost.add(2)
        assert await stage.mending.mend_now(stage.own)

    play(2, story)


def test_of_those_who_are_left_as_many_are_asked_as_there_can_be() -> None:
    async def story(stage: Stage) -> None:
        stage.give(1, 2)
        stage.around.lost.add(3)
        stage.around.down.add(2)
        mending = asyncio.ensure_future(stage.mending.mend_all([stage.own], gentle=False))
        await asyncio.sleep(30)
        assert not mending.done() and "needs 1 of 2 other replicas" in stage.mending.progress()
        stage.around.down.clear()
        await mending
        assert len(stage.own.pairs) == 1

    play(3, story)


def test_one_that_lost_its_data_is_not_made_of_too_few_because_others_left() -> None:
    """What to do then is an operator's decision."""

    async def story(stage: Stage) -> None:
        stage.give(1, 2)
        stage.own.answers = False
        stage.around.lost.add(3)
        stage.rebuilding.start()
        await asyncio.sleep(30)
        assert not stage.own.answers and "needs 2 of 2 other replicas" in stage.stories[-1]

    play(3, story)


def test_loads_that_only_those_had_who_left_are_hopeless() -> None:
    async def story(stage: Stage) -> None:
        stage.around.lost.update((2, 3))
        stage.own.needs = 7
        with pytest.raises(Hopeless, match="lacks loads up to epoch 7, and its 0 other replicas"):
            await asyncio.wait_for(stage.mending.mend(stage.own, intact=True, gentle=False), 5.0)

    play(3, story)


def test_a_replica_that_was_closed_meanwhile_is_left_alone() -> None:
    async def story(stage: Stage) -> None:
        stage.own.answers = False
        stage.around.down.update((2, 3))
        stage.rebuilding.start()
        await asyncio.sleep(2)
        stage.own.gone = True
        await asyncio.sleep(20)
        assert stage.own.finished == 0 and stage.rebuilding.current == ""

    play(3, story)


def test_many_replicas_are_repaired_and_what_is_lacking_is_told() -> None:
    async def story(stage: Stage) -> None:
        subjects = [MemoryReplica(NARROW) for _ in range(10)]
        stage.give(1, 2, 3)
        stage.around.unsynced.update((2, 3))
        task = asyncio.get_running_loop().create_task(stage.mending.mend_all(list(subjects), gentle=False))
        await asyncio.sleep(3)
        assert "0 of 10 replicas are repaired" in stage.mending.progress()
        assert "does not know the cluster's state yet" in stage.mending.progress()
        stage.around.unsynced.clear()
        await task
        assert all(len(each.pairs) == 1 for each in subjects) and stage.mending.progress() == ""

    play(3, story)
