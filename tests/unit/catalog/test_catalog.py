"""The catalog: whoever applies the same updates has the same schema, from the beginning or from a snapshot."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.catalog.schemas import Schema, clustered, columns, shop

from trimtab.catalog import updates
from trimtab.catalog.catalog import Catalog, load
from trimtab.catalog.commands import (
    AlterKeyspace,
    AlterTable,
    AlterType,
    Bulk,
    ColumnSpec,
    CreateKeyspace,
    CreateTable,
    CreateType,
    DropKeyspace,
    DropTable,
    DropType,
)
from trimtab.catalog.errors import SchemaError
from trimtab.catalog.schema import ColumnKind, Table
from trimtab.catalog.types import parse

KEYSPACES = st.sampled_from(["a", "b"])
TABLES = st.sampled_from(["t", "u", "v"])
TYPES = st.sampled_from(["p", "q", "R"])
COLUMNS = st.sampled_from(["k", "c", "x", "y", "Z z"])
TEXTS = st.sampled_from(
    ["int", "text", "list<int>", "duration", "p", "set<frozen<p>>", "q", '"R"', "frozen<map<text, q>>"]
)
SPECS = st.lists(st.builds(ColumnSpec, COLUMNS, TEXTS, st.booleans()), max_size=4)
FIELD_NAMES = st.sampled_from(["f", "g", "h"])
FIELDS = st.lists(st.tuples(FIELD_NAMES, TEXTS), min_size=1, max_size=3, unique_by=lambda field: field[0])
SINGLES = st.one_of(
    st.builds(CreateKeyspace, KEYSPACES, st.integers(0, 3), if_not_exists=st.booleans()),
    st.builds(AlterKeyspace, KEYSPACES, st.integers(1, 3)),
    st.builds(
        CreateTable,
        KEYSPACES,
        TABLES,
        SPECS.map(lambda specs: [ColumnSpec("k", "int"), ColumnSpec("c", "frozen<p>"), *specs][: len(specs) + 2]),
        st.just(["k"]),
        st.sampled_from([[], [("c", False)], [("c", True)]]),
        tablets=st.sampled_from([0, 1, 4, 5]),
        if_not_exists=st.booleans(),
    ),
    st.builds(CreateTable, KEYSPACES, TABLES, st.just(columns(k="int", x="text")), st.just(["k"])),
    st.builds(
        AlterTable,
        KEYSPACES,
        TABLES,
        add=SPECS,
        drop=st.lists(COLUMNS, max_size=2),
        rename=st.lists(st.tuples(COLUMNS, COLUMNS), max_size=1),
        options=st.sampled_from([{}, {"comment": "hi"}, {"gc_grace_s": 5}]),
    ),
    st.builds(AlterTable, KEYSPACES, TABLES, add=SPECS.map(lambda specs: specs[:1])),
    st.builds(AlterTable, KEYSPACES, TABLES, drop=st.lists(COLUMNS, min_size=1, max_size=1)),
    st.builds(DropTable, KEYSPACES, TABLES),
    st.builds(CreateType, KEYSPACES, TYPES, FIELDS),
    st.builds(AlterType, KEYSPACES, TYPES, add=FIELDS, rename=st.just([])),
    st.builds(AlterType, KEYSPACES, TYPES, rename=st.just([("f", "g")])),
    st.builds(DropType, KEYSPACES, TYPES),
)


class Changing(RuleBasedStateMachine):
    """Any commands in any order: those that are refused leave nothing behind, the others can be replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.schema = Schema()
        self.ids: set[int] = set()

    def attempt(self, command: object) -> None:
        before = self.schema.catalog
        frozen = before.snapshot()
        try:
            update = self.schema.do(command)  # type: ignore[arg-type]
        except SchemaError as error:
            assert len(str(error)) > 10
            update = None
        assert before.snapshot() == frozen
        after = self.schema.catalog
        if update is None:
            assert after is before
            return
        assert (after.version, after.activation_ms) == (update.version, update.activation_ms)
        assert after.version == before.version + 1
        assert after.activation_ms > before.activation_ms
        assert not self.ids & set(update.tables_added())
        self.ids |= set(update.tables_added())
        for number, table in after.tables.items():
            if number in before.tables and table.version <= before.version:
                assert table is before.tables[number]

    @initialize()
    def something_is_there(self) -> None:
        self.attempt(CreateKeyspace("a", 1))
        self.attempt(CreateType("a", "p", [("f", "int")]))
        self.attempt(CreateTable("a", "t", columns(k="int", c="text", x="p", static_y="int"), ["k"], [("c", True)]))

    @rule(name=KEYSPACES)
    def a_keyspace(self, name: str) -> None:
        self.attempt(CreateKeyspace(name, 1))

    @rule(keyspace=KEYSPACES, name=TYPES, text=TEXTS)
    def a_type(self, keyspace: str, name: str, text: str) -> None:
        self.attempt(CreateType(keyspace, name, [("f", text)]))

    @rule(keyspace=KEYSPACES, name=TABLES, text=TEXTS, descending=st.booleans())
    def a_table(self, keyspace: str, name: str, text: str, descending: bool) -> None:
        self.attempt(CreateTable(keyspace, name, columns(k="int", c="text", x=text), ["k"], [("c", descending)]))

    @rule(data=st.data(), spec=st.builds(ColumnSpec, COLUMNS, TEXTS, st.booleans()))
    def a_column_more(self, data: st.DataObject, spec: ColumnSpec) -> None:
        if table := self.some_table(data):
            self.attempt(AlterTable(table.keyspace, table.name, add=[spec]))

    @rule(data=st.data(), again=st.booleans())
    def a_column_less(self, data: st.DataObject, again: bool) -> None:
        if table := self.some_table(data):
            column = data.draw(st.sampled_from(table.columns))
            add = [ColumnSpec(column.name, "int")] if again else []
            self.attempt(AlterTable(table.keyspace, table.name, drop=[column.name], add=add))

    @rule(data=st.data(), name=COLUMNS)
    def another_name(self, data: st.DataObject, name: str) -> None:
        if table := self.some_table(data):
            column = data.draw(st.sampled_from(table.columns))
            self.attempt(AlterTable(table.keyspace, table.name, rename=[(column.name, name)]))

    @rule(data=st.data(), comment=st.sampled_from(["", "hi"]))
    def other_options(self, data: st.DataObject, comment: str) -> None:
        if table := self.some_table(data):
            self.attempt(AlterTable(table.keyspace, table.name, options={"comment": comment}))

    @rule(keyspace=KEYSPACES, name=TYPES, text=TEXTS, field=FIELD_NAMES)
    def a_field_more(self, keyspace: str, name: str, text: str, field: str) -> None:
        self.attempt(AlterType(keyspace, name, add=[(field, text)]))

    @rule(keyspace=KEYSPACES, name=TYPES, old=FIELD_NAMES, new=FIELD_NAMES)
    def another_field_name(self, keyspace: str, name: str, old: str, new: str) -> None:
        self.attempt(AlterType(keyspace, name, rename=[(old, new)]))

    @precondition(lambda self: len(self.schema.updates) > 8)
    @rule(data=st.data())
    def a_table_less(self, data: st.DataObject) -> None:
        if table := self.some_table(data):
            self.attempt(DropTable(table.keyspace, table.name))

    def some_table(self, data: st.DataObject) -> Table | None:
        there = self.schema.catalog.tables
        return there[data.draw(st.sampled_from(sorted(there)))] if there else None

    @rule(command=SINGLES)
    def one(self, command: object) -> None:
        self.attempt(command)

    @rule(commands=st.lists(SINGLES, max_size=4))
    def several(self, commands: list[object]) -> None:
        self.attempt(Bulk(commands))  # type: ignore[arg-type]

    @precondition(lambda self: len(self.schema.updates) > 12)
    @rule(name=KEYSPACES)
    def no_keyspace(self, name: str) -> None:
        self.attempt(DropKeyspace(name))

    @rule(ms=st.integers(-2_000, 2_000))
    def the_clock_moves(self, ms: int) -> None:
        self.schema.now_ms = max(0, self.schema.now_ms + ms)

    @invariant()
    def a_snapshot_is_all_of_it(self) -> None:
        catalog = self.schema.catalog
        again = Catalog.from_snapshot(catalog.snapshot())
        assert again == catalog
        assert again.snapshot() == catalog.snapshot()

    @invariant()
    def what_is_declared_makes_sense(self) -> None:
        catalog = self.schema.catalog
        assert {(table.keyspace, table.name): number for number, table in catalog.tables.items()} == catalog.ids
        for table in catalog.tables.values():
            udts = catalog.types_of(table.keyspace)
            known = {column.id for column in (*table.columns, *table.dropped)}
            assert len(known) == len(table.columns) + len(table.dropped)
            assert max(known) < table.next_column
            assert len({column.name for column in table.columns}) == len(table.columns)
            assert [layout.number for layout in table.layouts] == list(range(1, len(table.layouts) + 1))
            assert {number for layout in table.layouts for number in (*layout.regular, *layout.static)} <= known
            live = {each.id for each in table.columns if each.kind in (ColumnKind.REGULAR, ColumnKind.STATIC)}
            assert {*table.layout.regular, *table.layout.static} == live
            for column in table.columns:
                assert parse(column.type, udts).name == column.type
            for column in table.dropped:
                assert not parse(column.type).user_types

    def teardown(self) -> None:
        schema = self.schema
        assert load(b"", reversed(schema.updates)) == schema.catalog
        for version, catalog in enumerate(schema.catalogs):
            assert catalog.version == version
            assert load(catalog.snapshot(), schema.updates) == schema.catalog


