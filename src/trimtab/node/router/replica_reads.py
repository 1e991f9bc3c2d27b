"""What a replica answers to a read: its rows, merged, range after range; or their digests.

An answer is bounded, in bytes and in what may be looked at for it, so that none holds the loop for long or is too large
for a message. A range that ended early says where to go on; ranges that were not begun say so too. Where a range ends
depends on its rows alone, so replicas that agree give equal digests.

Rows are merged whole, whatever columns are wanted: else replicas could not be compared. Only where nobody compares,
collections that are not wanted are passed over (`narrowed`): one may have tens of thousands of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from msgspec.structs import replace

from trimtab.node.answering import Refused
from trimtab.rows.digests import digest_of
from trimtab.rows.keys import PUT, after, inverted
from trimtab.rows.layout import RowLayout
from trimtab.rows.projection import plan_of, row_cells
from trimtab.rows.protocol import Cell, Pairs, RangeRead, RangeRows, ReplicaRead
from trimtab.rows.reading import NONE_APART, Limits, Scan, read_range, scan_of
from trimtab.rows.values import HEAD, MARKER, PER_CELL, TIMES, TTL

ANSWER_BYTES = 256 << 10  # of one message; a row more may exceed it
AT_ONCE_BYTES = 2 << 20  # of rows that are read without a pause
SCANNED_BYTES = 2 << 20
SCANNED_PAIRS = 4_000
_ALL_VERSIONS = 1 << 20
_PAST_TAIL = b"\xff" * 18  # a row key with this is above all its versions, and below every other row

Pair = tuple[bytes, bytes]


class KnownRows(Protocol):
    """Rows of a replica that were read lately; see `node.replicas.row_cache`."""

    def find(self, row_keys: Sequence[bytes], asked: int) -> list[tuple[Cell, ...] | None]: ...

    def keep(self, row_key: bytes, asked: int, cells: tuple[Cell, ...], size_bytes: int) -> None: ...


class Readable(Protocol):
    """A replica, as its readers see it."""

    @property
    def readable(self) -> bool: ...

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[Pair]: ...

    def read(self, low: bytes, high: bytes, limit: int) -> list[Pair]: ...

    @property
    def rows(self) -> KnownRows: ...


def read_ranges(replica: Readable, layout: RowLayout, read: ReplicaRead) -> list[RangeRows]:
    """The answer to each range of a read, in step."""
    answers: list[RangeRows] = []
    left_bytes, left_pairs = ANSWER_BYTES, SCANNED_PAIRS
    at_once: Scan | None = None
    apart = frozenset(map(inverted, read.apart)) if read.apart else NONE_APART
    for wanted in read.ranges:
        if left_bytes <= 0 or left_pairs <= 0:
            # An empty digest is no digest of anything: whoever compares finds a difference and asks for the rows.
            answers.append(RangeRows(more=True, end=wanted.high if wanted.reverse else wanted.low))
            continue
        scan: Scan = replica.scan
        if wanted.point:
            scan = at_once = at_once or _at_once(replica)
        limits = Limits(left_bytes, SCANNED_BYTES, left_pairs)
        found = read_range(layout, scan, wanted, read.now_s, read.as_of_us, limits=limits, apart=apart)
        left_bytes -= sum(map(len, found.pairs))
        left_pairs -= max(len(found.pairs) // 2, 1)
        if read.digest:
            answers.append(RangeRows([], digest_of(found.pairs, found.end), found.more, found.end))
        else:
            answers.append(RangeRows(found.pairs, b"", found.more, found.end))
    return answers


def read_cells(
    replica: Readable,
    layout: RowLayout,
    keys: Sequence[bytes],
    columns: Sequence[int],
    now_s: int,
    shown: Callable[[bytes], None] | None = None,
) -> list[tuple[Cell, ...] | None]:
    """The wanted cells of rows of a table without clustering columns, by their row keys, in step; None: no such row.

    `shown` is told the key of the newest version of each row that has to be read.
    """
    plan = plan_of(layout, columns)
    asked = plan.number
    found = replica.rows.find(keys, asked)
    if None not in found:
        return found
    multicell = layout.regular.multicell
    narrow = narrowed(layout, columns) if multicell else layout
    narrow_plan = plan if narrow is layout else plan_of(narrow, columns)
    size_bytes = 0
    for place, key in enumerate(keys):
        if found[place] is None:
            versions = replica.read(key, key + _PAST_TAIL, _ALL_VERSIONS)
            if not versions:
                continue
            if shown is not None:
                shown(versions[0][0])
            # Collections are merged once, with what is wanted of them; other rows are kept, as one value.
            pairs = [*chain.from_iterable(versions)] if multicell else _row(layout, key, versions, now_s)
            size_bytes += len(pairs[1]) if len(pairs) == 2 else sum(map(len, pairs[1::2]))
            if size_bytes > AT_ONCE_BYTES and place:
                raise Refused("too_large", f"more than {AT_ONCE_BYTES} bytes are too much to be read at once")
            cells = row_cells(narrow, narrow_plan, pairs, now_s)
            if cells is None and narrow is not layout:
                # What is not asked for may be all that is left of it.
                cells = row_cells(layout, plan, pairs, now_s)
            if cells is not None:
                found[place] = row = tuple(cells)
                if len(pairs) == 2 and not pairs[1][0] & (TTL | PER_CELL) and not multicell:
                    # Nothing in it expires: it stays so until it is written again.
                    replica.rows.keep(key, asked, row, len(pairs[1]))
    return found


def narrowed(layout: RowLayout, columns: Sequence[int]) -> RowLayout:
    """A layout that passes over the collections that are not wanted, as if they were dropped.

    A row that is live by it is live, and has the wanted cells that it has; one that is not may be live all the same.
    """
    if not layout.regular.multicell and not layout.static.multicell:
        return layout
    key = ("narrow", *columns)
    known: RowLayout | None = layout.plans.get(key)
    if known is None:
        shapes, table = (layout.regular, layout.static), layout.table
        passed = {each.id for shape in shapes for each in shape.columns if each.multicell}.difference(columns)
        known = layout
        if dropped := tuple(each for each in table.columns if each.id in passed):
            kept = tuple(each for each in table.columns if each.id not in passed)
            known = RowLayout(replace(table, columns=kept, dropped=(*table.dropped, *dropped)), layout.udts)
        layout.remember(key, known)
    return known


def _row(layout: RowLayout, key: bytes, versions: Sequence[Pair], now_s: int) -> Pairs:
    """A row without collections: a single version as it is, several merged."""
    if len(versions) == 1 or _says_all(layout, versions):
        return [*versions[0]]
    return read_range(layout, scan_of(versions), RangeRead(key, after(key), 1, False, True), now_s).pairs


def _says_all(layout: RowLayout, versions: Sequence[Pair]) -> bool:
    """Whether the newest version alone is what all of them come to. A row that is put whole again and again is so.

    It has every cell, and its stamp is later than any other's; that is, unless one has stamps of its own for its cells.
    """
    (key, value), shape = versions[0], layout.regular
    if key[-9] != PUT or value[0] & ~TTL != MARKER or shape.multicell or value[1:HEAD] != shape.number_bytes:
        return False
    at = HEAD + TIMES[value[0]]
    if int.from_bytes(value[at : at + shape.presence_bytes], "little") != shape.all_given:
        return False
    stamp = key[-17:-9]
    for other, its_value in versions[1:]:
        if other[-17:-9] <= stamp or (other[-9] == PUT and its_value[0] & PER_CELL):
            return False
    return True


def _at_once(replica: Readable) -> Scan:
    """A row has few versions: one call into the store is cheaper than an iterator over it."""

    def scan(low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterable[Pair]:
        if high is None or reverse:
            return replica.scan(low, high, reverse=reverse)
        return replica.read(low, high, _ALL_VERSIONS)

    return scan
