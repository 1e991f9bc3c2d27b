"""Every story of this folder that has a socket in it is played on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=sorted(LOOPS))
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(story: Callable[[], Awaitable[None]]) -> None:
        problems: list[str] = []

        def note(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            if "never retrieved" not in str(context["message"]):  # a call that a story makes and forgets
                problems.append(str(context))

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(note)
            async with asyncio.timeout(90):
                await story()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main())
        assert problems == [], "nothing may reach the loop's exception handler"

    return run
