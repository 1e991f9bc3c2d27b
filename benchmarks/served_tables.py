"""Loads beside the stores that people serve rows from: PostgreSQL by JDBC, Cassandra by its connector.

Each gets the same DataFrame twice: as Spark and the driver do it by themselves, and with all that makes it faster. Ours
are loaded before each of these and after it: they take a minute, and a machine that is shared is another one then.

Servers run only while they are loaded, and what they wrote is on the disk before ours go on: checkpoints, compaction
and write-back would slow ours down. Cassandra's connector does not run in our Spark, so it has a Spark of its own in
another process. It gets the first of the files only; all of them would take a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import cassandra_load, processes
from benchmarks.cassandra_server import CassandraServer
from benchmarks.load import BenchmarkFailed
from benchmarks.peers import CASSANDRA, CONNECTOR, HOW, POSTGRES, Peers
from benchmarks.postgres_server import PostgresServer
from benchmarks.report import Row

if TYPE_CHECKING:
    from benchmarks.spark import Stage

WARM_ROWS = 100_000
LOAD_TIMEOUT_S = 3600
# The driver sends many rows as one statement, and more of them at a time.
_JDBC: dict[str, tuple[str, dict[str, str]]] = {
    "by JDBC": ("", {}),
    "by JDBC, tuned": ("?reWriteBatchedInserts=true", {"batchsize": "10000"}),
}
# Rows are batched by where they go and not by their key, which no two of them share; batches are four times as large,
# which Cassandra takes without a warning, and more of them are under way.
_CONNECTOR: dict[str, dict[str, str]] = {
    "by its connector": {},
    "by its connector, tuned": {
        "spark.cassandra.output.batch.grouping.key": "replica_set",
        "spark.cassandra.output.batch.size.bytes": "4096",
        "spark.cassandra.output.concurrent.writes": "32",
    },
}
_NOT_FOR_ANOTHER_SPARK = ("SPARK_", "PYSPARK_", "PYTHON")


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(
    stage: Stage,
    ours: Mapping[str, Callable[[], Any]],
    theirs: Mapping[str, Callable[[], float]],
    settle: Callable[[], None],
) -> None:
    """A row for each of ours beside each of theirs, which say themselves how many rows a second they loaded.

    `settle`: returns when ours has nothing to do any more.
    """
    for what, work in ours.items():
        stage.warm_up(f"{what} to a table", work)
    ours_s = {what: [seconds(work)] for what, work in ours.items()}
    for peer, load in theirs.items():
        settle()
        theirs_rate = load()
        os.sync()
        stage.say(f"DataFrame to {peer}: {theirs_rate:,.0f} rows/s")
        for what, work in ours.items():
            ours_s[what].append(seconds(work))
            before_s, after_s = ours_s[what][-2:]
            stage.say(f"{what} to a table: {before_s:.2f} s before that, {after_s:.2f} s after it")
            rate = 2 * stage.rows / (before_s + after_s)
            stage.report.rows.append(Row("to a served table", f"{what}, rows/s", rate, peer, theirs_rate))


def beside_postgres(
    stage: Stage, peers: Peers, driver: Path | None, ours: Mapping[str, Callable[[], Any]], settle: Callable[[], None]
) -> None:
    if peers.binary(POSTGRES) is None or driver is None:
        stage.report.missing["postgresql"] = f"its server or its JDBC driver is not here; {HOW}"
        return
    server = PostgresServer(peers, stage.options.folder)

    def by_jdbc(how: str) -> float:
        parameters, options = _JDBC[how]
        try:
            server.start()
            url = f"jdbc:postgresql://{server.endpoints()[0]}/postgres{parameters}"
            options = {"url": url, "dbtable": "bench", "user": "bench", "driver": "org.postgresql.Driver", **options}

            def write(frame: Any) -> None:
                frame.write.format("jdbc").options(**options).mode("append").save()

            _create_postgres_table(stage, url)
            stage.warm_up(f"{WARM_ROWS:,} rows to PostgreSQL {how}", lambda: write(stage.frame().limit(WARM_ROWS)))
            _create_postgres_table(stage, url)
            return stage.rows / seconds(lambda: write(stage.frame()))
        finally:
            server.stop()

    name = f"PostgreSQL {peers.version(POSTGRES)}"
    compare(stage, ours, {f"{name} {how}, with a primary key": _bound(by_jdbc, how) for how in _JDBC}, settle)


def _create_postgres_table(stage: Stage, url: str) -> None:
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


def beside_cassandra(
    stage: Stage, peers: Peers, ours: Mapping[str, Callable[[], Any]], settle: Callable[[], None]
) -> None:
    import pyarrow.parquet as pq

    if reason := peers.why_cassandra_is_missing():
        stage.report.missing["cassandra"] = reason
        return

    source = min(Path(stage.input).iterdir())
    rows: int = pq.read_metadata(source).num_rows

    def by_connector(how: str) -> float:
        folder = stage.options.folder / how.replace(" ", "-").replace(",", "")
        folder.mkdir()
        with CassandraServer(peers, folder) as server:
            server.create_tables("warm", "loaded")
            took = _run_connector(peers, folder, connector_request(str(source), peers, folder, server.port, how))
            stage.say(f"{WARM_ROWS:,} rows to Cassandra {how}: {took['warm_s']:.2f} s (warming up)")
            check_arrived(server.count("loaded"), rows)
        return rows / took["load_s"]

    name = f"Cassandra {CASSANDRA.version}"
    compare(stage, ours, {f"{name} {how}": _bound(by_connector, how) for how in _CONNECTOR}, settle)
    stage.report.notes.append(
        f"Cassandra gets {rows:,} rows, and has its defaults: it syncs its log every 10 s, not before it answers"
    )


def _bound(load: Callable[[str], float], how: str) -> Callable[[], float]:
    return lambda: load(how)


def connector_request(source: str, peers: Peers, folder: Path, port: int, how: str) -> dict[str, Any]:
    """The argument of `cassandra_load`."""
    return {
        "input": source,
        "jars": sorted(map(str, peers.jars(CONNECTOR).glob("*.jar"))),
        "port": port,
        "cores": len(os.sched_getaffinity(0)),
        "folder": str(folder / "spark"),
        "options": _CONNECTOR[how],
        "warm_rows": WARM_ROWS,
    }


def connector_environment(variables: Mapping[str, str], java: Path) -> dict[str, str]:
    """Without what is meant for our Spark and our Python."""
    kept = {name: value for name, value in variables.items() if not name.startswith(_NOT_FOR_ANOTHER_SPARK)}
    return {**kept, "JAVA_HOME": str(java.parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}


def _run_connector(peers: Peers, folder: Path, request: Mapping[str, Any]) -> dict[str, float]:
    log = folder / "connector.log"
    # Isolated: modules that lie beside the program are not its own.
    command = [str(peers.python), "-I", str(Path(cassandra_load.__file__)), json.dumps(request)]
    process = processes.start(
        command, log, environment=connector_environment(os.environ, peers.cassandra_java()), talk=True
    )
    try:
        said, _ = process.communicate(timeout=LOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"Cassandra was not loaded in {LOAD_TIMEOUT_S} s; the log is {log}") from error
    finally:
        processes.stop(process)
    if process.returncode != 0:
        raise BenchmarkFailed(f"Cassandra's connector failed; its log is {log}")
    return parsed(said)


def parsed(said: str) -> dict[str, float]:
    """What `cassandra_load` prints last."""
    try:
        answer = json.loads(said.splitlines()[-1])
        return {name: float(answer[name]) for name in ("warm_s", "load_s")}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise BenchmarkFailed(f"Cassandra's connector did not say how long it took, but: {said!r}") from error


def check_arrived(found: int, expected: int) -> None:
    if found != expected:
        raise BenchmarkFailed(f"Cassandra holds {found:,} rows, and {expected:,} were written to it")
