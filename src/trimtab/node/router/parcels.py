"""Writes on their way to the other replicas: everything for one replica that arises in a turn leaves as one message.

Each write is answered exactly once, with None when the replica has synced and applied it, else with why not. A parcel
is routed by one topology and one catalog version, those that its writes were made for, because the replica judges it by
them. What can't be sent is answered in the next turn, never from within `send`.

A replica's answer says what time it is there. If this node's clock turns out to be further behind than clocks may
differ, what it has stamped is older than it should be and may be covered by what was written before: that is no
acknowledgement. (That it is ahead, the replica says.)

What waits for one replica is bounded, in writes and in bytes. A replica that stands still would else make this node
hold everything that is written meanwhile; above the bound `send` says no, and the write becomes a hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from trimtab.net.errors import DeadlineExceeded, NetError, NotConnected, RpcError
from trimtab.net.errors import Overloaded as NetOverloaded
from trimtab.node.links import Link
from trimtab.rows import protocol
from trimtab.rows.protocol import Failed, ReplicaWrite, ReplicaWrites, WriteKind

Answered = Callable[[int, Failed | None], None]  # raft id of the replica; None: synced and applied there

NO_ANSWER = "no_answer"
NOT_SENT = "not_sent"
SKEW = "skew"
_OVERHEAD_BYTES = 64
_PAIR_OVERHEAD_BYTES = 10
_LEAST_TIME_S = 0.01
MAX_WAITING_WRITES = 20_000
MAX_WAITING_BYTES = 64 << 20


def weight(write: ReplicaWrite) -> int:
    """About how many bytes it makes on the wire."""
    return _OVERHEAD_BYTES + sum(map(len, write.pairs)) + _PAIR_OVERHEAD_BYTES * len(write.pairs)


class _Parcel:
    __slots__ = ("answered", "bytes", "catalog", "deadline", "topology", "writes")

    def __init__(self, topology: int, catalog: int) -> None:
        self.topology = topology
        self.catalog = catalog
        self.deadline = 0.0
        self.writes: list[ReplicaWrite] = []
        self.answered: list[Answered] = []
        self.bytes = 0


class Parcels:
    """The way of writes to every other member. `limit_bytes`: of one message."""

    def __init__(
        self,
        links: Mapping[int, Link],
        limit_bytes: int,
        *,
        wall_ms: Callable[[], int] | None = None,
        max_skew_ms: int = 0,
        complain: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._links = links
        self._limit_bytes = limit_bytes
        self._wall_ms = wall_ms
        self._max_skew_ms = max_skew_ms
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[int, _Parcel] = {}  # in this turn, by raft id
        self._full: list[tuple[int, _Parcel]] = []
        self._flushing = False
        self._waiting: dict[int, list[int]] = {}  # writes and bytes without an answer, by raft id
        self.sent_messages = 0
        self.sent_writes = 0

    def connected(self, raft_id: int) -> bool:
        if raft_id in self._gathered:
            return True  # it was, in this turn
        link = self._links.get(raft_id)
        return link is not None and link.channel.connected

    def send(
        self,
        raft_id: int,
        write: ReplicaWrite,
        bytes_: int,
        topology: int,
        catalog: int,
        deadline: float,
        answered: Answered,
    ) -> bool:
        """Put a write of `bytes_` (see `weight`) into this turn's parcel; False: too much waits for this replica."""
        waiting = self._waiting.get(raft_id)
        if waiting is None:
            waiting = self._waiting[raft_id] = [0, 0]
        elif waiting[0] >= MAX_WAITING_WRITES or waiting[1] + bytes_ > MAX_WAITING_BYTES:
            return False
        waiting[0] += 1
        waiting[1] += bytes_
        parcel = self._gathered.get(raft_id)
        if parcel is not None and (
            parcel.bytes + bytes_ > self._limit_bytes or parcel.topology != topology or parcel.catalog != catalog
        ):
            self._full.append((raft_id, parcel))
            parcel = None
        if parcel is None:
            parcel = self._gathered[raft_id] = _Parcel(topology, catalog)
        parcel.writes.append(write)
        parcel.answered.append(answered)
        parcel.bytes += bytes_
        if deadline > parcel.deadline:
            parcel.deadline = deadline
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return True

    def _flush(self) -> None:
        self._flushing = False
        parcels, self._full = self._full, []
        parcels.extend(self._gathered.items())
        self._gathered = {}
        for raft_id, parcel in parcels:
            self._send(raft_id, parcel)

    def _send(self, raft_id: int, parcel: _Parcel) -> None:
        link = self._links.get(raft_id)
        try:
            if link is None:
                raise NotConnected(f"the address of member {raft_id} is not known here yet")
            body = protocol.encode(ReplicaWrites(parcel.topology, parcel.catalog, parcel.writes))
            left_s = max(parcel.deadline - self._loop.time(), _LEAST_TIME_S)
            future = link.channel.call(protocol.REPLICA_WRITE, body, left_s)
        except NetError as error:
            self._answer_all(raft_id, parcel, refusal_of(error))
            return
        self.sent_messages += 1
        self.sent_writes += len(parcel.writes)
        future.add_done_callback(partial(self._came_back, raft_id, parcel))

    def _came_back(self, raft_id: int, parcel: _Parcel, future: asyncio.Future[bytes]) -> None:
        if future.cancelled():
            self._answer_all(raft_id, parcel, Failed(NO_ANSWER, "this instance is stopping"))
            return
        error = future.exception()
        if error is not None:
            self._answer_all(raft_id, parcel, refusal_of(error))
            return
        try:
            written = protocol.decode_replica_written(future.result())
            results = written.results
            if len(results) != len(parcel.writes):
                raise ValueError(f"{len(results)} results for {len(parcel.writes)} writes")
        except ValueError as wrong:
            self._answer_all(raft_id, parcel, Failed(NO_ANSWER, f"its answer can't be read: {wrong}"))
            return
        behind = self._behind(raft_id, written.now_ms) if written.now_ms else None
        self._let_go(raft_id, parcel)
        if behind is None:
            for answered, result in zip(parcel.answered, results, strict=True):
                answered(raft_id, result)
            return
        for write, answered, result in zip(parcel.writes, parcel.answered, results, strict=True):
            # What is no fresh write has stamps of its own.
            answered(raft_id, behind if write.kind is WriteKind.FRESH else result)

    def _behind(self, raft_id: int, their_ms: int) -> Failed | None:
        """Why its acknowledgements don't count. The answer took its time to come, so it is at least so much later."""
        if self._wall_ms is None or their_ms - self._wall_ms() <= self._max_skew_ms:
            return None
        text = (
            f"the clock of this instance is {their_ms - self._wall_ms()} ms behind that of instance {raft_id}, and at "
            f"most {self._max_skew_ms} ms are allowed; set the clocks right (NTP)"
        )
        self._complain(f"writes don't count as acknowledged: {text}")
        return Failed(SKEW, text)

    def _answer_all(self, raft_id: int, parcel: _Parcel, failure: Failed) -> None:
        self._let_go(raft_id, parcel)
        for answered in parcel.answered:
            answered(raft_id, failure)

    def _let_go(self, raft_id: int, parcel: _Parcel) -> None:
        waiting = self._waiting[raft_id]
        waiting[0] -= len(parcel.writes)
        waiting[1] -= parcel.bytes


def refusal_of(error: BaseException) -> Failed:
    """What an error of the network says about a replica that was asked."""
    if isinstance(error, RpcError):
        return Failed(error.code, error.text)
    if isinstance(error, NotConnected | NetOverloaded):
        return Failed(NOT_SENT, str(error))
    if isinstance(error, DeadlineExceeded):
        return Failed(NO_ANSWER, "it did not answer in time")
    return Failed(NO_ANSWER, str(error) or type(error).__name__)
