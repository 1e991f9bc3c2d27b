"""DataFrames to tables of three real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import trimtab
from tests.cluster.patience import patiently, put_rows
from tests.spark.conftest import Cluster
from tests.spark.every_type import TYPES, make_table, plain
from tests.spark.staged import await_nothing_staged, await_true, loads_of, records, staged_files
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.spark.files import load_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("TRIMTAB_TEST_ROWS", "10000"))
COLUMNS = {"id": "bigint", "name": "text", "score": "double", "level": "int"}


@pytest.fixture
def users(db: trimtab.Database, keyspace: str) -> str:
    db.create_table(f"{keyspace}.users", COLUMNS, primary_key=["id"], tablets=4)
    return f"{keyspace}.users"


def frame(spark: SparkSession, start: int, stop: int, tasks: int = 2, word: str = "n") -> DataFrame:
    return spark.range(start, stop, 1, tasks).selectExpr(
        "id", f"concat('{word}', id) as name", "id / 2 as score", "cast(id % 100 as int) as level"
    )


def write(df: DataFrame, table: str, mode: str = "append", **options: str) -> None:
    df.write.format("trimtab").option("table", table).options(**options).mode(mode).save()


def checksum(df: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as f

    columns = sorted(df.columns)
    row = df.select(f.xxhash64(*columns).cast("decimal(38,0)").alias("hash")).agg(f.count("*"), f.sum("hash")).first()
    assert row is not None
    return int(row[0]), int(row[1] or 0)


def scanned(db: trimtab.Database, table: str) -> dict[int, str]:
    return {row["id"]: row["name"] for row in db.table(table).scan(columns=["id", "name"])}


def test_rows_of_megabytes_are_written_and_read(spark: SparkSession, db: trimtab.Database, users: str) -> None:
    wide = spark.range(0, 30, 1, 2).selectExpr("id", "repeat(concat('w', id), 1000000) name", "1.0D score", "1 level")
    write(wide, users)
    assert checksum(spark.read.format("trimtab").option("table", users).load()) == checksum(wide)
    row = db.table(users).get(id=22)
    assert row is not None
    assert row["name"] == "w22" * 1_000_000


def test_appending_is_upserting(spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str) -> None:
    put_rows(db.table(users), [{"id": 1, "name": "by hand", "level": 7}])
    write(frame(spark, 0, 500), users)
    assert db.table(users).get(id=1)["name"] == "n1"
    put_rows(db.table(users), [{"id": 2, "name": "later"}])
    write(frame(spark, 400, 600, word="m"), users)
    found = scanned(db, users)
    assert found == {n: f"n{n}" for n in range(400)} | {n: f"m{n}" for n in range(400, 600)} | {2: "later"}
    assert [(load.state, load.rows) for load in records(cluster, users)] == [
        (LoadState.PUBLISHED, 500),
        (LoadState.PUBLISHED, 200),
    ]
    await_nothing_staged(cluster)


@pytest.mark.parametrize("replicas", [1, 3])
def test_what_goes_in_comes_out(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, keyspace: str, replicas: int
) -> None:
    space = f"{keyspace}_{replicas}"[-48:].lstrip("_")
    table = f"{space}.many"
    given = frame(spark, 0, ROWS, 4)
    try:
        write(given, table, primaryKey="id", replication=str(replicas), tablets="8")
        read = spark.read.format("trimtab").option("table", table).load()
        assert checksum(read.select(given.columns)) == checksum(given)
        assert len({tuple(each["replicas"]) for each in db.tablets(table)}) >= (2 if replicas == 1 else 1)
        if replicas == 3:
            quorum = spark.read.format("trimtab").options(table=table, consistency="ALL").load()
            assert checksum(quorum.select(given.columns)) == checksum(given)
    finally:
        db.drop_keyspace(space, if_exists=True)


def test_every_type_is_written_as_a_client_would(spark: SparkSession, db: trimtab.Database, keyspace: str) -> None:
    by_client, by_spark = f"{keyspace}.by_client", f"{keyspace}.by_spark"
    for table in (by_client, by_spark):
        make_table(db, table)
    patiently(lambda: db.table(by_client).put({"id": 1, **{name: value for name, _, value, _ in TYPES}}))
    patiently(lambda: db.table(by_client).put({"id": 2}))
    empty = spark.read.format("trimtab").option("table", by_spark).load()
    shown = {"id": 1, **{name: value for name, _, _, value in TYPES}}
    rows = [tuple(shown[name] for name in empty.columns), tuple(2 if name == "id" else None for name in empty.columns)]
    write(spark.createDataFrame(rows, empty.schema), by_spark)
    for id in (1, 2):
        assert db.table(by_spark).get(id=id) == db.table(by_client).get(id=id)
    found = {row["id"]: row.asDict() for row in empty.collect()}
    assert {name: plain(value) for name, value in found[1].items()} == shown


def test_an_overwrite_replaces_all_rows_and_can_be_rolled_back(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str
) -> None:
    write(frame(spark, 0, 300), users)
    put_rows(db.table(users), [{"id": 9_000, "name": "by hand"}])
    write(frame(spark, 100, 200, word="new"), users, "overwrite")
    assert scanned(db, users) == {n: f"new{n}" for n in range(100, 200)}
    put_rows(db.table(users), [{"id": 9_001, "name": "after"}])
    newest = records(cluster, users)[-1]
    with loads_of(cluster) as loads:
        assert not loads.rollback(newest.table, newest.id).applied
        assert loads.rollback(newest.table, newest.id, apply=True).applied
    await_true(lambda: len(scanned(db, users)) == 301)
    assert scanned(db, users) == {n: f"n{n}" for n in range(300)} | {9_000: "by hand"}


def test_a_missing_table_is_made_from_the_frame(spark: SparkSession, db: trimtab.Database, keyspace: str) -> None:
    table = f"{keyspace}.made"
    given = spark.sql(
        "select 'a' as shop, 1 as day, timestamp'2025-06-01 12:00:00' as at, array(1, 2) as numbers, "
        "map('k', 1.5D) as figures, struct(1 as x, 'y' as y) as pair, cast(7 as decimal(10, 0)) as total, "
        "cast(1.25 as decimal(10, 2)) as price, X'00ff' as raw, true as good, date'2025-06-01' as due"
    )
    write(given, table, primaryKey="(shop, day), at desc", tablets="2")
    made = db.tables()[table]
    assert [(column.name, column.kind.value, column.descending) for column in made.columns][:3] == [
        ("shop", "partition_key", False),
        ("day", "partition_key", False),
        ("at", "clustering", True),
    ]
    read = spark.read.format("trimtab").option("table", table).load().select(given.columns)
    row, expected = read.first(), given.first()
    assert row is not None and expected is not None
    shown, wanted = row.asDict(True), expected.asDict(True)
    assert list(shown.pop("pair").values()) == list(wanted.pop("pair").values())
    assert shown == wanted
    write(given, table, primaryKey="(shop, day), at desc")
    with pytest.raises(Exception, match=r"is there with the primary key \(shop,day\),at desc, not \(shop\)"):
        write(given, table, primaryKey="shop")


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        (["id", "'x' as level"], {}, r"column level \(int\): .*string.* can't be int"),
        (["name", "level"], {}, "key column id is missing"),
        (["id", "1 as age"], {}, "the table has no column age; it has id, "),
        (["id"], {"ttl": "soon"}, "option ttl: a whole number"),
        (["id"], {"onEror": "fail"}, "there is no option oneror for writing; did you mean onError"),
        (["id"], {"onError": "reject"}, "go together"),
        (["id"], {"table": "nowhere.users"}, "there is no table nowhere.users; make it first"),
        (["id"], {"peer": "127.0.0.1:1", "timeout": "1"}, "no member"),
    ],
)
def test_what_is_wrong_is_told_before_the_work_starts(
    spark: SparkSession, cluster: Cluster, users: str, columns: list[str], options: dict[str, str], why: str
) -> None:
    with pytest.raises(Exception, match=why) as caught:
        write(frame(spark, 0, 10).selectExpr(*columns), options.pop("table", users), **options)
    assert str(caught.value).count("Caused by") <= 1
    assert records(cluster, users) == []


def test_a_bad_row_ends_the_load_by_name_and_nothing_is_left(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str
) -> None:
    bad = frame(spark, 0, 2000).selectExpr("if(id = 1500, null, id) as id", "name")
    with pytest.raises(Exception, match=r"the row with id=None: key column id is null.*onError=reject"):
        write(bad, users)
    twice = frame(spark, 0, 100, 1).selectExpr("id % 99 as id", "name")
    with pytest.raises(Exception, match="2 rows of the load have the key id=0 and are not the same"):
        write(twice, users)
    assert scanned(db, users) == {}
    assert [load.state for load in records(cluster, users)] == [LoadState.ABORTED] * 2
    assert "key column id is null" in records(cluster, users)[0].reason
    await_nothing_staged(cluster)


def test_bad_rows_are_rejected_with_their_reasons(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str, tmp_path: Path
) -> None:
    given = frame(spark, 0, 400).selectExpr("if(id % 100 = 7, null, id) as id", "name", "id * 50000000 as level")
    write(given, users, onError="reject", rejected=str(tmp_path / "aside"))
    aside = spark.read.parquet(str(tmp_path / "aside"))
    reasons = {row["_reason"].split(":")[0]: row["count"] for row in aside.groupBy("_reason").count().collect()}
    assert reasons.pop("key column id is null") == 4
    assert set(reasons) == {"column level (int)"}
    kept = [n for n in range(400) if n % 100 != 7 and n * 50_000_000 < 1 << 31]
    assert sorted(scanned(db, users)) == kept
    (load,) = records(cluster, users)
    assert (load.rows, load.rejected) == (len(kept), 400 - len(kept))


def test_a_timestamp_and_a_ttl_are_those_of_all_rows(spark: SparkSession, db: trimtab.Database, users: str) -> None:
    write(frame(spark, 0, 10), users, timestamp="2025-06-01T12:00:00Z", ttl="3600")
    found = db.table(users).get(id=3, with_meta=True)
    assert found.writetime["name"] // 1000 == 1_748_779_200_000
    assert 3500 < found.ttl["name"] <= 3600


def test_the_same_load_id_again_loads_once_and_after_an_abort_once_more(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str
) -> None:
    with pytest.raises(Exception, match="key column id is null"):
        write(frame(spark, 0, 10).selectExpr("nullif(id, 5) as id", "name"), users, loadId="nightly")
    write(frame(spark, 0, 10), users, loadId="nightly")
    put_rows(db.table(users), [{"id": 3, "name": "since"}])
    write(frame(spark, 0, 10, word="again"), users, loadId="nightly")
    assert scanned(db, users)[3] == "since"
    assert scanned(db, users)[4] == "n4"
    assert [(load.id, load.state) for load in records(cluster, users)] == [
        ("nightly", LoadState.ABORTED),
        ("nightly-1", LoadState.PUBLISHED),
    ]


def test_a_task_that_fails_and_is_tried_again_leaves_one_copy(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str, tmp_path: Path
) -> None:
    mark = str(tmp_path / "failed")

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 2 and not Path(mark).exists():
                Path(mark).touch()
                raise RuntimeError("the task is hit by a stone")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        given = frame(spark, 0, 8000).mapInArrow(fail_once, "id long, name string, score double, level int")
        write(given, users, chunkRows="1000")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(mark).exists()
    assert scanned(db, users) == {n: f"n{n}" for n in range(8000)}
    assert records(cluster, users)[0].rows == 8000
    await_nothing_staged(cluster)


def waiting_frame(spark: SparkSession, go: Path, rows: int = 2000) -> DataFrame:
    """A frame whose tasks give half of their rows, and the others when the file `go` is there."""
    path = str(go)

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            deadline = time.monotonic() + 240
            while not Path(path).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch.slice(half)

    return frame(spark, 0, rows).mapInArrow(wait, "id long, name string, score double, level int")


@contextmanager
def meanwhile(cluster: Cluster, table: str, go: Path, deed: Callable[[LoadRecord], object]) -> Iterator[None]:
    """When a load of the table has begun, do something to it, and let its tasks go on."""

    def run() -> None:
        try:
            await_true(lambda: bool(records(cluster, table)), 240)
            deed(records(cluster, table)[0])
        finally:
            go.touch()

    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(run)
        yield
        doing.result()


def test_a_table_dropped_during_the_load_is_one_clear_error(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with (
        meanwhile(cluster, users, go, lambda _: db.drop_table(users)),
        pytest.raises(Exception, match=r"dropped|not open any more"),
    ):
        write(waiting_frame(spark, go), users)
    assert users not in db.tables()
    await_nothing_staged(cluster)


def test_a_load_that_an_operator_ends_stops_its_tasks(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    def end(record: LoadRecord) -> None:
        with loads_of(cluster) as loads:
            loads.abort(record.table, record.id, "an operator changed her mind")

    with meanwhile(cluster, users, go, end), pytest.raises(Exception, match="an operator changed her mind"):
        write(waiting_frame(spark, go), users)
    assert scanned(db, users) == {}
    await_nothing_staged(cluster)


def test_files_are_loaded_by_tasks_that_read_them(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, users: str, tmp_path: Path
) -> None:
    frame(spark, 0, 3000, 3).write.parquet(str(tmp_path / "parquet"))
    frame(spark, 3000, 4000, 1).write.option("header", True).csv(str(tmp_path / "csv"))
    frame(spark, 4000, 5000, 1).write.json(str(tmp_path / "json"))
    told: list[tuple[str, int, int]] = []
    options = {"peer": cluster.peer}
    for kind in ("parquet", "csv", "json"):
        record = load_files(spark, [str(tmp_path / kind)], "", users, options, progress=lambda *news: told.append(news))
        assert record.state is LoadState.PUBLISHED
    assert scanned(db, users) == {n: f"n{n}" for n in range(5000)}
    assert {what for what, _, _ in told} == {"stage", "seal", "adopt"}
    (tmp_path / "csv" / "bad.csv").write_text("id,name,score,level\nseven,x,1,1\n")
    with pytest.raises(trimtab.Error, match=r"bad.csv: the line 'seven,x,1,1' can't be read"):
        load_files(spark, [str(tmp_path / "csv")], "csv", users, options)
    made = f"{users}_made"
    load_files(spark, [str(tmp_path / "json")], "json", made, options | {"primaryKey": "id", "tablets": "2"})
    assert db.table(made).get(id=4001)["name"] == "n4001"
    await_nothing_staged(cluster)
    assert staged_files(cluster) == []
