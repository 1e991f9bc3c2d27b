"""Tables that a write makes: what is asked of the catalog, as a whole or not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from trimtab.catalog import commands, planning
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.errors import SchemaError as Refused
from trimtab.catalog.schema import Table
from trimtab.client.errors import InvalidRequest, SchemaError
from trimtab.rows.layout import RowLayout
from trimtab.spark import creating
from trimtab.spark.checking import wrong_columns
from trimtab.spark.files import FileLoad
from trimtab.spark.write_options import WriteOptions, write_options

GIVEN = {"peer": "127.0.0.1:1", "table": "shop.users", "primaryKey": "id"}
SHOP = commands.CreateKeyspace("shop", 3)
LONG, INT, TEXT = spark.LongType(), spark.IntegerType(), spark.StringType()
DURATION = {"months": INT, "days": INT, "nanoseconds": LONG}
SIMPLE = [
    *(spark.ByteType(), spark.ShortType(), spark.FloatType(), spark.DoubleType(), spark.BooleanType()),
    *(spark.BinaryType(), spark.TimestampType(), spark.TimestampNTZType(), spark.DateType(), spark.TimeType()),
    *(spark.DecimalType(10, 0), spark.DecimalType(10, 2), TEXT, INT, LONG),
]
EVERY_TYPE: dict[str, Any] = {
    **{f"v{at}": kind for at, kind in enumerate(SIMPLE)},
    "tuple": {str(at): kind for at, kind in enumerate(SIMPLE)},
    "struct": {f"f{at}": kind for at, kind in enumerate(SIMPLE)},
    "lists": [INT],
    "maps": (TEXT, [INT]),
    "deep": {"x": INT, "y": {"z": [{"q": spark.DateType()}]}},
    "span": DURATION,
    "no_span": DURATION | {"months": TEXT},
    "keyed": ({"x": INT}, {"x": TEXT}),
}


def kind_of(given: Any) -> spark.DataType:
    """A type from a short form: {name: type} is a struct, [type] an array, (type, type) a map."""
    if isinstance(given, dict):
        return frame(given)
    if isinstance(given, list):
        return spark.ArrayType(kind_of(given[0]))
    return spark.MapType(*map(kind_of, given)) if isinstance(given, tuple) else given


def frame(columns: dict[str, Any]) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind_of(kind)) for name, kind in columns.items()])


class FakeCluster:
    """A catalog that changes as the real one does; `meanwhile` somebody else changes it, before what is asked."""

    def __init__(self, *before: commands.Single) -> None:
        self.catalog = Catalog()
        self.known = self.catalog
        self.meanwhile: list[commands.Single] = []
        self._change(commands.Bulk(list(before))) if before else None

    def tables(self) -> dict[str, Table]:
        self.known = self.catalog
        return {table.full_name: table for table in self.catalog.tables.values()}

    def change(self, _connection: object, command: commands.Command) -> None:
        for other in self.meanwhile:
            self._change(other)
        self.meanwhile = []
        try:
            self._change(commands.decode(commands.encode(command)))
        except Refused as error:
            raise SchemaError(str(error)) from None

    def _change(self, command: commands.Command) -> None:
        update = planning.plan(self.catalog, command, 1, ["dc1"], lambda _: 8)
        self.catalog = self.catalog if update is None else self.catalog.apply(update)


class FakeDatabase:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    @property
    def catalog(self) -> Catalog:
        return self.cluster.known

    def tables(self) -> dict[str, Table]:
        return self.cluster.tables()


@pytest.fixture
def ensure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a frame of these columns to the cluster."""

    def run(cluster: FakeCluster, columns: dict[str, Any] | spark.StructType, **options: str) -> bool:
        monkeypatch.setattr(creating, "change", cluster.change)
        schema = columns if isinstance(columns, spark.StructType) else frame({"id": LONG} | columns)
        asked: WriteOptions = write_options(GIVEN | options)
        database: Any = FakeDatabase(cluster)
        return creating.ensure_table(database, asked, lambda: schema, 3)

    return run


