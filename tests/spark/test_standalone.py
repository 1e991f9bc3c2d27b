"""A Spark cluster of its own: a master and two workers from the pip package, whose executors are another user's.

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

import trimtab
from tests.conftest import QUICK_JAVA
from tests.spark.staged import await_nothing_staged, records
from tests.spark.standalone_program import LONE, ROWS, TOLD
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
def processes() -> Iterator[Callable[..., None]]:
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


@pytest.fixture
def spark_cluster(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[tuple[str, Path]]:
    """The master's URL, and the Python of its workers; two of one core each, under another user, are up."""
    import pyspark

    prefix = as_other_user()
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
    worker = [run, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
    try:
        with processes() as start:
            start([*master, "--webui-port", str(web)], environment, tmp_path / "master.log")
            for number in range(2):
                places = ["--work-dir", str(scratch / f"work-{number}"), "--webui-port", "0"]
                command = [*prefix, *worker, *places, f"spark://127.0.0.1:{port}"]
                start(command, environment, tmp_path / f"worker-{number}.log", str(scratch))
            _await_workers(f"http://127.0.0.1:{web}/json/", 2, tmp_path)
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
    await_nothing_staged(cluster)
