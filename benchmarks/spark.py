"""What the pipeline does beside Spark itself and beside what people use today: 5 million rows of (bigint, double, 20
characters, int), in one session of Spark that is warm.

    ours                                                   beside                                             goal
    Parquet files -> table, RF 1 on one instance           Spark: the same files, sorted, to Parquet          1.0×
    DataFrame -> table, RF 1                               the same                                           1.5×
    Parquet files -> table, RF 3 on three instances        the same                                           3×
    table -> aggregate of all columns, at ONE              Parquet -> the same aggregate                      2.2×
    DataFrame, or files -> table, rows a second            DataFrame -> PostgreSQL by JDBC, -> Cassandra      10×
    p99 of point reads at a fixed rate during a load       the same while nothing else happens                2×

Loads end when their rows can be seen, and are durable on every replica then; Parquet files are not synced. The table of
PostgreSQL has a primary key, as a table that is served needs one. It gets the same DataFrame twice: as Spark and the
driver do it by themselves, and with all that makes it faster (the driver sends many rows as one statement, and more of
them at a time). Ours are loaded once more before each of these and after it: they take a minute, and a machine that is
shared is another one then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trimtab
from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from benchmarks.peers import HOW, POSTGRES, Peers
from benchmarks.postgres_server import PostgresServer
from benchmarks.report import Options, Report, Row, describe_machine
from benchmarks.trimtab_cluster import TrimtabCluster

ROWS = 5_000_000
FILES = 4
TABLETS = 8
READS_PER_S = 300.0
IDLE_S = 10.0
COLUMNS = {"id": "bigint", "amount": "double", "name": "text", "count": "int"}
_JDBC = {
    "by JDBC": ("", {}),
    "by JDBC, tuned": ("?reWriteBatchedInserts=true", {"batchsize": 10_000}),
}
_SETTLE_S = 60.0


class Stage:
    """What the cases share: the session, the input, and how often everything is done."""

    def __init__(self, options: Options, spark: Any, report: Report, say: Callable[[str], None]) -> None:
        self.options = options
        self.spark = spark
        self.report = report
        self.say = say
        self.rows = options.rows or ROWS
        self.input = str(options.folder / "input")

    def write(self, peer: str, table: str) -> None:
        self.frame().write.format("trimtab").options(peer=peer, table=table).mode("overwrite").save()

    def frame(self) -> Any:
        return self.spark.read.parquet(self.input)

    def timed(self, what: str, work: Callable[[int], Any]) -> float:
        """Seconds, the median of all rounds."""
        took = []
        for number in range(self.options.rounds):
            started = time.perf_counter()
            work(number)
            took.append(time.perf_counter() - started)
            self.say(f"{what}: {took[-1]:.2f} s, {self.rows / took[-1] / 1e6:.2f} Mrow/s (round {number + 1})")
        return statistics.median(took)


def run(options: Options, say: Callable[[str], None]) -> Report:
    from trimtab.spark import session, stop

    peers = Peers(options.root)
    driver = peers.jdbc_driver()
    report = Report("spark", describe_machine(options.folder))
    conf = {"spark.driver.extraClassPath": str(driver)} if driver is not None else {}
    started = time.perf_counter()
    spark = session(**conf)
    try:
        stage = Stage(options, spark, report, say)
        report.machine["session_s"] = round(time.perf_counter() - started, 1)
        say(f"making {stage.rows:,} rows")
        _make_input(options.folder / "input", stage.rows)
        spark.range(1000).mapInArrow(lambda batches: batches, "id long").count()
        sorted_s = stage.timed("Spark, sorted to Parquet", lambda number: _sorted_parquet(stage, number))
        with _cluster(options.folder / "one", 1) as cluster:
            _loads(stage, cluster, 1, sorted_s)
            _scan(stage, cluster)
            _reads_during_a_load(stage, cluster)
            _footprint(stage, cluster, options.folder / "one")
            _postgres(stage, peers, driver, _ways(stage, cluster))
        with _cluster(options.folder / "three", 3) as cluster:
            _loads(stage, cluster, 3, sorted_s)
        report.missing["cassandra"] = "neither its server nor Spark's connector is in Debian or on PyPI"
    finally:
        stop(spark)
    report.notes.append("ours ÷ peer: of seconds a low ratio is good, of rows a second a high one")
    report.notes.append("a load ends when its rows are synced on every replica and can be seen; Parquet is not synced")
    return report


@contextmanager
def _cluster(folder: Path, members: int) -> Iterator[TrimtabCluster]:
    folder.mkdir()
    cluster = TrimtabCluster(folder, members)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _make_input(folder: Path, rows: int) -> None:
    """In no order, in a few files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    chosen = np.random.default_rng(7)
    order = chosen.permutation(rows)
    for number, ids in enumerate(np.array_split(order, FILES)):
        letters = chosen.integers(97, 123, size=(len(ids), 20), dtype=np.uint8)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "amount": pa.array(chosen.random(len(ids))),
                "name": pa.array(letters.view("S20").ravel().astype(str)),
                "count": pa.array(chosen.integers(0, 1000, len(ids)), pa.int32()),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")