def types_of(cluster: FakeCluster, keyspace: str = "shop") -> dict[str, str]:
    found = cluster.catalog.types_of(keyspace)
    return {name: ", ".join(f"{field} {kind}" for field, kind in each.fields) for name, each in found.items()}


def columns_of(cluster: FakeCluster, table: str = "shop.users") -> dict[str, str]:
    return {column.name: column.type for column in cluster.catalog.table(table).columns}


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ({"v": INT}, {"tablets": "3"}, "^shop.users: the number of tablets is a power of two"),
        ({"v": INT}, {"static": "v"}, "^shop.users: the column v can't be static"),
        ({"v": INT}, {"static": "w"}, "the frame has no column w, which the options name"),
        ({"v": INT}, {"primaryKey": "key"}, "the frame has no column key"),
        ({"v": INT}, {"replication": "dc9:1"}, "^shop: there is no data centre 'dc9'"),
        ({"v": spark.NullType()}, {}, "column v: there is no type of CQL for Spark's void"),
        ({"v": {"a": {"b": spark.NullType()}}}, {}, "column v: there is no type of CQL"),
        ({"ID": LONG}, {}, "the columns id and ID, which Spark can't tell apart"),
        ({"v": {"a": INT, "A": INT}}, {}, "column v: its struct has the fields a and A"),
        ({"id": DURATION}, {}, "durations have no order"),
    ],
)
def test_a_write_that_is_refused_has_made_nothing(
    ensure: Any, columns: dict[str, Any], options: dict[str, str], why: str
) -> None:
    cluster = FakeCluster()
    with pytest.raises(SchemaError, match=why):
        ensure(cluster, columns, **options)
    assert cluster.catalog == Catalog()
    assert ensure(cluster, {"v": INT, "w": INT}), "and the corrected one is not in its way"


def test_a_frame_with_a_column_twice_makes_no_table(ensure: Any) -> None:
    cluster = FakeCluster()
    field = spark.StructField("v", INT)
    with pytest.raises(SchemaError, match="the columns v and v, which"):
        ensure(cluster, spark.StructType([spark.StructField("id", LONG), field, field]))
    assert cluster.catalog == Catalog()


def test_keyspace_types_and_table_are_one_version(ensure: Any) -> None:
    cluster = FakeCluster()
    assert ensure(cluster, {"at": {"lat": LONG, "lon": LONG}}, replication="2", tablets="4")
    assert cluster.catalog.version == 1
    assert cluster.catalog.keyspaces["shop"].replication == {"dc1": 2}
    assert cluster.catalog.table("shop.users").tablets == 4


def test_a_table_takes_the_frame_it_was_made_for_whatever_its_types(ensure: Any) -> None:
    cluster = FakeCluster()
    schema = frame({"id": LONG} | EVERY_TYPE)
    ensure(cluster, schema)
    layout = RowLayout(cluster.catalog.table("shop.users"), cluster.catalog.types_of("shop"))
    assert wrong_columns(layout, to_arrow_schema(schema, timezone="UTC")) == []


def test_structs_get_user_types_called_after_table_column_and_field(ensure: Any) -> None:
    cluster = FakeCluster(SHOP)
    ensure(cluster, {"where at": [{"lat": LONG, "P": {"a": INT}}], "pair": {"0": INT, "1": INT}})
    assert types_of(cluster) == {
        "users_where_at_P": "a int",
        "users_where_at": 'lat bigint, P frozen<"users_where_at_P">',
    }
    assert columns_of(cluster) == {
        "id": "bigint",
        "where at": "list<frozen<users_where_at>>",
        "pair": "frozen<tuple<int, int>>",
    }


def test_a_type_that_a_dropped_table_left_is_used_again_if_it_is_the_same_and_else_another_is_made(ensure: Any) -> None:
    cluster = FakeCluster(SHOP)
    for given, kind in (
        ({"x": INT}, "frozen<users_at>"),
        ({"x": LONG}, "frozen<users_at_2>"),
        (({"x": INT}, {"y": INT}), "map<frozen<users_at>, frozen<users_at_3>>"),
    ):
        ensure(cluster, {"at": given})
        assert columns_of(cluster)["at"] == kind
        cluster._change(commands.DropTable("shop", "users"))
    assert types_of(cluster) == {"users_at": "x int", "users_at_2": "x bigint", "users_at_3": "y int"}


