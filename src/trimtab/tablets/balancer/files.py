"""Topologies as people write them: one JSON document, or three tables (Parquet). Whoever calls reads and writes files.

    nodes     id, dc, rack, host, capacity_bytes, state (normal, new, draining, dead, down), replaces (optional),
              free_bytes (optional: what the disk has left, if that is less than the capacity leaves)
    tables    id, keyspace, replication {dc: n}
    tablets   table, tablet, bytes, replicas [node ids]

What is missing of a node's dc, rack and host is as for an instance that names none. Other fields are ignored, unless
they look like one of these that was misspelt. What is wrong is told with where it is. `busy` (optional) of a tablet: it
is under way, and its replicas are those it will have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trimtab.catalog.schema import DEFAULT_DATACENTER
from trimtab.tablets.balancer.model import Cluster, Ints, ModelError, Node, NodeState, Table
from trimtab.tablets.domains import DEFAULT_RACK

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("nodes", "tables", "tablets")
_STATES = {state.value: state for state in NodeState}
_COLUMNS = {
    "nodes": ("id", "capacity_bytes"),
    "tables": ("id", "keyspace", "replication"),
    "tablets": ("table", "tablet", "bytes", "replicas"),
}


class _Node(msgspec.Struct):
    id: str | int
    capacity_bytes: int
    dc: str = DEFAULT_DATACENTER
    rack: str = DEFAULT_RACK
    host: str = ""
    state: str = "normal"
    replaces: str | int | None = None
    free_bytes: int | None = None


class _Table(msgspec.Struct):
    id: str | int
    keyspace: str
    replication: dict[str, int] | int


class _Tablet(msgspec.Struct):
    table: str | int
    tablet: int
    bytes: int
    replicas: list[str | int]
    busy: bool = False


class _Document(msgspec.Struct):
    nodes: list[_Node]
    tables: list[_Table]
    tablets: list[_Tablet]


class _Words(msgspec.Struct):
    """The same, to look at how fields are spelt. Those of tablets must all be there, and there may be millions."""

    nodes: list[dict[str, Any]]
    tables: list[dict[str, Any]]


_FIELDS = {"nodes": _Node.__struct_fields__, "tables": _Table.__struct_fields__, "tablets": _Tablet.__struct_fields__}


def from_json(text: bytes) -> Cluster:
    """ModelError with where and what, if it is no topology."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(f"this is no topology: {error}") from error
    words = msgspec.json.decode(text, type=_Words)
    for part, rows in (("nodes", words.nodes), ("tables", words.tables)):
        _check_spelling(part, dict.fromkeys(name for row in rows for name in row))
    nodes = [_node(each, f"nodes[{number}]") for number, each in enumerate(document.nodes)]
    tables = _tables(document.tables, nodes)
    index = _index(nodes)
    at = {table.id: number for number, table in enumerate(tables)}
    table, replicas = [], []
    for number, each in enumerate(document.tablets):
        if (found := at.get(str(each.table))) is None:
            raise ModelError(f"tablets[{number}] is of the table '{each.table}', and tables has none of that id")
        table.append(found)
        held = [index.get(str(name), -1) for name in each.replicas]
        if -1 in held:
            name, place = each.replicas[held.index(-1)], f"tablet {each.tablet} of {each.table}"
            raise ModelError(f"tablets[{number}] ({place}) is on '{name}', and nodes has none of that id")
        replicas.append(held)
    return _cluster(
        nodes,
        tables,
        np.array(table, np.int64),
        _numbers([each.tablet for each in document.tablets], "tablet"),
        _numbers([each.bytes for each in document.tablets], "bytes"),
        _padded(replicas),
        np.array([each.busy for each in document.tablets], bool),
    )