def _sorted_parquet(stage: Stage, number: int) -> None:
    target = stage.options.folder / f"sorted-{number}"
    stage.frame().repartition(TABLETS, "id").sortWithinPartitions("id").write.parquet(str(target))
    shutil.rmtree(target)


def _ways(stage: Stage, cluster: TrimtabCluster) -> dict[str, Callable[[], Any]]:
    """To load the rows into a table."""
    from trimtab.spark.files import load_files

    peer = ",".join(cluster.endpoints())

    return {
        "Parquet files": lambda: load_files(
            stage.spark, [stage.input], "parquet", "bench.files", {"peer": peer}, overwrite=True
        ),
        "a DataFrame": lambda: stage.write(peer, "bench.frame"),
    }


def _loads(stage: Stage, cluster: TrimtabCluster, replication: int, sorted_s: float) -> None:
    """From files, and from a DataFrame, which is only tried for one replica."""
    with trimtab.connect(",".join(cluster.endpoints()), timeout=60.0) as db:
        db.create_keyspace("bench", replication=replication)
        for name in ("files", "frame"):
            db.create_table(f"bench.{name}", COLUMNS, primary_key=["id"], tablets=TABLETS)
    where = f"RF {replication} on {replication} instance{'s' if replication > 1 else ''}"
    ways = _ways(stage, cluster)
    for what, work in ways.items() if replication == 1 else list(ways.items())[:1]:
        took_s = stage.timed(f"{what} to a table, {where}", _each_round(work))
        case = f"load {stage.rows:,} rows, {where}"
        stage.report.rows.append(Row(case, f"from {what}, s", took_s, "Spark, sorted to Parquet", sorted_s, "lower"))


def _aggregate(frame: Any) -> tuple[Any, ...]:
    from pyspark.sql import functions as F

    found = frame.agg(F.count("*"), F.sum("id"), F.sum("amount"), F.max("name"), F.sum("count")).first()
    return (found[0], found[1], round(found[2], 3), found[3], found[4])


def _scan(stage: Stage, cluster: TrimtabCluster) -> None:
    peer = ",".join(cluster.endpoints())
    _settle(cluster)
    table = stage.spark.read.format("trimtab").options(peer=peer, table="bench.files", consistency="ONE")
    found: list[Any] = []
    ours_s = stage.timed("scan at ONE", lambda _: found.append(_aggregate(table.load())))
    parquet_s = stage.timed("scan of Parquet", lambda _: found.append(_aggregate(stage.frame())))
    if len(set(found)) != 1:
        raise BenchmarkFailed(f"the table does not hold what the files do: {set(found)}")
    stage.report.rows.append(
        Row(f"scan {stage.rows:,} rows", "aggregate of all columns, s", ours_s, "Parquet", parquet_s, "lower")
    )


def _settle(cluster: TrimtabCluster) -> None:
    """Wait until RocksDB has nothing to compact any more: its files stay the same."""
    deadline, before, since = time.monotonic() + _SETTLE_S, -1.0, time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < 3:
        used_s = processes.cpu_seconds(processes.with_descendants(cluster.pids()))
        if used_s - before > 0.2:
            before, since = used_s, time.monotonic()
        time.sleep(0.5)


def _reads_during_a_load(stage: Stage, cluster: TrimtabCluster) -> None:
    from trimtab.spark.files import load_files

    peer = ",".join(cluster.endpoints())
    idle = _offered(stage, peer, IDLE_S).result()
    stage.say(f"point reads at {READS_PER_S:.0f}/s while idle: {idle}")
    probe = _offered(stage, peer, IDLE_S)
    loads = 0
    while probe.running:
        load_files(stage.spark, [stage.input], "parquet", "bench.frame", {"peer": peer}, overwrite=True)
        loads += 1
    busy = probe.result()
    stage.say(f"point reads during {loads} loads: {busy}")
    case = f"point reads at {READS_PER_S:.0f}/s during {loads} loads"
    for metric in ("p50_ms", "p99_ms"):
        stage.report.rows.append(Row(case, metric.replace("_", " "), busy[metric], "idle", idle[metric], "lower"))
    stage.report.rows.append(Row(case, "reads that failed", busy["failed"], "idle", idle["failed"], "lower"))


