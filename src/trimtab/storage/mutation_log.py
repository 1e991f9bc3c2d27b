"""The mutations of all tablet replicas of this node, in the node log's store; and small durable records of others.

    append() ... append()   ->   one batch, with Raft's   ->   one sync, with Raft's   ->   writer.apply, then done
    within a turn of the loop    (NodeLog.write)               (NodeLog.sync)               in order of positions

- A mutation is applied to its replica, and acknowledged, only after the sync that covers it. A failed sync is fatal.
- While a sync is running nothing is written: it would not be covered anyway, and gathered it costs one batch. What is
  gathered for one replica is one mutation, with one position: it is logged, applied and replayed as a whole.
- Positions grow over the node's whole life, restarts included, and are never given twice to what could have been
  applied: what was lost unsynced was not applied either. The log has a random id; positions mean nothing in another.
- A position belongs to a replica *incarnation*. Replay hands out entries of the incarnations it is asked for and of no
  others, so what a closed one left behind is dropped, and cut with the rest.
- No space: what needs some is refused at once with DiskFull. Deletions and what is `essential` wait for their turn.

    \\x00mutations            LogRecord: id, cut position, newest incarnation
    m <position u64>         incarnation u64, then the pairs
    n, b, f, r, x ...        records of others (`records`)
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Protocol

import msgspec

from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Batch, Corrupt, DiskFull, StorageError, Store, SyncDone

Pairs = list[bytes]  # key, value, key, value, ...

RECORD_PREFIXES = (b"n", b"b", b"f", b"r", b"x")
# More than this in one batch would hold the loop for too long; the rest goes with the next.
MAX_BATCH_BYTES = 2 * 1024 * 1024
# Writes of a replica are joined up to this part of a batch.
_JOINED_PART = 32
_MUTATION_BYTES = 16
_CELL_BYTES = 3
# What may wait for a sync. Writers are refused beyond it.
MAX_WAITING_BYTES = 64 * 1024 * 1024
# How finely the log's size is known.
_SEGMENT_BYTES = 1024 * 1024

_RECORD_KEY = b"\x00mutations"
_MUTATION = b"m"
_u64 = struct.Struct(">Q")
_pack = _u64.pack
_unpack = _u64.unpack_from


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    """Which log this is; mutations up to `cut` are gone; incarnations up to `incarnation` were given away."""

    id: int
    cut: int = 0
    incarnation: int = 0


encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(LogRecord).decode
_decode_pairs = msgspec.msgpack.Decoder(Pairs).decode


class LogBusy(StorageError):
    """More waits for a sync than may; the writer has to slow down."""


class Mutation:
    """Writes of one replica that go together, from `append` until they are applied. `parts`: the pairs of each."""

    __slots__ = ("bytes", "dones", "parts", "position", "writer")

    def __init__(self, position: int, writer: Writer, pairs: Pairs, size_bytes: int, done: SyncDone) -> None:
        self.position = position
        self.writer = writer
        self.parts = [pairs]
        self.dones = [done]
        self.bytes = size_bytes

    @property
    def pairs(self) -> Pairs:
        """Those of all writes. The lists of the parts are their writers'."""
        return self.parts[0] if len(self.parts) == 1 else list(chain.from_iterable(self.parts))

    def done(self, error: BaseException | None) -> None:
        """Tell everybody who waits for it."""
        for done in self.dones:
            done(error)


class Writer(Protocol):
    """A replica, as its log sees it."""

    @property
    def incarnation(self) -> int: ...

    def apply(self, mutations: list[Mutation]) -> None:
        """These are durable: apply them, in this order, and call `done` of each."""
        ...


class _Change:
    """A staged change of a record: a put, a deletion (value None), or the deletion of a range (up to `high`)."""

    __slots__ = ("done", "essential", "high", "key", "value")

    def __init__(
        self, key: bytes, value: bytes | None, high: bytes | None, done: SyncDone | None, essential: bool
    ) -> None:
        self.key = key
        self.value = value
        self.high = high
        self.done = done
        self.essential = essential


