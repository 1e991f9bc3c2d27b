"""Files as Spark itself writes them, loaded into tables: nothing that is in them is lost."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import trimtab
from tests.spark.job_running import Jobs
from trimtab.jobs.records import JobKind
from trimtab.pipeline import tasks
from trimtab.pipeline.failures import Paused
from trimtab.pipeline.parameters import LoadParameters
from trimtab.pipeline.running import JobContext
from trimtab.spark.files import load_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Cluster

COLUMNS = {"id": "bigint", "v": "text", "day": "date", "tags": "map<text, int>", "g": "int"}


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_what_spark_writes_in_directories_of_values_is_loaded_whole(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, keyspace: str, tmp_path: Path, format: str
) -> None:
    """Its JSON leaves out what is null, and has text for dates; and what it partitions by is in no file."""
    frame = spark.sql(
        "select id, case when id > 1500 then 'x' end v, case when id > 1600 then date'2024-01-01' end day,"
        " case when id > 1700 then map('a', int(id)) end tags, int(id % 2) g from range(2000)"
    )
    frame.coalesce(1).write.partitionBy("g").format(format).save(str(tmp_path / "files"))
    table = f"{keyspace}.known"
    db.create_table(table, COLUMNS, primary_key=["id"], tablets=2)
    load_files(spark, [str(tmp_path / "files")], format, table, {"peer": cluster.peer})
    rows = {row["id"]: row for row in db.table(table).scan()}
    assert len(rows) == 2000 and sum(row["v"] == "x" for row in rows.values()) == 499
    assert rows[1801] == {"id": 1801, "v": "x", "day": dt.date(2024, 1, 1), "tags": {"a": 1801}, "g": 1}
    assert (rows[1500]["v"], rows[1500]["day"], rows[1500]["g"]) == (None, None, 0)
    made = f"{keyspace}.made"
    options = {"peer": cluster.peer, "primaryKey": "id", "tablets": "2"}
    load_files(spark, [str(tmp_path / "files")], format, made, options)
    found = db.table(made).get(id=1801)
    assert (found["v"], found["g"]) == ("x", 1)


def test_rows_of_one_key_in_several_tasks_are_found_if_asked_for(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, keyspace: str, tmp_path: Path
) -> None:
    table, options = f"{keyspace}.keys", {"peer": cluster.peer}
    db.create_table(table, {"id": "bigint", "v": "text"}, primary_key=["id"], tablets=2)
    path = tmp_path / "a.csv"
    path.write_text("id,v\n" + "".join(f"{n},a\n" for n in range(1000)) + "7,b\n")
    with pytest.raises(trimtab.Error, match="have the key id=7 and are not the same"):
        load_files(spark, [str(path)], "", table, options)
    reading = {"tasks": "4", "duplicates": "check"}
    with pytest.raises(trimtab.Error, match=r"a key has different rows in the load, id=7, in .*a\.csv"):
        load_files(spark, [str(path)], "", table, options, reading=reading)
    assert list(db.table(table).scan()) == []
    path.write_text(path.read_text().replace("7,b\n", "7,a\n"))
    assert load_files(spark, [str(path)], "", table, options, reading=reading).rows == 1001
    assert db.table(table).get(id=7)["v"] == "a"


def test_a_load_that_is_paused_begins_again_when_it_goes_on(
    spark: SparkSession,
    db: trimtab.Database,
    cluster: Cluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, jobs = f"{keyspace}.paused", Jobs(spark, cluster.peer)
    db.create_table(table, {"id": "bigint"}, primary_key=["id"], tablets=2)
    path = tmp_path / "a.csv"
    path.write_text("id\n" + "".join(f"{n}\n" for n in range(100)))
    run = tasks.run

    def then_paused(context: JobContext, *given: Any, **named: Any) -> Any:
        run(context, *given, **named)
        context.mark(Paused("an operator paused it"))
        assert not context.halt()
        context.check()

    told = LoadParameters(table=table, paths=[str(path)])
    with monkeypatch.context() as patched:
        patched.setattr(tasks, "run", then_paused)
        with pytest.raises(Paused):
            jobs(JobKind.LOAD, told, number=91)
    assert list(db.table(table).scan()) == [] and not jobs.notes, "nothing is kept of it"
    found = jobs(JobKind.LOAD, told, number=91)
    assert found["rows"] == 100 and found["load"].endswith("-1"), "another attempt"
    assert len(list(db.table(table).scan())) == 100
