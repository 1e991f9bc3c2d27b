"""The schema for people."""

from __future__ import annotations

from tests.unit.catalog.schemas import clustered, columns, shop

from trimtab.catalog import describe
from trimtab.catalog.commands import AlterTable, CreateTable, CreateType


def test_a_table_is_described_as_the_cql_that_makes_it() -> None:
    schema = clustered()
    schema.do(AlterTable("shop", "visits", options={"comment": "who's there", "default_ttl_s": 60}))
    assert describe.create_table(schema.table("shop.visits")) == (
        "CREATE TABLE shop.visits (\n"
        "    site text,\n"
        "    day date,\n"
        "    at timestamp,\n"
        "    owner text static,\n"
        "    page text,\n"
        "    PRIMARY KEY ((site, day), at)\n"
        ") WITH CLUSTERING ORDER BY (at DESC)\n"
        "    AND comment = 'who''s there'\n"
        "    AND default_time_to_live = 60\n"
        "    AND gc_grace_seconds = 864000\n"
        "    AND history_s = 600\n"
        "    AND speculative_retry = 'p99'\n"
        "    AND tablets = 16;"
    )


def test_a_keyspace_is_described_in_an_order_in_which_it_can_be_made() -> None:
    schema = shop()
    schema.do(CreateType("shop", "Zone", [("x", "int")]))
    schema.do(CreateType("shop", "area", [("zones", 'list<frozen<"Zone">>')]))
    schema.do(CreateTable("shop", "Order", columns(id="int", where="area"), ["id"], options={"extensions": {"a": "b"}}))
    text = describe.keyspace_cql(schema.catalog, "shop")
    assert text.startswith("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '3'};")
    assert text.index('CREATE TYPE shop."Zone"') < text.index("CREATE TYPE shop.area") < text.index("CREATE TABLE")
    assert '    "where" frozen<area>' in text
    assert 'CREATE TABLE shop."Order"' in text
    assert "AND extensions = {'a': 'b'};" in text


def test_shapes_for_scripts() -> None:
    schema = clustered()
    shape = describe.table_shape(schema.table("shop.visits"))
    assert shape["partition_key"] == ["site", "day"]
    assert shape["clustering_key"] == ["at"]
    assert shape["columns"][2] == {
        "id": 2,
        "name": "at",
        "type": "timestamp",
        "kind": "clustering",
        "position": 0,
        "order": "desc",
    }
    assert shape["options"]["gc_grace_s"] == 864_000
    schema.do(CreateType("shop", "t", [("x", "int")]))
    assert describe.keyspace_shape(schema.catalog, "shop") == {
        "keyspace": "shop",
        "replication": {"dc1": 3},
        "mode": "eventual",
        "version": 1,
        "tables": ["visits"],
        "types": [{"keyspace": "shop", "type": "t", "fields": [{"name": "x", "type": "int"}], "version": 3}],
    }
