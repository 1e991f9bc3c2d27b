"""Folding: which stored pairs can go, and what takes their place. The rule, and nothing of when or how fast.

A row's versions become its canonical form, and what expired, or is covered by a deletion, is gone with them. Deletions
stay until nobody can bring back what they cover: until they are older, *by arrival*, than the grace period, the last
repair of all replicas, and every hint and session that still lives. Dropped earlier, this happens:

    A, B: delete x · C is away, has x · A, B drop the deletion · C returns · repair copies x from C to A and B

Older by arrival, because a client may give a deletion any timestamp it likes. A deletion of a partition or range goes
only after a pass that met nothing of what it covers.

Versions with stamps from `history_from_us` on stay as they are, so that reads as of any time since are exact. A row
with too many of them is folded all the same, because every read of it pays for each; `forgot_us` says up to where reads
as of a time are no longer exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trimtab.catalog.schema import TableOptions
from trimtab.rows.deletions import NO_COVERS, Covers, Deletion, Pair, covers_of, partition_deletion, range_deletion
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PARTITION_DELETED, PUT, RANGE_DELETED, ROWS, STATIC, by_row, prefix_of, stamp_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting, covered, merge_versions, pairs_of
from trimtab.rows.protocol import Pairs
from trimtab.rows.values import MARKER, NEVER, PER_CELL, decode_row

MAX_VERSIONS = 64


@dataclass(frozen=True, slots=True)
class FoldRule:
    """`forget_before_ms`: deletions that arrived earlier may go. `history_from_us`: later stamps are kept apart.

    `apart`: so are these, however many versions there are. They are of loads that some reader may still have to leave
    out, and what is merged with others can't be told from them any more.
    """

    forget_before_ms: int
    history_from_us: int
    max_versions: int = MAX_VERSIONS
    apart: frozenset[int] = frozenset()

    @property
    def forgetting(self) -> Forgetting:
        return Forgetting(self.forget_before_ms, self.history_from_us // 1000)


def rule_for(
    options: TableOptions,
    now_ms: int,
    repaired_through_ms: int,
    oldest_pending_ms: int,
    apart: frozenset[int] = frozenset(),
) -> FoldRule:
    """The rule for one tablet now. `oldest_pending_ms`: when the oldest live hint or session began; if none, now."""
    return FoldRule(
        forget_before_ms=max(0, min(now_ms - options.gc_grace_s * 1000, repaired_through_ms, oldest_pending_ms)),
        history_from_us=(now_ms - options.history_s * 1000) * 1000,
        apart=apart,
    )


@dataclass(slots=True)
class Folded:
    """One atomic batch: keys to delete and pairs to put. `forgot_us` 0: reads as of a time are as exact as before."""

    deletes: list[bytes] = field(default_factory=list)
    puts: Pairs = field(default_factory=list)
    forgot_us: int = 0


def newest_stamp(layout: RowLayout, pair: Pair) -> int:
    """Of all that a stored pair says: a row, a part of one, or a deletion."""
    key = pair[0]
    static = bool(layout.clustering) and key.startswith(prefix_of(layout, key) + STATIC)
    return _stamps(layout, pair, static)[1]


def _stamps(layout: RowLayout, pair: Pair, static: bool) -> tuple[int, int]:
    """The oldest stamp of what a version gives, and the newest of all that it says."""
    key, value = pair
    stamp = stamp_of(key)
    if key[-9] != PUT or not (value[0] & PER_CELL or layout.shape(int.from_bytes(value[1:3], "big"), static).multicell):
        return stamp, stamp
    row = decode_row(layout, value, stamp, static)
    given = [cell.stamp_us for cell in row.cells.values()]
    given += [cell.stamp_us for each in row.collections.values() for cell in each.elements.values()]
    if row.marker is not None:
        given.append(stamp)
    deleted = [each.deleted[0] for each in row.collections.values() if each.deleted is not None]
    return min(given, default=stamp), max([*given, *deleted], default=stamp)


def fold_row(
    layout: RowLayout,
    row_key: bytes,
    versions: Sequence[Pair],
    rule: FoldRule,
    *,
    settled_us: int = NEVER,
    static: bool = False,
) -> Folded | None:
    """What to do about one row; None: nothing.

    `settled_us`: up to where deletions of more than the row cover it. Only those from before the history count: as of a
    time before a later one, what that covers is still there.
    """
    forced = len(versions) > rule.max_versions
    if len(versions) == 1 and settled_us == NEVER:
        key, value = versions[0]
        plain = key[-9] == PUT and value[0] <= MARKER and not (static or layout.regular.multicell)
        if plain and (value[1:3] == layout.regular.number_bytes or stamp_of(key) >= rule.history_from_us):
            return None  # nothing but itself, as most rows are
    apart: list[Pair] = []
    if rule.apart:
        apart = [pair for pair in versions if stamp_of(pair[0]) in rule.apart]
        versions = [pair for pair in versions if stamp_of(pair[0]) not in rule.apart]
    stamps = [_stamps(layout, pair, static) for pair in versions]
    old = [pair for pair, (_, newest) in zip(versions, stamps, strict=True) if forced or newest < rule.history_from_us]
    if not old:
        return None
    merged = merge_versions(layout, old, static=static, covered_us=settled_us)
    # A version that is kept for its newer cells may hold older ones; they must not outlive what covers them.
    kept_apart = [oldest for oldest, newest in stamps if not forced and newest >= rule.history_from_us]
    if not apart and all(oldest >= rule.history_from_us for oldest in kept_apart):
        rule.forgetting.row(merged)
    pairs = pairs_of(layout, row_key, merged, static=static)
    before, now = {key for key, _ in old}, set(pairs[::2])
    if before == now:
        return None
    puts = [part for at in range(0, len(pairs), 2) if pairs[at] not in before for part in pairs[at : at + 2]]
    forgot = max((newest for _, newest in stamps if newest >= rule.history_from_us), default=0) if forced else 0
    return Folded([key for key, _ in old if key not in now], puts, forgot)


class _Partition:
    """The deletions of the partition that is being folded, and which of them still cover something."""

    def __init__(self, prefix: bytes, begun: bool) -> None:
        self.prefix = prefix
        self.begun = begun  # in its middle: what was before is not known
        self.deleted: list[Pair] = []
        self.ranges: list[Pair] = []
        self.settled: Covers | None = None  # made of those from before the history
        self.busy: set[bytes] = set()

    def close(self, rule: FoldRule) -> Covers:
        """All its deletions are known, because something that comes after them was met."""
        if self.settled is None:
            until_us = rule.history_from_us - 1
            # As of 0 would mean of now.
            self.settled = (
                covers_of(self.deleted, self.ranges, len(self.prefix), until_us) if until_us > 0 else NO_COVERS
            )
        return self.settled

    def note(self, layout: RowLayout, versions: Sequence[Pair], clustering: bytes | None) -> None:
        """Which of them cover something of these versions. Of several the latest stays, so the others don't matter."""
        covers, static = self.settled, clustering is None
        if covers is None or covers is NO_COVERS:
            return
        for each in (covers.partition, None if clustering is None else covers.covering_range(clustering)):
            if each is None or each.key in self.busy:
                continue
            if covered(layout, versions, each.stamp_us, static=static):
                self.busy.add(each.key)

    def fold(self, rule: FoldRule) -> Folded | None:
        """Deletions that nobody needs any more, at the end of a pass over the whole partition."""
        settled = self.close(rule)
        if settled is NO_COVERS:
            return None
        visible = set(settled.pairs()[::2])
        gone: list[bytes] = []
        for each in self._old(rule):
            needed = self.begun or each.key in self.busy or not rule.forgetting.deletion(each.written_ms)
            if each.key not in visible or not needed:
                gone.append(each.key)
        return Folded(gone) if gone else None

    def _old(self, rule: FoldRule) -> list[Deletion]:
        made = [partition_deletion(*pair) for pair in self.deleted]
        made += [range_deletion(*pair, len(self.prefix)) for pair in self.ranges]
        return [each for each in made if each.stamp_us < rule.history_from_us]


