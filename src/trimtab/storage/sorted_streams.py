"""Several sorted streams of pairs as one, in batches of columns. A pair that is in several comes once.

A tablet's files are such streams: those of one level follow each other, those of different levels overlap. Keys hold
the hash of their value, so equal keys are equal pairs, and it does not matter which of them stays.

From every stream that much is taken as is certain to be complete: up to the least of the last keys that the streams
have in hand. Where only one has anything there, its pairs pass as they are; where all have the same keys there, as
replicas that miss nothing have, so do those of the first. Everything else is sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trimtab.rows.ragged import Ragged, from_list, stack
from trimtab.rows.sorted_rows import order_of, repeats

Batch = tuple[Ragged, Ragged]


class _Stream:
    """One stream, and the batch of it that is in hand; `keys` is empty when nothing is left."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)
        self._next()

    def _next(self) -> None:
        for keys, values in self._batches:
            if len(keys):
                self.keys, self.values, self.last = keys, values, keys.bytes_at(len(keys) - 1)
                return
        self.keys = self.values = from_list([])
        self.last = b""

    def take_all(self) -> Batch:
        taken = self.keys, self.values
        self._next()
        return taken

    def take_to(self, last: bytes) -> Batch:
        """What it has up to this key, that included."""
        if self.last <= last:
            return self.take_all()
        low, high = 0, len(self.keys)
        while low < high:
            middle = (low + high) // 2
            if self.keys.bytes_at(middle) <= last:
                low = middle + 1
            else:
                high = middle
        taken = self.keys.slice(0, low), self.values.slice(0, low)
        self.keys, self.values = self.keys.slice(low, len(self.keys)), self.values.slice(low, len(self.values))
        return taken


def merged(streams: Iterable[Iterable[Batch]]) -> Iterator[Batch]:
    """The pairs of all streams, in order."""
    live = [stream for stream in map(_Stream, streams) if len(stream.keys)]
    while len(live) > 1:
        last = min(stream.last for stream in live)
        parts = [part for part in (stream.take_to(last) for stream in live) if len(part[0])]
        yield parts[0] if len(parts) == 1 or _same(parts) else _merge(parts)
        live = [stream for stream in live if len(stream.keys)]
    while live and len(live[0].keys):
        yield live[0].take_all()


def _same(parts: list[Batch]) -> bool:
    import numpy as np

    first = parts[0][0]
    return all(
        len(keys) == len(first)
        and keys.size == first.size
        and bool((keys.lengths == first.lengths).all() if keys.width is None else keys.width == first.width)
        and bool(np.array_equal(keys.flat(), first.flat()))
        for keys, _ in parts[1:]
    )


def _merge(parts: list[Batch]) -> Batch:
    import numpy as np

    keys, values = stack([part[0] for part in parts]), stack([part[1] for part in parts])
    order, ties = order_of(keys)
    again = repeats(keys, order, ties)
    if len(again):
        order = np.delete(order, again + 1)
    return keys.take(order), values.take(order)
