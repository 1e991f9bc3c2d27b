"""A change of the schema as one write: the new version, its update, and the replicas of the tablets it brings or takes.

Pure: decided on the topology and the tables as they are seen now. What it was decided on comes with it, so that it is
written only if that still holds: the catalog's version, the rows of all instances that get replicas, and the number of
the next request (an instance that somebody has asked to leave meanwhile must not get any).

Those instances get replicas that have their place in the cluster and that nobody has asked to go: the ones that are
Online, and only where these have too few hosts also the others. One that is down gets its replicas when it is back, and
catches up before it serves, as with tables that were there before.

Another replication of a keyspace with tables only says what is wanted from now on; where there are hosts enough, the
planner sees to the rest. Of a table that is dropped nothing is under way any more, either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from trimtab.catalog import keys, updates
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.commands import Command
from trimtab.catalog.errors import SchemaError
from trimtab.catalog.planning import plan
from trimtab.catalog.schema import Table
from trimtab.catalog.updates import ReplicationChanged, Update
from trimtab.metastore.limits import MAX_COMMAND_BYTES, MAX_OPERATIONS, MAX_VALUE_BYTES
from trimtab.tablets.domains import datacenters, domain_of, is_online, may_hold
from trimtab.tablets.placement import Node, PlacementRefused, place, shortage
from trimtab.tablets.records import MAX_REPLICAS, chunk_keys, entries
from trimtab.tablets.ring import choose_count, wrong_count
from trimtab.tablets.transitions import rebalance_key, transition_key
from trimtab.tablets.view import TableView
from trimtab.topology.lifecycle import open_requests
from trimtab.topology.records import SESSIONS, RequestKind, instance_key
from trimtab.topology.view import View

# What goes into the same command beside the change itself: conditions, events.
_ROOM_BYTES = 64 * 1024
_ROOM_OPERATIONS = 64
_GOING = (RequestKind.LEAVE, RequestKind.REMOVE)
_MAX_TOLD = 20
# Replicas that one change places: the leader does nothing else meanwhile.
MAX_PLACED = 100_000


@dataclass(frozen=True)
class PlannedChange:
    """What to write, if every key of `depends` is as it was. Without `puts`: it is so already, at `version`."""

    version: int
    puts: dict[bytes, bytes] = field(default_factory=dict)
    deletes: tuple[bytes, ...] = ()
    depends: frozenset[bytes] = frozenset()
    texts: tuple[str, ...] = ()


def plan_change(view: View, tables: TableView, command: Command, request: str, now_ms: int) -> PlannedChange:
    """What a command comes to; SchemaError where it can't be."""
    before = tables.catalog
    there = datacenters(view)
    update = plan(before, command, now_ms, there, lambda replication: _chosen(there, replication))
    if update is None:
        return PlannedChange(before.version)
    update = msgspec.structs.replace(update, request=request)
    after = before.apply(update)
    puts = {
        keys.update_key(update.version): updates.encode(update),
        keys.VERSION_KEY: keys.version_value(update.version),
    }
    depends = {keys.VERSION_KEY, keys.update_key(update.version)}
    nodes = _nodes(view, tables)
    texts = []
    added = [after.tables[table] for table in update.tables_added() if table in after.tables]
    _check_number(sum(table.tablets * sum(after.keyspaces[table.keyspace].replication.values()) for table in added))
    for change in update.changes:
        if isinstance(change, ReplicationChanged) and _has_tables(before, change.keyspace):
            _check_replication(change, nodes, view)
            depends.update(view.unused(view.next_request()))
    for table in added:
        replication = after.keyspaces[table.keyspace].replication
        placed = _placed(table, replication, nodes, _online(nodes, view), view)
        puts.update(entries(table.id, placed))
        holders = {raft_id for replicas in placed for raft_id in replicas}
        depends.update(map(instance_key, holders))
        nodes = _loaded(nodes, placed)
        replicas = sum(replication.values())
        texts.append(
            f"table {table.full_name} created ({_many(table.tablets, 'tablet')}, {_many(replicas, 'replica')}) at "
            f"version {update.version}"
        )
    if added:
        depends.update(view.unused(view.next_request()))
    deletes: list[bytes] = []
    for number in update.tables_dropped():
        if number in before.tables:
            deletes += chunk_keys(number, before.tables[number].tablets)
            deletes += _moving_keys(tables, number)
    texts += _told(tables, update)
    if not texts:
        texts = [f"schema changed at version {update.version}"]
    _check_size(puts, deletes)
    return PlannedChange(update.version, puts, tuple(deletes), frozenset(depends), _shortened(texts))


# Where tablets go


def _chosen(there: dict[str, int], dcs: Iterable[str]) -> int:
    return choose_count(sum(there.get(dc, 0) for dc in dcs))


def _nodes(view: View, tables: TableView) -> list[Node]:
    """Everybody who may get replicas."""
    going = {request.raft_id for request in open_requests(view).values() if request.kind in _GOING}
    loads = tables.loads()
    return [
        Node(raft_id, *domain_of(record), loads.get(raft_id, 0), record.instance_id)
        for raft_id, record in sorted(view.members().items())
        if may_hold(record) and raft_id not in going
    ]


def _online(nodes: list[Node], view: View) -> list[Node]:
    return [node for node in nodes if is_online(view.instances[node.raft_id])]


