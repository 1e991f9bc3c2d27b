"""The API keeps the promises of its OpenAPI description, tried by schemathesis over a real connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop
from tests.unit.http.doors import door
from tests.unit.http.strangers import try_everything


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_valid_and_invalid_requests_are_answered_as_described(tmp_path: Path) -> None:
    async def story() -> None:
        async with door() as opened:
            await try_everything(str(opened.client.base_url).rstrip("/"), tmp_path, examples=15, seed=3)
            assert opened.told == [], "no defect was met"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
