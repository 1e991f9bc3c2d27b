"""What is done about replicas that missed something, and are not read: their tablets come here, or leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.node.replicas.move_stage import OWN, TABLE, MoveStage, Views, code_of, merged_run, stage_copy
from tests.unit.node.replicas.shelves import model_disk

from trimtab.node.replicas.missed_writes import MissedWrites
from trimtab.tablets.selectors import Stage


class Noted:
    """Own misses, mending, and replicas to be compared, as far as they are looked at here."""

    def __init__(self, stage: MoveStage, *, enough: bool = True) -> None:
        self.misses: list[tuple[int, int]] = []
        self.mended: list[Any] = []
        self.enough = enough
        missed = self.missed = MissedWrites.__new__(MissedWrites)
        missed._own, missed._shelf, missed._tables = OWN, stage.shelf, stage.views.tables
        missed.own_misses = missed.mending = self  # type: ignore[assignment]
        missed._held = lambda replica, needs=0: replica  # type: ignore[assignment, method-assign, misc, return-value]

    def note(self, table: int, tablet: int) -> None:
        self.misses.append((table, tablet))

    async def mend_all(self, subjects: list[Any], *, gentle: bool) -> None:
        self.mended += subjects

    async def mend_now(self, subject: Any) -> bool:
        return self.enough


@pytest.mark.parametrize("adopted", [True, False])
def test_an_instance_that_is_marked_while_a_tablet_comes_here_makes_up_for_it_when_that_is_read(adopted: bool) -> None:
    """A coordinator lost its link to this one, sent a write to others, and died before its hint was synced. Its next
    life marks everybody, and forgets the mark as soon as it is told that all replicas are repaired.
    """

    async def story() -> None:
        disk, views = model_disk(), Views()
        views.move(stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        stage = await MoveStage(disk, views).start()
        assert code_of(await stage.prepare()) == ""
        views.move()
        if adopted:
            stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
            assert code_of(await stage.adopt()) == ""
        noted = Noted(stage)
        await noted.missed.repair_all("it is marked", gentle=True)
        assert stage.replica().was_away and noted.misses == [(TABLE, 0)]
        if adopted:
            assert code_of(await stage.adopt()) == "" and stage.mended == [stage.replica()]
            views.stage(Stage.WRITE_BOTH_READ_NEW)
            await noted.missed.repair_all("it is marked", gentle=True)
            assert noted.misses == [(TABLE, 0)] and noted.mended[-1] is stage.replica(), "it is read now"

    asyncio.run(story())


@pytest.mark.parametrize("enough", [True, False])
def test_what_arrived_and_could_ask_too_few_is_noted_to_have_missed_something(enough: bool) -> None:
    async def story() -> None:
        views = Views()
        views.move()
        stage = await MoveStage(model_disk(), views).start()
        await stage.life.ready()
        noted = Noted(stage, enough=enough)
        assert await noted.missed.mend_arrived(stage.replica()) is enough
        assert noted.misses == ([] if enough else [(TABLE, 0)])

    asyncio.run(story())
