"""One tablet replica: a store without a write-ahead log, fed by the node's log of mutations.

    write -> log -> sync -> apply (visible) -> done

- A write is visible, and acknowledged, only after the sync that covers it, in the order of positions.
- Every applied batch holds the position it reaches, so what is found after a crash (a prefix of the batches) says by
  itself where replay has to begin. The position belongs to this *incarnation*: the record in the store says which log
  and which number; a position of another log means nothing here.
- OPEN: reads and writes. REBUILDING: writes only; rows are missing until it was repaired from enough others. ARRIVING:
  writes only; it is made for one session of a move, and rows are missing until the copy of that session was taken over.
  The state is in the store, so a crash does not forget that rows are missing.
- Damage that is met while reading is told to the shelf, which takes the replica away (see `quarantine`).
- A store that ran out of space takes nothing until it is opened again and what it lost is replayed from the log.

- Its *marker* says up to which epoch it has taken over the loads of its table. It comes with the files of a load, in
  the same step, or through the log like any write: a replica never claims a load that it does not have.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica_meta import (
    ADOPTED_KEY,
    FIRST_KEY,
    META_KEY,
    POSITION_KEY,
    ReplicaMeta,
    ReplicaState,
    adopted_pair,
    encode_meta,
    read_adopted,
)
from trimtab.node.replicas.row_cache import CachedRows
from trimtab.storage.mutation_log import Mutation, MutationLog, Pairs
from trimtab.storage.port import Batch, Corrupt, DiskFull, Store, SyncDone

__all__ = ["FIRST_KEY", "Replica", "ReplicaMeta", "ReplicaState"]

# Token, at least one byte of key, section, tail.
_TAIL_BYTES = 17
_MIN_KEY_BYTES = 8 + 1 + 1 + _TAIL_BYTES
_PUT = 2
_KIND_AT = -9
_PAST_TAIL = b"\xff" * 18
# From this many versions on a row is worth folding before others.
HOT_VERSIONS = 16
HOT_WRITES = 128  # so many are folded for certain, however young they are
_MAX_COUNTED = 4_096
_MAX_VERSIONS = 1 << 20
_MAX_HOT = 1024
_RECORD_BYTES = 64  # about

_u64 = struct.Struct(">Q")


@dataclass(slots=True)
class LargePartition:
    """A partition that has to be watched: what it had when it was measured, and what was written to it since."""

    prefix: bytes
    bytes: int
    limit_bytes: int


class Surroundings(Protocol):
    """What a replica tells of, and asks of, whoever keeps it."""

    def wrote(self, replica: Replica, size_bytes: int) -> None:
        """So much more of it is only in memory."""
        ...

    def full(self, replica: Replica) -> None:
        """Its store ran out of space and has to be recovered."""
        ...

    def damaged(self, replica: Replica, error: Corrupt) -> None:
        """Its files are damaged."""
        ...

    def refusal(self) -> BaseException | None:
        """Why no replica takes writes now: too much is unflushed, say."""
        ...

    def now(self) -> float: ...


class Replica:
    """See the module's text. Made by the shelf, from an open store."""

    def __init__(
        self,
        name: str,
        store: Store,
        meta: ReplicaMeta,
        position: int,
        log: MutationLog,
        around: Surroundings,
        call_soon: Callable[[Callable[[], None]], object],
        rows: CachedRows,
    ) -> None:
        self.name = name
        self.store = store
        # Whatever changes a row in the store drops it from here in the same step.
        self.rows = rows
        self.meta = meta
        self.table = meta.table
        self.tablet = meta.tablet
        self.generation = meta.generation
        self.incarnation = meta.incarnation
        self.adopted = read_adopted(store, name)
        self.position = position
        self.flushed_position = position
        self.unflushed_bytes = 0
        self.unflushed_since: float | None = None
        self.flushing = False
        self.closed = False
        self.swapping = False  # its store is being exchanged
        self.has_copy = False  # its files are a copy, which does not yet say whose it is now
        self.was_away = False  # while its tablet moves here: it may lack what was written since it was made
        self.rests_until = 0.0  # it is not flushed of its own accord before
        self.not_made = 0  # how often it could not get files
        self.pinned: int | None = None  # what the log holds beyond this is needed, in files or not
        self.stalled: BaseException | None = None
        self.ingested = 0  # how often it took over files
        self.applied_writes = 0
        self.written_bytes = 0
        # Large partitions by the token their keys begin with (see `folding`); and rows that were found to be long.
        self.large: dict[bytes, list[LargePartition]] = {}
        self.hot: dict[bytes, None] = {}
        self._writes: dict[bytes, int] = {}  # of single rows, lately
        self._log = log
        self._around = around
        self._call_soon = call_soon
        self._held: list[Mutation] | None = None
        self._flush_waiting: list[SyncDone] = []
        self._flush_told: list[SyncDone] = []  # of the flush that is under way
        self._recoveries = 0

    @property
    def state(self) -> ReplicaState:
        return self.meta.state

    @property
    def readable(self) -> bool:
        """Whether its rows are all there, as far as it knows. Repair reads it nevertheless."""
        return self.meta.state is ReplicaState.OPEN and not self.closed

    @property
    def arriving(self) -> bool:
        """Whether the copy that it is made for has not been taken over yet."""
        return self.meta.state is ReplicaState.ARRIVING

    @property
    def repaired_through_ms(self) -> int:
        return self.meta.repaired_through_ms

    @property
    def forgot_us(self) -> int:
        """Reads as of a time up to this one are not exact."""
        return self.meta.forgot_us

    @property
    def held_bytes(self) -> int:
        """What it takes on disk and in memory."""
        return 0 if self.closed or self.swapping else self.store.approximate_bytes()

    @property
    def memory_bytes(self) -> int:
        """What of that is in memory."""
        return 0 if self.closed or self.swapping else self.store.memory_bytes()

    @property
    def rests(self) -> bool:
        """Whether the next flush has to open it for writing."""
        return not (self.closed or self.swapping) and self.store.resting

    @property
    def title(self) -> str:
        return f"tablet {self.tablet} of table {self.table}"

    # Writing

    def write(self, pairs: Pairs, done: SyncDone, *, repair: bool = False) -> None:
        """Put the pairs: `done(None)` when they are durable and visible, else `done(error)`; never within this call.

        `repair`: other replicas have taken them already, so no partition is too large for them.
        """
        if len(pairs) == 2 and not (self.large or self.closed or self.stalled) and len(pairs[0]) >= _MIN_KEY_BYTES:
            refusal = self._around.refusal()
        else:
            refusal = self._refusal(pairs, repair)
        if refusal is not None:
            self._call_soon(partial(done, refusal))
        else:
            self._log.append(self, pairs, done)

    def apply(self, mutations: list[Mutation]) -> None:
        """The log has synced these."""
        if self._held is not None and not self.closed:
            self._held.extend(mutations)
            return
        error: BaseException | None = self.stalled
        if self.closed:
            error = self._gone()
        if error is None:
            error = self._apply(
                [pairs for mutation in mutations for pairs in mutation.parts],
                mutations[0].position,
                mutations[-1].position,
                sum([mutation.bytes for mutation in mutations]),
            )
        if isinstance(error, DiskFull):
            # It is in the log, and comes when there is space: nobody may take it for one that was not taken.
            error = Refused("not_ready", f"{self.title} has it in its log, but can't show it yet: {error}")
        for mutation in mutations:
            self.applied_writes += len(mutation.dones)
            mutation.done(error)

    def replay(self, entries: Sequence[Pairs], first: int, last: int, size_bytes: int) -> BaseException | None:
        """Apply what the log holds of it at the positions `first` to `last`."""
        error = self._apply([self._without_old_marks(pairs) for pairs in entries], first, last, size_bytes)
        if error is None:
            self._marked(read_adopted(self.store, self.name))
        return error

    def _without_old_marks(self, pairs: Pairs) -> Pairs:
        """Those from before its files came are not put back: these have more loads than it had then."""
        if ADOPTED_KEY not in pairs[::2]:
            return pairs
        _, mark = adopted_pair(self.adopted)
        kept = [pair for pair in zip(pairs[::2], pairs[1::2], strict=True) if pair[0] != ADOPTED_KEY or pair[1] > mark]
        return [part for pair in kept for part in pair]

    def set_adopted(self, epoch: int, done: SyncDone) -> None:
        """Say that it has all loads up to this epoch: `done(None)` when that is durable, never within this call."""
        refusal = self._gone() if self.closed else self.stalled

        def written(error: BaseException | None) -> None:
            if error is None:
                self._marked(max(self.adopted, epoch))
            done(error)

        if refusal is not None or epoch <= self.adopted:
            self._call_soon(partial(done, refusal))
        else:
            self._log.append(self, [*adopted_pair(epoch)], written)

    def _marked(self, epoch: int) -> None:
        self.adopted = epoch
        self._writes.pop(b"", None)  # the marker is no row that could be hot

    def took_over(self, epoch: int, meta: ReplicaMeta | None = None) -> None:
        """Its store has ingested files, the marker among them, and its record where that is given."""
        self.ingested += 1
        self.adopted = max(self.adopted, epoch)
        self.meta = meta or self.meta

    def rewrite(self, deletes: Iterable[bytes], puts: Pairs, forgot_us: int = 0) -> bool:
        """Replace versions by what they fold to, in one batch. False: not now."""
        if self.closed or self.stalled is not None or self._held is not None:
            return False
        batch = self.store.batch()
        drop = self.rows.drop
        for key in deletes:
            batch.delete(key)
            drop(key[:-_TAIL_BYTES])
        size = 0
        for place in range(0, len(puts), 2):
            batch.put(puts[place], puts[place + 1])
            drop(puts[place][:-_TAIL_BYTES])
            size += len(puts[place]) + len(puts[place + 1])
        batch.put(POSITION_KEY, _u64.pack(self.position))
        meta = self.meta
        if forgot_us > meta.forgot_us:
            meta = msgspec.structs.replace(meta, forgot_us=forgot_us)
            batch.put(META_KEY, encode_meta(meta))
        count = len(batch)
        if self._write(batch) is not None:
            return False
        self.meta = meta
        self._grew(size + 32 * count, self._log.applied_position)
        return True

    def change_meta(
        self, *, state: ReplicaState | None = None, repaired_through_ms: int | None = None, forgot_us: int = 0
    ) -> bool:
        """Write down what became true of it. A crash may forget it, which costs a repair and nothing else."""
        changed = self.meta
        if forgot_us > changed.forgot_us:
            changed = msgspec.structs.replace(changed, forgot_us=forgot_us)
        if state is not None:
            changed = msgspec.structs.replace(changed, state=state)
        if repaired_through_ms is not None and repaired_through_ms > changed.repaired_through_ms:
            changed = msgspec.structs.replace(changed, repaired_through_ms=repaired_through_ms)
        if changed == self.meta:
            return True
        if self.closed or self.stalled is not None or self._held is not None:
            return False
        batch = self.store.batch()
        batch.put(META_KEY, encode_meta(changed))
        if self._write(batch) is not None:
            return False
        self.meta = changed
        self._grew(_RECORD_BYTES, self._log.applied_position)
        return True

    def hold(self) -> None:
        """Let what is synced wait, until `release`: its files are being copied at a known position."""
        if self._held is None:
            self._held = []
            self.rows.shut()

    def release(self) -> None:
        held, self._held = self._held, None
        if not self.closed:
            self.rows.open()
        if held:
            self.apply(held)

    @property
    def held(self) -> bool:
        return self._held is not None

    def _refusal(self, pairs: Pairs, repair: bool) -> BaseException | None:
        if self.closed:
            return self._gone()
        if self.stalled is not None:
            return self.stalled
        if len(pairs) % 2 or not pairs:
            return Refused("invalid", "a write has as many keys as values, and at least one")
        large = self.large
        for place in range(0, len(pairs), 2):
            key = pairs[place]
            if len(key) < _MIN_KEY_BYTES:
                return Refused("invalid", f"{key!r} is no key of a row")
            if large and key[_KIND_AT] == _PUT and key[:8] in self.large:
                for partition in self.large[key[:8]]:
                    if key.startswith(partition.prefix):
                        if partition.bytes > partition.limit_bytes and not repair:
                            return self._too_large(partition)
                        partition.bytes += len(key) + len(pairs[place + 1])
        return self._around.refusal()

    def _too_large(self, partition: LargePartition) -> Refused:
        text = (
            f"a partition of {self.title} has {partition.bytes} bytes, and {partition.limit_bytes} is the most that "
            "one may have; delete from it, or give the table a partition key with more columns"
        )
        return Refused("too_large", text)

    def _apply(self, entries: Iterable[Pairs], first: int, last: int, size_bytes: int) -> BaseException | None:
        batch = self.store.batch()
        put = batch.put
        written: list[bytes] = []
        for pairs in entries:
            if len(pairs) == 2:
                key, value = pairs
                put(key, value)
                written.append(key)
            else:
                keys = pairs[::2]
                deque(map(put, keys, pairs[1::2]), maxlen=0)
                written += keys
        self._touch(written)
        put(POSITION_KEY, _u64.pack(last))
        error = self._write(batch)
        if error is None:
            self.position = last
            self._grew(size_bytes, first - 1)
        return error

    def _touch(self, keys: Iterable[bytes]) -> None:
        """Rows are about to change. Those written again and again are folded soon, also if nobody reads them."""
        drop, writes = self.rows.drop, self._writes
        for key in keys:
            row_key = key[:-_TAIL_BYTES]
            drop(row_key)
            count = writes.get(row_key, 0) + 1
            if count < HOT_WRITES:
                writes[row_key] = count
            else:
                del writes[row_key]
                self.note_hot(row_key)
        if len(writes) > _MAX_COUNTED:
            writes.clear()

    def _write(self, batch: Batch) -> BaseException | None:
        try:
            self.store.write(batch)
        except DiskFull as error:
            self.ran_full(error)
            return error
        except Corrupt as error:
            self._around.damaged(self, error)
            return error
        return None

    def ran_full(self, error: DiskFull) -> None:
        """Its store ran out of space: it takes nothing until it was opened again."""
        self.stalled = error
        self._around.full(self)

    def _grew(self, size_bytes: int, before: int) -> None:
        self.unflushed_bytes += size_bytes
        self.written_bytes += size_bytes
        if self.unflushed_since is None:
            # All it had was in files, so it needs nothing of the log from before this.
            self.flushed_position = max(self.flushed_position, before)
            self.unflushed_since = self._around.now()
        self._around.wrote(self, size_bytes)

    # Reading

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with low <= key < high, as they are now. Corrupt: the replica goes into quarantine."""
        if self.closed:
            raise self._gone()
        try:
            found = self.store.scan(max(low, FIRST_KEY), high, reverse=reverse)
        except Corrupt as error:
            raise self._damaged(error) from error
        return self._guarded(found)

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The first pairs of a scan, at once. If all are of one row, and many, it is noted to be folded."""
        if self.closed:
            raise self._gone()
        try:
            found = self.store.read(max(low, FIRST_KEY), high, limit)
        except Corrupt as error:
            raise self._damaged(error) from error
        if len(found) >= HOT_VERSIONS and found[0][0][:-_TAIL_BYTES] == found[-1][0][:-_TAIL_BYTES]:
            self.note_hot(found[0][0][:-_TAIL_BYTES])
        return found

    def get_row(self, row_key: bytes, limit: int = _MAX_VERSIONS) -> list[tuple[bytes, bytes]]:
        """Every version of one row, newest first; or the newest of them."""
        return self.read(row_key, row_key + _PAST_TAIL, limit)

    def note_hot(self, row_key: bytes) -> None:
        """A row has many versions: fold it before others."""
        if len(self.hot) < _MAX_HOT:
            self.hot[row_key] = None

    def _guarded(self, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from found
        except Corrupt as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Corrupt) -> Corrupt:
        self._around.damaged(self, error)
        return Corrupt(error.where, error.what, what_to_do="this replica is rebuilt from the others; ask again")

    # Flushing

    @property
    def unflushed(self) -> bool:
        """Whether the log is needed for it: something of it is in memory only, or somebody reads it there."""
        return (
            self.unflushed_since is not None
            or self._held is not None
            or self.stalled is not None
            or self.pinned is not None
        )

    @property
    def needed_from(self) -> int:
        """What the log holds beyond this position is needed for it."""
        return self.flushed_position if self.pinned is None else min(self.flushed_position, self.pinned)

    def flush(self, done: SyncDone) -> None:
        """Bring what is in memory now into files, off the loop. One at a time; who comes meanwhile gets the next."""
        if self.closed:
            # One that was under way when it was closed never ends, and nobody would come after it.
            self._call_soon(partial(done, self._gone()))
            return
        self._flush_waiting.append(done)
        if not self.flushing and not self.swapping:
            self._start_flush()

    def _start_flush(self) -> None:
        waiting, self._flush_waiting = self._flush_waiting, []
        self._flush_told = waiting
        position, size, since = self.position, self.unflushed_bytes, self._around.now()
        recoveries = self._recoveries
        self.flushing = True

        def flushed(error: BaseException | None) -> None:
            if self.closed:
                return
            self.flushing = False
            if error is None and self._recoveries == recoveries:
                self.has_copy = False
                self.flushed_position = max(self.flushed_position, position)
                self.unflushed_bytes -= size
                self.unflushed_since = since if self.unflushed_bytes > 0 else None
            elif isinstance(error, DiskFull):
                self.ran_full(error)
            elif isinstance(error, Corrupt):
                self._around.damaged(self, error)
            for done in waiting:
                done(error)
            self._flush_next()

        self.store.start_flush(flushed)

    def _flush_next(self) -> None:
        if self._flush_waiting and not (self.flushing or self.closed or self.swapping):
            self._start_flush()

    def recovered(self, position: int) -> None:
        """Its store was opened again: what it holds reaches `position`, and the rest is about to be replayed."""
        # A flush that is under way knows nothing of what is in memory from now on.
        self._recoveries += 1
        self.rows.drop_all()
        self.adopted = read_adopted(self.store, self.name)
        self.position = self.flushed_position = position
        self.unflushed_bytes = 0
        self.unflushed_since = None

    def begin_swap(self) -> None:
        """Its store is about to be closed and exchanged. Only while it is held, is not flushed, and nobody reads it."""
        assert self._held is not None and not self.flushing, "what is synced has to wait for the other store"
        self.swapping = True

    def end_swap(self, store: Store, meta: ReplicaMeta, position: int, logged_from: int | None = None) -> None:
        """This is its store from now on; what is to be applied beyond `position` waits.

        All of it is in files, or what it has taken beyond `logged_from` is not, and the log is needed for that.
        """
        self.swapping = False
        self.store, self.meta = store, meta
        taken_bytes = self.unflushed_bytes
        self.recovered(position)
        self.has_copy = logged_from is not None
        if logged_from is not None:
            self.flushed_position = logged_from
            self.unflushed_bytes = taken_bytes + _RECORD_BYTES
            self.unflushed_since = self._around.now()
        self._flush_next()

    def close(self) -> None:
        """Take and show nothing any more; what waits is told so. The store is the caller's to close."""
        if self.closed:
            return
        self.closed = True
        self.rows.shut()
        held, self._held = self._held, None
        if held:
            self.apply(held)
        # A closed store calls nobody back.
        flushing = (*self._flush_told, *self._flush_waiting) if self.flushing else self._flush_waiting
        for done in flushing:
            self._call_soon(partial(done, self._gone()))

    def _gone(self) -> Refused:
        return Refused("not_ready", f"the replica of {self.title} was closed; try again")
