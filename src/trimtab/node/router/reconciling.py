"""What replicas that differ come to together, and what each of them lacks of it.

Everything a replica holds is a set of pairs that only grows, so the union of what several hold, read as one, is what a
replica with all of it would answer. What one lacks are the pairs of that answer that it did not send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.rows.digests import digest_of
from trimtab.rows.keys import inverted
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Pairs, RangeRows, ReplicaRead, ReplicaRows
from trimtab.rows.reading import merge_answers
from trimtab.rows.splitting import parts_of

MAX_PART_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The merged answer, and by raft id what a replica lacks of it."""

    ranges: list[RangeRows]
    lacking: dict[int, Pairs]


def digests_of(rows: ReplicaRows) -> list[bytes]:
    return [digest_of(each.pairs, each.end) for each in rows.ranges]


def reconcile(layout: RowLayout, read: ReplicaRead, answers: Mapping[int, ReplicaRows]) -> Reconciled:
    """Merge everybody's rows, range by range."""
    apart = frozenset(map(inverted, read.apart))
    ranges: list[RangeRows] = []
    lacking: dict[int, Pairs] = {raft_id: [] for raft_id in answers}
    for position, wanted in enumerate(read.ranges):
        given = {raft_id: rows.ranges[position] for raft_id, rows in answers.items()}
        merged = merge_answers(layout, wanted, list(given.values()), read.now_s, read.as_of_us, apart)
        ranges.append(RangeRows(merged.pairs, b"", merged.more, merged.end))
        for raft_id, rows in given.items():
            held = frozenset(rows.pairs[::2])
            for place in range(0, len(merged.pairs), 2):
                if merged.pairs[place] not in held:
                    lacking[raft_id] += merged.pairs[place : place + 2]
    return Reconciled(ranges, lacking)


def differing(found: Reconciled) -> Pairs:
    """What some replica lacks of the merged answer."""
    pairs: dict[bytes, bytes] = {}
    for lacking in found.lacking.values():
        pairs.update(zip(lacking[::2], lacking[1::2], strict=True))
    return [part for pair in pairs.items() for part in pair]


def split(layout: RowLayout, pairs: Pairs) -> list[Pairs]:
    """Pairs in parts that fit into a message each."""
    parts: list[Pairs] = []
    size = MAX_PART_BYTES
    for place in range(0, len(pairs), 2):
        fitting = parts_of(layout, pairs[place], pairs[place + 1], MAX_PART_BYTES)
        for at in range(0, len(fitting), 2):
            this = len(fitting[at]) + len(fitting[at + 1])
            if size + this > MAX_PART_BYTES:
                parts.append([])
                size = 0
            parts[-1] += fitting[at : at + 2]
            size += this
    return parts
