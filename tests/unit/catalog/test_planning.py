"""Planning: what commands come to, and the sentences of those that come to nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.catalog.schemas import CHOSEN_TABLETS, Schema, clustered, columns, shop

from trimtab.catalog.commands import (
    AlterKeyspace,
    AlterTable,
    AlterType,
    Bulk,
    ColumnSpec,
    Command,
    CreateKeyspace,
    CreateTable,
    CreateType,
    DropKeyspace,
    DropTable,
    DropType,
)
from trimtab.catalog.errors import AlreadyThere, NoSuchThing, SchemaError
from trimtab.catalog.limits import MAX_COLUMNS
from trimtab.catalog.planning import DELAY_MS, plan
from trimtab.catalog.schema import ColumnKind, Layout
from trimtab.catalog.updates import KeyspaceDropped, TableDropped, TypeDropped


def users(**more: object) -> CreateTable:
    return CreateTable("shop", "users", columns(id="bigint", name="text"), ["id"], **more)  # type: ignore[arg-type]


def test_a_table_has_ids_for_its_columns_and_one_layout() -> None:
    table = clustered().table("shop.visits")
    assert [(each.id, each.name, each.kind, each.position, each.descending) for each in table.columns] == [
        (1, "day", ColumnKind.PARTITION, 1, False),
        (2, "at", ColumnKind.CLUSTERING, 0, True),
        (3, "site", ColumnKind.PARTITION, 0, False),
        (4, "owner", ColumnKind.STATIC, 0, False),
        (5, "page", ColumnKind.REGULAR, 0, False),
    ]
    assert [each.name for each in table.of_kind(ColumnKind.PARTITION)] == ["site", "day"]
    assert table.layouts == (Layout(1, (5,), (4,)),)
    assert (table.id, table.version, table.generation, table.next_column) == (1, 2, 1, 6)


def test_the_number_of_tablets_is_given_or_chosen_from_the_replication() -> None:
    schema = shop()
    assert schema.table("shop.users").tablets == CHOSEN_TABLETS
    schema.do(CreateTable("shop", "few", columns(id="int"), ["id"], tablets=1))
    assert schema.table("shop.few").tablets == 1
    asked = []
    plan(
        schema.catalog,
        CreateTable("shop", "t", columns(id="int"), ["id"]),
        0,
        ["dc1"],
        lambda replication: asked.append(replication) or 8,  # type: ignore[func-returns-value]
    )
    assert asked == [{"dc1": 3}]


def test_types_are_written_in_their_canonical_form() -> None:
    schema = shop()
    schema.do(CreateTable("shop", "t", columns(id="VARCHAR", tags="Map<int,frozen<list<TEXT>>>"), ["id"]))
    assert [each.type for each in schema.table("shop.t").columns] == ["text", "map<int, frozen<list<text>>>"]


def test_every_version_is_active_later_than_the_one_before_whatever_the_clock_says() -> None:
    schema = Schema()
    schema.now_ms = 10_000
    first = schema.do(CreateKeyspace("a", 1))
    schema.now_ms = 5
    second = schema.do(CreateKeyspace("b", 1))
    assert first is not None and second is not None
    assert (first.version, first.activation_ms) == (1, 10_000 + DELAY_MS)
    assert (second.version, second.activation_ms) == (2, 10_000 + DELAY_MS + 1)


def test_a_column_dropped_and_added_again_is_another_column() -> None:
    schema = shop()
    before = schema.table("shop.users")
    schema.do(AlterTable("shop", "users", drop=["name"]))
    schema.do(AlterTable("shop", "users", add=columns(name="int")))
    table = schema.table("shop.users")
    assert [(each.id, each.name, each.type) for each in table.columns] == [
        (1, "id", "bigint"),
        (3, "score", "double"),
        (4, "name", "int"),
    ]
    assert [(each.id, each.name, each.type) for each in table.dropped] == [(2, "name", "text")]
    assert table.layouts == (*before.layouts, Layout(2, (3,)), Layout(3, (3, 4)))
    assert table.version == 4


def test_a_command_that_drops_and_adds_makes_one_layout() -> None:
    schema = shop()
    schema.do(AlterTable("shop", "users", drop=["name", "score"], add=columns(a="int", b="text")))
    assert schema.table("shop.users").layouts[1:] == (Layout(2, (4, 5)),)


def test_key_columns_can_be_renamed_and_make_no_layout() -> None:
    schema = clustered()
    schema.do(AlterTable("shop", "visits", rename=[("at", "seen"), ("site", "host")]))
    table = schema.table("shop.visits")
    assert [each.name for each in table.columns] == ["day", "seen", "host", "owner", "page"]
    assert len(table.layouts) == 1
    assert table.version == 3


def test_static_columns_can_be_added_where_there_are_clustering_columns() -> None:
    schema = clustered()
    schema.do(AlterTable("shop", "visits", add=[ColumnSpec("region", "text", True)]))
    assert schema.table("shop.visits").layout == Layout(2, (5,), (4, 6))
    assert [each.position for each in schema.table("shop.visits").of_kind(ColumnKind.STATIC)] == [0, 1]


def test_options_change_one_by_one() -> None:
    schema = shop()
    schema.do(AlterTable("shop", "users", options={"gc_grace_seconds": 60, "speculative_retry": "99PERCENTILE"}))
    schema.do(AlterTable("shop", "users", options={"comment": "people"}))
    options = schema.table("shop.users").options
    assert (options.gc_grace_s, options.speculative_retry, options.comment) == (60, "p99", "people")
    assert schema.do(AlterTable("shop", "users", options={"comment": "people"})) is None
    assert len(schema.table("shop.users").layouts) == 1


def test_dropping_a_keyspace_drops_what_is_in_it_as_one_version() -> None:
    schema = shop()
    schema.do(CreateType("shop", "address", [("street", "text")]))
    schema.do(CreateTable("shop", "t", columns(id="int", at="address"), ["id"]))
    schema.do(CreateKeyspace("other", 1))
    schema.do(CreateTable("other", "t", columns(id="int"), ["id"]))
    update = schema.do(DropKeyspace("shop"))
    assert update is not None
    assert update.changes == (
        TableDropped(2),
        TableDropped(1),
        TypeDropped("shop", "address"),
        KeyspaceDropped("shop"),
    )
    assert update.tables_dropped() == [2, 1]
    assert [table.full_name for table in schema.catalog.tables.values()] == ["other.t"]
    assert list(schema.catalog.keyspaces) == ["other"]
    assert schema.catalog.find("shop.users") is None


def test_the_id_of_a_dropped_table_is_never_used_again() -> None:
    schema = shop()
    schema.do(DropTable("shop", "users"))
    update = schema.do(users())
    assert update is not None
    assert update.tables_added() == [2]


def test_a_type_that_changes_makes_the_tables_that_use_it_new_versions() -> None:
    schema = shop()
    schema.do(CreateType("shop", "point", [("x", "int"), ("y", "int")]))
    schema.do(CreateType("shop", "line", [("start", "point"), ("end", "frozen<point>")]))
    schema.do(CreateTable("shop", "lines", columns(id="int", line="list<frozen<line>>"), ["id"]))
    untouched = schema.table("shop.users")
    schema.do(AlterType("shop", "point", add=[("z", "int")], rename=[("x", "across")]))
    assert schema.table("shop.lines").version == 6
    assert schema.table("shop.users") is untouched
    assert schema.catalog.types_of("shop")["point"].fields == (("across", "int"), ("y", "int"), ("z", "int"))
    assert schema.catalog.types_of("shop")["line"].version == 6
    assert len(schema.table("shop.lines").layouts) == 1


def test_a_type_can_go_when_only_dropped_columns_used_it() -> None:
    schema = shop()
    schema.do(CreateType("shop", "point", [("x", "int"), ("y", "list<int>")]))
    schema.do(AlterTable("shop", "users", add=columns(at="point", track="list<frozen<point>>")))
    schema.do(AlterTable("shop", "users", drop=["at", "track"]))
    schema.do(DropType("shop", "point"))
    assert [each.type for each in schema.table("shop.users").dropped] == [
        "frozen<tuple<int, frozen<list<int>>>>",
        "list<frozen<tuple<int, frozen<list<int>>>>>",
    ]
    assert schema.catalog.types_of("shop") == {}


def test_a_bulk_is_one_version_whose_commands_see_each_other() -> None:
    schema = Schema()
    update = schema.do(
        Bulk(
            [
                CreateKeyspace("shop", 2),
                CreateType("shop", "point", [("x", "int")]),
                CreateTable("shop", "a", columns(id="int", at="point"), ["id"]),
                CreateTable("shop", "b", columns(id="int"), ["id"]),
                AlterTable("shop", "a", add=columns(more="text"), drop=["at"]),
                CreateKeyspace("shop", 2, if_not_exists=True),
                DropType("shop", "point"),
            ]
        )
    )
    assert update is not None
    assert schema.catalog.version == 1
    assert update.tables_added() == [1, 2]
    assert [layout.number for layout in schema.table("shop.a").layouts] == [1, 2]
    assert schema.do(Bulk([CreateKeyspace("shop", 2, if_not_exists=True)])) is None


def test_a_bulk_that_fails_changes_nothing_and_says_which_command_it_was() -> None:
    schema = shop()
    before = schema.catalog
    with pytest.raises(NoSuchThing, match=r"command 2 of 2: there is no table shop\.user; did you mean users\?"):
        schema.do(Bulk([CreateKeyspace("other", 1), DropTable("shop", "user")]))
    assert schema.catalog is before
    assert "other" not in schema.catalog.keyspaces


def test_asking_only_if_it_is_needed_is_harmless() -> None:
    schema = shop()
    for command in (
        CreateKeyspace("shop", 1, if_not_exists=True),
        users(if_not_exists=True),
        DropKeyspace("nothing", if_exists=True),
        DropTable("shop", "nothing", if_exists=True),
        DropTable("nothing", "nothing", if_exists=True),
        DropType("shop", "nothing", if_exists=True),
        AlterKeyspace("shop", 3),
    ):
        assert schema.do(command) is None, command
    schema.do(CreateType("shop", "t", [("x", "int")]))
    assert schema.do(CreateType("shop", "t", [("y", "int")], if_not_exists=True)) is None


def test_replication_can_change_while_there_is_nothing_to_move() -> None:
    schema = Schema(["dc1", "dc2"])
    schema.do(CreateKeyspace("shop", {"dc2": 1, "dc1": 3}))
    schema.do(AlterKeyspace("shop", {"dc1": 5}))
    assert schema.catalog.keyspaces["shop"].replication == {"dc1": 5}


@pytest.mark.parametrize(
    ("replication", "datacenters", "words"),
    [
        (3, ["eu", "us"], "several data centres (eu, us)"),
        (0, ["dc1"], "1 to 16 replicas, not 0"),
        (17, ["dc1"], "1 to 16 replicas, not 17"),
        ({}, ["dc1"], "1 to 64 data centres, not 0"),
        ({"dc9": 1}, ["dc1", "dc2"], "no data centre 'dc9'; there are dc1, dc2"),
        ({"dc1": 0}, ["dc1"], "leave out a data centre"),
    ],
)
def test_replication_that_can_not_be_is_refused(
    replication: dict[str, int] | int, datacenters: list[str], words: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema(datacenters).do(CreateKeyspace("shop", replication))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "can't be the name of a keyspace"),
        ("a b", "can't be the name of a keyspace"),
        ("é", "can't be the name of a keyspace"),
        ("x" * 49, "1 to 48"),
        ("system", "belongs to the system"),
        ("System_Schema", "belongs to the system"),
        ("trimtab_x", "belongs to the system"),
        ("shop", "there already"),
    ],
)
def test_keyspace_names(name: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        shop().do(CreateKeyspace(name, 1))


def table(**changes: object) -> CreateTable:
    fields: dict[str, object] = {
        "keyspace": "shop",
        "name": "t",
        "columns": columns(a="int", b="text", c="text"),
        "partition": ["a"],
    }
    return CreateTable(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (table(keyspace="shopp"), "no keyspace shopp; did you mean shop?"),
        (table(keyspace="zzz"), "create it first: trimtab keyspaces create zzz"),
        (table(name="a-b"), "can't be the name of a table"),
        (table(name="users"), "the table shop.users is there already"),
        (table(columns=[]), "1 to 1000 columns, not 0"),
        (table(columns=[ColumnSpec(f"c{n}", "int") for n in range(MAX_COLUMNS + 1)]), "1 to 1000 columns, not 1001"),
        (table(columns=[ColumnSpec("a", "int"), ColumnSpec("a", "text")]), "the column a is there twice"),
        (table(columns=[*columns(a="int"), ColumnSpec("x\n", "int")]), "can't be the name of a column"),
        (table(columns=[*columns(a="int"), ColumnSpec("x" * 129, "int")]), "1 to 128"),
        (table(columns=columns(a="int", b="strin")), "the column b: 'strin' is not a type"),
        (table(columns=columns(a="int", b="list<list<int>>")), "write frozen<list<int>>"),
        (table(columns=columns(a="int", b="counter")), "counters are not there yet; use bigint"),
        (table(columns=columns(a="counter")), "counters are not there yet"),
        (table(partition=[]), "the primary key is missing"),
        (table(partition=["z"]), "names 'z', which is no column"),
        (table(clustering=[("a", False)]), "the primary key names a twice"),
        (table(columns=columns(a="duration")), "durations have no order"),
        (table(columns=columns(a="tuple<int, duration>")), "durations have no order"),
        (table(columns=columns(a="list<int>")), "write frozen<list<int>>"),
        (table(columns=columns(static_a="int")), "can't be static"),
        (table(columns=columns(a="int", static_b="int")), "without clustering columns"),
        (table(tablets=3), "a power of two from 1 to 16384, not 3"),
        (table(tablets=-8), "a power of two"),
        (table(tablets=1 << 20), "a power of two"),
        (table(options={"gc_grace": 1}), "no option 'gc_grace'"),
        (table(options={"gc_grace_s": -1}), "0 to 315360000 seconds"),
        (table(options={"default_ttl_s": 10**9}), "0 to 630720000 seconds"),
        (table(options={"speculative_retry": "p100"}), "a percentile such as p99"),
        (table(options={"speculative_retry": "0ms"}), "a percentile such as p99"),
        (table(options={"comment": "x" * 3000}), "at most 2048 characters"),
        (table(options={"gc_grace_s": 1, "gc_grace_seconds": 2}), "there twice"),
        (table(partition=[f"p{n}" for n in range(33)]), "at most 32 columns"),
    ],
)
def test_tables_that_can_not_be_are_refused_with_why(command: Command, words: str) -> None:
    schema = shop()
    with pytest.raises(SchemaError) as caught:
        schema.do(command)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "nothing to change"),
        ({"drop": ["id"]}, "id is part of the primary key and can't be dropped"),
        ({"drop": ["nam"]}, "no column 'nam'; its columns are id, name, score"),
        ({"drop": ["name", "name"]}, "no column 'name'"),
        ({"add": columns(name="int")}, "a column name already, of type text; a column's type can't be changed"),
        ({"add": columns(id="bigint")}, "a column id already, of type bigint"),
        ({"add": columns(static_x="int")}, "can't be static"),
        ({"add": columns(x="counter")}, "use bigint"),
        ({"add": columns(x="nope")}, "no type 'nope'"),
        ({"rename": [("name", "title")]}, "only columns of the primary key"),
        ({"rename": [("id", "name")]}, "has a column name already"),
        ({"rename": [("id", "")]}, "can't be the name of a column"),
        ({"rename": [("no", "x")]}, "no column 'no'"),
        ({"options": {"x": 1}}, "no option 'x'"),
        ({"add": [ColumnSpec(f"c{n}", "int") for n in range(MAX_COLUMNS)]}, "at most 1000 columns"),
    ],
)
def test_changes_of_tables_that_can_not_be_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        shop().do(AlterTable("shop", "users", **change))  # type: ignore[arg-type]
    assert words in str(caught.value)


def typed() -> Schema:
    schema = shop()
    schema.do(CreateType("shop", "point", [("x", "int"), ("y", "int")]))
    schema.do(CreateType("shop", "line", [("start", "point")]))
    schema.do(CreateTable("shop", "places", columns(id="frozen<point>", names="set<frozen<line>>"), ["id"]))
    schema.do(CreateType("shop", "free", [("x", "int")]))
    schema.do(CreateType("shop", "tag", [("x", "int")]))
    schema.do(AlterTable("shop", "users", add=columns(tags="set<frozen<tag>>")))
    return schema


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (CreateType("shop", "int", [("x", "int")]), "CQL uses the word itself"),
        (CreateType("shop", "", [("x", "int")]), "can't be the name of a type"),
        (CreateType("shop", "t", []), "1 to 256 fields, not 0"),
        (CreateType("shop", "t", [("x", "int")] * 257), "1 to 256 fields, not 257"),
        (CreateType("shop", "t", [("x", "int"), ("x", "int")]), "has a field x already"),
        (CreateType("shop", "t", [("", "int")]), "can't be the name of a field"),
        (CreateType("shop", "t", [("x", "t")]), "no type 't'"),
        (CreateType("shop", "t", [("x", "counter")]), "use bigint"),
        (CreateType("shop", "point", [("x", "int")]), "the type shop.point is there already"),
        (CreateType("none", "t", [("x", "int")]), "no keyspace none"),
        (AlterType("shop", "point"), "nothing to change"),
        (AlterType("shop", "poin", add=[("z", "int")]), "did you mean point?"),
        (AlterType("shop", "point", add=[("z", "int")]), "part of the primary key of shop.places (id)"),
        (AlterType("shop", "free", add=[("x", "int")]), "has a field x already"),
        (AlterType("shop", "free", add=[("y", "list<frozen<free>>")]), "part of itself"),
        (AlterType("shop", "free", add=[("y", "zzz")]), "no type 'zzz'"),
        (AlterType("shop", "free", rename=[("z", "y")]), "no field 'z'; its fields are x"),
        (AlterType("shop", "point", rename=[("x", "y")]), "has a field y already"),
        (AlterType("shop", "tag", add=[("y", "duration")]), "durations have no order"),
        (DropType("shop", "point"), "in use by shop.places (id), shop.places (names), the type shop.line"),
        (DropType("shop", "line"), "in use by shop.places (names)"),
        (DropType("shop", "nothing"), "no type shop.nothing"),
        (DropTable("shop", "place"), "did you mean places?"),
        (DropKeyspace("shopp"), "did you mean shop?"),
        (DropKeyspace("system"), "belongs to the system"),
        (AlterKeyspace("none", 1), "no keyspace none"),
        (CreateKeyspace("other", 1, mode="strong"), "not there yet"),
        (CreateKeyspace("other", 1, mode="weak"), "no mode 'weak'"),
        (Bulk([]), "1 to 1000 commands, not 0"),
    ],
)
def test_other_commands_that_can_not_be_are_refused(command: Command, words: str) -> None:
    schema = typed()
    before = schema.catalog
    with pytest.raises(SchemaError) as caught:
        schema.do(command)
    assert words in str(caught.value)
    assert schema.catalog is before


def test_types_can_not_be_nested_deeper_than_the_limit_by_growing_them_from_within() -> None:
    schema = shop()
    schema.do(CreateType("shop", "t0", [("x", "int")]))
    for n in range(1, 14):
        schema.do(CreateType("shop", f"t{n}", [("x", f"t{n - 1}")]))
    with pytest.raises(SchemaError, match="nested more than 16"):
        schema.do(AlterType("shop", "t0", add=[("y", "frozen<list<frozen<tuple<frozen<list<int>>>>>>")]))
    schema.do(AlterType("shop", "t0", add=[("y", "int")]))


def test_an_update_too_large_for_one_record_is_refused() -> None:
    schema = shop()
    wide = [ColumnSpec("x" * 100 + str(n), "int") for n in range(900)]
    with pytest.raises(SchemaError, match="split it"):
        plan(
            schema.catalog,
            Bulk([CreateTable("shop", f"t{n}", wide, ["x" * 100 + "0"]) for n in range(4)]),
            0,
            ["dc1"],
            lambda replication: 8,
        )


@pytest.mark.parametrize(
    ("given", "kept"),
    [("99p", "p99"), ("p99.90", "p99.9"), ("99.5percentile", "p99.5"), ("50.0ms", "50ms"), ("ALWAYS", "always")],
)
def test_speculative_retry_is_understood_as_cql_writes_it(given: str, kept: str) -> None:
    schema = shop()
    schema.do(AlterTable("shop", "users", options={"speculative_retry": given}))
    assert schema.table("shop.users").options.speculative_retry == kept


def test_what_is_there_and_what_is_not_are_told_apart_by_code() -> None:
    codes: list[tuple[Callable[[], object], str, type[SchemaError]]] = [
        (lambda: shop().do(DropTable("shop", "nothing")), "not_found", NoSuchThing),
        (lambda: shop().do(users()), "schema", AlreadyThere),
        (lambda: shop().catalog.table("shop.nothing"), "not_found", NoSuchThing),
        (lambda: shop().catalog.table("nothing"), "not_found", NoSuchThing),
    ]
    for ask, code, kind in codes:
        with pytest.raises(kind) as caught:
            ask()
        assert caught.value.code == code
