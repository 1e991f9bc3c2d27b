"""What the pipeline does beside Spark itself and beside what people use today: 5 million rows of (bigint, double, 20
characters, int), in one session of Spark. Whatever is timed has been done once before, and that is not counted; of what
goes to PostgreSQL and Cassandra a small part has been.

    ours                                                   beside                                             goal
    Parquet files -> table, RF 1 on one instance           Spark: the same files, sorted, to Parquet          1.0×
    DataFrame -> table, RF 1                               the same                                           1.5×
    Parquet files -> table, RF 3 on three instances        the same                                           3×
    table -> aggregate of all columns, at ONE              Parquet -> the same aggregate                      2.2×
    DataFrame, or files -> table, rows a second            DataFrame -> PostgreSQL by JDBC, -> Cassandra      10×
    p99 of point reads at a fixed rate during a load       the same while nothing else happens                2×

Loads end when their rows can be seen, and are durable on every replica then; Parquet files are not synced, and
Cassandra syncs every ten seconds. The tables of PostgreSQL and Cassandra have a primary key, as a table that is served
needs one (`served_tables`).
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
from benchmarks.offered_load import FROM_BEGUN, FROM_DUE
from benchmarks.peers import Peers
from benchmarks.report import Options, Report, Row, describe_machine
from benchmarks.served_tables import beside_cassandra, beside_postgres, seconds
from benchmarks.trimtab_cluster import TrimtabCluster

ROWS = 5_000_000
FILES = 4
TABLETS = 8
READS_PER_S = 300.0
IDLE_S = 10.0
COLUMNS = {"id": "bigint", "amount": "double", "name": "text", "count": "int"}
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

    def warm_up(self, what: str, work: Callable[[], Any]) -> None:
        self.say(f"{what}: {seconds(work):.2f} s (warming up)")

    def timed(self, what: str, work: Callable[[], Any]) -> float:
        """Seconds, the median of all rounds."""
        self.warm_up(what, work)
        took = []
        for number in range(self.options.rounds):
            took.append(seconds(work))
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
        sorted_s = stage.timed("Spark, sorted to Parquet", lambda: _sorted_parquet(stage))
        with _cluster(options.folder / "one", 1) as cluster:
            _loads(stage, cluster, 1, sorted_s)
            _scan(stage, cluster)
            _reads_during_a_load(stage, cluster)
            _footprint(stage, cluster, options.folder / "one")
            ways = _ways(stage, cluster)
            beside_postgres(stage, peers, driver, ways, lambda: _settle(cluster))
            beside_cassandra(stage, peers, ways, lambda: _settle(cluster))
        with _cluster(options.folder / "three", 3) as cluster:
            _loads(stage, cluster, 3, sorted_s)
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


def _sorted_parquet(stage: Stage) -> None:
    target = stage.options.folder / "sorted"
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
        took_s = stage.timed(f"{what} to a table, {where}", work)
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
    ours_s = stage.timed("scan at ONE", lambda: found.append(_aggregate(table.load())))
    parquet_s = stage.timed("scan of Parquet", lambda: found.append(_aggregate(stage.frame())))
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
    for key, metric in (("p50_ms", "p50 ms"), ("p99_ms", FROM_DUE), ("begun_p99_ms", FROM_BEGUN)):
        stage.report.rows.append(Row(case, metric, busy[key], "idle", idle[key], "lower"))
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
