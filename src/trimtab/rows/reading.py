"""Reading rows out of sorted pairs: versions merged, deletions applied, up to so many live rows.

A replica reads its store with this, and a coordinator the union of what replicas answered: pairs are only ever added,
so the same reader gives the merged answer (`merge_answers`). It returns canonical pairs in the order of their keys: per
partition the deletions that count in the range, the static row, then rows, dead ones included, because somebody else
may not know yet that they are.

One pass forwards is enough, because a partition's deletions sort before its rows. A range that begins inside a
partition looks at them first; so does one in reverse, which therefore stays inside one partition.

A partition with a live static row but no live row reads as one row without clustering key, as in CQL, if the range
covers it from beginning to end. A read ends after `limit` live rows, or when it has looked at too much; `end` says
where to go on. A row that consists of one version, in the newest layout, is passed on without being decoded.

Versions with stamps of loads that are not settled can be kept apart: they stay as they are, beside what the others of
their row are merged to. Whoever stores the answer can then still leave them out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.rows.deletions import NO_COVERS, Covers, Pair, covers_of, written_ms_of
from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.keys import (
    AFTER_ROWS,
    PARTITION_DELETED,
    PUT,
    RANGE_DELETED,
    ROW_DELETE,
    ROWS,
    STATIC,
    TAIL,
    by_row,
    partition_end,
    prefix_of,
    stamp_of,
)
from trimtab.rows.layout import RowLayout, Shape
from trimtab.rows.merge import Forgetting, is_canonical, merge_versions, pairs_of
from trimtab.rows.projection import Rows, rows_of
from trimtab.rows.protocol import Pairs, RangeRead, RangeRows
from trimtab.rows.resuming import begins_whole, ends_whole, is_whole, moved, stopped_at
from trimtab.rows.values import HEAD, MARKER, NEVER, PER_CELL, TIMES, TTL

__all__ = ["Limits", "Reading", "Rows", "Scan", "judged_s", "merge_answers", "read_range", "rows_of", "scan_of"]


class Scan(Protocol):
    """Pairs with low <= key < high (None: to the end) in the order of their keys, or in reverse."""

    def __call__(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterable[Pair]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """When a read ends though there are more rows: bytes that it returns; bytes, pairs and rows that it looks at."""

    answer_bytes: int = 1 << 20
    scanned_bytes: int = 8 << 20
    scanned_pairs: int = 20_000
    rows: int = 1 << 62


LIMITS = Limits()
NO_LIMITS = Limits(1 << 62, 1 << 62, 1 << 62)
NOTHING_FORGOTTEN = Forgetting()
NONE_APART: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Reading:
    """Canonical pairs, and how many live rows are in them. `more`: it ended at `end`, before the range did.

    `bare`: the last partition has a live static row, and no live row so far.
    """

    pairs: Pairs
    live: int = 0
    more: bool = False
    end: bytes = b""
    bare: bool = False


@dataclass(slots=True)
class _Partition:
    """The partition that is being read: what deletes in it, and its static row."""

    prefix: bytes
    deleted: list[Pair] = field(default_factory=list)
    ranges: list[Pair] = field(default_factory=list)
    static: list[Pair] = field(default_factory=list)
    covers: Covers | None = None
    static_live: bool = False
    live: int = 0


class _Reader:
    def __init__(
        self,
        layout: RowLayout,
        wanted: RangeRead,
        now_s: int,
        as_of_us: int,
        limits: Limits,
        forgetting: Forgetting,
        apart: frozenset[bytes],
    ) -> None:
        self.layout = layout
        self.wanted = wanted
        self.now_s = now_s
        self.as_of_us = as_of_us
        self.limits = limits
        self.forgetting = forgetting
        self.apart = apart
        self.simple = not as_of_us and not forgetting.before_ms
        self.pairs: Pairs = []
        self.live = 0
        self.bytes = 0
        self.scanned_bytes = 0
        self.scanned_pairs = 0
        self.rows = 0  # looked at, dead or alive: at least one, or a read would never get on
        self.partition: _Partition | None = None

    def full(self) -> bool:
        limits = self.limits
        return self.live >= self.wanted.limit or (
            self.rows > 0
            and (
                self.bytes >= limits.answer_bytes
                or self.scanned_bytes >= limits.scanned_bytes
                or self.scanned_pairs >= limits.scanned_pairs
                or self.rows >= limits.rows
            )
        )

    def groups(self, pairs: Iterable[Pair]) -> Iterator[tuple[bytes, list[Pair]]]:
        for row_key, versions in by_row(pairs):
            yield row_key, versions
            self.scanned_pairs += len(versions)
            self.scanned_bytes += len(versions) * (len(row_key) + TAIL) + sum([len(value) for _, value in versions])

    def merge(self, row_key: bytes, versions: list[Pair], covered_us: int, static: bool = False) -> tuple[Pairs, bool]:
        """The canonical form of a row, and whether it is live."""
        layout, now_s = self.layout, self.now_s
        if self.apart and len(versions) > 1 and any(key[-17:-9] in self.apart for key, _ in versions):
            return self._merge_apart(row_key, versions, covered_us, static)
        if len(versions) == 1:
            key, value = versions[0]
            if is_canonical(layout, key, value, covered_us, static=static):
                shape = layout.static if static else layout.regular
                plain = key[-9] == PUT and not value[0] & PER_CELL and not shape.multicell
                if self.simple:
                    if plain:
                        return [key, value], plain_is_live(shape, value, now_s)
                    if key[-9] != PUT:
                        return [key, value], False
                elif plain and value[0] <= MARKER:
                    # Nothing in it can be forgotten.
                    if self.as_of_us and stamp_of(key) > self.as_of_us:
                        return [], False
                    return [key, value], plain_is_live(shape, value, now_s)
        merged = merge_versions(layout, versions, static=static, covered_us=covered_us, as_of_us=self.as_of_us)
        if self.forgetting.before_ms:
            self.forgetting.row(merged)
        return pairs_of(layout, row_key, merged, static=static), merged.live(now_s)

    def _merge_apart(self, row_key: bytes, versions: list[Pair], covered_us: int, static: bool) -> tuple[Pairs, bool]:
        """The same, with what is kept apart as it is, unless a deletion covers it."""
        rest = [pair for pair in versions if pair[0][-17:-9] not in self.apart]
        least_us = covered_us
        if any(key[-9] == ROW_DELETE for key, _ in rest):
            merged = merge_versions(self.layout, rest, static=static, covered_us=covered_us, as_of_us=self.as_of_us)
            least_us = max(least_us, merged.deleted_us)
        kept = [
            pair
            for pair in versions
            if pair[0][-17:-9] in self.apart
            and stamp_of(pair[0]) > least_us
            and not 0 < self.as_of_us < stamp_of(pair[0])
        ]
        pairs = self.merge(row_key, rest, covered_us, static)[0] if rest else []
        whole = merge_versions(self.layout, versions, static=static, covered_us=covered_us, as_of_us=self.as_of_us)
        found = sorted([*zip(pairs[::2], pairs[1::2], strict=True), *kept])
        return [part for pair in found for part in pair], whole.live(self.now_s)

    # One partition after the other

    def enter(self, row_key: bytes) -> _Partition:
        partition = self.partition
        if partition is None or not row_key.startswith(partition.prefix):
            if partition is not None:
                self.leave(partition)
            partition = self.partition = _Partition(prefix_of(self.layout, row_key))
        return partition

    def leave(self, partition: _Partition) -> None:
        self.preamble(partition)
        wanted = self.wanted
        if self.bare(partition) and is_whole(self.layout, partition.prefix, wanted.low, wanted.high):
            self.live += 1

    def bare(self, partition: _Partition) -> bool:
        """Whether it would be one row of nulls if it ended here."""
        if not partition.static_live or partition.live:
            return False
        if self.wanted.reverse:
            return ends_whole(self.layout, partition.prefix, self.wanted.high)
        return begins_whole(self.layout, partition.prefix, self.wanted.low)

    def add(self, partition: _Partition, row_key: bytes, versions: list[Pair]) -> Pairs:
        """Take note of the versions of one key; for a row its merged pairs, which the caller puts where they belong."""
        at = len(partition.prefix)
        section = row_key[at : at + 1]
        if section == ROWS:
            covers = self.preamble(partition)
            covered_us = NEVER if covers is NO_COVERS else covers.covering(row_key[at + 1 :])
            pairs, live = self.merge(row_key, versions, covered_us)
            self.rows += 1
            if live:
                self.live += 1
                partition.live += 1
            self.bytes += sum(map(len, pairs))
            return pairs
        if partition.covers is not None or section not in (PARTITION_DELETED, RANGE_DELETED, STATIC):
            raise BadRow(f"a key of {self.layout.name} in section {section.hex() or 'none'}: {row_key[:64].hex()}")
        into = partition.static
        if section != STATIC:
            into = partition.deleted if section == PARTITION_DELETED else partition.ranges
        into.extend(versions)
        return []

    def preamble(self, partition: _Partition) -> Covers:
        """What comes before a partition's rows: once, before the first of them or at its end."""
        covers = partition.covers
        if covers is not None:
            return covers
        at = len(partition.prefix)
        covers = covers_of(partition.deleted, partition.ranges, at, self.as_of_us)
        partition.covers = covers
        added: Pairs = []
        if covers is not NO_COVERS:
            rows = partition.prefix + ROWS
            low, high = self.wanted.low, self.wanted.high
            added = covers.pairs(
                low[at + 1 :] if low.startswith(rows) else b"", high[at + 1 :] if high.startswith(rows) else None
            )
            if self.forgetting.before_ms:
                added = self._remembered(added)
        if partition.static:
            covered_us = covers.static_us
            pairs, partition.static_live = self.merge(partition.prefix + STATIC, partition.static, covered_us, True)
            added += pairs
        self.pairs += added
        self.bytes += sum(map(len, added))
        return covers

    def _remembered(self, pairs: Pairs) -> Pairs:
        kept: Pairs = []
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not self.forgetting.deletion(written_ms_of(key, value)):
                kept += (key, value)
        return kept


