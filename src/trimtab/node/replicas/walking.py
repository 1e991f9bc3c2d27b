"""Walking over the rows of a replica, for comparing it with another, in steps that don't hold up the loop.

A step reads some hundred pairs at once and merges them; then others have their turn (`gentle`: they have most of it).
Nothing is held between steps but where it stood: a replica may be written to, flushed or taken away meanwhile.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable

from trimtab.rows.comparing import Digest, Merger, adds_nothing
from trimtab.rows.deletions import Pair
from trimtab.rows.keys import TAIL, partition_end
from trimtab.rows.layout import RowLayout

# (low, high, limit) -> the first pairs with low <= key < high
Read = Callable[[bytes, bytes, int], list[Pair]]

STEP_PAIRS = 256
STEP_BYTES = 256 << 10
MAX_PAIRS_PER_REQUEST = 50_000
_GENTLE_PAUSE_S = 0.005
# Above every key: a token, and then at most 64 KiB of columns; but none has so many bytes of ff in a row.
END_OF_KEYS = b"\xff" * 1024
_FIRST_SECTION, _AFTER_DELETIONS = b"\x10", b"\x30"


class Walk:
    """Over one replica, with the layout its table has now."""

    def __init__(self, read: Read, layout: RowLayout, forget_ms: int, *, gentle: bool) -> None:
        self._read = read
        self._layout = layout
        self._forget_ms = forget_ms
        self._gentle = gentle
        self._limit = self._limit_used = STEP_PAIRS

    async def digests(self, cuts: list[bytes]) -> list[bytes]:
        """Of all ranges between these cuts (the last may be empty: to the end)."""
        return (await self.first_digests(cuts, 1 << 62))[0]

    async def first_digests(self, cuts: list[bytes], max_pairs: int) -> tuple[list[bytes], list[int]]:
        """Digests and numbers of pairs of the first ranges: of all, unless these hold more than `max_pairs`."""
        ends = [*cuts[1:-1], cuts[-1] or END_OF_KEYS]
        digests = [Digest()]
        merger = Merger(self._layout, self._forget_ms)
        at, looked = cuts[0], 0
        while True:
            step = self._next(at, ends[-1])
            looked += len(step)
            start = 0
            while start < len(step):
                stop = bisect_left(step, (ends[len(digests) - 1],), start)
                merger.feed(step[start:stop])
                start = stop
                if start < len(step):
                    self._end_range(merger, digests)
                    if looked > max_pairs and len(digests) <= len(ends):
                        # What is in this one is not counted: whoever asked goes on with it.
                        return [each.bytes() for each in digests[:-1]], [each.pairs for each in digests[:-1]]
            digests[-1].add(merger.take())
            if not step or len(step) < self._limit_used:
                break
            at = step[-1][0] + b"\x00"
            await self._breathe()
        merger.finish()
        digests[-1].add(merger.take())
        digests.extend(Digest() for _ in range(len(ends) - len(digests)))
        return [each.bytes() for each in digests], [each.pairs for each in digests]

    @staticmethod
    def _end_range(merger: Merger, digests: list[Digest]) -> None:
        merger.finish()
        digests[-1].add(merger.take())
        digests.append(Digest())

    async def page(self, low: bytes, high: bytes, limit_bytes: int) -> tuple[list[bytes], bytes]:
        """Merged pairs from `low` on, whole rows, about so many bytes; and where the next page begins (empty: none)."""
        high = high or END_OF_KEYS
        merger = Merger(self._layout, self._forget_ms)
        merger.prime(self._deletions_before(low))
        pairs: list[bytes] = []
        bytes_, at = 0, low
        while True:
            step = self._next(at, high)
            ended = len(step) < self._limit_used
            merger.feed(step)
            if ended:
                merger.finish()
            bytes_ += self._add(pairs, merger)
            if ended:
                return pairs, b""
            if bytes_ >= limit_bytes:
                following = merger.suspend()
                self._add(pairs, merger)
                return pairs, following
            at = step[-1][0] + b"\x00"
            await self._breathe()

    @staticmethod
    def _add(pairs: list[bytes], merger: Merger) -> int:
        bytes_ = 0
        for key, value in merger.take():
            pairs += (key, value)
            bytes_ += len(key) + len(value)
        return bytes_

    def _deletions_before(self, low: bytes) -> list[Pair]:
        end = partition_end(self._layout, low) if self._layout.clustering else None
        if end is None or len(low) <= end:
            return []
        return self._read(low[:end] + _FIRST_SECTION, min(low, low[:end] + _AFTER_DELETIONS), 1 << 30)

    async def lacking(self, pairs: list[bytes]) -> list[bytes]:
        """Of the pairs of a page, in order of keys, those that say something new here; by whole rows."""
        own = await self._own_between(pairs[0][:-TAIL], pairs[-2] + b"\x00")
        lacking: list[bytes] = []
        start, looked = 0, 0
        while start < len(pairs):
            row = pairs[start][:-TAIL]
            stop = start + 2
            while stop < len(pairs) and pairs[stop][:-TAIL] == row:
                stop += 2
            theirs = list(zip(pairs[start:stop:2], pairs[start + 1 : stop : 2], strict=True))
            mine = own.get(row)
            if mine is None or not adds_nothing(self._layout, mine, theirs):
                lacking.extend(pairs[start:stop])
            start = stop
            looked += 1
            if looked % STEP_PAIRS == 0:
                await self._breathe()
        return lacking

    async def _own_between(self, low: bytes, high: bytes) -> dict[bytes, list[Pair]]:
        own: dict[bytes, list[Pair]] = {}
        while True:
            step = self._next(low, high)
            for pair in step:
                own.setdefault(pair[0][:-TAIL], []).append(pair)
            if len(step) < self._limit_used:
                return own
            low = step[-1][0] + b"\x00"
            await self._breathe()

    def _next(self, low: bytes, high: bytes) -> list[Pair]:
        """The next step. Its length adapts to the size of the pairs, so that large ones don't hold up the loop."""
        self._limit_used = self._limit
        step = self._read(low, high, self._limit)
        if step:
            bytes_ = sum(len(value) for _, value in step)
            self._limit = max(min(STEP_PAIRS, STEP_BYTES * len(step) // max(bytes_, 1)), 1)
        return step

    async def _breathe(self) -> None:
        await asyncio.sleep(_GENTLE_PAUSE_S if self._gentle else 0)
