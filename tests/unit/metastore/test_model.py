"""Any life of a metastore, beside a model made of dicts: commands of every kind, duplicates, compaction in slices,
restarts, failed writes, snapshots into another store, reads at every revision, and a watch through all of it."""

from __future__ import annotations

import operator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.metastore.dict_store import DictStore, WriteFailed
from tests.unit.metastore.driver import catch_up

from trimtab.metastore.commands import Actions, Branch, Command, Compact, Delete, Put, encode, stamp
from trimtab.metastore.conditions import (
    And,
    Compare,
    Condition,
    Exists,
    Not,
    NotExists,
    Or,
    Revision,
    Tombstone,
    Value,
)
from trimtab.metastore.errors import Compacted, FutureRevision
from trimtab.metastore.layout import Entry
from trimtab.metastore.limits import Memory
from trimtab.metastore.machine import Metastore
from trimtab.metastore.results import CompactResult, Failed, FailureCode, InvokeResult
from trimtab.metastore.snapshot import SnapshotExport, SnapshotImport
from trimtab.metastore.watch import Changes, Prefix

KEYS = [b"a", b"a\x00", b"a\x00\xff", b"a\x01", b"b", b"\xff"]
VALUES = [b"", b"1", b"2"]
keys, values = st.sampled_from(KEYS), st.sampled_from(VALUES)
compares = st.sampled_from(Compare)
COMPARE = dict(
    zip(Compare, (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge), strict=True)
)
leaves = st.one_of(
    keys.map(Exists),
    keys.map(NotExists),
    keys.map(Tombstone),
    st.tuples(keys, compares, values).map(lambda t: Value(*t)),
    st.tuples(keys, compares, st.integers(0, 30)).map(lambda t: Revision(*t)),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda c: And(tuple(c))),
        st.lists(inner, max_size=3).map(lambda c: Or(tuple(c))),
        inner.map(Not),
    ),
    max_leaves=5,
)
operations = st.one_of(st.tuples(keys, values).map(lambda t: Put(*t)), keys.map(Delete))
actions = st.tuples(
    st.lists(operations, max_size=4, unique_by=lambda o: o.key), st.sampled_from([True, False, b"", b"leaf"])
).map(lambda t: Actions(tuple(t[0]), t[1]))
trees: Any = st.recursive(
    actions, lambda inner: st.tuples(conditions, inner, inner).map(lambda t: Branch(*t)), max_leaves=4
)
MEMORY = Memory(expiry_ms=500, max_results=4, evicted_per_command=2)


