"""The rows that a task has sent already, as numbers: so that a later row of the same key is known for what it is.

A load writes all its rows with one timestamp, so of two rows of one key that differ nobody could say which one stays.
Within a chunk they are compared as they are (`bad_rows`). Those of chunks before are gone by then; what is kept of them
is 24 bytes each: two hashes of the key, 128 bits together, and one of the values. Two keys that have both hashes in
common are not to be expected in the lifetime of any cluster.

Bounded: so many rows are remembered, the first ones. A task of one chunk, which is the usual one, pays nothing.

Rows of different tasks are compared by their driver, if it is asked to (`differing`): then tasks tell all they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.rows.layout import RowLayout
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
    """In the order of `keys`, hashes of whole keys; `tokens` those of partition keys alone."""

    keys: Hashes
    tokens: Hashes
    values: Hashes

    def take(self, places: NDArray[np.intp] | NDArray[np.bool_]) -> _Prints:
        return _Prints(self.keys[places], self.tokens[places], self.values[places])

    def merged(self, other: _Prints) -> _Prints:
        import numpy as np

        both = _Prints(
            np.concatenate((self.keys, other.keys)),
            np.concatenate((self.tokens, other.tokens)),
            np.concatenate((self.values, other.values)),
        )
        return both.take(np.argsort(both.keys, kind="stable"))

    def to_bytes(self) -> bytes:
        import numpy as np

        return np.stack((self.keys, self.tokens, self.values), axis=1).tobytes()

    def differing(self, others: _Prints) -> NDArray[np.bool_]:
        """Which of the others have a key that is here with other values."""
        import numpy as np

        at = np.minimum(np.searchsorted(self.keys, others.keys), len(self.keys) - 1)
        same = (self.keys[at] == others.keys) & (self.tokens[at] == others.tokens)
        found: NDArray[np.bool_] = same & (self.values[at] != others.values)
        return found


class KnownRows:
    """Of one task."""

    def __init__(self, layout: RowLayout, max_rows: int = MAX_ROWS) -> None:
        self._layout = layout
        self._left = max_rows
        self._known: list[_Prints] = []  # each more than twice as long as the next: so there are few of them

    def conflicts(self, encoded: Encoded, *, remember: bool) -> list[Bad]:
        """The rows that have a key of an earlier chunk and differ from its row; the others are remembered."""
        import numpy as np

        if encoded.rows is None or not len(encoded.rows) or not (self._known or remember):
            return []
        prints = self._prints(encoded)
        if prints is None:
            return []
        differing = np.zeros(len(prints.keys), dtype=bool)
        for known in self._known:
            differing |= known.differing(prints)
        if remember:
            self._remember(prints.take(~differing))
        return self._rows_of(encoded, prints.keys[differing]) if differing.any() else []

    def to_bytes(self) -> bytes:
        """All that is known. LoadFailed: there were more rows than are remembered."""
        if not self._left:
            raise LoadFailed(
                "there are too many rows for duplicates=check; read the files with spark.read, repartition the frame "
                "by the primary key and write that"
            )
        return b"".join(known.to_bytes() for known in self._known)

    def _prints(self, encoded: Encoded) -> _Prints | None:
        import numpy as np

        from trimtab.rows.column_hashing import hashes
        from trimtab.rows.column_keys import ordered_tokens

        rows = encoded.rows
        assert rows is not None
        keys = hashes(rows.rows).view(np.uint64)
        prints = _Prints(keys, ordered_tokens(rows.rows), hashes(rows.values).view(np.uint64)).take(rows.order)
        if any(column.name in encoded.taken.schema.names for column in self._layout.static.columns):
            # What partitions have in common is no row.
            own = keys_of(self._layout, encoded.taken)
            if own is None:
                return None
            of_rows, _ = own
            prints = prints.take(np.isin(prints.keys, hashes(of_rows).view(np.uint64)))
        return prints.take(np.argsort(prints.keys))

    def _remember(self, prints: _Prints) -> None:
        count = len(prints.keys)
        if not count:
            return
        self._left = self._left - count if count <= self._left else 0
        if not self._left:
            return
        while self._known and len(self._known[-1].keys) <= 2 * len(prints.keys):
            prints = self._known.pop().merged(prints)
        self._known.append(prints)

    def _rows_of(self, encoded: Encoded, wanted: Hashes) -> list[Bad]:
        import numpy as np

        from trimtab.rows.column_hashing import hashes

        own = keys_of(self._layout, encoded.taken)
        assert own is not None, "what has no keys of rows has no rows"
        keys, places_of = own
        places = places_of[np.isin(hashes(keys).view(np.uint64), wanted)]
        rows = encoded.taken.take(places).to_pylist()
        return [
            Bad(
                int(place), f"an earlier row of the load has the key {shown_key(self._layout, row)} and is not the same"
            )
            for place, row in zip(places, rows, strict=True)
        ]


@dataclass(frozen=True)
class Differing:
    """How many keys have rows that are not the same; the hash of one of them, and the numbers of tasks that have it."""

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


def key_of(layout: RowLayout, batch: Any, hash: int) -> str:
    """The key with this hash as people read it; empty: none of these rows has it."""
    import numpy as np
    import pyarrow as pa

    from trimtab.rows.column_hashing import hashes

    own = keys_of(layout, pa.Table.from_batches([batch]))
    if own is None:
        return ""
    keys, places_of = own
    places = places_of[hashes(keys).view(np.uint64) == hash]
    return shown_key(layout, batch.slice(int(places[0]), 1).to_pylist()[0]) if len(places) else ""