class _offered:
    """A process that reads at a fixed rate."""

    def __init__(self, stage: Stage, peer: str, seconds: float) -> None:
        command = [sys.executable, "-m", "benchmarks.offered_load", peer, "bench.files", str(stage.rows)]
        command += [str(READS_PER_S), str(seconds)]
        self._process = subprocess.Popen(command, cwd=stage.options.root, stdout=subprocess.PIPE, text=True)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> dict[str, float]:
        said, _ = self._process.communicate(timeout=120)
        if self._process.returncode != 0:
            raise BenchmarkFailed("the process that reads at a fixed rate ended early (see above)")
        found: dict[str, float] = json.loads(said)
        return found


def _footprint(stage: Stage, cluster: TrimtabCluster, folder: Path) -> None:
    instance_bytes = sum(map(processes.pss_bytes, cluster.pids()))
    spark_bytes = processes.pss_bytes(os.getpid()) - instance_bytes
    on_disk = _sizes(folder, ".sst")
    for metric, value in (
        ("instance, MB", instance_bytes / 1e6),
        ("Spark: driver, Java and workers, MB", spark_bytes / 1e6),
        ("files", float(len(on_disk))),
        ("bytes on disk, MB", sum(on_disk) / 1e6),
        ("bytes of the input, MB", sum(_sizes(Path(stage.input))) / 1e6),
    ):
        stage.report.rows.append(Row("footprint of two tables and their generations before", metric, value, "-", None))


def _sizes(folder: Path, ending: str = "") -> list[int]:
    """Bytes of each file below it that is still there: a node may be compacting, or dropping a generation."""
    found = []
    for place, _, names in os.walk(folder):  # which passes over a directory that is gone, as rglob does not
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(ending):
                    found.append((Path(place) / name).stat().st_size)
    return found


def _postgres(stage: Stage, peers: Peers, driver: Path | None, ways: dict[str, Callable[[], Any]]) -> None:
    if peers.binary(POSTGRES) is None or driver is None:
        stage.report.missing["postgresql"] = f"its server or its JDBC driver is not here; {HOW}"
        return
    server = PostgresServer(peers, stage.options.folder)
    server.start()
    try:
        ours_s = {what: [_seconds(work)] for what, work in ways.items()}
        for how, (parameters, options) in _JDBC.items():
            url = f"jdbc:postgresql://{server.endpoints()[0]}/postgres{parameters}"
            _create_served(stage, url)
            writer = stage.frame().write.format("jdbc").options(url=url, dbtable="bench", user="bench", **options)
            theirs_s = _seconds(writer.option("driver", "org.postgresql.Driver").mode("append").save)
            stage.say(f"DataFrame to PostgreSQL {how}: {theirs_s:.2f} s, {stage.rows / theirs_s:,.0f} rows/s")
            peer = f"PostgreSQL {peers.version(POSTGRES)} {how}, with a primary key"
            for what, work in ways.items():
                ours_s[what].append(_seconds(work))
                before_s, after_s = ours_s[what][-2:]
                stage.say(f"{what} to a table: {before_s:.2f} s before that, {after_s:.2f} s after it")
                rows_s = 2 * stage.rows / (before_s + after_s)
                stage.report.rows.append(
                    Row("to a served table", f"{what}, rows/s", rows_s, peer, stage.rows / theirs_s)
                )
    finally:
        server.stop()


def _each_round(work: Callable[[], Any]) -> Callable[[int], Any]:
    return lambda _number: work()


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _create_served(stage: Stage, url: str) -> None:
    """Empty, and with a key to find rows by, as ours has one: Spark would make a table without."""
    connection = stage.spark._jvm.java.sql.DriverManager.getConnection(url, "bench", "")
    try:
        columns = "id bigint primary key, amount double precision, name text, count integer"
        statement = connection.createStatement()
        statement.execute("drop table if exists bench")
        statement.execute(f"create table bench ({columns})")
        statement.close()
    finally:
        connection.close()
