"""The rows that a task has sent already, as numbers: so that a later row of the same key is known for what it is.

A load writes all its rows with one timestamp, so of two rows of one key that differ nobody could say which one stays.
Within a chunk they are compared as they are (`bad_rows`). Those of chunks before are gone by then; what is kept of them
is 24 bytes each: two numbers of the key, 128 bits together, and a hash of the values. Two keys that have both numbers
in common are not to be expected in the lifetime of any cluster.

The first number, the key's *place*, is what they are sorted and found by. Where a partition is one row it is the token:
rows are in that order already. Where it has many it is a hash of the whole key, and the token comes second.

Bounded: so many rows are remembered, the first ones. A task of one chunk, which is the usual one, pays nothing.

Rows of different tasks are compared by their driver, if it is asked to (`differing`): then tasks tell all they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.rows.column_hashing import hashes
from trimtab.rows.column_keys import ordered_tokens
from trimtab.rows.layout import RowLayout
from trimtab.rows.ragged import Ragged
from trimtab.rows.sorted_rows import SortedRows
from trimtab.rows.tokens import TOKEN_BYTES
from trimtab.spark.bad_rows import Bad, keys_of, shown_key
from trimtab.spark.encoding import Encoded
from trimtab.spark.load_plan import LoadFailed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

MAX_ROWS = 10_000_000  # 240 MB, about as much as a chunk


@dataclass(frozen=True)
class _Prints:
    """In the order of `places`, the first number of each key; `keys` is the second."""

    places: Hashes
    keys: Hashes
    values: Hashes

    def take(self, places: NDArray[np.intp] | NDArray[np.bool_]) -> _Prints:
        return _Prints(self.places[places], self.keys[places], self.values[places])

    def merged(self, other: _Prints) -> _Prints:
        import numpy as np

        both = _Prints(
            np.concatenate((self.places, other.places)),
            np.concatenate((self.keys, other.keys)),
            np.concatenate((self.values, other.values)),
        )
        return both.take(np.argsort(both.places, kind="stable"))

    def to_bytes(self) -> bytes:
        import numpy as np

        return np.stack((self.places, self.keys, self.values), axis=1).tobytes()

    def of(self, places: Hashes, keys: Hashes) -> tuple[NDArray[np.intp], Hashes]:
        """Which of these keys are here, and the values that they have here."""
        import numpy as np

        at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
        same = np.flatnonzero((self.places[at] == places) & (self.keys[at] == keys))
        return same, self.values[at[same]]


class KnownRows:
    """Of one task."""

    def __init__(self, layout: RowLayout, max_rows: int = MAX_ROWS) -> None:
        self._layout = layout
        self._left = max_rows
        self._numbered: tuple[SortedRows, Hashes, Hashes, NDArray[np.int64]] | None = None  # what was looked at last
        self._known: list[_Prints] = []  # each more than twice as long as the next: so there are few of them

    def conflicts(self, encoded: Encoded) -> list[Bad]:
        """The rows that have a key of an earlier chunk and differ from its row."""
        import numpy as np

        rows = encoded.rows
        if rows is None or not len(rows) or not self._known:
            return []
        places, keys, at = self._numbers_of(rows)
        differing = []
        for known in self._known:
            here, values = known.of(places, keys)
            if len(here):
                differing.append(here[hashes(rows.values.take(at[here])).view(np.uint64) != values])
        found = np.concatenate(differing) if differing else np.empty(0, np.intp)
        return self._rows_of(encoded, places[found]) if len(found) else []

    def remember(self, encoded: Encoded) -> None:
        """The rows of a chunk; none of them is in conflict with an earlier one."""
        import numpy as np

        rows = encoded.rows
        if rows is None or not len(rows) or not self._left:
            return
        places, keys, at = self._numbers_of(rows)
        self._numbered = None
        prints = _Prints(places, keys, rows.value_hashes()[at])
        if any(column.name in encoded.taken.schema.names for column in self._layout.static.columns):
            # What partitions have in common is no row.
            own = keys_of(self._layout, encoded.taken)
            if own is None:
                return
            prints = prints.take(np.isin(prints.places, _numbers(self._layout, own[0])[0]))
        self._add(prints)

    def to_bytes(self) -> bytes:
        """All that is known. LoadFailed: there were more rows than are remembered."""
        if not self._left:
            raise LoadFailed(
                "there are too many rows for duplicates=check; read the files with spark.read, repartition the frame "
                "by the primary key and write that"
            )
        return b"".join(known.to_bytes() for known in self._known)

    def _numbers_of(self, rows: SortedRows) -> tuple[Hashes, Hashes, NDArray[np.int64]]:
        """By their places; and which rows they are."""
        import numpy as np

        if self._numbered is None or self._numbered[0] is not rows:
            places, keys = _numbers(self._layout, rows.rows)
            at = rows.order
            places = places[at]
            if self._layout.clustering:
                by_place = np.argsort(places)
                places, at = places[by_place], at[by_place]
            assert bool((places[1:] >= places[:-1]).all()), "rows are in the order of their tokens"
            self._numbered = rows, places, keys[at], at
        return self._numbered[1:]

    def _add(self, prints: _Prints) -> None:
        count = len(prints.places)
        if not count:
            return
        self._left = self._left - count if count <= self._left else 0
        if not self._left:
            return
        while self._known and len(self._known[-1].places) <= 2 * len(prints.places):
            prints = self._known.pop().merged(prints)
        self._known.append(prints)

    def _rows_of(self, encoded: Encoded, wanted: Hashes) -> list[Bad]:
        import numpy as np

        own = keys_of(self._layout, encoded.taken)
        assert own is not None, "what has no keys of rows has no rows"
        keys, places_of = own
        places = places_of[np.isin(_numbers(self._layout, keys)[0], wanted)]
        rows = encoded.taken.take(places).to_pylist()
        return [
            Bad(
                int(place), f"an earlier row of the load has the key {shown_key(self._layout, row)} and is not the same"
            )
            for place, row in zip(places, rows, strict=True)
        ]


def _numbers(layout: RowLayout, keys: Ragged) -> tuple[Hashes, Hashes]:
    """Of each key, whatever chunk it comes in: its place, and the other number."""
    import numpy as np

    tokens = ordered_tokens(keys)
    if layout.clustering:
        return hashes(keys).view(np.uint64), tokens
    if layout.partition_end == TOKEN_BYTES + 8:
        # What follows the token is 64 bits itself.
        return tokens, keys.numbers(TOKEN_BYTES, ">u8").astype(np.uint64)
    return tokens, hashes(keys).view(np.uint64)


@dataclass(frozen=True)
class Differing:
    """How many keys have rows that are not the same; the place of one of them, and which tasks have it."""

    keys: int
    one: int
    tasks: tuple[int, ...]


def differing(prints: Sequence[bytes]) -> Differing | None:
    """Keys that these tasks have with different rows; None: there are none."""
    import numpy as np

    parts = [np.frombuffer(each, np.uint64).reshape(-1, 3) for each in prints]
    whole = np.concatenate(parts) if parts else np.empty((0, 3), np.uint64)
    whole_keys = whole[:, 0]
    order = np.argsort(whole_keys)
    again = np.flatnonzero(whole_keys[order[1:]] == whole_keys[order[:-1]])
    # Those few alone are compared in full.
    places = np.unique(np.concatenate((order[again], order[again + 1])))
    some = whole[places]
    some = some[np.lexsort((some[:, 2], some[:, 1], some[:, 0]))]
    same = (some[1:, :2] == some[:-1, :2]).all(axis=1) & (some[1:, 2] != some[:-1, 2])
    keys = np.unique(some[1:][same, 0])
    if not len(keys):
        return None
    owners = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    tasks = np.unique(owners[whole_keys == keys[0]])
    return Differing(len(keys), int(keys[0]), tuple(int(each) for each in tasks))


def key_of(layout: RowLayout, batch: Any, place: int) -> str:
    """The key with this place as people read it; empty: none of these rows has it."""
    import pyarrow as pa

    own = keys_of(layout, pa.Table.from_batches([batch]))
    if own is None:
        return ""
    keys, places_of = own
    places = places_of[_numbers(layout, keys)[0] == place]
    return shown_key(layout, batch.slice(int(places[0]), 1).to_pylist()[0]) if len(places) else ""
