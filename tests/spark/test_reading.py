"""Reading tables with Spark, of three real processes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

import trimtab
from tests.spark.conftest import Cluster
from tests.spark.every_type import MOMENT, TYPES, UUID, make_table, plain
from tests.spark.everywhere import Everywhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, table: str, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("trimtab").option("table", table).options(**given).load()


def test_every_type_is_read_as_documented(spark: SparkSession, db: trimtab.Database, keyspace: str) -> None:
    table = f"{keyspace}.types"
    make_table(db, table)
    users = Everywhere(db, table)
    users.put({"id": 1, **{name: value for name, _, value, _ in TYPES}})
    users.put({"id": 2})
    found = {row["id"]: row.asDict() for row in read(spark, table).collect()}
    assert {name: plain(found[1][name]) for name, _, _, _ in TYPES} == {name: shown for name, _, _, shown in TYPES}
    assert {found[2][name] for name, _, _, _ in TYPES} == {None}


def test_a_table_is_read_by_sql_through_a_view(
    spark: SparkSession, db: trimtab.Database, keyspace: str, cluster: Cluster
) -> None:
    table = f"{keyspace}.users"
    db.create_table(table, {"id": "bigint", "name": "text", "score": "double"}, primary_key=["id"], tablets=8)
    Everywhere(db, table).put_many({"id": at, "name": f"n{at % 3}", "score": at / 2} for at in range(300))
    spark.sql(f"CREATE TEMPORARY VIEW users USING trimtab OPTIONS (peer '{cluster.peer}', table '{table}')")
    try:
        found = spark.sql(
            "SELECT name, count(*) AS n, sum(score) AS s FROM users GROUP BY name ORDER BY name"
        ).collect()
    finally:
        spark.catalog.dropTempView("users")
    assert [tuple(row) for row in found] == [("n0", 100, 7425.0), ("n1", 100, 7475.0), ("n2", 100, 7525.0)]


def test_a_moment_and_the_times_of_cells_are_read_by_sql(
    spark: SparkSession, db: trimtab.Database, keyspace: str, cluster: Cluster
) -> None:
    table = f"{keyspace}.notes"
    db.create_table(table, {"id": "int", "note": "text", "score": "int"}, primary_key=["id"], tablets=4)
    notes = Everywhere(db, table)
    notes.put({"id": 2, "note": "gone", "score": 2})
    first_us = notes.put({"id": 1, "note": "first", "score": 1})
    second_us = notes.put({"id": 1, "note": "second"}, ttl=3600)
    notes.delete(id=2)
    moment = dt.datetime.fromtimestamp(first_us / 1e6, dt.UTC).isoformat()
    given = f"peer '{cluster.peer}', table '{table}'"
    spark.sql(f"CREATE TEMPORARY VIEW notes USING trimtab OPTIONS ({given}, meta 'true')")
    spark.sql(f"CREATE TEMPORARY VIEW once USING trimtab OPTIONS ({given}, meta 'true', asOf '{first_us}')")
    spark.sql(f"CREATE TEMPORARY VIEW by_clock USING trimtab OPTIONS ({given}, asOf '{moment}')")
    times = "writetime_note, ttl_note BETWEEN 3400 AND 3600, writetime_score, ttl_score"
    try:
        now = spark.sql(f"SELECT id, note, score, {times} FROM notes").collect()
        before = spark.sql(f"SELECT id, note, {times} FROM once ORDER BY id").collect()
        by_clock = spark.sql("SELECT sum(score), max(note) FROM by_clock").first()
    finally:
        for view in ("notes", "once", "by_clock"):
            spark.catalog.dropTempView(view)
    assert [tuple(row) for row in now] == [(1, "second", 1, second_us, True, first_us, None)]
    (one, gone) = map(tuple, before)
    assert one == (1, "first", first_us, None, first_us, None)
    assert gone[:2] == (2, "gone") and gone[2] < first_us
    assert by_clock is not None and tuple(by_clock) == (3, "gone")
    with pytest.raises(Exception, match="asOf"):
        spark.sql(f"CREATE TEMPORARY VIEW never USING trimtab OPTIONS ({given}, asOf 'yesterday')")


def test_an_empty_table_is_an_empty_frame_with_its_columns(
    spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    table = f"{keyspace}.nothing"
    db.create_table(table, {"id": "bigint", "at": "timestamp"}, primary_key=["id", "at"])
    frame = read(spark, table)
    assert frame.schema.simpleString() == "struct<id:bigint,at:timestamp>"
    assert frame.count() == 0


@pytest.fixture(scope="module")
def events(db: trimtab.Database) -> str:
    """A table with partitions of 50 rows, some of them deleted, static cells and other versions."""
    db.create_keyspace("reading_events", replication=3, if_not_exists=True)
    db.create_table(
        "reading_events.events",
        {"device": "text", "at": "bigint", "value": "double", "note": "text", "owner": "text"},
        primary_key=["device", "at"],
        order={"at": "desc"},
        static=["owner"],
        tablets=4,
        if_not_exists=True,
    )
    table = Everywhere(db, "reading_events.events")
    table.put_many({"device": f"d{at % 40}", "at": at // 40, "value": at / 4, "note": "x" * 20} for at in range(2000))
    table.put({"device": "d1", "owner": "Ada"})
    table.put({"device": "lonely", "owner": "Bob"})
    table.delete(device="d2", at=7)
    table.delete_range(device="d3", since=19, until=10)
    table.delete(device="d4")
    table.put({"device": "d5", "at": 3, "value": -1.0})
    return "reading_events.events"


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_what_spark_reads_is_what_a_client_scans(spark: SparkSession, db: trimtab.Database, events: str) -> None:
    scanned = sorted((tuple(row.values()) for row in db.table(events).scan()), key=repr)
    assert len(scanned) == 2000 - 1 - 10 - 50 + 1
    assert rows_of(read(spark, events)) == scanned
    assert rows_of(read(spark, events, consistency="QUORUM")) == scanned
    assert rows_of(read(spark, events, splitsPerTablet=4)) == scanned


def test_columns_are_chosen_by_option_or_by_schema(spark: SparkSession, events: str) -> None:
    chosen = read(spark, events, columns="value, device")
    assert chosen.columns == ["value", "device"]
    by_schema = spark.read.format("trimtab").option("table", events).schema("note string, at bigint").load()
    assert by_schema.columns == ["note", "at"]
    assert by_schema.filter("at = 5").first() == ("x" * 20, 5)


def test_filters_reach_the_source_and_change_nothing_but_the_work(
    spark: SparkSession, db: trimtab.Database, events: str
) -> None:
    frame = read(spark, events)
    rows = rows_of(frame)
    for condition, expected in (
        ("device = 'd1'", [row for row in rows if row[0] == "d1"]),
        ("device IN ('d1', 'd2', 'nobody') AND at < 10", [r for r in rows if r[0] in ("d1", "d2") and r[1] < 10]),
        ("device = 'd3' AND at >= 5 AND at <= 30", [r for r in rows if r[0] == "d3" and 5 <= r[1] <= 30]),
        ("device = 'd1' AND at = 4", [r for r in rows if r[0] == "d1" and r[1] == 4]),
        ("device = 'lonely'", [("lonely", None, None, None, "Bob")]),
        ("device = 'nobody'", []),
    ):
        narrowed = frame.filter(condition)
        assert rows_of(narrowed) == sorted(expected, key=repr), condition
        assert narrowed.rdd.getNumPartitions() == 1 or "IN" in condition
    assert frame.rdd.getNumPartitions() == 3


def test_queries_of_one_frame_do_not_get_what_another_planned(
    spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    """Spark keeps a source's plan with the relation; each query must have its own all the same."""
    table = f"{keyspace}.users"
    db.create_table(table, {"id": "int", "v": "int"}, primary_key=["id"], tablets=4)
    Everywhere(db, table).put_many({"id": at, "v": at} for at in range(100))
    frame = read(spark, table)
    assert frame.filter("id = 5").count() == 1
    assert frame.count() == 100
    one, other = frame.filter("id = 1"), frame.filter("id = 2")
    assert sorted(row.id for row in one.union(other).collect()) == [1, 2]
    assert one.crossJoin(frame.withColumnRenamed("id", "other")).count() == 100
    Everywhere(db, table).put({"id": 1000, "v": 0})
    assert frame.count() == 101
    assert frame.filter("id = 1000").count() == 1


