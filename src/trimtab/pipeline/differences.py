"""What exactly differs between replicas of a range: which rows, and who lacks what.

Everything that any replica holds is merged as a read would merge it; a replica *lacks* a row if the merged one says
something that its own versions don't (`rows.comparing.adds_nothing`). What only lies there in other pieces, or is
covered by a deletion that is to come, is no difference. So what is lacking is just what has to be sent to make replicas
equal, and nothing else. Deletions from before `forget_ms` don't count: some replicas may have forgotten them already.

Rows of loads are not merged with others: whoever still reads at an epoch before a load leaves its rows out, which it
could not do with what was merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.loads.records import is_load_stamp
from trimtab.rows.comparing import adds_nothing
from trimtab.rows.deletions import Pair
from trimtab.rows.key_shapes import key_as_json
from trimtab.rows.keys import TAIL, stamp_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting
from trimtab.rows.protocol import Pairs, RangeRead
from trimtab.rows.reading import NO_LIMITS, read_range, scan_of
from trimtab.rows.tokens import AFTER_ALL, TOKEN_BYTES, token_of_key

_ALL = 1 << 62
_FROM = bytes(TOKEN_BYTES)
_AFTER_STAMP = 9  # bytes of a key: its kind and its hash


@dataclass(frozen=True)
class RowDifference:
    """A row (or deletion) that some replicas lack: its merged pairs, who lacks them, and who was compared."""

    row_key: bytes
    pairs: tuple[Pair, ...]
    lacking: tuple[int, ...]

    @property
    def stamp_us(self) -> int:
        """Of the newest version."""
        return max(stamp_of(key) for key, _ in self.pairs)

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.pairs)


def differences(
    layout: RowLayout, replicas: Mapping[int, Sequence[Pair]], forget_ms: int = 0
) -> Iterable[RowDifference]:
    """The differences of one range of whole tokens, in the order of keys. Pairs of each replica are sorted."""
    forgetting = Forgetting(forget_ms)
    union: dict[bytes, bytes] = {}
    for pairs in replicas.values():
        union.update(pairs)
    if all(len(pairs) == len(union) for pairs in replicas.values()):
        return
    apart = frozenset(key[-TAIL:-_AFTER_STAMP] for key in union if is_load_stamp(stamp_of(key)))
    merged = _by_row(_merged(layout, sorted(union.items()), forgetting, apart))
    own = {raft_id: _by_row(_merged(layout, pairs, forgetting, apart)) for raft_id, pairs in replicas.items()}
    for row_key, pairs in merged.items():
        lacking = [raft_id for raft_id, rows in own.items() if not adds_nothing(layout, rows.get(row_key, ()), pairs)]
        if lacking:
            yield RowDifference(row_key, tuple(pairs), tuple(sorted(lacking)))


def _merged(layout: RowLayout, pairs: Sequence[Pair], forgetting: Forgetting, apart: frozenset[bytes]) -> Pairs:
    asked = RangeRead(_FROM, AFTER_ALL, _ALL)
    return read_range(layout, scan_of(pairs), asked, 0, limits=NO_LIMITS, forgetting=forgetting, apart=apart).pairs


def _by_row(pairs: Pairs) -> dict[bytes, list[Pair]]:
    rows: dict[bytes, list[Pair]] = {}
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        rows.setdefault(key[:-TAIL], []).append((key, value))
    return rows


def told(layout: RowLayout, tablet: int, difference: RowDifference, names: Mapping[int, str]) -> dict[str, Any]:
    """A difference as JSON for people: the key of the row, when it was last written, and which instances lack it."""
    return {
        "tablet": tablet,
        "token": token_of_key(difference.row_key),
        "key": key_as_json(layout, difference.row_key),
        "writetime_us": difference.stamp_us,
        "lacking": sorted(names.get(raft_id, f"instance {raft_id}") for raft_id in difference.lacking),
    }
