"""How large replicas are, as instances report it to the leader: what they say, and the leader's ledger of it.

    method           from -> to                body           answer
    tablets.report   member -> leader          SizesReport    SizesNoted
    tablets.sizes    anyone -> any -> leader   SizesRequest   SizesReply

This is soft state: the leader keeps it in memory and nothing of it is ever written. A new leader knows nothing, and
says so in its answer; whoever reported to another before begins anew. Sizes are absolute, so a report that is lost or
comes twice does no harm. A replica's size is what it takes on disk and in memory; a tablet's is that of its largest
replica, because replicas of one tablet differ by what they have not folded yet, and the largest is what has to fit.

A million tablets with three replicas each must fit: a replica costs the ledger 12 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

REPORT = "tablets.report"
SIZES = "tablets.sizes"

MAX_REPORTED = 5_000  # sizes in one report
MAX_SHOWN = 50_000  # sizes in one answer
GONE = -1  # instead of a size: the replica is not there any more
_MAX_BYTES = (1 << 63) - 1


class SizesReport(msgspec.Struct, array_like=True, frozen=True):
    """Sizes by table and tablet that changed since the last report. `anew`: forget what was reported before.

    `term` is that of the leader it is meant for. `free_bytes`: what its disk has left beyond the reserve; GONE: it does
    not say.
    """

    raft_id: int
    uuid: str
    term: int
    sizes: dict[int, dict[int, int]] = {}
    anew: bool = False
    free_bytes: int = GONE


class SizesNoted(msgspec.Struct, array_like=True, frozen=True):
    """`again`: report everything anew. `totals` are the bytes of every instance that has reported, by raft id."""

    again: bool = False
    totals: dict[int, int] = {}


class SizesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Sizes of the tablets of one table, or of all (0), from a table and tablet on."""

    table: int = 0
    start: tuple[int, int] = (0, 0)
    forwarded: bool = False


class SizesReply(msgspec.Struct, array_like=True, frozen=True):
    """(table, first tablet, bytes of it and of those that follow; GONE where nobody reported). `next`: go on there."""

    sizes: list[tuple[int, int, list[int]]] = []
    next: tuple[int, int] | None = None


class _Column:
    """The replicas of one table on one instance, sorted by tablet."""

    __slots__ = ("bytes", "tablets", "total")

    def __init__(self) -> None:
        self.tablets = array("I")
        self.bytes = array("q")
        self.total = 0

    def copy(self) -> _Column:
        made = _Column()
        made.tablets, made.bytes, made.total = self.tablets[:], self.bytes[:], self.total
        return made

    def note(self, tablet: int, size: int) -> None:
        at = bisect_left(self.tablets, tablet)
        known = at < len(self.tablets) and self.tablets[at] == tablet
        if known:
            self.total -= self.bytes[at]
        if size == GONE:
            if known:
                del self.tablets[at], self.bytes[at]
            return
        self.total += size
        if known:
            self.bytes[at] = size
        else:
            self.tablets.insert(at, tablet)
            self.bytes.insert(at, size)

    def size(self, tablet: int) -> int:
        at = bisect_left(self.tablets, tablet)
        return self.bytes[at] if at < len(self.tablets) and self.tablets[at] == tablet else GONE


class SizeLedger:
    """What the leader was told, by instance and table."""

    def __init__(self) -> None:
        self._told: dict[int, dict[int, _Column]] = {}
        self._free: dict[int, int] = {}

    def clear(self) -> None:
        """The term is over."""
        self._told.clear()
        self._free.clear()

    def take(self, report: SizesReport, counts: Mapping[int, int]) -> bool:
        """Note a report. `counts` are the tablets of each table there is; others are ignored.

        False: what came before it is not known here, so everything must be reported anew.
        """
        if report.anew:
            self._told[report.raft_id] = {}
        told = self._told.get(report.raft_id)
        if told is None:
            return False
        self._free[report.raft_id] = min(max(report.free_bytes, GONE), _MAX_BYTES)
        for table, sizes in report.sizes.items():
            count = counts.get(table, 0)
            column = told.get(table)
            for tablet, size in sizes.items():
                if not 0 <= tablet < count or not GONE <= size <= _MAX_BYTES:
                    continue
                if column is None:
                    column = told[table] = _Column()
                column.note(tablet, size)
        return True

    def keep_only(self, members: Container[int], tables: Container[int]) -> None:
        """Forget instances that have left, and tables that were dropped."""
        for raft_id in [raft_id for raft_id in self._told if raft_id not in members]:
            del self._told[raft_id]
            self._free.pop(raft_id, None)
        for told in self._told.values():
            for table in [table for table in told if table not in tables]:
                del told[table]

    def told(self, raft_id: int) -> int:
        """How many replicas an instance has reported; -1: it has not reported at all."""
        told = self._told.get(raft_id)
        return -1 if told is None else sum(len(column.tablets) for column in told.values())

    def copy(self) -> SizeLedger:
        """The same, for somebody who looks at it for a while."""
        made = SizeLedger()
        made._told = {
            raft_id: {table: column.copy() for table, column in told.items()} for raft_id, told in self._told.items()
        }
        made._free = self._free.copy()
        return made

    def free_of_all(self) -> dict[int, int]:
        """What the disks have left of all instances that have said so."""
        return {raft_id: size for raft_id, size in sorted(self._free.items()) if size != GONE}

    def free(self, raft_id: int) -> int:
        """What an instance's disk has left; GONE if it has not said."""
        return self._free.get(raft_id, GONE)

    def totals(self) -> dict[int, int]:
        """The bytes of every instance that has reported."""
        return {raft_id: sum(column.total for column in told.values()) for raft_id, told in sorted(self._told.items())}

    def size(self, table: int, tablet: int, replicas: Sequence[int]) -> int:
        """The size of a tablet: that of its largest replica; GONE if none was reported."""
        largest = GONE
        for raft_id in replicas:
            column = self._told.get(raft_id, {}).get(table)
            if column is not None:
                largest = max(largest, column.size(tablet))
        return largest

    def page(
        self,
        maps: Mapping[int, Iterable[tuple[int, Sequence[int]]]],
        start: tuple[int, int],
        limit: int = MAX_SHOWN,
    ) -> SizesReply:
        """The sizes of the tablets of these tables, in order, from (table, tablet) on, at most `limit` of them."""
        shown: list[tuple[int, int, list[int]]] = []
        room = limit
        for table in sorted(table for table in maps if table >= start[0]):
            first = start[1] if table == start[0] else 0
            follows = -1
            for tablet, replicas in maps[table]:
                if tablet < first:
                    continue
                if not room:
                    return SizesReply(shown, (table, tablet))
                if tablet != follows:
                    shown.append((table, tablet, []))
                shown[-1][2].append(self.size(table, tablet, replicas))
                follows = tablet + 1
                room -= 1
        return SizesReply(shown)


def by_place(reply: SizesReply) -> dict[tuple[int, int], int]:
    """Bytes by table and tablet, of those that are known."""
    return {
        (table, first + offset): size
        for table, first, sizes in reply.sizes
        for offset, size in enumerate(sizes)
        if size != GONE
    }


encode: Any = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(SizesReport).decode
decode_noted = msgspec.msgpack.Decoder(SizesNoted).decode
decode_request = msgspec.msgpack.Decoder(SizesRequest).decode
decode_reply = msgspec.msgpack.Decoder(SizesReply).decode