def fold_range(
    layout: RowLayout,
    pairs: Iterable[Pair],
    rule: FoldRule,
    *,
    before: Iterable[Pair] = (),
    complete: bool = True,
) -> Iterator[Folded | None]:
    """What to do about the rows in these pairs, which come in the order of their keys: one step per row or partition.

    None is a step with nothing to do, so that whoever folds can pause. If the pairs begin inside a partition, `before`
    are its pairs up to its rows; `complete` False: they may end inside one. Deletions of such partitions stay.
    """
    partition: _Partition | None = None
    for row_key, versions in by_row(before):
        if partition is None:
            partition = _Partition(prefix_of(layout, row_key), True)
        _deletions(partition, row_key, versions)
    for row_key, versions in by_row(pairs):
        if not layout.clustering:
            yield fold_row(layout, row_key, versions, rule)
            continue
        if partition is None or not row_key.startswith(partition.prefix):
            if partition is not None:
                yield partition.fold(rule)
            partition = _Partition(prefix_of(layout, row_key), False)
        if _deletions(partition, row_key, versions):
            continue
        at = len(partition.prefix)
        section, clustering = row_key[at : at + 1], row_key[at + 1 :]
        if section not in (STATIC, ROWS):
            raise BadRow(f"a key of {layout.name} in section {section.hex() or 'none'}: {row_key[:64].hex()}")
        settled, static = partition.close(rule), section == STATIC
        partition.note(layout, versions, None if static else clustering)
        yield fold_row(
            layout,
            row_key,
            versions,
            rule,
            settled_us=settled.static_us if static else settled.covering(clustering),
            static=static,
        )
    if partition is not None and complete:
        yield partition.fold(rule)


def _deletions(partition: _Partition, row_key: bytes, versions: list[Pair]) -> bool:
    """Take note of a partition's own deletions; False: these are no such."""
    section = row_key[len(partition.prefix) : len(partition.prefix) + 1]
    if section == PARTITION_DELETED:
        partition.deleted += versions
    elif section == RANGE_DELETED:
        partition.ranges += versions
    else:
        return False
    return True