def to_json(cluster: Cluster, replicas: Ints) -> bytes:
    """The same cluster with other replicas, as `from_json` takes it."""
    names = [node.id for node in cluster.nodes]
    tables = [table.id for table in cluster.tables]
    rows = zip(cluster.table.tolist(), cluster.tablet.tolist(), cluster.bytes.tolist(), replicas.tolist(), strict=True)
    document = {
        "nodes": [_node_shape(node) for node in cluster.nodes],
        "tables": [_table_shape(table) for table in cluster.tables],
        "tablets": [
            {
                "table": tables[table],
                "tablet": tablet,
                "bytes": size,
                "replicas": [names[node] for node in held if node >= 0],
            }
            for table, tablet, size, held in rows
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


# Parquet


def from_tables(parts: Mapping[str, pa.Table]) -> Cluster:
    """From the three tables; ModelError with where and what, if they are no topology."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in PARTS:
        missing = [column for column in _COLUMNS[name] if column not in parts[name].column_names]
        if missing:
            raise ModelError(f"{name} has no column {', '.join(missing)}; it has {', '.join(parts[name].column_names)}")
        twice = [column for column, number in Counter(parts[name].column_names).items() if number > 1]
        if twice:
            raise ModelError(f"{name} has the column {twice[0]} twice")
        _check_spelling(name, parts[name].column_names)
    nodes = [_node(_converted(each, _Node, f"nodes, row {n}"), f"nodes, row {n}") for n, each in _rows(parts["nodes"])]
    declared = [_converted(_spelled(each), _Table, f"tables, row {n}") for n, each in _rows(parts["tables"])]
    tables = _tables(declared, nodes)
    rows = parts["tablets"].combine_chunks()
    at = _looked_up(_text(rows["table"], "table"), [table.id for table in tables])
    if (wrong := _first_of(at < 0)) is not None:
        raise ModelError(
            f"tablets, row {wrong} is of the table '{rows['table'][wrong]}', and tables has none of that id"
        )
    held = rows["replicas"].combine_chunks()
    if isinstance(held, pa.ChunkedArray):
        held = pa.concat_arrays(held.chunks) if held.num_chunks else pa.array([], pa.list_(pa.string()))
    if not (pa.types.is_list(held.type) or pa.types.is_large_list(held.type)):
        raise ModelError(f"tablets: the column replicas is {held.type}, and should be lists of node ids")
    many = np.asarray(pc.list_value_length(held).fill_null(0))
    flat = _looked_up(_text(held.flatten(), "replicas"), [node.id for node in nodes])
    owner = np.repeat(np.arange(len(many)), many)
    if (wrong := _first_of(flat < 0)) is not None:
        row = int(owner[wrong])
        raise ModelError(f"tablets, row {row} is on '{held.flatten()[wrong]}', and nodes has none of that id")
    replicas = np.full((len(many), int(many.max(initial=1))), -1, np.int64)
    replicas[owner, np.arange(len(flat)) - np.repeat(np.cumsum(many) - many, many)] = flat
    busy = _integers(rows, "busy") > 0 if "busy" in rows.column_names else np.zeros(len(many), bool)
    return _cluster(nodes, tables, at, _integers(rows, "tablet"), _integers(rows, "bytes"), replicas, busy)


def to_tables(cluster: Cluster, replicas: Ints) -> dict[str, pa.Table]:
    """The same cluster with other replicas, as `from_tables` takes it."""
    import pyarrow as pa

    names = pa.array([node.id for node in cluster.nodes])
    held = replicas >= 0
    ends = np.r_[0, np.cumsum(held.sum(axis=1))]
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), names.take(pa.array(replicas[held])))
    tables = pa.array([table.id for table in cluster.tables])
    replication = pa.array(
        [list(table.replication.items()) for table in cluster.tables], pa.map_(pa.string(), pa.int64())
    )
    return {
        "nodes": pa.Table.from_pylist([_node_shape(node) for node in cluster.nodes]),
        "tables": pa.table(
            {
                "id": tables,
                "keyspace": pa.array([table.keyspace for table in cluster.tables]),
                "replication": replication,
            }
        ),
        "tablets": pa.table(
            {
                "table": tables.take(pa.array(cluster.table)),
                "tablet": cluster.tablet,
                "bytes": cluster.bytes,
                "replicas": lists,
            }
        ),
    }


def _rows(part: pa.Table) -> Iterable[tuple[int, dict[str, Any]]]:
    return enumerate(part.to_pylist())


def _spelled(row: dict[str, Any]) -> dict[str, Any]:
    """A replication may be a map, a struct with a field for each data centre, or JSON text."""
    said = row["replication"]
    try:
        if isinstance(said, list):
            said = dict(said)
        elif isinstance(said, str):
            said = json.loads(said)
    except (ValueError, TypeError, RecursionError):
        return row
    if isinstance(said, dict):
        said = {dc: number for dc, number in said.items() if number is not None}
    return row | {"replication": said}


def _converted(row: dict[str, Any], kind: Any, where: str) -> Any:
    try:
        return msgspec.convert({name: value for name, value in row.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from error


def _text(column: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(column, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ModelError(f"tablets: the column {name} is of {column.type}, and should be of ids") from error


def _looked_up(column: Any, names: Sequence[str]) -> Ints:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(column, value_set=pa.array(names, pa.string()))
    return np.asarray(found.fill_null(-1)).astype(np.int64)


def _integers(rows: pa.Table, name: str) -> Ints:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows[name]
    if column.null_count:
        raise ModelError(f"tablets, row {_first_of(np.asarray(column.is_null()))} has no {name}")
    try:
        return np.asarray(pc.cast(column, pa.int64()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ModelError(f"tablets: the column {name} is {column.type}, and should be whole numbers") from error


# Both


def _check_spelling(part: str, names: Iterable[str]) -> None:
    """A node whose "stat" is dead would be planned as one that lives."""
    known = _FIELDS[part]
    for name in names:
        if name not in known and (meant := get_close_matches(name.lower(), known, 1, 0.8)):
            raise ModelError(f"{part} has the field '{name}', which is none; did you mean {meant[0]}?")


def _node(said: _Node, where: str) -> Node:
    if said.state not in _STATES:
        raise ModelError(f"{where} ({said.id}) has the state '{said.state}', which is none of {', '.join(_STATES)}")
    name = str(said.id)
    replaces = "" if said.replaces is None else str(said.replaces)
    if said.free_bytes is not None and said.free_bytes < 0:
        raise ModelError(f"{where} ({said.id}) has {said.free_bytes} bytes free, which is below zero")
    return Node(
        name,
        said.dc,
        said.rack,
        said.host or name,
        said.capacity_bytes,
        _STATES[said.state],
        replaces,
        free_bytes=said.free_bytes,
    )


def _tables(said: Sequence[_Table], nodes: Sequence[Node]) -> list[Table]:
    """A replication that is a number holds for every data centre there is."""
    dcs = sorted({node.dc for node in nodes})
    return [
        Table(
            str(each.id),
            each.keyspace,
            dict.fromkeys(dcs, each.replication) if isinstance(each.replication, int) else each.replication,
            str(each.id).removeprefix(f"{each.keyspace}."),
        )
        for each in said
    ]


def _cluster(
    nodes: Sequence[Node], tables: Sequence[Table], table: Ints, tablet: Ints, size: Ints, replicas: Ints, busy: Ints
) -> Cluster:
    found = Cluster(tuple(nodes), tuple(tables), table, tablet, size, replicas, busy)
    _check_replaced(nodes)
    return found


def _check_replaced(nodes: Sequence[Node]) -> None:
    """Only a dead one is replaced, and by one other."""
    known, by = {node.id: node for node in nodes}, dict[str, str]()
    for node in nodes:
        if not node.replaces:
            continue
        if (state := known[node.replaces].state) is not NodeState.DEAD:
            raise ModelError(f"the node {node.id} replaces {node.replaces}, which is {state.value}, not dead")
        if (other := by.setdefault(node.replaces, node.id)) != node.id:
            raise ModelError(f"the nodes {other} and {node.id} replace {node.replaces}; one of them can")


def _index(nodes: Sequence[Node]) -> dict[str, int]:
    return {node.id: number for number, node in enumerate(nodes)}


def _numbers(numbers: list[int], what: str) -> Ints:
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        wrong = next(n for n, each in enumerate(numbers) if not -(1 << 63) <= each < 1 << 63)
        raise ModelError(f"tablets[{wrong}]: {what} is {numbers[wrong]}, which is out of range") from None


def _padded(lists: list[list[int]]) -> Ints:
    width = max(map(len, lists), default=1) or 1
    out = np.full((len(lists), width), -1, np.int64)
    for number, each in enumerate(lists):
        out[number, : len(each)] = each
    return out


def _first_of(wrong: Any) -> int | None:
    return int(wrong.argmax()) if len(wrong) and wrong.any() else None


def _node_shape(node: Node) -> dict[str, Any]:
    state = NodeState.NORMAL if node.state is NodeState.NEW else node.state
    shape = node._asdict() | {"state": state.value, "replaces": node.replaces or None}
    # What is free is another figure once the plan is carried out.
    del shape["raft_id"], shape["free_bytes"]
    return shape


def _table_shape(table: Table) -> dict[str, Any]:
    return {"id": table.id, "keyspace": table.keyspace, "replication": dict(table.replication)}