def judged_s(now_s: int, as_of_us: int) -> int:
    """The second by which a read judges what has expired: now; of a read as of a time, then."""
    return min(now_s, as_of_us // 1_000_000) if as_of_us else now_s


def read_range(
    layout: RowLayout,
    scan: Scan,
    wanted: RangeRead,
    now_s: int,
    as_of_us: int = 0,
    *,
    limits: Limits = LIMITS,
    forgetting: Forgetting = NOTHING_FORGOTTEN,
    apart: frozenset[bytes] = NONE_APART,
) -> Reading:
    """Rows with low <= row key < high, live at `now_s`; with `as_of_us` as they were then.

    `forgetting`: leave out deletions that could be folded away on this replica, so that it answers the same before and
    after it does. `apart`: inverted stamps whose versions are not merged with others.
    """
    if wanted.low >= wanted.high or wanted.limit <= 0:
        return Reading([])
    if wanted.point and not layout.clustering and not as_of_us and not forgetting.before_ms and not apart:
        return _point(layout, scan, wanted, now_s)
    reader = _Reader(layout, wanted, now_s, as_of_us, limits, forgetting, apart)
    if not layout.clustering:
        return _simple(reader, scan)
    return _reverse(reader, scan) if wanted.reverse else _forward(reader, scan)


def _point(layout: RowLayout, scan: Scan, wanted: RangeRead, now_s: int) -> Reading:
    """One row that is all of its partition."""
    versions = list(scan(wanted.low, wanted.high))
    if not versions:
        return Reading([])
    shape = layout.regular
    if len(versions) == 1 and not shape.multicell:
        key, value = versions[0]
        if key[-9] == PUT and not value[0] & PER_CELL and value[1:HEAD] == shape.number_bytes:
            return Reading([key, value], 1 if value[0] == MARKER or plain_is_live(shape, value, now_s) else 0)
    merged = merge_versions(layout, versions)
    return Reading(pairs_of(layout, wanted.low, merged), int(merged.live(now_s)))


def _simple(reader: _Reader, scan: Scan) -> Reading:
    """A table without clustering columns: each partition is one row, and nothing else is in it."""
    wanted, pairs, last = reader.wanted, reader.pairs, b""
    for row_key, versions in reader.groups(scan(wanted.low, wanted.high, reverse=wanted.reverse)):
        if reader.full():
            return Reading(pairs, reader.live, True, stopped_at(last, bare=False, reverse=wanted.reverse))
        last = row_key
        merged, live = reader.merge(row_key, versions, NEVER)
        reader.rows += 1
        reader.live += live
        reader.bytes += sum(map(len, merged))
        if wanted.reverse:
            pairs[:0] = merged
        else:
            pairs += merged
    return Reading(pairs, reader.live)


def _before(reader: _Reader, scan: Scan) -> tuple[_Partition | None, bytes]:
    """If the range begins inside a partition: that partition, with what precedes the range; and where to read on."""
    low = reader.wanted.low
    at = partition_end(reader.layout, low)
    if at is None or len(low) == at:
        return None, low
    prefix = low[:at]
    first = prefix + PARTITION_DELETED
    rows = prefix + ROWS
    if low <= first or low >= prefix + AFTER_ROWS:
        return None, low
    if low <= rows and not reader.wanted.reverse:
        return None, first
    partition = reader.partition = _Partition(prefix)
    for row_key, versions in reader.groups(scan(first, rows)):
        reader.add(partition, row_key, versions)
    return partition, max(low, rows)


def _forward(reader: _Reader, scan: Scan) -> Reading:
    wanted, last = reader.wanted, b""
    _, low = _before(reader, scan)
    for row_key, versions in reader.groups(scan(low, wanted.high)):
        partition = reader.enter(row_key)
        if reader.full():
            if partition.covers is None:
                # Nothing of this partition's rows was looked at: it is left to the next read as a whole.
                return Reading(reader.pairs, reader.live, True, partition.prefix + PARTITION_DELETED)
            bare = reader.bare(partition)
            return Reading(reader.pairs, reader.live, True, stopped_at(last, bare=bare, reverse=False), bare)
        last = row_key
        reader.pairs += reader.add(partition, row_key, versions)
    bare = False
    if reader.partition is not None:
        reader.leave(reader.partition)
        bare = reader.bare(reader.partition)
    return Reading(reader.pairs, reader.live, bare=bare)


def _reverse(reader: _Reader, scan: Scan) -> Reading:
    wanted, last = reader.wanted, b""
    at = partition_end(reader.layout, wanted.low)
    if at is None or not wanted.low[at:] or wanted.high > wanted.low[:at] + AFTER_ROWS:
        raise BadRequest(f"{reader.layout.name}: rows are read in reverse inside one partition only")
    found, low = _before(reader, scan)
    if found is None:
        return Reading([])
    reader.preamble(found)
    rows: list[Pairs] = []
    end = b""
    for row_key, versions in reader.groups(scan(low, wanted.high, reverse=True)):
        if reader.full():
            end = stopped_at(last, bare=reader.bare(found), reverse=True)
            break
        last = row_key
        rows.append(reader.add(found, row_key, versions))
    else:
        reader.leave(found)
    for pairs in reversed(rows):
        reader.pairs += pairs
    return Reading(reader.pairs, reader.live, bool(end), end, reader.bare(found))


def plain_is_live(shape: Shape, value: bytes, now_s: int) -> bool:
    """Whether a value in this shape, without stamps per cell and without collections, says that its row is live."""
    flags = value[0]
    if flags & TTL and int.from_bytes(value[HEAD + 4 : HEAD + 8], "big") <= now_s:
        return False
    if flags & MARKER:
        return True
    at = HEAD + TIMES[flags & 15]
    presence = int.from_bytes(value[at : at + shape.presence_bytes], "little")
    return bool(presence & ~(presence >> 1) & shape.all_given)


def scan_of(pairs: Sequence[Pair]) -> Scan:
    """Over pairs that are sorted by their keys."""
    keys = [pair[0] for pair in pairs]

    def scan(low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterable[Pair]:
        found = pairs[bisect_left(keys, low) : len(keys) if high is None else bisect_left(keys, high)]
        return found[::-1] if reverse else found

    return scan


def merge_answers(
    layout: RowLayout,
    wanted: RangeRead,
    answers: Sequence[RangeRows | Reading],
    now_s: int,
    as_of_us: int = 0,
    apart: frozenset[bytes] = NONE_APART,
) -> Reading:
    """What replicas answered to one question, as one answer; `more` also when it is only known so far what there is.

    An answer that ended early says nothing about the rows after its end, and one that goes on says nothing about the
    rows that the other would have: so all of them count only up to the first end.
    """
    ends = [each.end for each in answers if each.more]
    low, high = wanted.low, wanted.high
    if ends:
        low, high = (max(ends), high) if wanted.reverse else (low, min(ends))
    union: dict[bytes, bytes] = {}
    for each in answers:
        union.update(zip(each.pairs[::2], each.pairs[1::2], strict=True))
    asked = RangeRead(low, high, wanted.limit, wanted.reverse, wanted.point)
    scan = scan_of(sorted(union.items()))
    found = read_range(layout, scan, asked, now_s, as_of_us, limits=NO_LIMITS, apart=apart)
    if ends and not found.more:
        reached = low if wanted.reverse else high
        bare = found.bare and bool(layout.clustering)
        found.more, found.end = True, moved(layout, reached, bare=bare, reverse=wanted.reverse)
    return found
