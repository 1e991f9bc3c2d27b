"""Cassandra beside us: how it is started and loaded, and what is said where it can't be."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import cassandra_load, cassandra_server, peers, served_tables
from benchmarks.load import BenchmarkFailed
from benchmarks.maven import Artifact
from benchmarks.peers import CASSANDRA, CONNECTOR, HOW, Peers
from benchmarks.report import Options, Report
from benchmarks.spark import Stage

from trimtab.spark.java import Java


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peers:
    """Peers that have all there is to have."""
    found = Peers(tmp_path)
    for artifact in (CASSANDRA, CONNECTOR):
        found.jars(artifact).mkdir(parents=True)
        (found.jars(artifact) / f"{artifact.folder}.jar").touch()
    found.python.parent.mkdir()
    found.python.touch()
    monkeypatch.setattr(Peers, "_run_quietly", staticmethod(lambda *_: 0))
    java_is(monkeypatch, "17.0.15")
    return found


def java_is(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(peers, "find", lambda _: Java(Path("/java/bin/java"), release, "PATH"))


def stage(folder: Path) -> tuple[Stage, list[str]]:
    said: list[str] = []
    return Stage(Options(1, 1, folder, folder, rows=1000), None, Report("spark", {}), said.append), said


def test_nothing_is_missing_where_all_is_there(complete: Peers) -> None:
    assert complete.why_cassandra_is_missing() is None


@pytest.mark.parametrize(("artifact", "named"), [(CASSANDRA, "its server"), (CONNECTOR, "its connector")])
def test_jars_that_are_missing_are_named_with_the_way_to_get_them(
    complete: Peers, artifact: Artifact, named: str
) -> None:
    (complete.jars(artifact) / f"{artifact.folder}.jar").unlink()
    complete.jars(artifact).rmdir()
    assert complete.why_cassandra_is_missing() == f"{named} ({artifact.folder}) is not here; {HOW}"


def test_another_spark_than_the_connector_s_is_not_enough(complete: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "_run_quietly", staticmethod(lambda *_: 1))
    assert complete.why_cassandra_is_missing() == (
        f"Spark 3.5, which its connector needs, is not in .venv-peers; {HOW}"
    )


def test_a_java_that_is_too_new_is_named(complete: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    java_is(monkeypatch, "21.0.8")
    reason = complete.why_cassandra_is_missing()
    assert reason is not None and "need Java 17, and PATH is 21.0.8" in reason and "JAVA_HOME" in reason


def test_the_report_says_why_cassandra_is_missing(tmp_path: Path) -> None:
    ours, said = stage(tmp_path)
    served_tables.beside_cassandra(ours, Peers(tmp_path), {}, lambda: None)
    assert ours.report.missing == {"cassandra": f"its server ({CASSANDRA.folder}) is not here; {HOW}"}
    assert not ours.report.rows and not said


def test_an_installation_without_cassandra_goes_on_and_says_why(
    complete: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SERVERS", ())
    monkeypatch.setattr(Peers, "jdbc_driver", lambda _: Path("driver.jar"))
    said: list[str] = []
    complete.install(said.append)
    assert said == [f"{CASSANDRA.folder} and {CONNECTOR.folder} are installed."]
    java_is(monkeypatch, "21.0.8")
    said.clear()
    complete.install(said.append)
    assert len(said) == 1 and said[0].startswith("Cassandra is left out: Cassandra and its connector need Java 17")


def test_maven_is_told_exactly_one_artifact_and_no_address() -> None:
    text = Artifact("a.group", "a-name", "1.2").project()
    (found,) = ElementTree.fromstring(text).iter("dependency")
    assert {each.tag: each.text for each in found} == {"groupId": "a.group", "artifactId": "a-name", "version": "1.2"}
    assert "http" not in text


def test_jars_are_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, target = Artifact("a.group", "a-name", "1.2"), tmp_path / "jars"
    succeeds = False

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        jars = Path(command[-1].partition("=")[2])
        jars.mkdir()
        (jars / "another-1.jar").touch()
        if succeeds:
            (jars / "a-name-1.2.jar").touch()
        return subprocess.CompletedProcess(command, 0 if succeeds else 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(BenchmarkFailed, match=r"could not fetch a-name-1\.2"):
        artifact.fetch(Path("mvn"), Path("/java/bin/java"), target)
    assert not list(tmp_path.iterdir())
    succeeds = True
    artifact.fetch(Path("mvn"), Path("/java/bin/java"), target)
    assert {jar.name for jar in target.iterdir()} == {"another-1.jar", "a-name-1.2.jar"}


def test_cassandra_stays_on_loopback_and_syncs_as_it_does_by_default(tmp_path: Path) -> None:
    found = cassandra_server.settings(tmp_path, 9001, 9002)
    assert {name: value for name, value in found.items() if name.endswith(("_address", "_port"))} == {
        "listen_address": "127.0.0.1",
        "rpc_address": "127.0.0.1",
        "native_transport_port": 9001,
        "storage_port": 9002,
    }
    assert (found["commitlog_sync"], found["commitlog_sync_period"]) == ("periodic", "10000ms")
    assert "127.0.0.1:9002" in json.dumps(found["seed_provider"])
    folders = [value for name, value in found.items() if name.endswith(("_directory", "_directories"))]
    assert len(folders) == 5 and all(str(tmp_path) in str(folder) for folder in folders)


def test_cassandra_is_started_with_what_java_17_asks_for(complete: Peers, tmp_path: Path) -> None:
    jars = complete.jars(CASSANDRA)
    (jars / "jamm-0.4.0.jar").touch()
    found = cassandra_server.command(Path("/java/bin/java"), jars, tmp_path)
    assert found[:3] == ["/java/bin/java", "-Xms2g", "-Xmx2g"]
    assert found[-3:] == ["-classpath", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"]
    assert f"-javaagent:{jars / 'jamm-0.4.0.jar'}" in found
    assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in found
    assert "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED" in found
    assert f"-Dcassandra.config=file://{tmp_path}/cassandra.yaml" in found


@pytest.mark.parametrize("count", [1, 3, 64])
def test_ranges_of_tokens_leave_no_row_out_and_count_none_twice(count: int) -> None:
    found = cassandra_server.token_ranges(count)
    assert len(found) == count
    assert (found[0][0], found[-1][1]) == (-(2**63), 2**63 - 1)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(found))


def test_the_connector_gets_its_options_and_its_jars_alone(complete: Peers, tmp_path: Path) -> None:
    plain, tuned = (
        served_tables.connector_request("input", complete, tmp_path, 9001, how) for how in served_tables._CONNECTOR
    )
    assert plain["options"] == {} and tuned["options"]
    assert plain["jars"] == [str(complete.jars(CONNECTOR) / f"{CONNECTOR.folder}.jar")]
    assert json.loads(json.dumps(tuned)) == tuned


def test_the_other_spark_sees_nothing_of_ours() -> None:
    ours = {"PATH": "/bin", "SPARK_HOME": "ours", "PYSPARK_PYTHON": "ours", "PYTHONPATH": "ours", "JAVA_HOME": "ours"}
    assert served_tables.connector_environment(ours, Path("/java/bin/java")) == {
        "PATH": "/bin",
        "JAVA_HOME": "/java",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def test_what_runs_in_the_other_spark_imports_nothing_of_ours() -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(Path(cassandra_load.__file__).read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert imported == {"__future__", "json", "sys", "time", "typing", "pyspark"}


def test_seconds_are_read_from_the_last_line() -> None:
    assert served_tables.parsed('a remark\n{"warm_s": 1, "load_s": 2.5}\n') == {"warm_s": 1.0, "load_s": 2.5}


@pytest.mark.parametrize("said", ["", "a remark\n", '{"warm_s": 1}\n', "[]\n", '{"warm_s": null, "load_s": 1}\n'])
def test_an_answer_without_seconds_fails_and_is_quoted(said: str) -> None:
    with pytest.raises(BenchmarkFailed, match="did not say how long it took") as failed:
        served_tables.parsed(said)
    assert repr(said) in str(failed.value)


def test_rows_that_did_not_arrive_fail_the_benchmark() -> None:
    served_tables.check_arrived(1000, 1000)
    with pytest.raises(BenchmarkFailed, match="holds 999 rows, and 1,000 were written"):
        served_tables.check_arrived(999, 1000)


def test_ours_are_warmed_up_and_loaded_before_and_after_each_of_theirs(tmp_path: Path) -> None:
    ours, said = stage(tmp_path)
    done: list[str] = []

    def theirs(name: str) -> float:
        done.append(name)
        return 100.0

    served_tables.compare(
        ours,
        {"Parquet files": lambda: done.append("ours")},
        {name: served_tables._bound(theirs, name) for name in ("first", "second")},
        lambda: done.append("settled"),
    )
    assert done == ["ours", "ours", "settled", "first", "ours", "settled", "second", "ours"]
    assert said[0].startswith("Parquet files to a table: ") and said[0].endswith(" s (warming up)")
    assert [(row.case, row.metric, row.peer, row.peer_value) for row in ours.report.rows] == [
        ("to a served table", "Parquet files, rows/s", "first", 100.0),
        ("to a served table", "Parquet files, rows/s", "second", 100.0),
    ]


def test_what_is_timed_has_run_once_before(tmp_path: Path) -> None:
    ours, said = stage(tmp_path)
    runs: list[int] = []
    ours.timed("a load", lambda: runs.append(1))
    assert len(runs) == 2
    assert said[0].endswith("(warming up)") and said[1].endswith("(round 1)")
