"""A metastore with two tables and some instances, as far as loads care: conditional writes, and the views of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tests.unit.topology.clusters import member

from trimtab.catalog import keys, updates
from trimtab.catalog.schema import Column, ColumnKind
from trimtab.catalog.updates import KeyspaceAdded, TableAdded, TableDropped, Update
from trimtab.loads import generations, publishing, rules
from trimtab.loads.protocol import BeginRequest, CommitRequest, RollbackReply, RollbackRequest
from trimtab.loads.records import LoadKind, LoadRecord, load_stamp
from trimtab.loads.situation import LoadChange, Situation
from trimtab.loads.view import LoadView
from trimtab.tablets.records import chunk_keys, entries
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import encode, instance_key
from trimtab.topology.view import View

COLUMNS = (Column(1, "id", "bigint", ColumnKind.PARTITION, 0), Column(2, "name", "text", ColumnKind.REGULAR, 0))
USERS, ORDERS = 1, 2
THREE: tuple[tuple[int, ...], ...] = ((1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2, 3))
NOW_MS = 1_700_000_000_000


class Ledger:
    """`users` has `replicas` (of tablets 0, 1, ...), `orders` two tablets on the first instance."""

    def __init__(
        self, replicas: Sequence[tuple[int, ...]] = THREE, *, instances: int = 4, dcs: dict[int, str] | None = None
    ) -> None:
        self.view, self.tables, self.loads = View(), TableView(), LoadView()
        self.store: dict[bytes, tuple[bytes, int]] = {}
        self.revision = 0
        self.now_ms = NOW_MS
        self.silent: set[int] = set()
        self.texts: list[str] = []
        for raft_id in range(1, instances + 1):
            domain = {"dc": dcs[raft_id]} if dcs else {}
            self.put({instance_key(raft_id): encode(member(raft_id, failure_domain=domain))})
        self._update(KeyspaceAdded("shop", {"dc1": len(replicas[0])}))
        self._update(TableAdded(USERS, "shop", "users", COLUMNS, len(replicas)), entries(USERS, replicas))
        self._update(TableAdded(ORDERS, "shop", "orders", COLUMNS, 2), entries(ORDERS, [(1,), (1,)]))

    # The metastore

    def put(self, puts: dict[bytes, bytes], deletes: Sequence[bytes] = ()) -> None:
        self.revision += 1
        changes: list[tuple[bytes, bytes | None]] = [*puts.items(), *((key, None) for key in deletes)]
        for key, value in changes:
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = (value, self.revision)
            for view in (self.view, self.tables, self.loads):
                view.change(key, value, self.revision)

    def write(self, change: LoadChange) -> bool:
        """Whether it was written; False: something it was decided on has changed."""
        for key, revision in change.expect.items():
            if self.store.get(key, (b"", 0))[1] != revision:
                return False
        assert len(change.expect) < 900 and sum(map(len, change.puts.values())) < 500_000
        assert set(change.puts) | set(change.deletes) <= set(change.expect), "what is changed was looked at"
        self.put(change.puts, change.deletes)
        self.texts.append(change.text)
        return True

    def _update(self, change: object, puts: dict[bytes, bytes] | None = None, deletes: Sequence[bytes] = ()) -> None:
        version = self.tables.catalog.version + 1
        update = Update(version, 1_000 + version, (change,))  # type: ignore[arg-type]
        self.put(
            {keys.update_key(version): updates.encode(update), keys.VERSION_KEY: keys.version_value(version)}
            | (puts or {}),
            deletes,
        )

    def drop(self, table: int) -> None:
        self._update(TableDropped(table), deletes=chunk_keys(table, self.tables.map(table).count))

    def move(self, table: int, replicas: Sequence[tuple[int, ...]]) -> None:
        self.put(entries(table, replicas))

    def grade(self, raft_id: int, grade: Grade) -> None:
        record = self.view.instances[raft_id]
        standing = Standing(grade, record.grades.current.incarnation)
        target = Standing(Grade.ONLINE, record.grades.target.incarnation)
        self.put({instance_key(raft_id): encode(msgspec.structs.replace(record, grades=Grades(standing, target)))})

    # Loads

    def situation(self) -> Situation:
        return Situation(self.view, self.tables, self.loads, self.now_ms, lambda raft_id: raft_id not in self.silent)

    def load(self, id: str, table: int = USERS) -> LoadRecord:
        return self.loads.loads[table, id]

    def done(self, decided: LoadChange | LoadRecord) -> LoadRecord | None:
        if isinstance(decided, LoadRecord):
            return decided
        assert self.write(decided)
        return None

    def begin(
        self,
        id: str,
        kind: LoadKind = LoadKind.APPEND,
        *,
        table: int = USERS,
        version: int = 0,
        timestamp_us: int = 0,
        direct: bool = False,
        lease_ms: int = 60_000,
        who: str = "tests",
    ) -> LoadRecord:
        request = BeginRequest(id, table, version, kind, timestamp_us, lease_ms, who, direct)
        situation = self.situation()
        given = load_stamp(timestamp_us) if timestamp_us else 0
        self.done(rules.begin(situation, request, given or rules.stamp_for(situation, table, self.now_ms * 1000)))
        return self.load(id, table)

    def commit(self, id: str, *sealed: int, table: int = USERS, rows: int = 10) -> LoadRecord:
        self.done(rules.commit(self.situation(), CommitRequest(table, id, sealed, rows, 100)))
        return self.load(id, table)

    def abort(self, id: str, reason: str = "", table: int = USERS) -> LoadRecord:
        self.done(rules.abort(self.situation(), table, id, reason))
        return self.load(id, table)

    def adopt(self, id: str, *answered: int, table: int = USERS) -> LoadRecord:
        assert self.write(publishing.adopted(self.situation(), self.load(id, table), answered))
        return self.load(id, table)

    def rollback(self, id: str, table: int = USERS) -> RollbackReply:
        change, said = generations.rollback(self.situation(), RollbackRequest(table, id, apply=True))
        assert self.write(change)
        return said

    def publish(self, id: str, kind: LoadKind = LoadKind.APPEND, *holders: int, who: str = "tests") -> LoadRecord:
        """A whole load, from its beginning to its being seen."""
        holders = holders or (1, 2, 3)
        self.begin(id, kind, who=who)
        self.commit(id, *holders)
        self.now_ms += 1
        return self.adopt(id, *holders)
