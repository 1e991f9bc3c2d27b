"""A replica's part in a repair that a job does: the same round as `repair_rounds`, compared elsewhere.

A job takes copies of all replicas of a tablet, merges them in a task and sends each replica what it lacks; nothing is
read here. When all have it, each stores how far that reaches, by the rule of every round (`tablets.missed`). Three
things keep that promise true:

- The job asks all replicas to begin before it takes the first copy, and looks at the copies: one that has been repaired
  further since is taken anew, with all the others. So no copy misses a deletion that another one has forgotten already.
- Rows are taken only while a hint would be, counted from the oldest copy: what was deleted since is still remembered.
- How far it reaches is computed here, from the begin, and stored only by a replica that holds a lease and has caught
  up, of the generation and among the replicas that were compared; and not while a copy of the tablet is under way.

Whoever asks comes from outside of the cluster, a task of Spark, and shows no ticket. So rows are checked as nobody
else's are, key by key, and by every stamp in them: one of the future would win over all that is written until then. And
a repair ends only where it began: of one that this replica was not asked to begin in this life, or not as late as it
says, nothing is stored, because deletions would be forgotten that nobody has compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.waiting import outcome
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.errors import BadRow, UnknownLayout
from trimtab.rows.keys import PUT, STATIC, TAIL, check_content, prefix_of, stamp_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Pairs
from trimtab.rows.repair_protocol import BeginReply, BeginRequest, EndReply, EndRequest, RowsRequest
from trimtab.rows.tokens import TOKEN_BYTES, token_of_key
from trimtab.rows.values import HEAD, PER_CELL, decode_row
from trimtab.tablets.missed import repaired_through
from trimtab.tablets.ring import tablet_of

MAX_PAIRS = 20_000
MAX_BEGUN = 20_000  # of which it is remembered when they began


class Around(Protocol):
    """What this has to know of its instance."""

    def stands(self) -> bool:
        """Whether this instance holds a lease and has caught up."""
        ...

    def wall_ms(self) -> int: ...

    def judged_ms(self) -> int:
        """The time that stamps are judged by."""
        ...

    def replicas(self, table: int, tablet: int) -> tuple[int, ...]: ...

    def moving(self, table: int, tablet: int) -> bool:
        """Whether there are, or will be, replicas of it that were not compared."""
        ...


class RepairJobs:
    """Of one instance. `find` gives an open replica and how many tablets its table has; None: there is none."""

    def __init__(
        self,
        around: Around,
        find: Callable[[int, int], tuple[Replica, int] | None],
        layout: Callable[[int], RowLayout],
        *,
        hint_life_ms: int,
        max_skew_ms: int,
    ) -> None:
        self._around = around
        self._find_replica = find
        self._layout = layout
        self._hint_life_ms = hint_life_ms
        self._max_skew_ms = max_skew_ms
        # By table and tablet: which generation, and when it was last begun; those of the longest ago first.
        self._begun: dict[tuple[int, int], tuple[int, int]] = {}
        self.pairs = 0
        self.done = 0

    def methods(self) -> dict[str, Method]:
        return {protocol.BEGIN: self.begin, protocol.ROWS: self.rows, protocol.END: self.end}

    async def begin(self, asked: Asked) -> bytes:
        request: BeginRequest = protocol.decode_begin(asked.body)
        replica, _ = self._find(request.table, request.tablet)
        reply = BeginReply(replica.generation, replica.repaired_through_ms, self._around.wall_ms())
        self._begun.pop((request.table, request.tablet), None)
        self._begun[request.table, request.tablet] = (reply.generation, reply.now_ms)
        if len(self._begun) > MAX_BEGUN:
            del self._begun[next(iter(self._begun))]
        return protocol.encode(reply)

    async def rows(self, asked: Asked) -> bytes:
        """Answered when they are synced and applied."""
        request: RowsRequest = protocol.decode_rows(asked.body)
        replica, tablets = self._find(request.table, request.tablet, request.generation)
        now_ms = self._around.wall_ms()
        if not -self._max_skew_ms <= now_ms - request.taken_ms < self._hint_life_ms:
            raise Refused(
                "too_late",
                f"these rows were copied {now_ms - request.taken_ms} ms ago, and a repair may take "
                f"{self._hint_life_ms} ms: what is in them may have been deleted since; begin again",
            )
        check_pairs(request.pairs, request.tablet, tablets)
        self._check_stamps(replica, request.pairs)
        await outcome(lambda done: replica.write(request.pairs, done, repair=True))
        self.pairs += len(request.pairs) // 2
        return b""

    async def end(self, asked: Asked) -> bytes:
        """Answered when it is stored how far the repair reaches."""
        request: EndRequest = protocol.decode_end(asked.body)
        replica, _ = self._find(request.table, request.tablet, request.generation)
        if sorted(request.replicas) != sorted(self._around.replicas(request.table, request.tablet)):
            raise Refused("moved", f"the replicas of {replica.title} are others now; begin again")
        if self._around.moving(request.table, request.tablet):
            raise Refused("moved", f"{replica.title} is on the move; repair it again when it has arrived")
        generation, begun_ms = self._begun.get((request.table, request.tablet), (0, 0))
        if generation != request.generation:
            raise Refused("not_begun", f"no repair of {replica.title} has begun here, or this instance restarted since")
        if request.begun_ms > begun_ms:
            text = f"the repair of {replica.title} began here at {begun_ms}, not as late as {request.begun_ms}"
            raise Refused("invalid", f"{text}: give the earliest time that a replica said when it began")
        through_ms = repaired_through(request.begun_ms, self._hint_life_ms, self._max_skew_ms)
        if through_ms > replica.repaired_through_ms and not replica.change_meta(repaired_through_ms=through_ms):
            raise Refused("not_ready", f"{replica.title} can't write down how far it is repaired now; try again")
        self.done += 1
        return protocol.encode(EndReply(replica.repaired_through_ms))

    def _check_stamps(self, replica: Replica, pairs: Pairs) -> None:
        """Refused where one is further ahead than it can be."""
        # Whoever took it first may be as far ahead of this clock as clocks may differ, and the stamp as far of that.
        latest_us = (self._around.judged_ms() + 2 * self._max_skew_ms) * 1000
        layout = self._layout(replica.table)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            try:
                newest_us = newest_in(layout, key, value)
            except UnknownLayout as error:
                raise Refused("not_ready", str(error)) from error
            except BadRow as error:
                raise Refused("corrupt", str(error)) from error
            if newest_us > latest_us:
                text = f"a row for {replica.title} has the stamp {newest_us}; {latest_us} is the latest there can be"
                raise Refused("skew", f"{text}: are the clocks right?")

    def _find(self, table: int, tablet: int, generation: int | None = None) -> tuple[Replica, int]:
        if not self._around.stands():
            raise Refused(
                "not_ready", "this instance has no lease or has not caught up; a repair would promise nothing"
            )
        found = self._find_replica(table, tablet)
        if found is None or not found[0].readable:
            raise Refused("not_whole", f"there is no replica of tablet {tablet} of table {table} here that is whole")
        if generation is not None and found[0].generation != generation:
            raise Refused("moved", f"{found[0].title} was overwritten since this repair began; begin again")
        return found


def check_pairs(pairs: Pairs, tablet: int, tablets: int) -> None:
    """Refused unless these are whole pairs of this tablet, each value the one that its key was made for."""
    if not pairs or len(pairs) % 2 or len(pairs) > 2 * MAX_PAIRS:
        raise Refused("invalid", f"1 to {MAX_PAIRS} rows are put at once, as many keys as values")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if len(key) < TOKEN_BYTES + 1 + TAIL or tablet_of(token_of_key(key), tablets) != tablet:
            raise Refused("invalid", f"the key {key[:64].hex()} is not of tablet {tablet}")
        try:
            check_content(key, value)
        except BadRow as error:
            raise Refused("corrupt", str(error)) from error


def newest_in(layout: RowLayout, key: bytes, value: bytes) -> int:
    """The latest stamp in a pair: its key's, or that of a cell which has its own. BadRow: it can't be read."""
    newest_us = stamp_of(key)
    if key[-9] != PUT:
        return newest_us
    prefix = prefix_of(layout, key)
    static = key[len(prefix) : len(prefix) + 1] == STATIC
    if len(value) >= HEAD and not value[0] & PER_CELL:
        shape = layout.shape(int.from_bytes(value[1:HEAD], "big"), static)
        if not shape.multicell:
            return newest_us
    row = decode_row(layout, value, newest_us, static)
    stamps = [newest_us, *(cell.stamp_us for cell in row.cells.values())]
    for each in row.collections.values():
        stamps += [cell.stamp_us for cell in each.elements.values()]
        if each.deleted is not None:
            stamps.append(each.deleted[0])
    return max(stamps)
