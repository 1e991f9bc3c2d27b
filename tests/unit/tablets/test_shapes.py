from trimtab.catalog.schema import Column, ColumnKind, Layout, Table
from trimtab.tablets import shapes
from trimtab.tablets.moves_shown import ShownMove
from trimtab.tablets.records import entries
from trimtab.tablets.ring import MAX_TOKEN, MIN_TOKEN
from trimtab.tablets.selectors import Stage
from trimtab.tablets.tablet_map import TabletMap
from trimtab.tablets.transitions import TabletTransition, TransitionKind


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
        "move": None,
    }
    assert (shown[2]["first_token"], shown[2]["last_token"]) == (-1, MAX_TOKEN)
    assert shown[2]["replicas"] == ["i2", "raft id 9"] and shown[2]["bytes"] is None
    assert [each["tablet"] for each in shapes.tablets(tables, maps, {}, only="shop.users")] == [0, 1]
    assert shapes.tablets({1: tables[1]}, {}, {}) == []


def test_a_tablet_under_way_shows_where_it_goes_and_how_far_it_is() -> None:
    tables, maps = {1: table(1, "users", 1)}, {1: TabletMap.unpacked(list(entries(1, [(1, 2)]).values()))}
    moving = TabletTransition(
        (3, 2), TransitionKind.MIGRATION, Stage.STREAMING, "s1", planned=(4, 2), job=7, why="i3 is new", began_ms=5_000
    )
    move = ShownMove(1, 0, (1, 2), moving, 42, 100, 6.0, "running")
    names = {1: "i1", 2: "i2", 3: "i3", 4: "i4"}
    (shown,) = shapes.tablets(tables, maps, names, moves={(1, 0): move})
    assert (shown["replicas"], shown["pending"], shown["planned"]) == (["i1", "i2"], ["i3", "i2"], ["i4", "i2"])
    assert (shown["stage"], shown["session"]) == ("streaming", "s1")
    assert (shown["move"]["from"], shown["move"]["to"], shown["move"]["job"]) == (["i1"], ["i3"], 7)
    assert (shown["move"]["progress_bytes"], shown["move"]["total_bytes"], shown["move"]["eta_s"]) == (42, 100, 6.0)
    assert (shown["move"]["state"], shown["move"]["why"]) == ("running", "i3 is new")
