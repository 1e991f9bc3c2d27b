"""What an own replica did not take of a write that others took: it is repaired when it can be, and not forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.node.router.stage import play

from trimtab.node.replicas.mending import Hopeless
from trimtab.node.replicas.own_misses import SETTLE_S, OwnMisses


class Mender:
    def __init__(self) -> None:
        self.mended: list[Any] = []
        self.while_mending: Any = None
        self.hopeless = False

    async def mend(self, subject: Any, *, intact: bool, gentle: bool) -> bool:
        assert intact and gentle
        self.mended.append(subject)
        if self.hopeless:
            raise Hopeless("nobody else has it")
        if self.while_mending is not None:
            meanwhile, self.while_mending = self.while_mending, None
            meanwhile()
        await asyncio.sleep(0.01)
        return True


def test_each_tablet_that_missed_something_is_repaired_once_and_again_if_it_misses_more_meanwhile() -> None:
    async def story() -> None:
        mender: Any = Mender()
        ready = False
        misses = OwnMisses(mender, lambda table, tablet: (table, tablet), ready=lambda: ready, defect=_raise)  # type: ignore[arg-type, return-value]
        for _ in range(5):
            misses.note(1, 0)
        misses.note(1, 3)
        await asyncio.sleep(2 * SETTLE_S)
        assert mender.mended == [] and len(misses) == 2  # it does not know the cluster yet
        ready = True
        mender.while_mending = lambda: misses.note(1, 0)
        await asyncio.sleep(3 * SETTLE_S)
        assert mender.mended == [(1, 0), (1, 3), (1, 0)]
        assert len(misses) == 0 and misses.noted == 7 and misses.mended == 3
        misses.note(2, 0)
        await asyncio.sleep(2 * SETTLE_S)
        assert mender.mended[-1] == (2, 0)
        misses.stop()

    play(story)


def test_a_replica_that_is_on_the_move_is_repaired_when_it_has_arrived() -> None:
    async def story() -> None:
        mender: Any = Mender()
        moving = True
        misses = OwnMisses(
            mender,
            lambda table, tablet: (table, tablet),  # type: ignore[arg-type, return-value]
            waits=lambda _table, _tablet: moving,
            ready=lambda: True,
            defect=_raise,
        )
        misses.note(1, 0)
        await asyncio.sleep(3 * SETTLE_S)
        assert mender.mended == [] and len(misses) == 1
        moving = False
        await asyncio.sleep(2 * SETTLE_S)
        assert mender.mended == [(1, 0)] and len(misses) == 0
        misses.stop()

    play(story)


def test_replicas_that_are_gone_or_alone_are_not_waited_for() -> None:
    async def story() -> None:
        mender: Any = Mender()
        mender.hopeless = True
        misses = OwnMisses(
            mender,
            lambda table, tablet: None if table == 9 else (table, tablet),  # type: ignore[arg-type, return-value]
            ready=lambda: True,
            defect=_raise,
        )
        misses.note(9, 0)
        misses.note(1, 0)
        await asyncio.sleep(2 * SETTLE_S)
        assert mender.mended == [(1, 0)] and len(misses) == 0

    play(story)


def _raise(error: BaseException) -> None:
    raise error