def test_filters_on_keys_of_other_types_find_their_rows(
    spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    table = f"{keyspace}.keys"
    db.create_table(
        table,
        {"u": "uuid", "day": "date", "at": "timestamp", "n": "varint", "v": "int"},
        primary_key=[["u", "day"], "at", "n"],
        tablets=4,
    )
    days = [dt.date(2024, 1, 1) + dt.timedelta(each) for each in range(5)]
    Everywhere(db, table).put_many(
        {"u": UUID, "day": day, "at": MOMENT + dt.timedelta(milliseconds=at), "n": 10**20 + at, "v": at}
        for day in days
        for at in range(10)
    )
    frame = read(spark, table)
    key = f"u = '{UUID}' AND day = DATE'2024-01-03'"
    assert frame.filter(key).count() == 10
    moment = "TIMESTAMP'2024-02-29 12:30:15.126 UTC'"
    assert sorted(row.v for row in frame.filter(f"{key} AND at >= {moment}").collect()) == list(range(3, 10))
    assert [row.v for row in frame.filter(f"{key} AND at = {moment} AND n = {10**20 + 3}").collect()] == [3]


def test_a_wrong_option_is_one_clear_error_at_the_driver(spark: SparkSession, events: str) -> None:
    with pytest.raises(Exception, match=r"there is no option asoff for reading; did you mean asOf\?"):
        read(spark, events, asOff="2024-01-01")
    with pytest.raises(Exception, match=r"there is no keyspace 'nowhere'"):
        read(spark, "nowhere.events")
    with pytest.raises(Exception, match=r"reading_events.events has no column 'vlaue'; did you mean 'value'\?"):
        read(spark, events, columns="vlaue")
    with pytest.raises(Exception, match=r"no member could do it in time|could be reached|refused"):
        read(spark, events, peer="127.0.0.1:1", timeout=1)