class Model:
    """The obvious thing: every version of every key in a list."""

    def __init__(self) -> None:
        self.revision = 0
        self.compacted = 0
        self.time_ms = 0
        self.versions: dict[bytes, list[tuple[int, Entry | None]]] = {key: [] for key in KEYS}
        self.changes: list[tuple[int, list[tuple[bytes, Entry | None, Entry | None]]]] = []
        self.results: dict[bytes, object] = {}
        self.horizon = b""

    def at(self, key: bytes, revision: int) -> Entry | None:
        found = [entry for mod, entry in self.versions[key] if mod <= revision]
        return found[-1] if found else None

    def holds(self, condition: Condition) -> bool:
        match condition:
            case And(conditions=parts):
                return all(map(self.holds, parts))
            case Or(conditions=parts):
                return any(map(self.holds, parts))
            case Not(condition=part):
                return not self.holds(part)
            case Exists(key=key):
                return self.at(key, self.revision) is not None
            case NotExists(key=key):
                return self.at(key, self.revision) is None
            case Tombstone(key=key):
                last = self.versions[key][-1:]
                return bool(last) and last[0][1] is None and last[0][0] > self.compacted
            case Value(key=key, compare=compare, value=value):
                entry = self.at(key, self.revision)
                return compare is Compare.NE if entry is None else COMPARE[compare](entry.value, value)
            case Revision(key=key, compare=compare, revision=revision):
                entry = self.at(key, self.revision)
                return COMPARE[compare](entry.mod_revision if entry else 0, revision)

    def execute(self, body: Any) -> object:
        if isinstance(body, Compact):
            if body.revision > self.revision:
                return FailureCode.FUTURE_REVISION
            self.compacted = max(self.compacted, body.revision)
            return CompactResult(self.revision, self.compacted)
        while isinstance(body, Branch):
            body = body.then if self.holds(body.condition) else body.otherwise
        revision = self.revision + 1
        changed: list[tuple[bytes, Entry | None, Entry | None]] = []
        for operation in body.operations:
            old = self.at(operation.key, self.revision)
            new = None
            if isinstance(operation, Put):
                new = Entry(
                    operation.key,
                    operation.value,
                    old.create_revision if old else revision,
                    revision,
                    old.version + 1 if old else 1,
                )
            elif old is None:
                continue
            changed.append((operation.key, old, new))
        if changed:
            self.revision = revision
            self.changes.append((revision, changed))
            for key, _, new in changed:
                self.versions[key].append((revision, new))
        return InvokeResult(self.revision, body.yields, len(changed))

    def apply(self, command: Command, now_ms: int) -> object:
        time_ms = max(self.time_ms, now_ms)
        if command.id:
            if command.id <= self.horizon:
                return FailureCode.EXPIRED
            if command.id in self.results:
                return self.results[command.id]
            if int.from_bytes(command.id[:8], "big") + MEMORY.expiry_ms <= time_ms:
                return FailureCode.EXPIRED
        self.time_ms = time_ms
        result = self.execute(command.body)
        if command.id:
            self.results[command.id] = result
        for _ in range(MEMORY.evicted_per_command):
            if not self.results:
                break
            oldest = min(self.results)
            if (
                int.from_bytes(oldest[:8], "big") + MEMORY.expiry_ms > time_ms
                and len(self.results) <= MEMORY.max_results
            ):
                break
            del self.results[oldest]
            self.horizon = oldest
        return result


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = DictStore()
        self.machine = Metastore(self.store, memory=MEMORY)
        self.model = Model()
        self.now_ms = 1_000_000
        self.sent: list[Command] = []
        self.got: list[Changes] = []
        self.log: list[tuple[int, int, bytes]] = []
        self.numbers = 0

    @initialize()
    def begin(self) -> None:
        self.machine.watch(Prefix(b""), self.deliver, self.unwatched)

    def deliver(self, changes: Changes) -> bool:
        self.got.append(changes)
        return True

    def unwatched(self, error: Exception) -> None:
        raise AssertionError(f"the watch ended: {error}")

    def command(self, body: Any, with_id: bool) -> Command:
        self.numbers += 1
        made = Command(
            self.now_ms.to_bytes(8, "big") + bytes(16) + self.numbers.to_bytes(8, "big") if with_id else b"", body
        )
        self.sent.append(made)
        return made

    def run(self, commands: list[Command]) -> None:
        first = self.machine.applied_index + 1
        entries = [(first + n, 1, stamp(encode(c), self.now_ms)) for n, c in enumerate(commands)]
        results = self.machine.apply(entries)
        self.log += entries
        for command, result in zip(commands, results, strict=True):
            expected = self.model.apply(command, self.now_ms)
            if isinstance(expected, FailureCode):
                assert isinstance(result, Failed) and result.code is expected
            else:
                assert result == expected

    @rule(bodies=st.lists(st.tuples(trees, st.booleans()), min_size=1, max_size=4), passed_ms=st.integers(0, 200))
    def invokes(self, bodies: list[tuple[Any, bool]], passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.run([self.command(body, with_id) for body, with_id in bodies])

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), passed_ms=st.sampled_from([0, 0, 0, 100, 600]))
    def repeats(self, data: st.DataObject, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.run([data.draw(st.sampled_from(self.sent[-8:])) for _ in range(2)])

    @rule(back=st.integers(-1, 6), with_id=st.booleans())
    def compacts(self, back: int, with_id: bool) -> None:
        self.run([self.command(Compact(max(0, self.model.revision - back)), with_id)])

    @rule(garbage=st.sampled_from([b"", b"\x01", b"\x01garbage......", b"\xff" * 30]))
    def applies_garbage(self, garbage: bytes) -> None:
        before = self.machine.checksum
        self.machine.apply([(self.machine.applied_index + 1, 1, garbage)])
        self.log.append((self.machine.applied_index, 1, garbage))
        assert self.machine.checksum == before

    @rule(limit=st.integers(1, 5))
    def purges(self, limit: int) -> None:
        self.machine.compact_step(limit)

    @rule(body=trees)
    def fails_to_write(self, body: Any) -> None:
        before = dict(self.store.data)
        self.store.fail_writes = 1
        try:
            data = stamp(encode(Command(b"", body)), self.now_ms)
            self.machine.apply([(self.machine.applied_index + 1, 1, data)])
        except WriteFailed:
            pass
        else:
            raise AssertionError("the write did not fail")
        assert self.store.data == before

    @rule()
    def restarts(self) -> None:
        self.follow(Metastore(self.store, memory=MEMORY))
        assert self.machine.apply(self.log[-3:]) == [None] * len(self.log[-3:])

    @precondition(lambda self: self.machine.applied_index)
    @rule(chunk_bytes=st.integers(64, 400), stop=st.integers(0, 20))
    def moves_by_snapshot(self, chunk_bytes: int, stop: int) -> None:
        store = DictStore()
        receiving = SnapshotImport(store)
        for number, chunk in enumerate(SnapshotExport(self.store, chunk_bytes=chunk_bytes)):
            if number == stop:
                receiving = SnapshotImport(store)
            receiving.accept(chunk)
        assert receiving.done and store.data == self.store.data
        self.store = store
        self.follow(Metastore(store, memory=MEMORY))

    def follow(self, machine: Metastore) -> None:
        assert (machine.revision, machine.checksum) == (self.machine.revision, self.machine.checksum)
        machine.take_watches_from(self.machine)
        self.machine = machine
        catch_up(machine, 2)

    @rule(back=st.integers(-1, 8), low=keys, high=st.one_of(st.none(), keys), limit=st.integers(1, 4))
    def reads(self, back: int, low: bytes, high: bytes | None, limit: int) -> None:
        revision = self.model.revision - back
        found: list[Entry] = []
        try:
            start: bytes | None = low
            while start is not None:
                page = self.machine.range(start, high, revision, limit)
                assert len(page.entries) <= limit and page.revision == revision
                found += page.entries
                start = page.next_key
        except Compacted:
            assert revision < self.model.compacted or revision < 0
            return
        except FutureRevision:
            assert revision > self.model.revision
            return
        assert self.model.compacted <= revision <= self.model.revision
        inside = [k for k in sorted(KEYS) if low <= k and (high is None or k < high)]
        assert found == [e for k in inside if (e := self.model.at(k, revision)) is not None]
        assert self.machine.count(low, high, revision).keys == len(found)
        assert [self.machine.get(k, revision) for k in KEYS] == [self.model.at(k, revision) for k in KEYS]

    @rule(ahead=st.integers(1, 6))
    def replays_history(self, ahead: int) -> None:
        got: list[Changes] = []
        start = self.model.compacted + ahead
        watcher = self.machine.watch(Prefix(b""), lambda c: got.append(c) or True, self.unwatched, start)  # type: ignore[func-returns-value]
        catch_up(self.machine, 3)
        watcher.cancel()
        assert self.told(got) == [change for change in self.model.changes if change[0] >= start]

    @staticmethod
    def told(got: list[Changes]) -> list[tuple[int, list[tuple[bytes, Entry | None, Entry | None]]]]:
        return [(c.revision, [tuple(change) for change in c.changes]) for c in got]

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        machine, model = self.machine, self.model
        assert (machine.revision, machine.compacted_revision) == (model.revision, model.compacted)
        assert [machine.get(key) for key in KEYS] == [model.at(key, model.revision) for key in KEYS]
        assert machine.stored_results == len(model.results)
        assert self.told(self.got) == model.changes

    def teardown(self) -> None:
        """The whole log once more, in one slice, into an empty store: the same state."""
        fresh = Metastore(DictStore(), memory=MEMORY)
        fresh.apply(self.log)
        assert (fresh.revision, fresh.checksum) == (self.machine.revision, self.machine.checksum)
        assert [fresh.get(key) for key in KEYS] == [self.machine.get(key) for key in KEYS]


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
