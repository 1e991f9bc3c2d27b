"""The metastore: one replicated key-value state, as a function of the log and nothing else.

Guarantees:

- `apply` is deterministic. Members that applied the same entries, in whatever slices and with whatever restarts
  between, have the same revision, the same readable content, the same results and the same checksums.
- Everything an `apply` call does, the applied index included, is one atomic batch of the store. Entries up to the
  applied index are skipped (a restart replays them), a gap is refused. If the write fails the machine is as before.
- No bytes in the log make `apply` raise. What can't be decoded, or is over a limit, answers `Failed` and changes
  nothing.
- A command with an id is executed at most once (see `ledger`).
- Watches are told only of what was written (see `watch`).

The checksum is a chain: each effect (changes, stored results, compactions) is hashed together with the hash before
it, and the value at the moment a revision is made is that revision's checksum. So two members that agree at a
revision agree on everything up to it. The applied index is not in it: Raft's own entries move it without touching the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Any

from trimtab.metastore import compaction
from trimtab.metastore.command_ids import issue_time_ms
from trimtab.metastore.commands import Actions, Branch, Command, Compact, Put, decode
from trimtab.metastore.conditions import holds
from trimtab.metastore.errors import AppliedGap, Compacted, DamagedStore, FutureRevision, InvalidCommand, InvalidRequest
from trimtab.metastore.history import Count, Page, count_range, read_range, record_at, revision_record
from trimtab.metastore.layout import (
    CHECKSUM_BYTES,
    CONF_KEY,
    FORMAT,
    FORMAT_KEY,
    LATEST,
    LIVE,
    META_KEY,
    NUMBER,
    RECORD,
    RECORD_BYTES,
    STATE_KEY,
    TOMBSTONE,
    Entry,
    State,
    check_format,
    entry_of,
    history_key,
    pack_revision,
    pack_state,
    revision_key,
    unpack_state,
)
from trimtab.metastore.ledger import ResultLedger
from trimtab.metastore.limits import (
    DEFAULT_MEMORY,
    MAX_RANGE_BYTES,
    MAX_RANGE_LIMIT,
    MAX_TIME_STEP_MS,
    Memory,
)
from trimtab.metastore.results import (
    CompactResult,
    Failed,
    FailureCode,
    InvokeResult,
    Result,
    decode_result,
    encode_result,
)
from trimtab.metastore.store import OrderedStore, StoreBatch
from trimtab.metastore.watch import Deliver, End, RawChange, Selector, Watcher, WatchHub

LogEntry = tuple[int, int, bytes]

_EFFECT = Struct(">QHI")  # replicated time, length of the id, length of the result
_CHANGED = Struct(">II")  # length of the key, length of the record


class Metastore:
    """The state machine over one store. Not thread-safe; one owner, one loop."""

    def __init__(self, store: OrderedStore, *, memory: Memory = DEFAULT_MEMORY) -> None:
        self._store = store
        self._memory = memory
        self._fresh = not check_format(store)
        found = store.get(STATE_KEY)
        if found is None and not self._fresh:
            raise DamagedStore("the state record is missing")
        self._restore(State() if found is None else unpack_state(found))
        self._purged = compaction.purged_revision(store)
        self._conf = store.get(CONF_KEY)
        self._meta = store.get(META_KEY)
        self._hub = WatchHub(store, self.revision, self.compacted_revision)

    def _restore(self, state: State) -> None:
        self.applied_index = state.applied_index
        self.applied_term = state.applied_term
        self.revision = state.revision
        self.compacted_revision = state.compacted_revision
        self.time_ms = state.time_ms
        self._chain = state.chain
        self._checksum = state.checksum
        self._written = state
        # Made when needed: after a failed write the store may not even be readable now.
        self._ledger: ResultLedger | None = None

    # -- what is applied ------------------------------------------------------------------------------------------

    @property
    def checksum(self) -> bytes:
        """The checksum of the current revision."""
        return self._checksum

    @property
    def conf(self) -> bytes | None:
        """The host's configuration blob, as of the applied index."""
        return self._conf

    @property
    def meta(self) -> bytes | None:
        """The host's other blob."""
        return self._meta

    @property
    def stored_results(self) -> int:
        return self._written.results

    def bootstrap(self, index: int, term: int, conf: bytes, meta: bytes | None = None) -> None:
        """Begin an empty machine at an index other than 0, as a group does that starts from an agreed configuration."""
        if not self._fresh:
            raise InvalidRequest("a metastore that has applied entries can't be bootstrapped; use an empty store")
        self._write_blobs(index, term, conf, meta)

    def apply(self, entries: Sequence[LogEntry], *, meta: bytes | None = None) -> list[Result | None]:
        """Apply log entries (index, term, data) in one atomic batch.

        A result for each; None for entries without data and for those that were applied before.
        """
        try:
            batch = self._store.batch()
            turn = _Turn(self, batch)
            results = [turn.entry(index, term, data) for index, term, data in entries]
            if meta is not None:
                batch.put(META_KEY, meta)
            if turn.advanced or meta is not None:
                self._commit(batch, turn.ledger)
        except BaseException:
            self._restore(self._written)
            raise
        if meta is not None:
            self._meta = meta
        self._hub.advance(turn.revisions, self.revision, self.compacted_revision)
        return results

    def apply_conf_state(self, index: int, term: int, conf: bytes, *, meta: bytes | None = None) -> bool:
        """Apply a configuration entry: only stores the blob with its index. False if it was applied before."""
        if index <= self.applied_index:
            return False
        if index != self.applied_index + 1:
            raise AppliedGap(index, self.applied_index)
        self._write_blobs(index, term, conf, meta)
        return True

    def _write_blobs(self, index: int, term: int, conf: bytes, meta: bytes | None) -> None:
        try:
            batch = self._store.batch()
            batch.put(CONF_KEY, conf)
            if meta is not None:
                batch.put(META_KEY, meta)
            self.applied_index, self.applied_term = index, term
            self._commit(batch, self._ledger)
        except BaseException:
            self._restore(self._written)
            raise
        self._conf = conf
        if meta is not None:
            self._meta = meta

    def _commit(self, batch: Any, ledger: ResultLedger | None) -> None:
        state = State(
            self.applied_index,
            self.applied_term,
            self.revision,
            self.compacted_revision,
            self.time_ms,
            self._written.results if ledger is None else ledger.count,
            self._chain,
            self._checksum,
            self._written.horizon if ledger is None else ledger.horizon,
        )
        batch.put(STATE_KEY, pack_state(state))
        if self._fresh:
            batch.put(FORMAT_KEY, FORMAT)
        self._store.write(batch)
        self._fresh = False
        self._written = state
        if ledger is not None:
            ledger.committed()

    # -- reads ----------------------------------------------------------------------------------------------------

    def get(self, key: bytes, revision: int | None = None) -> Entry | None:
        """The entry of a key, now or at a revision; None if it had no value."""
        if revision is None:
            return entry_of(key, self._store.get(LATEST + key))
        self._check_revision(revision)
        return entry_of(key, record_at(self._store, key, revision))

    def range(
        self,
        low: bytes,
        high: bytes | None,
        revision: int | None = None,
        limit: int = 1000,
        *,
        max_bytes: int = MAX_RANGE_BYTES,
        keys_only: bool = False,
    ) -> Page:
        """Entries with low <= key < high (None: to the end), in order, up to `limit` and about `max_bytes`."""
        return read_range(
            self._store,
            low,
            high,
            revision=self._revision_to_read(revision),
            current=self.revision,
            limit=_check_limit(limit),
            max_bytes=max_bytes,
            keys_only=keys_only,
        )

    def count(self, low: bytes, high: bytes | None, revision: int | None = None, limit: int = MAX_RANGE_LIMIT) -> Count:
        """How many keys the range has, counting at most `limit`."""
        at = self._revision_to_read(revision)
        return count_range(self._store, low, high, revision=at, current=self.revision, limit=_check_limit(limit))

    def checksum_at(self, revision: int) -> bytes:
        """The checksum of a revision that is not compacted away."""
        if revision == self.revision:
            return self._checksum
        self._check_revision(revision)
        return bytes(CHECKSUM_BYTES) if revision == 0 else revision_record(self._store, revision)[0]

    def _revision_to_read(self, revision: int | None) -> int:
        if revision is None:
            return self.revision
        self._check_revision(revision)
        return revision

    def _check_revision(self, revision: int) -> None:
        if revision > self.revision:
            raise FutureRevision(revision, self.revision)
        if revision < self.compacted_revision or revision < 0:
            raise Compacted(revision, self.compacted_revision)

    # -- watches and housekeeping -----------------------------------------------------------------------------------

    def watch(self, selector: Selector, deliver: Deliver, end: End, start_revision: int | None = None) -> Watcher:
        """Watch from a revision on (None: from the next one). Compacted if its history is gone."""
        return self._hub.add(selector, deliver, end, start_revision)

    def pump(self, max_revisions: int) -> bool:
        """Give watches that are behind a slice of history. True while there is more to give."""
        return self._hub.pump(max_revisions)

    def take_watches_from(self, other: Metastore) -> None:
        """Go on with another machine's watches, where each of them stands: after a snapshot replaced that machine."""
        self._hub.take_from(other._hub)

    @property
    def watches(self) -> WatchHub:
        return self._hub

    @property
    def purged_revision(self) -> int:
        """How far compacted history was physically removed."""
        return self._purged

    def compact_step(self, limit: int = 256) -> bool:
        """Physically remove a slice of compacted history. True while there is more to remove."""
        self._purged = compaction.purge(self._store, self._purged, self.compacted_revision, limit)
        return self._purged < self.compacted_revision


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_RANGE_LIMIT:
        raise InvalidRequest(f"a limit of {limit} keys is not between 1 and {MAX_RANGE_LIMIT}; read the range in pages")
    return limit


