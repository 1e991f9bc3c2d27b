"""Slices and scans, page by page.

A page ends after so many rows, so many bytes, or when its time is nearly over; it may be shorter than asked for, and
empty, and is the last one only if it says nothing about where to go on. What a replica returns for a range may end
early (because of deletions, say, or because another one has less of it): then the range goes on from there, so that no
row is left out and none comes twice.

All pages are read at the epoch of the first one (see `epochs`), so that rows of a load that is published meanwhile come
in none of them. An epoch can be read for a while after it was the newest; then the scan has to begin again. The parts
of a scan that different instances are asked for are pages of it too: who asks says the epoch of the first.

A scan goes from tablet to tablet in the order of tokens. While tablets turn out to hold little, several are asked at
the same time, and their rows are still given in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.large_rows import AROUND_BYTES, MAX_ANSWER_BYTES, cell_bytes, refusal_at
from trimtab.node.router.pages import seal, shape_of, unseal
from trimtab.node.router.reads import Reads
from trimtab.node.router.routes import Routes
from trimtab.node.router.shown import Shown
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows.keys import after, partition_prefix, slice_bounds
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import (
    Cell,
    CellMeta,
    RangeRead,
    RangeRows,
    ReplicaRead,
    RowsReply,
    ScanRequest,
    SliceRequest,
)
from trimtab.rows.reading import Rows, judged_s, rows_of
from trimtab.rows.tokens import keys_between
from trimtab.tablets.ring import MAX_TOKEN, MIN_TOKEN, tablets_between, token_range

MAX_PAGE_ROWS = 1_000  # more would hold the loop for too long
PAGE_BYTES = 256 << 10
MAX_AT_ONCE = 16
_NEARLY_OVER = 0.5  # of its time, after which a page with rows is given as it is


class Paging:
    """Of one node."""

    def __init__(
        self,
        reads: Reads,
        routes: Routes,
        loads: LoadView,
        unsettled: Unsettled,
        waits: Waits,
        shown: Shown,
        wall_ms: Callable[[], int],
        *,
        answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.most_bytes = answer_bytes - AROUND_BYTES
        self._reads = reads
        self._routes = routes
        self._loads = loads
        self.unsettled = unsettled
        self._waits = waits
        self.shown = shown
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()

    async def slice(self, layout: RowLayout, request: SliceRequest, deadline: float) -> RowsReply:
        """A page of one partition's rows."""
        page = _Page(self, layout, request, deadline)
        low, high = slice_bounds(layout, request.partition, request.start, request.end)
        tablet = int.from_bytes(partition_prefix(layout, request.partition)[:8]) >> page.shift
        if request.page:
            key = await page.resume(request.page)
            low, high = (low, min(high, key)) if request.reverse else (max(low, key), high)
        while low < high:
            wanted = RangeRead(low, high, page.wanted, request.reverse)
            found = await page.read(tablet, wanted)
            if (rest := page.add(wanted, found)) is not None:
                return page.reply(after(rest) if request.reverse else rest)
            if not found.more:
                break
            if request.reverse:
                high = found.end
            else:
                low = found.end
            if page.full:
                return page.reply(found.end)
            # Reads of this node's own replica don't wait for anything: let others have their turn.
            await asyncio.sleep(0)
        return page.reply(b"")

    async def scan(self, layout: RowLayout, request: ScanRequest, deadline: float) -> RowsReply:
        """A page of the rows of a range of tokens."""
        for token in (request.first_token, request.last_token):
            if token is not None and not MIN_TOKEN <= token <= MAX_TOKEN:
                raise refusals.invalid(f"a token is a whole number of 64 bits, not {token}")
        page = _Page(self, layout, request, deadline)
        count = layout.table.tablets
        low, end = keys_between(request.first_token, request.last_token)
        tablets = list(tablets_between(request.first_token, request.last_token, count))
        if request.page:
            low = max(low, await page.resume(request.page))
            first = int.from_bytes(low[:8]) >> page.shift
            tablets = [tablet for tablet in tablets if tablet >= first]
        else:
            await page.read_at(request.epoch)
        at_once = 1
        while tablets:
            asked, tablets = tablets[:at_once], tablets[at_once:]
            ranges = []
            for tablet in asked:
                its_low, its_high = keys_between(*_tokens(tablet, count))
                ranges.append(RangeRead(max(low, its_low), min(end, its_high), page.wanted))
            answers = await asyncio.gather(
                *(page.read(tablet, wanted) for tablet, wanted in zip(asked, ranges, strict=True))
            )
            for tablet, wanted, found in zip(asked, ranges, answers, strict=True):
                if page.full and page.rows:
                    return page.reply(wanted.low)
                if (rest := page.add(wanted, found)) is not None:
                    return page.reply(rest)
                if found.more:
                    if page.full:
                        return page.reply(found.end)
                    low = found.end
                    tablets = list(range(tablet, (asked + tablets)[-1] + 1))
                    at_once = 1
                    break
            else:
                at_once = min(2 * at_once, MAX_AT_ONCE)
            await asyncio.sleep(0)
        return page.reply(b"")

    # For pages

    async def read(self, read: ReplicaRead, deadline: float) -> tuple[RangeRows, bool]:
        future: asyncio.Future[tuple[RangeRows, bool]] = self._loop.create_future()

        def done(refused: Refused | None, ranges: list[RangeRows], stale: bool) -> None:
            if future.done():
                return
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result((ranges[0], stale))

        self._reads.begin(read, deadline, done)
        return await future

    def stamp(self) -> tuple[int, int]:
        return self._routes.stamp()

    def newest_epoch(self, table: int) -> int:
        return self._loads.visible(table)

    async def check_epoch(self, table: int, epoch: int, deadline: float) -> None:
        """Returns when an epoch is known here; Refused if it can't be read any more."""
        if epoch > self._loads.visible(table):
            try:
                what = f"epoch {epoch} of table {table}, which the page before was read at"
                await self._waits.until(lambda: self._loads.visible(table) >= epoch, deadline, what)
            except WaitedTooLong as error:
                raise Refused(refusals.READ_TIMEOUT, str(error)) from None
        if not self._loads.readable(table, epoch, self._wall_ms()):
            raise refusals.invalid(
                f"the pages before were read at epoch {epoch} of table {table}, which has been loaded since, too long "
                "ago for that to be read any more; begin the scan again"
            )

    def now_s(self) -> int:
        return self._wall_ms() // 1000

    def time(self) -> float:
        return self._loop.time()


