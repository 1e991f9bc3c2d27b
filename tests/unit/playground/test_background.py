from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from trimtab.playground.background import Background, in_thread

WAIT_S = 50.0  # less than what would rest longest


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


async def nap(for_s: float) -> str:
    await asyncio.sleep(for_s)
    return "rested"


def test_what_is_done_elsewhere_gives_its_result_or_its_error(background: Background) -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert background.call(nap(0.01), WAIT_S) == "rested"
    with pytest.raises(ValueError, match="no"):
        background.call(fail(), WAIT_S)


def test_what_takes_too_long_is_cancelled(background: Background) -> None:
    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    with pytest.raises(TimeoutError):
        background.call(nap(60), 0.05)
    # Where the loop had no turn by then it has not so much as begun.
    background.call(nap(0.01), WAIT_S)
    assert background.call(others(), WAIT_S) == 0


def test_closing_ends_what_goes_on() -> None:
    background = Background()
    going = background.start(nap(60))
    background.close()
    assert going.done() and not background._thread.is_alive()


def test_work_in_a_thread_gives_its_result_or_its_error() -> None:
    assert in_thread(lambda: 7).result(WAIT_S) == 7
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0).result(WAIT_S)
