"""A Spark cluster of its own: a master and two workers from the pip package, whose executors are another user's. Both
are on this machine, and take each other for another, as Spark wants it that gives a slow task to a second one.

The executors can't read the instances' directories, so everything goes through the bulk servers: snapshots are
downloaded, files are staged over sockets. What they write for others they write into a directory of their group.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.processes import free_ports

import trimtab
from tests.cluster.elastic import SETTLE_S
from tests.conftest import QUICK_JAVA, Processes
from tests.spark.commands import Commands
from tests.spark.staged import await_nothing_staged, records
from tests.spark.standalone_program import LONE, ROWS, TOLD
from tests.spark.trio import STOP_S, until
from trimtab.client.jobs import BlockingJobs
from trimtab.spark import java

if TYPE_CHECKING:
    from tests.spark.conftest import Cluster

ROOT = Path(__file__).parents[2]
NOBODY = 65534
_UP_S = 120.0
_RUN_S = 700.0
_NEEDED = "import trimtab, pyspark, pyarrow, numpy, rocksdict"


def as_other_user() -> list[str]:
    """What to put before a command so that another user runs it; the test is skipped where that can't be."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can start executors under another user")
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def python_for_all(folder: Path) -> Path:
    """A Python with trimtab that the other user can run: a script, for one that lies where others may look."""
    wanted = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    paths = [str(Path(trimtab.__file__).parents[1]), *(each for each in sys.path if each.endswith("site-packages"))]
    reasons = []
    for program in (sys.executable, f"/usr/bin/{wanted}", f"/usr/local/bin/{wanted}"):
        script = folder / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{":".join(paths)}" exec {program} "$@"\n')
        script.chmod(0o755)
        tried = subprocess.run([*as_other_user(), str(script), "-c", _NEEDED], cwd="/", capture_output=True, text=True)
        if tried.returncode == 0:
            return script
        reasons.append(tried.stderr.strip().splitlines()[-1])
    pytest.skip(f"another user can't run a Python with trimtab: {'; '.join(reasons)}")


@contextlib.contextmanager
def daemons() -> Iterator[Callable[..., None]]:
    """Starts processes that end with the block, each with all that it started."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], environment: dict[str, str], log: Path, folder: str = "/") -> None:
        with log.open("wb") as output:
            started.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    try:
        yield start
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The master's URL, and the Python of its workers; two of one core each, under another user, are up."""
    import pyspark

    prefix, logs = as_other_user(), tmp_path_factory.mktemp("standalone")
    port, web = free_ports(2)
    home = Path(pyspark.__file__).parent
    found = java.find(os.environ)
    scratch = Path(tempfile.mkdtemp(prefix="trimtab-workers-"))
    os.chown(scratch, NOBODY, NOBODY)
    python = python_for_all(scratch)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch),
        "JAVA_HOME": str(java.home(found, scratch / "java")),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
        "PYSPARK_PYTHON": str(python),
    }
    run = str(home / "bin" / "spark-class")
    master = [run, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    worker = [run, "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g"]
    try:
        with daemons() as start:
            start([*master, "--webui-port", str(web)], environment, logs / "master.log")
            for number in range(2):
                places = ["--host", f"127.0.0.{number + 1}", "--webui-port", "0"]
                places += ["--work-dir", str(scratch / f"work-{number}")]
                command = [*prefix, *worker, *places, f"spark://127.0.0.1:{port}"]
                start(command, environment, logs / f"worker-{number}.log", str(scratch))
            _await_workers(f"http://127.0.0.1:{web}/json/", 2, logs)
            yield f"spark://127.0.0.1:{port}", python
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _await_workers(address: str, count: int, logs: Path) -> None:
    deadline = time.monotonic() + _UP_S
    alive = 0
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(address, timeout=5) as answer:
                told: dict[str, Any] = json.load(answer)
            alive = sum(each["state"] == "ALIVE" for each in told["workers"])
            if alive >= count:
                return
        time.sleep(0.2)  # there is nothing to wait for but the page
    said = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(logs.glob("*.log")))
    raise AssertionError(f"{alive} of {count} workers are up after {_UP_S:g} s:\n{said}")


def shared_folder(folder: Path) -> Path:
    """Of the executors' group, as an operator would make it: with files to load, and files to stream."""
    folder.mkdir()
    os.chown(folder, -1, NOBODY)
    folder.chmod(0o2775)
    lines = [f"{ROWS + each},more {each}\n" for each in range(50)]
    (folder / "more.csv").write_text("id,name\n" + "".join(lines) + "none,bad\n")
    (folder / "events").mkdir()
    for number, ids in enumerate((range(20), range(20, 120))):
        path = folder / "events" / f"{number}.json"
        path.write_text("".join(f'{{"id": {each}, "name": "event {each}"}}\n' for each in ids))
        # Spark takes files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


