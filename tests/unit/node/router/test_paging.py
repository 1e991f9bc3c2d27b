"""Pages of a scan: at which epoch they are read, and what is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.node.router.stage import TABLE, play
from tests.unit.node.router.test_reads import users

from trimtab.loads.records import (
    SCAN_LIFE_MS,
    EpochRecord,
    LoadKind,
    LoadRecord,
    LoadState,
    encode,
    epoch_key,
    load_key,
)
from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.paging import Paging
from trimtab.node.router.shown import Shown
from trimtab.node.waits import Waits
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import RangeRows, ReplicaRead, RowsReply, ScanRequest
from trimtab.tablets.ring import MAX_TOKEN, MIN_TOKEN

NOW_MS = 1_700_000_000_000


class Desk:
    """Paging over replicas that hold `rows`, and what they were asked for."""

    def __init__(self) -> None:
        self.loads = LoadView()
        self.waits = Waits()
        self.asked: list[ReplicaRead] = []
        self.rows = RangeRows()
        self.shown = Shown(lambda: NOW_MS, 500)
        reads: Any = SimpleNamespace(begin=self._read)
        routes: Any = SimpleNamespace(stamp=lambda: (1, 1))
        unsettled = Unsettled(self.loads, lambda: NOW_MS)
        self.paging = Paging(reads, routes, self.loads, unsettled, self.waits, self.shown, lambda: NOW_MS)

    def _read(self, read: ReplicaRead, _deadline: float, done: Any) -> None:
        self.asked.append(read)
        done(None, [self.rows], False)

    async def scan(self, **asked: Any) -> RowsReply:
        request = ScanRequest(TABLE, 1, [1, 2], **asked)
        return await self.paging.scan(RowLayout(users()), request, asyncio.get_running_loop().time() + 5)


@pytest.mark.parametrize("token", [MIN_TOKEN - 1, -(10**30), MAX_TOKEN + 1])
@pytest.mark.parametrize("end", ["first_token", "last_token"])
def test_a_token_that_is_none_is_refused_as_invalid(token: int, end: str) -> None:
    async def story() -> None:
        with pytest.raises(Refused, match="a token is a whole number of 64 bits") as refused:
            await Desk().scan(**{end: token})
        assert refused.value.code == "invalid"
        await Desk().scan(first_token=MIN_TOKEN, last_token=MAX_TOKEN)

    play(story)


def test_a_scan_as_of_a_time_judges_what_has_expired_by_that_time() -> None:
    async def story() -> None:
        desk = Desk()
        for as_of_us in (0, (NOW_MS - 5_000) * 1000, (NOW_MS + 5_000) * 1000):
            await desk.scan(as_of_us=as_of_us)
        assert sorted({read.now_s - NOW_MS // 1000 for read in desk.asked}) == [-5, 0]

    play(story)


def loads_at(desk: Desk, visible: int, published_ms: int) -> None:
    """Loads 1 to `visible` are published, the last one at this time."""
    desk.loads.change(epoch_key(TABLE), encode(EpochRecord(visible, visible)), visible)
    for epoch in range(1, visible + 1):
        record = LoadRecord(f"load-{epoch}", TABLE, LoadKind.APPEND, LoadState.PUBLISHED, epoch * 1000 - 1, epoch=epoch)
        desk.loads.change(load_key(TABLE, record.id), encode(replace(record, published_ms=published_ms)), epoch)
    desk.waits.look()


def test_a_scan_says_its_epoch_and_another_part_of_it_is_read_at_the_same() -> None:
    async def story() -> None:
        desk = Desk()
        loads_at(desk, 1, NOW_MS)
        assert (await desk.scan(last_token=0)).epoch == 1
        loads_at(desk, 2, NOW_MS)
        assert (await desk.scan(first_token=0, epoch=1)).epoch == 1
        assert (await desk.scan(first_token=0)).epoch == 2
        assert [each.epoch for each in desk.asked] == [1, 1, 2]

    play(story)


def test_an_epoch_that_is_not_known_here_yet_is_waited_for() -> None:
    async def story() -> None:
        desk = Desk()
        loads_at(desk, 1, NOW_MS)
        asyncio.get_running_loop().call_later(1.0, loads_at, desk, 2, NOW_MS)
        assert (await desk.scan(epoch=2)).epoch == 2
        with pytest.raises(Refused, match="epoch 3 of table 7") as refused:
            await desk.scan(epoch=3)
        assert refused.value.code == "read_timeout"

    play(story)


def test_an_epoch_that_was_the_newest_too_long_ago_is_refused() -> None:
    async def story() -> None:
        desk = Desk()
        loads_at(desk, 2, NOW_MS - SCAN_LIFE_MS)
        with pytest.raises(Refused, match="begin the scan again") as refused:
            await desk.scan(epoch=1)
        assert refused.value.code == "invalid" and desk.asked == []

    play(story)
