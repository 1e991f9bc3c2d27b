"""Rows by their whole primary keys: one, or many at once.

Keys are grouped by tablet. What this node's own replica may answer alone is read at once, without a message to anybody,
and the answer is there when `begin` returns: of tables without clustering columns, as they are now, the cells and
nothing else. For the rest each tablet is read with one message for all of its keys. All rows of a get are of one epoch
(see `epochs`): what is read at once and what is asked of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.reads import Reads
from trimtab.node.router.replica_door import STALE_LEVELS
from trimtab.node.router.replica_reads import narrowed
from trimtab.node.router.routes import Routes
from trimtab.node.router.shown import Shown
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import after, locate, locate_all
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Cell, CellMeta, GetRequest, Pairs, RangeRead, RangeRows, ReplicaRead, RowsReply
from trimtab.rows.reading import judged_s, rows_of

MAX_KEYS = 500  # of one get: more would hold the loop for too long
MAX_REPLY_BYTES = 8 << 20  # of the rows of one get, unless it is a single one
_FEW_KEYS = 64  # whose rows are not worth measuring where they are at hand

Done = Callable[[RowsReply | Refused], None]


class OwnRows(Protocol):
    """This node's own replicas, for single rows."""

    def read_cells(
        self,
        layout: RowLayout,
        tablet: int,
        keys: Sequence[bytes],
        columns: Sequence[int],
        now_s: int,
        *,
        may_be_stale: bool,
    ) -> tuple[list[tuple[Cell, ...] | None], bool]: ...


