"""Reads as of a time: not before it is over for every clock, and of no time that is to come; and columns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.node.router.stage import TABLE, play
from tests.unit.node.router.test_reads import big, users

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router.executor import Executor
from trimtab.node.router.stamping import Stamping
from trimtab.node.waits import Waits
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import (
    BatchRequest,
    DeleteRequest,
    GetRequest,
    PutRequest,
    RowsReply,
    ScanRequest,
    SliceRequest,
)
from trimtab.tablets.clock import HybridClock

START_MS = 1_700_000_000_000
REQUESTS = [
    GetRequest(TABLE, 1, [[big(1)]], [2]),
    SliceRequest(TABLE, 1, [big(1)], [2]),
    ScanRequest(TABLE, 1, [2]),
    ScanRequest(TABLE, 1, [2], page=b"state"),
]


class Desk:
    """An executor whose reads are answered at once; when they were, after the start."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._begin = loop.time()
        self._loop = loop
        self.read_ms: list[int] = []
        nothing: Any = SimpleNamespace(raft_id=1)
        schemas: Any = SimpleNamespace(asked=lambda *_: RowLayout(users()))
        gets: Any = SimpleNamespace(begin=self._get)
        paging: Any = SimpleNamespace(slice=self._page, scan=self._page)
        stamping = Stamping(HybridClock(500), self._now_ms)
        self.executor = Executor(
            schemas,
            LoadView(),
            nothing,
            nothing,
            gets,
            paging,
            stamping,
            Waits(),
            limit_bytes=1 << 20,
            complain=pytest.fail,
        )

    def _now_ms(self) -> int:
        return START_MS + self._passed_ms()

    def _passed_ms(self) -> int:
        return int((self._loop.time() - self._begin) * 1000)

    def _get(self, _layout: Any, _request: Any, _deadline: float, done: Any) -> None:
        self.read_ms.append(self._passed_ms())
        done(RowsReply([]))

    async def _page(self, *_: Any) -> RowsReply:
        self.read_ms.append(self._passed_ms())
        return RowsReply([])

    async def ask(self, request: Any, as_of_ms: int, timeout_s: float = 5.0) -> int:
        """When it was read, as of so long after the start."""
        asked = replace(request, as_of_us=(START_MS + as_of_ms) * 1000)
        await self.executor.ask(asked, self._loop.time() + timeout_s)
        return self.read_ms[-1]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_time_that_a_slower_clock_may_still_stamp_is_waited_for(request_: Any) -> None:
    async def story() -> None:
        assert await Desk().ask(request_, -500) == 0
        assert 400 <= await Desk().ask(request_, -100) <= 402
        assert 900 <= await Desk().ask(request_, 400) <= 902

    play(story)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_time_that_is_to_come_is_refused(request_: Any) -> None:
    async def story() -> None:
        desk = Desk()
        for as_of_ms in (501, 60_000, 10**15):
            with pytest.raises(Refused, match=f"{as_of_ms} ms ahead of this instance's clock") as refused:
                await desk.ask(request_, as_of_ms)
            assert refused.value.code == "invalid"
        assert desk.read_ms == []

    play(story)


def test_who_has_no_time_to_wait_for_it_is_told_at_once() -> None:
    async def story() -> None:
        desk = Desk()
        with pytest.raises(Refused, match="in 500 ms, when no clock of the cluster is before it") as refused:
            await desk.ask(REQUESTS[0], 0, timeout_s=0.2)
        assert refused.value.code == "read_timeout" and desk._passed_ms() == 0

    play(story)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_columns_are_read_once_each_and_no_more_than_there_are(request_: Any) -> None:
    """A small message with 20,000 names of one column was answered with 30 MB."""

    async def story() -> None:
        desk = Desk()
        for columns, why in (
            ([1, 2, 3], "3 columns are named, and the table has 2"),
            ([2, 2], "column name is named twice"),
            ([2] * 20_000, "20000 columns are named"),
        ):
            with pytest.raises(Refused, match=why) as refused:
                await desk.executor.ask(replace(request_, columns=columns), desk._loop.time() + 5)
            assert refused.value.code == "invalid"
        assert desk.read_ms == []
        for columns in ([], [2], [2, 1]):
            await desk.executor.ask(replace(request_, columns=columns), desk._loop.time() + 5)

    play(story)


def test_a_write_names_no_more_columns_than_there_are() -> None:
    """Which one of a hundred thousand is named twice took minutes to find."""

    async def story() -> None:
        desk = Desk()
        put = PutRequest(TABLE, 1, [*range(100_000), 99_999], [[]])
        for write in (put, BatchRequest([put])):
            with pytest.raises(Refused, match="100001 columns are named, and the table has 2"):
                await desk.executor.ask(write, desk._loop.time() + 5)
        delete = DeleteRequest(TABLE, 1, [big(1)], columns=[2] * 100_000)
        with pytest.raises(Refused, match="named twice"):
            await desk.executor.ask(delete, desk._loop.time() + 5)

    play(story)
