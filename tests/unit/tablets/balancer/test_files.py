"""Topologies in files: back and forth, and what is said of those that are none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.tablets.balancer.building import nodes, placed

from trimtab.tablets.balancer import files
from trimtab.tablets.balancer.model import Cluster, ModelError
from trimtab.tablets.balancer.planning import plan


def same(one: Cluster, other: Cluster) -> bool:
    named = [[sorted(cluster.ids(row)) for row in range(cluster.count)] for cluster in (one, other)]
    arrays = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("table", "tablet", "bytes"))
    tables = [(table.id, table.keyspace, dict(table.replication)) for table in one.tables]
    return arrays and named[0] == named[1] and tables == [(t.id, t.keyspace, dict(t.replication)) for t in other.tables]


def test_a_topology_goes_to_json_and_back() -> None:
    cluster = placed(nodes(4, 1, racks=2), 12, 3, tables=2)
    assert same(files.from_json(files.to_json(cluster, cluster.replicas)), cluster)


def test_a_topology_goes_to_parquet_and_back() -> None:
    cluster = placed(nodes(4, 1, racks=2), 12, 3, tables=2)
    back = files.from_tables(files.to_tables(cluster, cluster.replicas))
    assert same(back, cluster) and [node.rack for node in back.nodes] == [node.rack for node in cluster.nodes]
    assert len(plan(back).moves) == len(plan(cluster).moves)


def document(**changes: Any) -> dict[str, Any]:
    return {
        "nodes": [{"id": "a", "capacity_bytes": 10}, {"id": "b", "capacity_bytes": 10, "host": "h"}],
        "tables": [{"id": "t", "keyspace": "ks", "replication": {"dc1": 1}}],
        "tablets": [{"table": "t", "tablet": 0, "bytes": 5, "replicas": ["a"]}],
    } | changes


def read(**changes: Any) -> Cluster:
    return files.from_json(json.dumps(document(**changes)).encode())


def test_what_is_not_said_of_a_node_is_as_for_an_instance() -> None:
    node = read().nodes[0]
    assert (node.dc, node.rack, node.host, node.state.value) == ("dc1", "rack1", "a", "normal")


def test_a_replication_may_be_a_number_for_all_data_centres() -> None:
    assert read(tables=[{"id": "t", "keyspace": "ks", "replication": 2}]).tables[0].replication == {"dc1": 2}


def test_other_fields_are_ignored_unless_one_looks_misspelt() -> None:
    node = {"id": "a", "capacity_bytes": 10}
    assert read(nodes=[node | {"colour": "red"}]).nodes[0].id == "a"
    with pytest.raises(ModelError, match="nodes has the field 'stat', which is none; did you mean state"):
        read(nodes=[node, {"id": "b", "capacity_bytes": 10, "stat": "dead"}])
    cluster = placed(nodes(2), 2, 1)
    parts = files.to_tables(cluster, cluster.replicas)
    parts["nodes"] = parts["nodes"].rename_columns({"rack": "Rack"})
    with pytest.raises(ModelError, match="nodes has the field 'Rack', which is none; did you mean rack"):
        files.from_tables(parts)


def test_a_table_is_called_by_its_name_in_its_keyspace() -> None:
    table = {"id": "ks.users", "keyspace": "ks", "replication": 1}
    tablet = {"table": "ks.users", "tablet": 0, "bytes": 5, "replicas": ["a"]}
    assert read(tables=[table], tablets=[tablet]).tables[0].shown == "users"


def test_nothing_goes_to_a_disk_that_is_full() -> None:
    many = [{"table": "t", "tablet": number, "bytes": 5, "replicas": ["a"]} for number in range(4)]
    for free_bytes, moves in ((4, 0), (5, 1), (1_000, 2), (None, 2)):
        there = [{"id": "a", "capacity_bytes": 1_000}, {"id": "b", "capacity_bytes": 1_000, "free_bytes": free_bytes}]
        assert len(plan(read(nodes=there, tablets=many)).moves) == moves
    with pytest.raises(ModelError, match="-1 bytes free, which is below zero"):
        read(nodes=[{"id": "a", "capacity_bytes": 1_000, "free_bytes": -1}])


NODE = {"id": "a", "capacity_bytes": 1}
DEAD = NODE | {"state": "dead"}
TABLET = {"table": "t", "tablet": 0, "bytes": 5, "replicas": ["a"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": [{"id": "a"}]}, r"missing required field `capacity_bytes` - at `\$.nodes\[0\]`"),
        ({"nodes": [{"id": "a", "capacity_bytes": 0}], "tablets": []}, "node a has the capacity 0"),
        ({"nodes": document()["nodes"] * 2}, "the node a is there twice"),
        ({"nodes": [{"id": "a", "capacity_bytes": 1, "state": "gone"}]}, r"nodes\[0\] \(a\) has the state 'gone'"),
        ({"tables": [{"id": "t", "keyspace": "ks", "replication": {"dc1": -1}}]}, "t wants -1 replicas in dc1"),
        ({"tables": [{"id": "t", "keyspace": "ks", "replication": {}}]}, "wants no replica anywhere"),
        ({"tablets": [TABLET | {"table": "u"}]}, r"tablets\[0\] is of the table 'u', and tables has none"),
        ({"tablets": [TABLET | {"replicas": ["c"]}]}, r"tablets\[0\] \(tablet 0 of t\) is on 'c', and nodes has none"),
        ({"tablets": [TABLET | {"replicas": ["a", "a"]}]}, "tablet 0 of t has two replicas on one node: a, a"),
        ({"tablets": [TABLET | {"replicas": []}]}, "tablet 0 of t has no replica at all"),
        ({"tablets": [TABLET, TABLET]}, "tablet 0 of t is there twice"),
        ({"tablets": [TABLET | {"bytes": -5}]}, "tablet 0 of t has -5 bytes"),
        ({"tablets": [TABLET | {"bytes": "many"}]}, r"Expected `int`, got `str` - at `\$.tablets\[0\].bytes`"),
        ({"tablets": [TABLET | {"bytes": 1 << 70}]}, "out of range"),
        ({"tablets": [TABLET | {"bytes": 1 << 62}]}, "tablet 0 of t has 4611686018427387904 bytes; 0 to"),
        ({"nodes": [{"id": "a", "capacity_bytes": 1 << 70}]}, "capacity 1180591620717411303424; 1 to"),
        ({"tablets": [TABLET | {"tablet": -1}]}, "tablet -1 of t: a tablet's number is 0 to 2147483647"),
        ({"tablets": [TABLET | {"tablet": 1 << 31}]}, "a tablet's number is 0 to 2147483647"),
        ({"tables": [{"id": "t", "keyspace": "ks", "replication": 1 << 70}]}, "0 to 64 can be"),
        ({"nodes": [NODE | {"replaces": "a"}]}, "the node a replaces a, which is no other"),
        ({"nodes": [NODE, NODE | {"id": "b", "replaces": "c"}]}, "b replaces c, which is no other node"),
        (
            {"nodes": [NODE, NODE | {"id": "b", "replaces": "a"}]},
            "b replaces a, which is normal, not dead",
        ),
        (
            {"nodes": [DEAD, *(NODE | {"id": each, "replaces": "a"} for each in "bc")]},
            "b and c replace a",
        ),
        ({"nodes": None}, r"Expected `array`, got `null` - at `\$.nodes`"),
    ],
)
def test_a_malformed_topology_is_told_with_where_and_what(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read(**changes)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_told(text: bytes) -> None:
    with pytest.raises(ModelError, match="this is no topology"):
        files.from_json(text)


def test_malformed_parquet_is_told_with_where_and_what() -> None:
    cluster = placed(nodes(3), 4, 2)
    parts = files.to_tables(cluster, cluster.replicas)
    with pytest.raises(ModelError, match="tablets has no column bytes; it has table, tablet, replicas"):
        files.from_tables(parts | {"tablets": parts["tablets"].drop_columns(["bytes"])})
    wrong = parts["tablets"].set_column(0, "table", pa.array(["t0", "u", "t0", "t0"]))
    with pytest.raises(ModelError, match="tablets, row 1 is of the table 'u'"):
        files.from_tables(parts | {"tablets": wrong})
    wrong = parts["tablets"].set_column(3, "replicas", pa.array([["n0"], ["n1"], ["n9"], ["n0"]]))
    with pytest.raises(ModelError, match="tablets, row 2 is on 'n9'"):
        files.from_tables(parts | {"tablets": wrong})
    wrong = parts["tablets"].set_column(3, "replicas", pa.array(["n0", "n1", "n0", "n0"]))
    with pytest.raises(ModelError, match="should be lists of node ids"):
        files.from_tables(parts | {"tablets": wrong})
    wrong = parts["tablets"].set_column(2, "bytes", pa.array([1, None, 2, 3]))
    with pytest.raises(ModelError, match="tablets, row 1 has no bytes"):
        files.from_tables(parts | {"tablets": wrong})


@pytest.mark.parametrize(
    ("part", "column", "values", "said"),
    [
        ("tables", "replication", ["[" * 100_000], "tables, row 0: Expected `int | object`, got `str`"),
        ("tables", "replication", ['{"a":' * 100_000], "tables, row 0: Expected `int | object`, got `str`"),
        ("tables", "replication", [[1, 2]], "tables, row 0: Expected `int | object`, got `array`"),
        ("tables", "replication", [[["dc1", "2", "3"]]], "tables, row 0: Expected `int | object`, got `array`"),
        ("tables", "replication", [None], "tables, row 0: Object missing required field `replication`"),
        ("tablets", "table", [{"x": 1}], "the column table is of struct<x: int64>, and should be of ids"),
        ("tablets", "table", [b"\xff"], "the column table is of binary, and should be of ids"),
        ("tablets", "replicas", [[["a"]]], "the column replicas is of list<item: string>, and should be of ids"),
        ("tablets", "replicas", [[b"\xff"]], "the column replicas is of binary, and should be of ids"),
        ("tablets", "replicas", [None], "the column replicas is null, and should be lists of node ids"),
        ("tablets", "replicas", [["a", None]], "tablets, row 0 is on 'None', and nodes has none of that id"),
        ("tablets", "tablet", [0.5], "the column tablet is double, and should be whole numbers"),
        ("tablets", "bytes", [[5]], "the column bytes is list<item: int64>, and should be whole numbers"),
        ("nodes", "id", [None], "nodes, row 0: Object missing required field `id`"),
        ("nodes", "capacity_bytes", [1.5], "nodes, row 0: Expected `int`, got `float`"),
    ],
)
def test_parquet_of_other_types_is_told_with_where_and_what(
    part: str, column: str, values: list[Any], said: str
) -> None:
    parts = {
        "nodes": pa.table({"id": ["a"], "capacity_bytes": [1_000]}),
        "tables": pa.table({"id": ["t"], "keyspace": ["ks"], "replication": ['{"dc1": 1}']}),
        "tablets": pa.table({"table": ["t"], "tablet": [0], "bytes": [5], "replicas": [["a"]]}),
    }
    assert files.from_tables(parts).count == 1
    at = parts[part].column_names.index(column)
    with pytest.raises(ModelError) as told:
        files.from_tables(parts | {part: parts[part].set_column(at, column, pa.array(values))})
    assert said in str(told.value)
    twice = parts[part].append_column(column, parts[part][column])
    with pytest.raises(ModelError, match=f"{part} has the column {column} twice"):
        files.from_tables(parts | {part: twice})


@pytest.mark.parametrize("said", [[{"dc1": 2}], ['{"dc1": 2}'], [[("dc1", 2)]]])
def test_a_replication_in_parquet_may_be_a_struct_a_map_or_json(said: list[Any]) -> None:
    cluster = placed(nodes(3), 4, 2)
    parts = files.to_tables(cluster, cluster.replicas)
    kind = pa.map_(pa.string(), pa.int64()) if isinstance(said[0], list) else None
    changed = parts["tables"].set_column(2, "replication", pa.array(said, kind))
    assert files.from_tables(parts | {"tables": changed}).tables[0].replication == {"dc1": 2}