class Gets:
    """Of one node."""

    def __init__(
        self,
        reads: Reads,
        own: OwnRows,
        routes: Routes,
        loads: LoadView,
        unsettled: Unsettled,
        shown: Shown,
        wall_ms: Callable[[], int],
    ) -> None:
        self.reads = reads
        self.routes = routes
        self.loads = loads
        self.shown = shown
        self._unsettled = unsettled
        self._own = own
        self._wall_ms = wall_ms

    def begin(self, layout: RowLayout, request: GetRequest, deadline: float, done: Done) -> None:
        """`done` is told once; BadRequest where the keys or columns are none of the table's."""
        keys = request.keys
        now_s = judged_s(self._wall_ms() // 1000, request.as_of_us)
        if len(keys) != 1:
            if len(keys) > MAX_KEYS:
                raise refusals.invalid(f"a get of {len(keys)} keys; it may have {MAX_KEYS}, send several")
            # Whether the columns exist must be known before anything is read.
            rows_of(layout, [], request.columns, 0)
            if keys:
                _Many(self, layout, request, now_s, deadline, done).start()
            else:
                done(RowsReply([]))
            return
        key, tablet = locate(layout, keys[0])
        found = self.at_once(layout, request, tablet, (key,), now_s)
        if found is not None:
            done(RowsReply(found[0], b"", found[1], stamp_us=self.shown.newest_us))
            return
        rows_of(layout, [], request.columns, 0)

        def came(refused: Refused | None, ranges: list[RangeRows], stale: bool) -> None:
            if refused is not None:
                done(refused)
                return
            pairs = ranges[0].pairs
            self.shown.pairs(pairs)
            try:
                answer = _reply(layout, request, pairs, stale, now_s, self.shown.newest_us)
            except BadRow as error:
                done(Refused(refusals.CORRUPT, str(error)))
                return
            done(answer)

        epoch = self.loads.visible(layout.table.id)
        self.reads.begin(self.question(layout, request, tablet, [key], now_s, epoch), deadline, came)

    def at_once(
        self, layout: RowLayout, request: GetRequest, tablet: int, keys: Sequence[bytes], now_s: int
    ) -> tuple[list[tuple[Cell, ...] | None], bool] | None:
        """The rows from this node's own replica, and whether they may be stale; None: ask in the long way."""
        if layout.clustering or request.as_of_us or request.with_meta:
            return None
        if not self.routes.read(layout.table.id, tablet, request.level).local:
            return None
        try:
            may_be_stale = request.level in STALE_LEVELS
            return self._own.read_cells(layout, tablet, keys, request.columns, now_s, may_be_stale=may_be_stale)
        except Refused:
            # Whatever is wrong here, others may be better off; if not, the long way says what it is.
            return None

    def question(
        self, layout: RowLayout, request: GetRequest, tablet: int, keys: Sequence[bytes], now_s: int, epoch: int
    ) -> ReplicaRead:
        topology, catalog = self.routes.stamp()
        ranges = [RangeRead(key, after(key), 1, False, True) for key in keys]
        table = layout.table.id
        return ReplicaRead(
            topology,
            catalog,
            table,
            tablet,
            request.level,
            ranges,
            False,
            now_s,
            request.as_of_us,
            epoch,
            self._unsettled.stamps(table),
        )


def _reply(layout: RowLayout, request: GetRequest, pairs: Pairs, stale: bool, now_s: int, stamp_us: int) -> RowsReply:
    narrow = narrowed(layout, request.columns)
    found = rows_of(narrow, pairs, request.columns, now_s, with_meta=request.with_meta)
    if not found.cells and narrow is not layout:
        found = rows_of(layout, pairs, request.columns, now_s, with_meta=request.with_meta)
    if not request.with_meta:
        return RowsReply([found.cells[0] if found.cells else None], b"", stale, stamp_us=stamp_us)
    if not found.cells:
        return RowsReply([None], b"", stale, [None], stamp_us=stamp_us)
    return RowsReply([found.cells[0]], b"", stale, [found.metas[0]], stamp_us=stamp_us)


class _Many:
    """A get of several keys, until the last tablet has answered or one could not."""

    def __init__(
        self, gets: Gets, layout: RowLayout, request: GetRequest, now_s: int, deadline: float, done: Done
    ) -> None:
        self._gets = gets
        self._layout = layout
        self._request = request
        self._deadline = deadline
        self._done: Done | None = done
        self._now_s = now_s
        self._epoch = gets.loads.visible(layout.table.id)
        self._stale = False
        self._rows: dict[bytes, Sequence[Cell] | None] = {}
        self._metas: dict[bytes, list[CellMeta | None]] = {}
        self._keys: list[bytes] = []
        self._times: Counter[bytes] = Counter()
        self._left = 0
        self._bytes = 0

    def start(self) -> None:
        layout, request = self._layout, self._request
        tablets: dict[int, list[bytes]] = {}
        located = locate_all(layout, request.keys)
        self._keys = [key for key, _ in located]
        for key, tablet in located:
            if tablet in tablets:
                tablets[tablet].append(key)
            else:
                tablets[tablet] = [key]
        self._left = len(tablets)
        for tablet, wanted in tablets.items():
            found = self._gets.at_once(layout, request, tablet, wanted, self._now_s)
            if found is None:
                self._ask(tablet, list(dict.fromkeys(wanted)))
            else:
                self._rows.update(zip(wanted, found[0], strict=True))
                self._stale = self._stale or found[1]
                self._left -= 1
                if len(request.keys) > _FEW_KEYS and self._grew(_bytes_of(found[0])):
                    return
        self._look()

    def _ask(self, tablet: int, keys: list[bytes]) -> None:
        if self._done is None:
            return

        def came(refused: Refused | None, ranges: list[RangeRows], stale: bool) -> None:
            self._came(tablet, keys, refused, ranges, stale)

        read = self._gets.question(self._layout, self._request, tablet, keys, self._now_s, self._epoch)
        self._gets.reads.begin(read, self._deadline, came)

    def _came(
        self, tablet: int, keys: list[bytes], refused: Refused | None, ranges: list[RangeRows], stale: bool
    ) -> None:
        if self._done is None:
            return
        if refused is not None:
            self._conclude(refused)
            return
        self._stale = self._stale or stale
        # A row that is asked for twice is in the answer twice.
        times = self._times = self._times or Counter(self._keys)
        if self._grew(sum(times[key] * sum(map(len, each.pairs)) for key, each in zip(keys, ranges, strict=True))):
            return
        try:
            self._take([part for each in ranges for part in each.pairs])
        except BadRow as error:
            self._conclude(Refused(refusals.CORRUPT, str(error)))
            return
        # What did not fit into one message is asked for again; a range that was begun is always finished.
        rest = [key for key, each in zip(keys, ranges, strict=True) if each.more and not each.pairs]
        if len(rest) == len(keys):
            self._conclude(Refused(refusals.READ_FAILED, f"no row of tablet {tablet} fits into an answer"))
        elif rest:
            self._ask(tablet, rest)
        else:
            self._left -= 1
            self._look()

    def _grew(self, size_bytes: int) -> bool:
        """Whether that is too much: then it has been answered."""
        self._bytes += size_bytes
        if self._bytes <= MAX_REPLY_BYTES or len(self._keys) == 1:
            return False
        text = f"the rows of {len(self._keys)} keys make more than {MAX_REPLY_BYTES} bytes; ask for fewer at a time"
        self._conclude(Refused(refusals.TOO_LARGE, text))
        return True

    def _take(self, pairs: Pairs) -> None:
        request = self._request
        self._gets.shown.pairs(pairs)
        found = rows_of(self._layout, pairs, request.columns, self._now_s, with_meta=request.with_meta)
        self._rows.update(zip(found.keys, found.cells, strict=True))
        if request.with_meta:
            self._metas.update(zip(found.keys, found.metas, strict=True))

    def _look(self) -> None:
        if not self._left:
            metas = [self._metas.get(key) for key in self._keys] if self._request.with_meta else []
            rows = [self._rows.get(key) for key in self._keys]
            self._conclude(RowsReply(rows, b"", self._stale, metas, stamp_us=self._gets.shown.newest_us))

    def _conclude(self, answer: RowsReply | Refused) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(answer)


def _bytes_of(rows: Sequence[Sequence[Cell] | None]) -> int:
    return sum(map(len, filter(None, chain.from_iterable(filter(None, rows)))))
