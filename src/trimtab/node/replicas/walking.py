"""Walking over the rows of a replica, for comparing it with another, in steps that don't hold up the loop.

A step reads and merges some dozen rows, as a read would, which takes a millisecond or two; then others have their turn
(`gentle`: for about as long, though nobody waits). Nothing is held between steps but where it stood: a replica may be
written to, flushed or taken away meanwhile.

A step that begins inside a partition meets the partition's deletions again, because they count for its rows. They are
left out then: the step before has given them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from trimtab.rows.comparing import Digest, adds_nothing
from trimtab.rows.deletions import Pair
from trimtab.rows.folding import newest_stamp
from trimtab.rows.keys import TAIL
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting
from trimtab.rows.protocol import Pairs, RangeRead
from trimtab.rows.reading import NONE_APART, Limits, read_range

# Few rows; of what is before them in their partition, which every step reads again, there may be more.
STEP = Limits(answer_bytes=128 << 10, scanned_bytes=256 << 10, scanned_pairs=256, rows=64)
MAX_PAIRS_PER_REQUEST = 20_000
_GENTLE_PAUSE_S = 0.001
_ALL = 1 << 30
# Above every key: a token and its columns don't begin with so many bytes of ff.
END_OF_KEYS = b"\xff" * 1024


class Scan(Protocol):
    def __call__(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterable[Pair]: ...


class Walk:
    """Over one replica, with the layout its table has now. Deletions from before `forget_ms` are left out.

    `apart`: inverted stamps whose versions are not merged with others (see `reading`).
    """

    def __init__(
        self, scan: Scan, layout: RowLayout, forget_ms: int, *, gentle: bool, apart: frozenset[bytes] = NONE_APART
    ) -> None:
        self._scan = scan
        self._layout = layout
        self._forgetting = Forgetting(forget_ms)
        self._gentle = gentle
        self._apart = apart

    async def digests(self, cuts: list[bytes]) -> list[bytes]:
        """Of all ranges between these cuts (the last may be empty: to the end)."""
        return (await self.first_digests(cuts, 1 << 62))[0]

    async def first_digests(self, cuts: list[bytes], max_pairs: int) -> tuple[list[bytes], list[int]]:
        """Digests and numbers of pairs of the first ranges: of all, unless these hold more than `max_pairs`."""
        ends = [*cuts[1:-1], cuts[-1] or END_OF_KEYS]
        digests = [Digest() for _ in ends]
        at, current, seen = cuts[0], 0, 0
        while True:
            pairs, at = self._step(at, ends[-1])
            keys = pairs[::2]
            seen += len(keys)
            start = 0
            while start < len(keys):
                stop = bisect_left(keys, ends[current], start)
                digests[current].add(keys[start:stop])
                start = stop
                if start < len(keys):
                    current += 1
            if not at:
                break
            while at >= ends[current]:
                current += 1
            if seen > max_pairs and current:
                # The one it stands in is not finished: whoever asked goes on with it.
                digests = digests[:current]
                break
            await self._breathe()
        return [each.bytes() for each in digests], [each.pairs for each in digests]

    async def page(self, low: bytes, high: bytes, limit_bytes: int) -> tuple[Pairs, bytes]:
        """Merged pairs from `low` on, whole rows, about so many bytes; and where the next page begins (empty: none)."""
        found: Pairs = []
        bytes_ = 0
        while True:
            pairs, low = self._step(low, high or END_OF_KEYS)
            found += pairs
            bytes_ += sum(map(len, pairs))
            if not low or bytes_ >= limit_bytes:
                return found, low
            await self._breathe()

    async def lacking(self, pairs: Pairs) -> Pairs:
        """Of the pairs of a page, in order of keys, those that say something new here; by whole rows."""
        own = await self._own_between(pairs[0][:-TAIL], pairs[-2] + b"\x00")
        lacking: Pairs = []
        start, looked = 0, 0
        while start < len(pairs):
            row = pairs[start][:-TAIL]
            stop = start + 2
            while stop < len(pairs) and pairs[stop][:-TAIL] == row:
                stop += 2
            theirs = list(zip(pairs[start:stop:2], pairs[start + 1 : stop : 2], strict=True))
            if not adds_nothing(self._layout, own.get(row, ()), theirs):
                lacking.extend(pairs[start:stop])
            start = stop
            looked += 1
            if looked % STEP.scanned_pairs == 0:
                await self._breathe()
        return lacking

    async def newest_us(self, low: bytes, high: bytes) -> int:
        """The newest stamp of everything that is stored there; 0: nothing is, or only what is older than 1970."""
        newest = 0
        while True:
            found = list(islice(self._scan(low, high or END_OF_KEYS), STEP.scanned_pairs))
            newest = max([newest, *(newest_stamp(self._layout, pair) for pair in found)])
            if len(found) < STEP.scanned_pairs:
                return newest
            low = found[-1][0] + b"\x00"
            await self._breathe()

    async def _own_between(self, low: bytes, high: bytes) -> dict[bytes, list[Pair]]:
        own: dict[bytes, list[Pair]] = {}
        while True:
            found = list(islice(self._scan(low, high), STEP.scanned_pairs))
            for pair in found:
                own.setdefault(pair[0][:-TAIL], []).append(pair)
            if len(found) < STEP.scanned_pairs:
                return own
            low = found[-1][0] + b"\x00"
            await self._breathe()

    def _step(self, low: bytes, high: bytes) -> tuple[Pairs, bytes]:
        """The next merged pairs, and where the step after begins; empty: there is none."""
        if low >= high:
            return [], b""
        wanted = RangeRead(low, high, _ALL)
        read = read_range(
            self._layout, self._scan, wanted, 0, limits=STEP, forgetting=self._forgetting, apart=self._apart
        )
        pairs = read.pairs
        if pairs and pairs[0] < low:
            first = 2 * bisect_left(pairs[::2], low)
            pairs = pairs[first:]
        return pairs, read.end if read.more else b""

    async def _breathe(self) -> None:
        await asyncio.sleep(_GENTLE_PAUSE_S if self._gentle else 0)
