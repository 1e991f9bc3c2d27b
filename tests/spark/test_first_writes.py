"""Writes that make their tables, in three real processes: all that is missing or nothing, and structs by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import trimtab
from tests.spark.conftest import Cluster
from trimtab.spark import tablet_of
from trimtab.spark.files import load_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def fresh(db: trimtab.Database) -> Iterator[str]:
    """The name of a keyspace that is not there yet."""
    name = f"fresh_{os.urandom(4).hex()}"
    yield name
    db.drop_keyspace(name, if_exists=True)


def write(df: DataFrame, table: str, **options: str) -> None:
    df.write.format("trimtab").option("table", table).options(**options).mode("append").save()


def read(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.format("trimtab").option("table", table).load()


def values(df: DataFrame) -> list[Any]:
    return sorted((row.asDict(True) for row in df.collect()), key=lambda row: row["id"])


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        (["id", "1 as v"], {"replication": "9"}, "needs 9 distinct hosts"),
        (["id", "1 as v"], {"tablets": "3"}, "the number of tablets is a power of two"),
        (["id", "1 as v"], {"static": "v"}, "the column v can't be static"),
        (["id", "1 as v", "2 as v"], {}, "the columns v and v, which Spark can't tell apart"),
        (["id", "1 as ID"], {}, "the columns id and ID, which Spark can't tell apart"),
    ],
)
def test_a_refused_write_leaves_nothing_in_the_way_of_the_corrected_one(
    spark: SparkSession,
    db: trimtab.Database,
    fresh: str,
    columns: list[str],
    options: dict[str, str],
    why: str,
) -> None:
    db.refresh()
    version = db.catalog.version
    with pytest.raises(Exception, match=why) as caught:
        write(spark.range(3).selectExpr(*columns), f"{fresh}.t", primaryKey="id", **options)
    assert "command " not in str(caught.value).split("Caused by")[0]
    assert fresh not in db.keyspaces()
    assert db.catalog.version == version
    write(spark.range(3).selectExpr("id", "struct(id as v) as v"), f"{fresh}.t", primaryKey="id", replication="3")
    assert fresh in db.keyspaces()
    assert db.catalog.version == version + 1, "keyspace, type and table are one change"
    assert values(read(spark, f"{fresh}.t")) == [{"id": at, "v": {"v": at}} for at in range(3)]


def test_fields_of_structs_keep_their_names_and_are_written_by_them(
    spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    table = f"{keyspace}.places"
    first = (
        "struct(id * 1.0D as lat, id * 10.0D as lon, struct(id as a, 'x' as b) as deep) as at",
        "array(struct('k' as key, id as value)) as tags",
    )
    turned = (
        "struct(struct('x' as b, id as a) as deep, id * 10.0D as lon, id * 1.0D as lat) as at",
        "array(struct(id as value, 'k' as key)) as tags",
    )
    write(spark.range(0, 2).selectExpr("id", *first), table, primaryKey="id", tablets="2")
    write(spark.range(2, 4).selectExpr("id", *turned), table)
    write(spark.range(4, 5).selectExpr("id", "struct(7.0D as lon) as at"), table, primaryKey="id")
    whole = [
        {
            "id": at,
            "at": {"lat": at * 1.0, "lon": at * 10.0, "deep": {"a": at, "b": "x"}},
            "tags": [{"key": "k", "value": at}],
        }
        for at in range(4)
    ]
    assert values(read(spark, table)) == [
        *whole,
        {"id": 4, "at": {"lat": None, "lon": 7.0, "deep": None}, "tags": None},
    ]
    assert db.table(table).get(id=3)["at"]["lat"] == 3.0
    assert set(db.catalog.types_of(keyspace)) == {"places_at_deep", "places_at", "places_tags"}
    with pytest.raises(Exception, match=r"column at \(frozen<places_at>\): struct.* can't be"):
        write(spark.range(1).selectExpr("id", "struct(1.0D as lat, 2.0D as height) as at"), table)
    write(read(spark, table), f"{keyspace}.copy", primaryKey="id")
    assert values(read(spark, f"{keyspace}.copy")) == values(read(spark, table))


def test_structs_of_files_keep_the_names_of_their_fields(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, keyspace: str, tmp_path: Path
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table, options = f"{keyspace}.objects", {"peer": cluster.peer, "primaryKey": "id"}
    for name, place in (("some", {"lat": 1, "lon": 10}), ("turned", {"lon": 10, "lat": 1})):
        path = str(tmp_path / f"{name}.parquet")
        parquet.write_table(pa.table({"id": [name], "at": [place]}), path)
        load_files(spark, [path], "", table, options)
    assert values(read(spark, table)) == [{"id": name, "at": {"lat": 1, "lon": 10}} for name in ("some", "turned")]


def test_a_table_that_is_named_twice_is_refused(spark: SparkSession, db: trimtab.Database, keyspace: str) -> None:
    table = f"{keyspace}.one"
    spark.range(2).write.format("trimtab").option("primaryKey", "id").mode("append").save(table)
    assert spark.read.format("trimtab").load(table).count() == 2
    with pytest.raises(Exception, match=r"two tables are named: .*\.two by the option table, .*\.one where"):
        spark.read.format("trimtab").option("table", f"{keyspace}.two").load(table)
    with pytest.raises(Exception, match="two tables are named"):
        spark.range(2).write.format("trimtab").option("table", f"{keyspace}.two").mode("append").save(table)


def test_rows_of_a_tablet_are_brought_together_by_its_number(
    spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    from pyspark.sql import functions as f

    table = f"{keyspace}.spread"
    columns = {"a": "bigint", "odd`name.b": "text", "v": "int"}
    db.create_table(table, columns, primary_key=[["a", "odd`name.b"]], tablets=8)
    given = spark.range(0, 400, 1, 5).selectExpr("id as a", "concat('x', id) as `odd``name.b`", "1 as v")
    placed = given.repartitionById(8, tablet_of(table))
    met = placed.groupBy(f.spark_partition_id().alias("task"), tablet_of(table).alias("tablet")).count().collect()
    assert all(row["task"] == row["tablet"] for row in met) and len(met) == 8
    write(placed, table)
    assert read(spark, table).count() == 400
