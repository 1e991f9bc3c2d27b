"""One timer for everything that is under way."""

from __future__ import annotations

import asyncio

from tests.unit.node.router.stage import play

from trimtab.node.router.deadlines import SLOT_S, Deadlines


def test_each_is_called_once_within_a_slot_of_its_time() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        called: list[tuple[str, float]] = []
        deadlines = Deadlines()
        began = loop.time()
        for name, after_s in (("late", 0.5), ("soon", 0.1), ("taken back", 0.3)):
            ticket = deadlines.add(began + after_s, lambda name=name: called.append((name, loop.time() - began)))  # type: ignore[misc]
        deadlines.cancel(ticket)
        deadlines.cancel(ticket)
        await asyncio.sleep(1)
        assert len(deadlines) == 0
        assert [name for name, _ in called] == ["soon", "late"]
        for (_, at), wanted in zip(called, (0.1, 0.5), strict=True):
            assert wanted - SLOT_S <= at <= wanted + SLOT_S

    play(story)


def test_nothing_is_called_after_the_end() -> None:
    async def story() -> None:
        called: list[int] = []
        deadlines = Deadlines()
        deadlines.add(asyncio.get_running_loop().time() + 0.1, lambda: called.append(1))
        deadlines.close()
        await asyncio.sleep(1)
        assert called == []

    play(story)
