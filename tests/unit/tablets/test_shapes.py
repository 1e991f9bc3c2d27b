from trimtab.catalog.schema import Column, ColumnKind, Layout, Table
from trimtab.tablets import shapes
from trimtab.tablets.records import entries
from trimtab.tablets.ring import MAX_TOKEN, MIN_TOKEN
from trimtab.tablets.tablet_map import TabletMap


def table(number: int, name: str, tablets: int) -> Table:
    return Table(
        number, "shop", name, 1, (Column(1, "id", "bigint", ColumnKind.PARTITION, 0),), (Layout(1, ()),), tablets
    )


def test_tablets_are_shown_as_scripts_expect_them() -> None:
    tables = {1: table(1, "users", 2), 2: table(2, "orders", 1)}
    replicas_of: dict[int, list[tuple[int, ...]]] = {1: [(1, 2), (2, 9)], 2: [(1,)]}
    maps = {
        number: TabletMap.unpacked(list(entries(number, replicas).values())) for number, replicas in replicas_of.items()
    }
    shown = shapes.tablets(tables, maps, {1: "i1", 2: "i2"}, sizes={(1, 0): 77})
    assert [(each["table"], each["tablet"]) for each in shown] == [("orders", 0), ("users", 0), ("users", 1)]
    assert shown[1] == {
        "keyspace": "shop",
        "table": "users",
        "tablet": 0,
        "first_token": MIN_TOKEN,
        "last_token": -1,
        "replicas": ["i1", "i2"],
        "pending": None,
        "planned": None,
        "stage": None,
        "session": None,
        "bytes": 77,
        "generation": 1,
    }
    assert (shown[2]["first_token"], shown[2]["last_token"]) == (-1, MAX_TOKEN)
    assert shown[2]["replicas"] == ["i2", "raft id 9"] and shown[2]["bytes"] is None
    assert [each["tablet"] for each in shapes.tablets(tables, maps, {}, only="shop.users")] == [0, 1]
    assert shapes.tablets({1: tables[1]}, {}, {}) == []