Changing.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_any_history_of_changes_gives_one_schema_to_all_who_replay_it = Changing.TestCase


def test_an_update_is_applied_in_its_turn_or_not_at_all() -> None:
    schema = shop()
    second = schema.updates[1]
    with pytest.raises(ValueError, match="update 2 does not follow version 0"):
        Catalog().apply(second)
    with pytest.raises(ValueError, match="update 2 does not follow version 2"):
        schema.catalog.apply(second)
    early = msgspec.structs.replace(second, version=3, activation_ms=schema.catalog.activation_ms)
    with pytest.raises(ValueError, match="not after version 2"):
        schema.catalog.apply(early)


@pytest.mark.parametrize(
    "change",
    [
        updates.KeyspaceAdded("shop", {"dc1": 1}),
        updates.ReplicationChanged("none", {"dc1": 1}),
        updates.KeyspaceDropped("shop"),
        updates.KeyspaceDropped("none"),
        updates.TypeAdded("none", "t", (("x", "int"),)),
        updates.FieldAdded("shop", "t", "x", "int"),
        updates.FieldRenamed("shop", "t", "x", "y"),
        updates.TypeDropped("shop", "t"),
        updates.ColumnDropped(1, 99, "int"),
        updates.ColumnRenamed(1, 99, "x"),
        updates.OptionsChanged(99, shop().table("shop.users").options),
        updates.TableDropped(99),
        updates.ColumnAdded(1, shop().table("shop.users").columns[0]),
        updates.TableAdded(1, "shop", "other", shop().table("shop.users").columns, 8),
        updates.TableAdded(2, "shop", "users", shop().table("shop.users").columns, 8),
        updates.TableAdded(2, "none", "users", shop().table("shop.users").columns, 8),
    ],
)
def test_an_update_that_does_not_fit_is_refused_and_changes_nothing(change: updates.Change) -> None:
    catalog = shop().catalog
    before = catalog.snapshot()
    with pytest.raises(ValueError, match="update 3 does not fit the version before it"):
        catalog.apply(updates.Update(3, catalog.activation_ms + 1, (change,)))
    assert catalog.snapshot() == before