def _placed(
    table: Table, replication: dict[str, int], nodes: list[Node], online: list[Node], view: View
) -> list[tuple[int, ...]]:
    if wrong := wrong_count(table.tablets):
        raise SchemaError(f"{table.full_name}: {wrong}")
    if sum(replication.values()) > MAX_REPLICAS:
        raise SchemaError(f"{table.full_name}: a tablet has at most {MAX_REPLICAS} replicas in all data centres")
    try:
        return place(table.tablets, replication, nodes if shortage(replication, online) else online)
    except PlacementRefused as refused:
        also = _not_counted(replication, nodes, view)
        raise SchemaError(f"{table.full_name} can't be placed: {refused}{also}") from refused


def _not_counted(replication: dict[str, int], nodes: list[Node], view: View) -> str:
    counted = {node.raft_id for node in nodes}
    out = sorted(
        record.instance_id
        for raft_id, record in view.members().items()
        if raft_id not in counted and domain_of(record).dc in replication
    )
    return f" (not counted, because they come or go: {', '.join(out[:10])})" if out else ""


def _has_tables(catalog: Catalog, keyspace: str) -> bool:
    return any(table.keyspace == keyspace for table in catalog.tables.values())


def _check_replication(change: ReplicationChanged, nodes: list[Node], view: View) -> None:
    replication = dict(change.replication)
    if sum(replication.values()) > MAX_REPLICAS:
        raise SchemaError(f"{change.keyspace}: a tablet has at most {MAX_REPLICAS} replicas in all data centres")
    if why := shortage(replication, nodes):
        also = _not_counted(replication, nodes, view)
        raise SchemaError(f"the replication of {change.keyspace} can't be {_spelled(replication)}: {why}{also}")


def _moving_keys(tables: TableView, table: int) -> list[bytes]:
    """What is written about tablets of a table that are under way."""
    found = [rebalance_key(table)] if table in tables.rebalances else []
    for tablet, current in sorted(tables.transitions.get(table, {}).items()):
        found.append(transition_key(table, tablet))
        if current.session:
            found.append(SESSIONS + current.session.encode())
    return found


def _loaded(nodes: list[Node], placed: list[tuple[int, ...]]) -> list[Node]:
    """The same nodes with what they have got."""
    counts: dict[int, int] = {}
    for replicas in placed:
        for raft_id in replicas:
            counts[raft_id] = counts.get(raft_id, 0) + 1
    return [node._replace(load=node.load + counts.get(node.raft_id, 0)) for node in nodes]


# What can't be


def _check_number(replicas: int) -> None:
    if replicas > MAX_PLACED:
        raise SchemaError(
            f"this change of the schema places {replicas} replicas of tablets, and at most {MAX_PLACED} are placed at "
            "once; create fewer tables at once, or with fewer tablets"
        )


def _check_size(puts: dict[bytes, bytes], deletes: list[bytes]) -> None:
    size = sum(len(key) + len(value) + 16 for key, value in puts.items()) + sum(len(key) + 16 for key in deletes)
    if size > MAX_COMMAND_BYTES - _ROOM_BYTES or max(map(len, puts.values())) > MAX_VALUE_BYTES:
        raise SchemaError(
            f"this change of the schema takes {size} bytes, and at most {MAX_COMMAND_BYTES - _ROOM_BYTES} go into one "
            "version; create fewer tables at once, or with fewer tablets"
        )
    if len(puts) + len(deletes) > MAX_OPERATIONS - _ROOM_OPERATIONS:
        raise SchemaError(
            f"this change of the schema writes {len(puts) + len(deletes)} records, and at most "
            f"{MAX_OPERATIONS - _ROOM_OPERATIONS} go into one version; change fewer tables at once"
        )


# What is told


def _told(tables: TableView, update: Update) -> list[str]:
    at = f"at version {update.version}"
    texts = []
    for change in update.changes:
        match change:
            case updates.KeyspaceAdded():
                texts.append(f"keyspace {change.keyspace} created ({_spelled(change.replication)}) {at}")
            case ReplicationChanged():
                texts.append(f"keyspace {change.keyspace} has the replication {_spelled(change.replication)} {at}")
            case updates.KeyspaceDropped():
                texts.append(f"keyspace {change.keyspace} dropped {at}")
            case updates.TableDropped():
                texts.append(f"table {tables.name_of(change.table)} dropped {at}")
            case updates.TypeAdded():
                texts.append(f"type {change.keyspace}.{change.type} created {at}")
            case updates.TypeDropped():
                texts.append(f"type {change.keyspace}.{change.type} dropped {at}")
            case updates.FieldAdded() | updates.FieldRenamed():
                texts.append(f"type {change.keyspace}.{change.type} changed {at}")
            case updates.ColumnAdded() | updates.ColumnDropped() | updates.ColumnRenamed() | updates.OptionsChanged():
                texts.append(f"table {tables.name_of(change.table)} changed {at}")
    return list(dict.fromkeys(texts))


def _shortened(texts: list[str]) -> tuple[str, ...]:
    if len(texts) <= _MAX_TOLD:
        return tuple(texts)
    return (*texts[: _MAX_TOLD - 1], f"and {len(texts) - _MAX_TOLD + 1} more changes of the schema")


def _spelled(replication: dict[str, int]) -> str:
    return ", ".join(f"{dc}: {number}" for dc, number in sorted(replication.items()))


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