def test_long_names_make_types_of_their_own(ensure: Any) -> None:
    cluster = FakeCluster(SHOP)
    one, other = "a" * 60 + "1", "a" * 60 + "2"
    ensure(cluster, {one: {"x": INT}, other: {"y": INT}})
    assert sorted(map(len, types_of(cluster))) == [48, 48]


def test_a_struct_that_is_a_key_keeps_its_names(ensure: Any) -> None:
    cluster = FakeCluster(SHOP)
    ensure(cluster, {"id": {"a": INT, "b": TEXT}, "tags": [{"x": INT}]}, primaryKey="id, tags")
    assert columns_of(cluster) == {"id": "frozen<users_id>", "tags": "frozen<list<frozen<users_tags>>>"}


def test_two_writes_that_make_one_table_both_find_it(ensure: Any) -> None:
    cluster = FakeCluster()
    table = commands.CreateTable("shop", "users", [commands.ColumnSpec("id", "bigint")], ["id"])
    cluster.meanwhile = [SHOP, table]
    assert not ensure(cluster, {"at": {"x": INT}})
    assert types_of(cluster) == {}
    cluster = FakeCluster()
    cluster.meanwhile = [SHOP, replace(table, partition=["other"], columns=[commands.ColumnSpec("other", "int")])]
    with pytest.raises(SchemaError, match=r"is there with the primary key \(other\), not \(id\)"):
        ensure(cluster, {})


def test_a_type_that_somebody_makes_meanwhile_is_not_mistaken_for_the_tables_own(ensure: Any) -> None:
    cluster = FakeCluster(SHOP)
    cluster.meanwhile = [commands.CreateType("shop", "users_at", [("other", "int")])]
    assert ensure(cluster, {"at": {"x": INT}})
    assert columns_of(cluster)["at"] == "frozen<users_at_2>"


# Files


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"a.csv": "id,a,a\n1,2,3\n"}, "a.csv: column a is there twice"),
        (
            {"a.csv": "id,v\n1,2\n", "b.csv": "v\n3\n"},
            r"b.csv can't be loaded into shop.users: key column id is missing",
        ),
        (
            {"id=1/a.csv": "v\n2\n", "id=2/b.csv": "id\n2\n"},
            "b.csv can't be loaded into .*no column of the file itself",
        ),
    ],
)
@pytest.mark.parametrize("before", [(), (SHOP,)])
def test_files_that_are_refused_have_made_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    why: str,
    before: tuple[commands.Single, ...],
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    cluster = FakeCluster(*before)
    was = cluster.catalog
    monkeypatch.setattr(creating, "change", cluster.change)
    known: Any = SimpleNamespace(
        db=FakeDatabase(cluster), instances=3, table=lambda name: (cluster.catalog.table(name), {})
    )
    with pytest.raises(InvalidRequest, match=why):
        FileLoad.begin([str(tmp_path)], "", write_options(GIVEN), cluster=known)
    assert cluster.catalog == was


@pytest.mark.parametrize("before", [(), (SHOP,)])
def test_what_is_checked_is_the_table_that_is_made(
    monkeypatch: pytest.MonkeyPatch, before: tuple[commands.Single, ...]
) -> None:
    cluster = FakeCluster(*before)
    monkeypatch.setattr(creating, "change", cluster.change)
    seen: list[RowLayout] = []
    database: Any = FakeDatabase(cluster)
    options = write_options(GIVEN | {"replication": "dc1:2"})
    assert creating.ensure_table(database, options, lambda: frame({"id": LONG} | EVERY_TYPE), 3, seen.append)
    (layout,) = seen
    assert layout.table.columns == cluster.catalog.table("shop.users").columns
    assert wrong_columns(layout, to_arrow_schema(frame({"id": LONG} | EVERY_TYPE), timezone="UTC")) == []