class _Page:
    """What has been gathered of a page."""

    def __init__(self, paging: Paging, layout: RowLayout, request: SliceRequest | ScanRequest, deadline: float) -> None:
        if request.limit <= 0:
            raise refusals.invalid(f"a page of {request.limit} rows; ask for at least one")
        # Whether the columns exist must be known before anything is read.
        rows_of(layout, [], request.columns, 0)
        self._paging = paging
        self._layout = layout
        self._request = request
        self._deadline = deadline
        now = paging.time()
        self._enough_at = now + (deadline - now) * _NEARLY_OVER
        self._now_s = judged_s(paging.now_s(), request.as_of_us)
        self._bytes = 0
        self._cell_bytes = 0
        self._stale = False
        self._metas: list[list[CellMeta | None] | None] = []
        self._limit = min(request.limit, MAX_PAGE_ROWS)
        self.shape = shape_of(request)
        self._epoch = paging.newest_epoch(request.table)
        self.shift = 65 - layout.table.tablets.bit_length()
        self.rows: list[list[Cell] | None] = []

    async def resume(self, state: bytes) -> bytes:
        """Go on where another page ended, at its epoch: the row key at which this one begins."""
        key, epoch = unseal(state, self._request.table, self.shape)
        await self.read_at(epoch)
        return key

    async def read_at(self, epoch: int) -> None:
        """The epoch of the pages before; -1: there are none."""
        if epoch >= 0:
            await self._paging.check_epoch(self._request.table, epoch, self._deadline)
            self._epoch = epoch

    @property
    def wanted(self) -> int:
        """How many rows are missing."""
        return self._limit - len(self.rows)

    @property
    def full(self) -> bool:
        if len(self.rows) >= self._limit or self._bytes >= PAGE_BYTES:
            return True
        return bool(self.rows) and self._paging.time() >= self._enough_at

    async def read(self, tablet: int, wanted: RangeRead) -> RangeRows:
        request = self._request
        topology, catalog = self._paging.stamp()
        read = ReplicaRead(
            topology,
            catalog,
            request.table,
            tablet,
            request.level,
            [wanted],
            False,
            self._now_s,
            request.as_of_us,
            self._epoch,
            self._paging.unsettled.stamps(request.table),
        )
        rows, stale = await self._paging.read(read, self._deadline)
        self._stale = self._stale or stale
        return rows

    def add(self, wanted: RangeRead, found: RangeRows) -> bytes | None:
        """Take the rows of a range; the key of the first one that does not fit any more, if there is one."""
        request = self._request
        self._paging.shown.pairs(found.pairs)
        low, high = wanted.low, wanted.high
        if found.more:
            low, high = (found.end, high) if wanted.reverse else (low, found.end)
        rows = rows_of(
            self._layout,
            found.pairs,
            request.columns,
            self._now_s,
            low=low,
            high=high,
            reverse=wanted.reverse,
            with_meta=request.with_meta,
        )
        room = self._room(rows, sum(map(len, found.pairs)))
        self.rows += rows.cells[:room]
        if request.with_meta:
            self._metas += rows.metas[:room]
        self._bytes += sum(map(len, found.pairs))
        return rows.keys[room] if len(rows.keys) > room else None

    def _room(self, rows: Rows, pair_bytes: int) -> int:
        """How many of these rows fit into the page. Refused: not even the first one of the page does.

        The cells of a static row are in every row of its partition: only then rows are larger than what they are of.
        """
        room, most_bytes = self.wanted, self._paging.most_bytes
        if not self._layout.static.columns and self._bytes + pair_bytes <= most_bytes:
            return room
        for place, row in enumerate(rows.cells[:room]):
            size_bytes = cell_bytes(row)
            if self._cell_bytes + size_bytes > most_bytes and (self.rows or place):
                return place
            if size_bytes > most_bytes:
                raise refusal_at(self._layout, rows.keys[place], size_bytes, most_bytes)
            self._cell_bytes += size_bytes
        return room

    def reply(self, end: bytes) -> RowsReply:
        """The page; `end` is the row key at which the next one begins, empty if there is none."""
        state = seal(self._request.table, self.shape, end, self._epoch) if end else b""
        return RowsReply(self.rows, state, self._stale, self._metas, self._epoch, self._paging.shown.newest_us)


def _tokens(tablet: int, count: int) -> tuple[int | None, int | None]:
    """The tokens of a tablet; the ends of the ring are open, so that no key lies outside of all tablets."""
    found = token_range(tablet, count)
    return (None if tablet == 0 else found.first), (None if tablet == count - 1 else found.last)
