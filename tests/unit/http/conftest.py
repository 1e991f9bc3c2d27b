"""Stories of this folder run on the loop that an instance runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop


@pytest.fixture
def play() -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(story: Callable[[], Awaitable[None]]) -> None:
        problems: list[str] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: problems.append(str(context)))
            async with asyncio.timeout(30):
                await story()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
        assert problems == [], "nothing may reach the loop's exception handler"

    return run