class MutationLog:
    """See the module's text. One per node, over its NodeLog; only for the loop's thread."""

    def __init__(
        self,
        log: NodeLog,
        record: LogRecord,
        newest: int,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.id = record.id
        self.cut_position = record.cut
        self.newest_position = newest
        self.applied_position = newest  # everything up to here was applied, or refused
        self.incarnation = record.incarnation
        self.appended = 0
        self.appended_bytes = 0
        self.refused = 0
        self._log = log
        self._call_soon = call_soon
        self._fatal = fatal
        self._mutations: deque[Mutation] = deque()
        self._joinable: dict[int, Mutation] = {}  # by incarnation: what is in no batch yet
        self._changes: list[_Change] = []
        self._demanding = 0  # changes that need space
        self._filled = 0
        self._unsynced: list[Mutation] = []
        self._unsynced_dones: list[SyncDone] = []
        self._waiting_bytes = 0
        self._pump_scheduled = False
        self._closed = False
        self._segments: deque[tuple[int, int]] = deque()  # (last position, bytes)
        self._segment_bytes = 0
        log.rider = self

    @classmethod
    def open(
        cls,
        log: NodeLog,
        *,
        new_id: Callable[[], int],
        call_soon: Callable[[Callable[[], None]], object],
        fatal: Callable[[BaseException], None],
    ) -> MutationLog:
        """Take up what the log's store holds. Corrupt when its own record, or the newest mutation, is damaged."""
        value = log.store.get(_RECORD_KEY)
        newest = 0
        for key, _ in log.store.scan(_MUTATION, b"n", reverse=True):
            newest = _position(key)
            break
        if value is None:
            if newest:
                raise Corrupt("the mutation log", f"there are mutations up to {newest}, but its own record is missing")
            opened = cls(log, LogRecord(new_id()), 0, call_soon=call_soon, fatal=fatal)
            opened._stage_record()
            return opened
        try:
            record = _decode_record(value)
        except msgspec.DecodeError as error:
            raise Corrupt("the mutation log", f"its own record can't be decoded: {error}") from error
        return cls(log, record, max(newest, record.cut), call_soon=call_soon, fatal=fatal)

    # Writing

    def append(self, writer: Writer, pairs: Pairs, done: SyncDone) -> int:
        """Log the pairs; then `writer.apply`. The position; 0 if it was refused, which `done` is told (not now)."""
        if self._closed:
            self._call_soon(partial(done, StorageError("the mutation log was closed; this instance is stopping")))
            return 0
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self.refused += 1
            busy = LogBusy(f"{self._waiting_bytes} bytes wait to be synced already; slow down and try again")
            self._call_soon(partial(done, busy))
            return 0
        size = sum(map(len, pairs)) + _CELL_BYTES * len(pairs)
        self._waiting_bytes += size
        incarnation = writer.incarnation
        found = self._joinable.get(incarnation)
        if found is not None and found.bytes + size <= MAX_BATCH_BYTES // _JOINED_PART:
            found.parts.append(pairs)
            found.dones.append(done)
            found.bytes += size
            return found.position
        self._waiting_bytes += _MUTATION_BYTES
        position = self.newest_position = self.newest_position + 1
        mutation = self._joinable[incarnation] = Mutation(position, writer, pairs, size + _MUTATION_BYTES, done)
        self._mutations.append(mutation)
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._call_soon(self._pump)
        return position

    def next_incarnation(self, done: SyncDone | None = None) -> int:
        """A number no other replica incarnation of this log has or had; not for files before `done(None)`."""
        self.incarnation += 1
        self._stage_record(done)
        return self.incarnation

    def note_incarnation(self, incarnation: int) -> None:
        """A replica on this disk has this number: its own record may have outlived ours."""
        if incarnation > self.incarnation:
            self.incarnation = incarnation
            self._stage_record()

    def records(self, prefix: bytes) -> Records:
        """Small durable records of somebody else, in the same batches and under the same syncs."""
        if prefix not in RECORD_PREFIXES:
            raise ValueError(f"{prefix!r} is no record prefix; there are {RECORD_PREFIXES}")
        return Records(self, prefix)

    def change(
        self, key: bytes, value: bytes | None, high: bytes | None, done: SyncDone | None, essential: bool
    ) -> None:
        """Stage a change of a record (see Records)."""
        if self._closed:
            if done is not None:
                self._call_soon(partial(done, StorageError("the mutation log was closed; this instance is stopping")))
            return
        change = _Change(key, value, high, done, essential or value is None)
        self._changes.append(change)
        self._demanding += not change.essential
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._call_soon(self._pump)

    def settle(self) -> None:
        """Write what is staged now, so that it can be read."""
        if self._changes and not self._closed:
            self._write()

    def nudge(self) -> None:
        """Now and then: essential changes that found no space try again."""
        if self._changes and not self._log.syncing:
            self.ride()

    @property
    def store(self) -> Store:
        return self._log.store

    def close(self) -> None:
        """Apply and acknowledge nothing any more. What was handed to the store stays there."""
        self._closed = True
        self._mutations.clear()
        self._joinable.clear()
        self._changes.clear()
        self._demanding = 0

    # Rider

    @property
    def waiting(self) -> bool:
        return bool(self._mutations or self._changes)

    @property
    def needs_space(self) -> bool:
        return bool(self._mutations) or self._demanding > 0

    def fill(self, batch: Batch) -> int:
        added = 0
        for change in self._changes:
            if change.high is not None:
                batch.delete_range(change.key, change.high)
            elif change.value is None:
                batch.delete(change.key)
            else:
                batch.put(change.key, change.value)
                added += len(change.value)
        put = batch.put
        self._filled = 0
        self._joinable.clear()
        for mutation in self._mutations:
            put(_MUTATION + _pack(mutation.position), _pack(mutation.writer.incarnation) + encode(mutation.pairs))
            added += mutation.bytes
            self._filled += 1
            if added >= MAX_BATCH_BYTES:
                break
        return added

    def written(self) -> None:
        for change in self._changes:
            if change.done is not None:
                self._unsynced_dones.append(change.done)
        self._changes.clear()
        self._demanding = 0
        take, keep = self._mutations.popleft, self._unsynced.append
        for _ in range(self._filled):
            mutation = take()
            self.appended += len(mutation.dones)
            self.appended_bytes += mutation.bytes
            self._segment_bytes += mutation.bytes
            keep(mutation)
        self._filled = 0
        if self._segment_bytes >= _SEGMENT_BYTES:
            self._segments.append((self._unsynced[-1].position, self._segment_bytes))
            self._segment_bytes = 0

    def refuse(self, error: DiskFull) -> None:
        refused: list[SyncDone] = [done for mutation in self._mutations for done in mutation.dones]
        self._waiting_bytes -= sum(mutation.bytes for mutation in self._mutations)
        self._mutations.clear()
        self._joinable.clear()
        refused.extend(change.done for change in self._changes if not change.essential and change.done is not None)
        self._changes = [change for change in self._changes if change.essential]
        self._demanding = 0
        self.refused += len(refused)
        for done in refused:
            self._call_soon(partial(done, error))

    def ride(self) -> None:
        if self._closed:
            return
        try:
            if self.waiting:
                self._write()
            if self._unsynced or self._unsynced_dones:
                mutations, self._unsynced = self._unsynced, []
                dones, self._unsynced_dones = self._unsynced_dones, []
                # What was too much for one batch goes when this sync has ended.
                self._log.sync(partial(self._synced, mutations, dones))
        except Exception as error:
            self._fatal(error)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if not self._log.syncing:
            self.ride()

    def _write(self) -> None:
        try:
            self._log.write()
        except DiskFull:
            # Whoever needed space has been told. Raft's own changes stay staged; its host deals with them.
            return

    def _synced(self, mutations: list[Mutation], dones: list[SyncDone], error: BaseException | None) -> None:
        self._waiting_bytes -= sum(mutation.bytes for mutation in mutations)
        if self._closed:
            return
        if error is not None:
            self._fatal(error)
            return
        try:
            for done in dones:
                done(None)
            grouped: dict[int, list[Mutation]] = {}
            for mutation in mutations:
                incarnation = mutation.writer.incarnation
                if incarnation in grouped:
                    grouped[incarnation].append(mutation)
                else:
                    grouped[incarnation] = [mutation]
            for group in grouped.values():
                group[0].writer.apply(group)
            if mutations:
                self.applied_position = mutations[-1].position
        except Exception as failure:
            # A defect of ours, or a replica in an unknown state: nothing may be acknowledged on top of it.
            self._fatal(failure)

    # Replay and cut

    def entries(self, positions: Mapping[int, int]) -> Iterator[tuple[int, int, Pairs | None]]:
        """Mutations (position, incarnation, pairs) of the given incarnations beyond the position given for each.

        One pass over what is synced, in order of positions. What is of no interest is skipped, but every thousand of
        those one is shown with None for its pairs, so that the reader may take a breath.
        """
        if not positions:
            return
        # What is not synced yet must not be applied: its position may be given away again after a crash.
        high = _MUTATION + _pack(self.applied_position + 1)
        after = {_pack(incarnation): position for incarnation, position in positions.items()}
        skipped = 0
        for key, value in self._log.store.scan(_MUTATION + _pack(min(positions.values()) + 1), high):
            position = int.from_bytes(key[1:])
            found = after.get(value[:8])
            if found is None or position <= found:
                if len(key) != 9 or len(value) < 8:
                    raise Corrupt("the mutation log", f"{key!r} is no position, or cut short")
                skipped += 1
                if not skipped % 1000:
                    yield position, 0, None
                continue
            try:
                pairs = _decode_pairs(value[8:])
            except msgspec.DecodeError as error:
                raise Corrupt("the mutation log", f"the mutation at position {position}: {error}") from error
            if len(pairs) % 2 or len(key) != 9:
                raise Corrupt("the mutation log", f"the mutation at position {position} has a key without a value")
            yield position, _unpack(value)[0], pairs

    def cut(self, position: int) -> bool:
        """Drop everything up to and including the position, which every open replica has flushed. Whether it did."""
        position = min(position, self.applied_position)
        if position <= self.cut_position or self._closed:
            return False
        low = self.cut_position
        self.cut_position = position
        while self._segments and self._segments[0][0] <= position:
            self._segments.popleft()
        self.change(_MUTATION + _pack(low), None, _MUTATION + _pack(position + 1), None, True)
        self._stage_record()
        return True

    @property
    def bytes(self) -> int:
        """Roughly what lies in the log above the cut, as far as this life has written it."""
        return self._segment_bytes + sum(size for _, size in self._segments)

    def bytes_up_to(self, position: int) -> int:
        """Roughly what a cut at this position would drop."""
        return sum([size for last, size in self._segments if last <= position])

    def _stage_record(self, done: SyncDone | None = None) -> None:
        record = LogRecord(self.id, self.cut_position, self.incarnation)
        self.change(_RECORD_KEY, encode(record), None, done, True)


class Records:
    """Records under one prefix, keyed by bytes. Visible at once; `done(None)` when durable, `done(error)` if refused.

    A put is refused when the disk is (nearly) full, unless it is `essential`: small, and needed to stay honest.
    """

    __slots__ = ("_log", "_prefix")

    def __init__(self, log: MutationLog, prefix: bytes) -> None:
        self._log = log
        self._prefix = prefix

    def put(self, key: bytes, value: bytes, done: SyncDone | None = None, *, essential: bool = False) -> None:
        self._log.change(self._prefix + key, value, None, done, essential)

    def delete(self, key: bytes, done: SyncDone | None = None) -> None:
        self._log.change(self._prefix + key, None, None, done, True)

    def delete_range(self, low: bytes, high: bytes, done: SyncDone | None = None) -> None:
        """Delete low <= key < high. For many keys; a range each for a few would slow every read of the log."""
        self._log.change(self._prefix + low, None, self._prefix + high, done, True)

    def get(self, key: bytes) -> bytes | None:
        self._log.settle()
        return self._log.store.get(self._prefix + key)

    def scan(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys (without the prefix) and values, in order of keys, as they are now."""
        self._log.settle()
        end = bytes((self._prefix[0] + 1,)) if high is None else self._prefix + high
        for key, value in self._log.store.scan(self._prefix + low, end):
            yield key[1:], value


def _position(key: bytes) -> int:
    if len(key) != 9:
        raise Corrupt("the mutation log", f"{key!r} is no position")
    return int(_unpack(key, 1)[0])