@pytest.mark.timeout(900)
def test_executors_of_another_user_do_everything_and_die(
    spark_cluster: tuple[str, Path], cluster: Cluster, db: trimtab.Database, keyspace: str, tmp_path: Path
) -> None:
    master, python = spark_cluster
    look = [*as_other_user(), str(python), "-c", "import os, sys; sys.exit(os.access(sys.argv[1], os.X_OK))"]
    for hidden in (cluster.data_dir("i1"), tmp_path):
        assert subprocess.run([*look, str(hidden)], cwd="/").returncode == 0, f"the executors could look into {hidden}"
    table, shared = f"{keyspace}.people", shared_folder(python.parent / "shared")
    program = [sys.executable, "-m", "tests.spark.standalone_program"]
    ran = subprocess.run(
        [*program, cluster.peer, master, table, str(shared), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_RUN_S,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith(TOLD)]
    assert ran.returncode == 0 and lines, ran.stderr[-3000:]
    told = json.loads(lines[0].removeprefix(TOLD))
    assert told["users"] == [NOBODY, NOBODY]
    assert told["sums"] == [ROWS, ROWS * (ROWS - 1) // 2, sum(len(f"user {each}") for each in range(ROWS))]
    # A row that one replica lacked was found and sent; replicas were copied, from one and from two.
    lone = told["lone"]
    assert (told["lacking"], told["lacked"], told["repaired"]) == ([[LONE + lone - 1, ["i2"]]], {"i2": 1}, 4)
    assert told["equal"] and told["copied"] == [2, [], True]
    # Before that row was put; with it, at QUORUM; and two rows of a view.
    assert (told["as_of"], told["quorum"]) == (told["sums"], ROWS + lone)
    assert told["by_sql"] == [["user 7", 3.5], ["user 8", 4.0]]
    # Of a file all but its bad line. There are what was written, what one lacked, and these; the export is of before.
    everything = ROWS + lone + 50
    assert (told["loaded"], told["counted"]) == ([50, 1], everything)
    assert told["analysed"] == [everything] * 3
    assert told["exported"] == told["again"] == ROWS
    assert db.table(f"{table}_again").get(id=7) == {"id": 7, "name": "user 7", "half": 3.5}
    assert len(list((shared / "aside").iterdir())) == 1 and sorted(path.name for path in shared.iterdir()) == [
        *("aside", "backup", "events", "more.csv")
    ]
    assert [(load.direct, load.rows) for load in records(cluster, f"{table}_events")] == [(True, 20), (False, 100)]
    assert sorted(row["id"] for row in db.table(f"{table}_events").scan()) == list(range(120))
    assert told["overwritten"] == [100, 4_950, sum(len(f"new {each}") for each in range(100))]
    assert db.table(table).get(id=7) == {"id": 7, "name": "new 7", "half": None}
    # An executor was killed in the middle of a load: of the attempt that died with it there is no row.
    assert told["attempts"] == [[0, 2 * ROWS], [1, 2 * ROWS]]
    assert told["texts"] == 4 * ROWS
    # A task was run twice at the same time: the rows of one attempt count, whichever it is, and none of the other.
    assert told["had_twin"] and told["ids"] == 4 * ROWS
    assert told["by_attempt"] in ([[0, 4 * ROWS]], [[0, 2 * ROWS], [1, 2 * ROWS]])
    assert [load.rows for load in records(cluster, f"{table}_twins")] == [4 * ROWS]
    await_nothing_staged(cluster)


@pytest.mark.timeout(900)
def test_the_pipeline_runs_jobs_on_executors_of_another_user(
    spark_cluster: tuple[str, Path],
    cluster: Cluster,
    db: trimtab.Database,
    keyspace: str,
    processes: Processes,
    tmp_path: Path,
) -> None:
    master, python = spark_cluster
    log, table, shared = tmp_path / "pipeline.log", f"{keyspace}.people", shared_folder(python.parent / "jobs")
    db.create_table(table, {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=4)
    command = [sys.executable, "-m", "trimtab", "pipeline", "--spark-master", master]
    for address in cluster.peer.split(","):
        command += ["--peer", address]
    environment = os.environ | {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    driver = processes.start(command, output=log, env=environment)
    # Where there is one already none is started on demand, which would not know of the executors.
    until(lambda: "driving the jobs" in log.read_text(), log.read_text)
    typed = Commands(cluster.peer)
    file, aside, out = (str(shared / name) for name in ("more.csv", "aside", "backup"))
    loaded = typed.json("load", table, file, "--rejected", aside)["result"]
    assert (loaded["rows"], loaded["rejected"]) == (50, 1)
    assert typed.ok("count", table, "--consistency", "QUORUM").startswith("50 rows (")
    assert "All replicas" in typed.ok("verify", table, "--settle", str(SETTLE_S))
    assert "50 rows as of" in typed.ok("export", table, out)
    assert {path.stat().st_uid for path in Path(out, "data").iterdir()} == {NOBODY}
    assert db.table(table).get(id=ROWS) == {"id": ROWS, "name": "more 0"}
    with BlockingJobs(cluster.peer.split(","), timeout_s=90.0) as jobs:
        found = jobs.show().driver
    assert found is not None and found.master == master
    assert processes.stop(driver, timeout_s=STOP_S) == 0, log.read_text()