def test_tables_are_found_by_name() -> None:
    catalog = clustered().catalog
    table = catalog.table("shop.visits")
    assert catalog.find("shop.visits") is table
    for name in ("shop.nothing", "visits", "", "a.b.c", "shop."):
        assert catalog.find(name) is None
        with pytest.raises(SchemaError):
            catalog.table(name)
    assert catalog.tables_of("shop") == [table]
    assert catalog.tables_of("none") == []
    assert catalog.types_of("none") == {}


def test_types_stay_the_same_object_until_one_changes() -> None:
    schema = shop()
    schema.do(CreateType("shop", "t", [("x", "int")]))
    types = schema.catalog.types_of("shop")
    schema.do(AlterTable("shop", "users", add=columns(x="t")))
    assert schema.catalog.types_of("shop") is types


def test_a_snapshot_with_a_gap_after_it_is_refused() -> None:
    schema = shop()
    schema.do(DropTable("shop", "users"))
    with pytest.raises(ValueError, match="update 3 does not follow version 1"):
        load(schema.catalogs[1].snapshot(), schema.updates[2:])


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (b"", "can't be read"),
        (b"{}", "format 0"),
        (b'{"format":2}', "format 2, and this release reads 1"),
        (b'{"format":1}', "can't be read"),
        (b"[" * 100_000, "can't be read"),
        (shop().catalog.snapshot()[:-10], "can't be read"),
    ],
)
def test_a_snapshot_that_can_not_be_read_says_what_to_do(encoded: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Catalog.from_snapshot(encoded)
    assert "release" in str(caught.value)