class _Turn:
    """One `apply` call: the batch under construction, and the newest records that only the batch has yet."""

    __slots__ = ("_batch", "_get", "_m", "_overlay", "advanced", "ledger", "revisions")

    def __init__(self, machine: Metastore, batch: StoreBatch) -> None:
        self._m = machine
        self._batch = batch
        self._get: Callable[[bytes], bytes | None] = machine._store.get
        self._overlay: dict[bytes, bytes] = {}
        if machine._ledger is None:
            written = machine._written
            machine._ledger = ResultLedger(machine._store, machine._memory, written.results, written.horizon)
        self.ledger = machine._ledger
        self.revisions: list[tuple[int, list[RawChange]]] = []
        self.advanced = False

    def entry(self, index: int, term: int, data: bytes) -> Result | None:
        m = self._m
        if index <= m.applied_index:
            return None
        if index != m.applied_index + 1:
            raise AppliedGap(index, m.applied_index)
        m.applied_index, m.applied_term = index, term
        self.advanced = True
        if not data:
            return None
        try:
            command = decode(data)
        except InvalidCommand as refusal:
            return Failed(FailureCode.INVALID, str(refusal), m.time_ms)
        return self._command(command)

    def _command(self, command: Command) -> Result:
        m = self._m
        now_ms, time_ms, command_id = command.now_ms, m.time_ms, command.id
        if now_ms > time_ms:
            time_ms = min(now_ms, time_ms + MAX_TIME_STEP_MS) if time_ms else now_ms
        if command_id:
            if command_id <= self.ledger.horizon:
                # A client that runs ahead may have pushed the horizon past the cluster's time. An id issued after the
                # time that is answered must be above the horizon, else nobody could issue one.
                return self._expired(command_id, max(time_ms, issue_time_ms(self.ledger.horizon) + 1))
            if (stored := self.ledger.find(command_id)) is not None:
                return decode_result(stored)
            issued_ms, expiry_ms = issue_time_ms(command_id), m._memory.expiry_ms
            if issued_ms + expiry_ms <= time_ms:
                return self._expired(command_id, time_ms)
            if issued_ms > max(time_ms, now_ms) + expiry_ms:
                # Such ids would be the last to be forgotten and crowd out everybody else's.
                return Failed(
                    FailureCode.INVALID,
                    f"the command's id was issued {issued_ms - max(time_ms, now_ms)} ms in the future; "
                    "set the client's clock and issue it again under a new id",
                    time_ms,
                )
        m.time_ms = time_ms
        body = command.body
        if type(body) is Compact:
            result: Result = self._compact(body.revision)
            changes: list[RawChange] = []
        else:
            while type(body) is Branch:
                body = body.then if holds(body.condition, self._lookup) else body.otherwise
            assert type(body) is Actions
            changes = self._changes(body)
            if changes:
                m.revision += 1
            result = InvokeResult(m.revision, body.yields, len(changes))
        if command_id or changes or type(result) is CompactResult:
            self._effect(command_id, result, changes)
        self.ledger.forget(time_ms, self._batch)
        return result

    def _lookup(self, key: bytes) -> bytes | None:
        """The newest record of a key. A tombstone that compaction has forgotten counts as nothing, purged or not."""
        record = self._overlay.get(key)
        if record is None:
            record = self._get(LATEST + key)
        if (
            record is not None
            and record[RECORD_BYTES - 1] == TOMBSTONE
            and RECORD.unpack_from(record)[1] <= self._m.compacted_revision
        ):
            return None
        return record

    def _changes(self, actions: Actions) -> list[RawChange]:
        """What the operations change, as (key, old record, new record)."""
        revision = self._m.revision + 1
        changes: list[RawChange] = []
        for operation in actions.operations:
            key = operation.key
            old = self._lookup(key)
            live = old if old is not None and old[RECORD_BYTES - 1] == LIVE else None
            if type(operation) is Put:
                if live is not None:
                    create, _, version, _ = RECORD.unpack_from(live)
                    new = RECORD.pack(create, revision, version + 1, LIVE) + operation.value
                else:
                    new = RECORD.pack(revision, revision, 1, LIVE) + operation.value
            elif live is not None:
                new = RECORD.pack(0, revision, 0, TOMBSTONE)
            else:
                continue
            changes.append((key, old, new))
        return changes

    def _compact(self, revision: int) -> Result:
        m = self._m
        if revision > m.revision:
            return Failed(
                FailureCode.FUTURE_REVISION,
                f"can't compact up to revision {revision}: the current one is {m.revision}; ask for that one or less",
                m.time_ms,
            )
        m.compacted_revision = max(m.compacted_revision, revision)
        return CompactResult(m.revision, m.compacted_revision)

    def _effect(self, command_id: bytes, result: Result, changes: list[RawChange]) -> None:
        """Put an executed command into the batch: result, changes, and the checksum over all of it."""
        m, batch = self._m, self._batch
        encoded = b""
        if command_id:
            encoded = encode_result(result)
            self.ledger.record(command_id, encoded, batch)
        elif not changes:
            encoded = encode_result(result)
        hashed = [m._chain, _EFFECT.pack(m.time_ms, len(command_id), len(encoded)), command_id, encoded]
        revision = m.revision
        changed: list[tuple[bytes, int]] = []
        for key, old, new in changes:
            hashed += (_CHANGED.pack(len(key), len(new)), key, new)
            previous = 0
            if old is not None:
                previous = RECORD.unpack_from(old)[1]
                batch.put(history_key(key, previous), NUMBER.pack(revision) + old)
            batch.put(LATEST + key, new)
            self._overlay[key] = new
            changed.append((key, previous))
        m._chain = blake2b(b"".join(hashed), digest_size=CHECKSUM_BYTES).digest()
        if changes:
            m._checksum = m._chain
            batch.put(revision_key(revision), pack_revision(m._chain, changed))
            self.revisions.append((revision, changes))

    def _expired(self, command_id: bytes, time_ms: int) -> Failed:
        return Failed(
            FailureCode.EXPIRED,
            f"the command's id was issued at {issue_time_ms(command_id)} ms and the cluster's time is {time_ms} ms: "
            "results that old are forgotten, so it was not executed now, but may have been before; if this was its "
            "first attempt, issue it again under a new id, else read the state and decide",
            time_ms,
        )
