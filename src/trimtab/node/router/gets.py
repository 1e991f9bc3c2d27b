"""Rows by their whole primary keys: one, or many at once.

Keys are grouped by tablet, and each tablet is read with one message for all of its keys. Where this node's own replica
may answer, the answer is there when `begin` returns.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.reads import Reads
from trimtab.node.router.routes import Routes
from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.keys import after, row_key
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Cell, CellMeta, GetRequest, RangeRead, RangeRows, ReplicaRead, RowsReply
from trimtab.rows.reading import rows_of

MAX_KEYS = 500  # of one get: more would hold the loop for too long

Done = Callable[[RowsReply | Refused], None]


class Gets:
    """Of one node."""

    def __init__(self, reads: Reads, routes: Routes, wall_ms: Callable[[], int]) -> None:
        self._reads = reads
        self._routes = routes
        self._wall_ms = wall_ms

    def begin(self, layout: RowLayout, request: GetRequest, deadline: float, done: Done) -> None:
        """`done` is told once; BadRequest where the keys or columns are none of the table's."""
        keys = request.keys
        if len(keys) > MAX_KEYS:
            raise refusals.invalid(f"a get of {len(keys)} keys; it may have {MAX_KEYS}, send several")
        # Whether the columns exist must be known before anything is read.
        rows_of(layout, [], request.columns, 0)
        if len(keys) == 1:
            self._one(layout, request, deadline, done)
        elif keys:
            _Many(self, layout, request, deadline, done)
        else:
            done(RowsReply([]))

    def read(
        self, layout: RowLayout, request: GetRequest, tablet: int, ranges: list[RangeRead], now_s: int
    ) -> ReplicaRead:
        topology, catalog = self._routes.stamp()
        table = layout.table.id
        return ReplicaRead(topology, catalog, table, tablet, request.level, ranges, False, now_s, request.as_of_us)

    def ask(
        self, read: ReplicaRead, deadline: float, done: Callable[[Refused | None, list[RangeRows], bool], None]
    ) -> None:
        self._reads.begin(read, deadline, done)

    def now_s(self) -> int:
        return self._wall_ms() // 1000

    def _one(self, layout: RowLayout, request: GetRequest, deadline: float, done: Done) -> None:
        key = row_key(layout, request.keys[0])
        now_s = self.now_s()

        def came(refused: Refused | None, ranges: list[RangeRows], stale: bool) -> None:
            if refused is not None:
                done(refused)
                return
            try:
                found = rows_of(layout, ranges[0].pairs, request.columns, now_s, with_meta=request.with_meta)
            except BadRow as error:
                done(Refused(refusals.CORRUPT, str(error)))
                return
            if found.cells:
                done(RowsReply([found.cells[0]], b"", stale, [found.metas[0]] if request.with_meta else []))
            else:
                done(RowsReply([None], b"", stale, [None] if request.with_meta else []))

        read = self.read(layout, request, tablet_of_key(layout, key), [point(key)], now_s)
        self._reads.begin(read, deadline, came)


class _Many:
    """A get of several keys, until the last tablet has answered or one could not."""

    def __init__(self, gets: Gets, layout: RowLayout, request: GetRequest, deadline: float, done: Done) -> None:
        self._gets = gets
        self._layout = layout
        self._request = request
        self._deadline = deadline
        self._done: Done | None = done
        self._now_s = gets.now_s()
        self._stale = False
        self._rows: dict[bytes, list[Cell]] = {}
        self._metas: dict[bytes, list[CellMeta | None]] = {}
        self._keys = [row_key(layout, cells) for cells in request.keys]
        tablets: dict[int, dict[bytes, None]] = {}
        for key in self._keys:
            tablets.setdefault(tablet_of_key(layout, key), {})[key] = None
        self._left = len(tablets)
        for tablet, wanted in tablets.items():
            self._ask(tablet, list(wanted))

    def _ask(self, tablet: int, keys: list[bytes]) -> None:
        if self._done is None:
            return
        read = self._gets.read(self._layout, self._request, tablet, [point(key) for key in keys], self._now_s)

        def came(refused: Refused | None, ranges: list[RangeRows], stale: bool) -> None:
            self._came(tablet, keys, refused, ranges, stale)

        self._gets.ask(read, self._deadline, came)

    def _came(
        self, tablet: int, keys: list[bytes], refused: Refused | None, ranges: list[RangeRows], stale: bool
    ) -> None:
        if self._done is None:
            return
        if refused is not None:
            self._conclude(refused)
            return
        self._stale = self._stale or stale
        # What did not fit into one message is asked for again; a range that was begun is always finished.
        rest = [key for key, each in zip(keys, ranges, strict=True) if each.more and not each.pairs]
        request = self._request
        try:
            pairs = [part for each in ranges for part in each.pairs]
            found = rows_of(self._layout, pairs, request.columns, self._now_s, with_meta=request.with_meta)
        except (BadRow, BadRequest) as error:
            self._conclude(Refused(refusals.CORRUPT, str(error)))
            return
        self._rows.update(zip(found.keys, found.cells, strict=True))
        if request.with_meta:
            self._metas.update(zip(found.keys, found.metas, strict=True))
        if rest and len(rest) < len(keys):
            self._ask(tablet, rest)
            return
        if rest:
            self._conclude(Refused(refusals.READ_FAILED, f"no row of tablet {tablet} fits into an answer"))
            return
        self._left -= 1
        if not self._left:
            metas = [self._metas.get(key) for key in self._keys] if request.with_meta else []
            self._conclude(RowsReply([self._rows.get(key) for key in self._keys], b"", self._stale, metas))

    def _conclude(self, answer: RowsReply | Refused) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(answer)


def point(key: bytes) -> RangeRead:
    return RangeRead(key, after(key), 1, False, True)


def tablet_of_key(layout: RowLayout, key: bytes) -> int:
    return int.from_bytes(key[:8]) >> (65 - layout.table.tablets.bit_length())
