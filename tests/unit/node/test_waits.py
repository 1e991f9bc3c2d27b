"""Waiting until something is so."""

from __future__ import annotations

import asyncio

import pytest

from trimtab.node.waits import WaitedTooLong, Waits


def test_a_wait_ends_when_somebody_says_that_something_changed() -> None:
    async def story() -> None:
        waits, seen = Waits(), [0]
        deadline = asyncio.get_running_loop().time() + 5
        waiting = asyncio.ensure_future(waits.until(lambda: seen[0] >= 2, deadline, "two"))
        await asyncio.sleep(0)
        for value in (1, 2):
            assert not waiting.done()
            seen[0] = value
            waits.look()
            await asyncio.sleep(0)
        await waiting
        assert len(waits) == 0

    asyncio.run(story())


def test_a_wait_in_vain_says_what_it_waited_for_and_is_forgotten() -> None:
    async def story() -> None:
        waits = Waits()
        with pytest.raises(WaitedTooLong, match="spring"):
            await waits.until(lambda: False, asyncio.get_running_loop().time(), "spring")
        assert len(waits) == 0

    asyncio.run(story())


def test_a_wait_that_is_given_up_is_forgotten() -> None:
    async def story() -> None:
        waits = Waits()
        waiting = asyncio.ensure_future(waits.until(lambda: False, asyncio.get_running_loop().time() + 5, "spring"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        waits.look()
        assert len(waits) == 0

    asyncio.run(story())
