"""A few instances and a table with tablets under way, read as the metastore would give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.unit.topology.clusters import member

from trimtab.catalog import keys, updates
from trimtab.catalog.schema import Column, ColumnKind
from trimtab.catalog.updates import KeyspaceAdded, TableAdded, Update
from trimtab.tablets import transitions
from trimtab.tablets.records import entries
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind, transition_key
from trimtab.tablets.view import TableView
from trimtab.topology.records import VERSION_KEY, InstanceRecord, RequestRecord, encode, instance_key, request_key
from trimtab.topology.view import View

USERS = 1
COLUMNS = (Column(1, "id", "bigint", ColumnKind.PARTITION, 0),)
THREE: tuple[tuple[int, ...], ...] = ((1, 2, 3), (1, 2, 3), (2, 3, 4), (3, 4, 5))


class MovingTables:
    """shop.users with these replicas, on instances i1, i2, … each on its own host, all in one rack."""

    def __init__(self, replicas: Sequence[tuple[int, ...]] = THREE, *, instances: int = 5) -> None:
        self.view, self.tables = View(), TableView()
        self.store: dict[bytes, tuple[bytes, int]] = {}
        self.revision = 0
        self.put({VERSION_KEY: b"7"})
        for raft_id in range(1, instances + 1):
            self.instance(raft_id)
        self._update(KeyspaceAdded("shop", {"dc1": len(replicas[0])}))
        self._update(TableAdded(USERS, "shop", "users", COLUMNS, len(replicas)), entries(USERS, replicas))

    def put(self, puts: Mapping[bytes, bytes], deletes: Sequence[bytes] = ()) -> None:
        self.revision += 1
        for key, value in [*puts.items(), *((key, None) for key in deletes)]:
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = (value, self.revision)
            for view in (self.view, self.tables):
                view.change(key, value, self.revision)

    def _update(self, change: object, puts: Mapping[bytes, bytes] | None = None) -> None:
        version = self.tables.catalog.version + 1
        update = Update(version, 1_000 + version, (change,))  # type: ignore[arg-type]
        news = {keys.update_key(version): updates.encode(update), keys.VERSION_KEY: keys.version_value(version)}
        self.put(news | dict(puts or {}))

    def instance(self, raft_id: int, **fields: object) -> InstanceRecord:
        domain = {"host": f"h{raft_id}"} | dict(fields.pop("domain", {}))  # type: ignore[call-overload]
        record = member(raft_id, failure_domain=domain, **fields)
        self.put({instance_key(raft_id): encode(record)})
        return record

    def request(self, number: int, record: RequestRecord) -> None:
        self.put({request_key(number): encode(record)})

    def under_way(self, tablet: int, pending: tuple[int, ...], stage: Stage, **fields: object) -> TabletTransition:
        """The tablet goes there."""
        wanted: dict[str, object] = {
            "kind": TransitionKind.MIGRATION,
            "session": f"s{tablet}",
            "trigger": self.revision,
            "version": 7,
        }
        made = TabletTransition(pending, stage=stage, **(wanted | fields))  # type: ignore[arg-type]
        self.put({transition_key(USERS, tablet): transitions.encode(made)})
        return made
