from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from trimtab.playground.demo import Outcome
from trimtab.playground.writing import WAIT_S, Writing, row_of

GOOD = Outcome(
    acknowledged=100,
    while_away=50,
    unknown=0,
    lost=0,
    missing=0,
    formed_ms=3000,
    interruption_ms=15,
    marked_offline_ms=6000,
    returned_ms=1500,
    killed="i1",
    leader_before="i1",
    leader_after="i2",
    seconds=8.0,
)


def test_the_longest_silence_begins_with_the_kill_itself() -> None:
    writing = Writing(times=[1.0, 2.0, 2.1, 3.5, 3.6])
    assert writing.longest_silence_s(since=2.05) == pytest.approx(1.4)
    assert writing.longest_silence_s(since=0.0) == pytest.approx(1.4)


def test_a_service_that_never_came_back_counts_as_the_whole_wait() -> None:
    assert Writing(times=[1.0]).longest_silence_s(since=2.0) == WAIT_S


def test_a_row_that_is_lost_or_missing_on_who_was_away_makes_it_a_failure() -> None:
    assert GOOD.good
    assert not dataclasses.replace(GOOD, lost=1).good
    assert not dataclasses.replace(GOOD, missing=1).good


def test_a_row_that_is_not_what_was_written_counts_as_lost() -> None:
    class Found:
        async def scan(self) -> AsyncIterator[dict[str, Any]]:
            yield row_of(1)
            yield row_of(2) | {"total": 0.0}
            yield row_of(4)

    table: Any = Found()
    assert asyncio.run(Writing(acknowledged={1, 2, 3}).lost(table)) == 2
