"""A local cluster's whole life, as its user sees it: up, broken, mended, grown, down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.operator import Cli
from trimtab.playground.local import LocalCluster
from trimtab.playground.processes import lives, session_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TOOK_NO_NOTE = "stopped without telling the cluster"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path / "local")
    yield cli
    stop(cli)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Two instances that were up, and are not: one of them alone has no majority, so it does not come Online."""
    cli = Cli(tmp_path_factory.mktemp("pair") / "local")
    try:
        cli.up(2)
        cli.until(lambda: all(cli.row(name)["voter"] for name in ("i1", "i2")), "both have a vote")
        # At once: whoever leaves in good order gives its vote back.
        stop(cli)
        yield cli
    finally:
        stop(cli)


def stop(cli: Cli) -> None:
    cluster = LocalCluster(cli.directory)
    if cluster.exists:
        with contextlib.suppress(ProcessLookupError):
            cluster.kill(list(cluster.running()))


def grades(cli: Cli) -> dict[str, str]:
    return {each["instance_id"]: each["current_grade"] for each in cli.status()["instances"]}


@pytest.mark.slow
def test_a_cluster_comes_up_survives_a_crash_grows_shrinks_and_goes_down(cli: Cli) -> None:
    shown = cli.up(3)
    cluster = LocalCluster(cli.directory)
    assert shown["dir"] == str(cli.directory)
    assert [each["instance_id"] for each in shown["instances"]] == ["i1", "i2", "i3"]
    ports = [int(each["listen"].rpartition(":")[2]) for each in shown["instances"]]
    assert [port - ports[0] for port in ports] == [0, 10, 20]
    first = shown["instances"][0]
    assert [first[name] for name in ("cql", "http", "bulk")] == [f"127.0.0.1:{ports[0] + each}" for each in (1, 2, 3)]
    assert {name: known.pid for name, known in cluster.running().items()} == {
        each["instance_id"]: each["pid"] for each in shown["instances"]
    }
    assert grades(cli) == {"i1": "Online", "i2": "Online", "i3": "Online"}
    assert "running already" in cli.ok("local", "up")

    # A crash of the leader: all its processes are gone, another leads, and it comes back by itself.
    cli.ok("metastore", "put", "before", "1")
    leader = cli.status()["leader"]
    everybody = session_of(cluster.running()[leader])
    assert len(everybody) >= 2, "a supervisor and its node"
    incarnation = cli.row(leader)["incarnation"]
    killed = cli.json("local", "kill", leader)
    assert killed["changed"] == [leader]
    assert not any(lives(each) for each in everybody)
    cli.ok("metastore", "put", "meanwhile", "1", "--timeout", "60")
    assert cli.status()["leader"] != leader
    cli.until(lambda: cli.row(leader)["current_grade"] == "Offline", f"{leader} to be marked Offline")
    cli.shown(f"Not well: {leader} is Offline")
    # The metastore still says what was before the crash; `start` returns when it is true again.
    cli.ok("local", "start", leader)
    row = cli.row(leader)
    assert (row["current_grade"], row["target_grade"]) == ("Online", "Online")
    assert row["incarnation"] > incarnation

    # A crash that nobody had time to notice: `start` still waits for the new life, not for the old row.
    incarnation = cli.row("i2")["incarnation"]
    cli.ok("local", "kill", "i2")
    cli.ok("local", "start", "i2")
    assert cli.row("i2")["incarnation"] > incarnation

    # In good order.
    stopped = cli.json("local", "stop", "i3")
    assert [each["running"] for each in stopped["instances"]] == [True, True, False]
    if TOOK_NO_NOTE in (cli.directory / "i3" / "log").read_text():
        # Leaving has 3 s, and the others were too busy: they find out by themselves.
        cli.until(lambda: cli.row("i3")["target_grade"] == "Offline", "i3 to be marked Offline")
    assert cli.row("i3")["target_grade"] == "Offline"
    cli.ok("local", "start", "i3")

    added = cli.json("local", "add")
    assert added["changed"] == ["i4"] and len(added["instances"]) == 4
    assert cli.row("i4")["current_grade"] == "Online"
    assert cli.row("i4")["failure_domain"] == {"host": "i4"}

    down = cli.json("local", "down")
    assert sorted(down["changed"]) == ["i1", "i2", "i3", "i4"]
    assert cluster.running() == {}
    assert "no local cluster runs" in cli.refused("status", code=2)

    # Everything is still there.
    cli.ok("local", "up")
    assert cli.ok("metastore", "get", "meanwhile") == "1\n"
    assert set(grades(cli).values()) == {"Online"}
    cli.ok("local", "down", "--purge")
    assert not cli.directory.exists()


def test_an_instance_that_can_not_start_is_told_with_the_end_of_its_log(cli: Cli) -> None:
    cli.up(1)
    cli.ok("local", "down")
    (cli.directory / "i1" / "data" / "instance.json").write_text("{")
    said = cli.refused("local", "up")
    assert "not all instances are Online" in said
    assert "i1: ended by itself:" in said and "instance.json" in said
    assert "the end of " in said and "`trimtab local down` stops them" in said


def test_a_wait_that_takes_too_long_says_who_is_where(pair: Cli) -> None:
    # On a busy machine it may not even answer after that time: then it is tried once more.
    for _ in range(3):
        stop(pair)
        done = pair.run("local", "start", "i1", "--timeout", "20")
        assert done.returncode == 1
        assert "not all instances are Online after 20 s" in done.stderr
        if "has no leader yet" in done.stderr:
            break
    assert "i1: up, but the cluster has no leader yet" in done.stderr


def test_the_way_to_the_cluster_is_found_in_the_usual_places(cli: Cli, tmp_path: Path) -> None:
    shown = cli.up(1)
    address = shown["instances"][0]["listen"]
    contact = cli.ok("local", "env").strip()
    assert contact == f"export TRIMTAB_CONTACT={address}"
    # Elsewhere, with nothing but that variable.
    elsewhere = Cli(tmp_path / "elsewhere")
    assert "no local cluster runs" in elsewhere.refused("status", code=2)
    found = elsewhere.run("status", "--json", TRIMTAB_CONTACT=address)
    assert json.loads(found.stdout)["leader"] == "i1"
    # Without a variable, the one that was brought up last is meant.
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "TRIMTAB_LOCAL_DIR": ""}
    assert cli.run("local", "up", "--dir", str(cli.directory), **state).returncode == 0
    assert json.loads(cli.run("status", "--json", **state).stdout)["leader"] == "i1"


def test_an_interrupted_up_leaves_the_instances_to_themselves_and_says_so(pair: Cli) -> None:
    cli = pair
    stop(cli)
    command = [sys.executable, "-m", "trimtab", "local", "start", "i1", "--timeout", "60"]
    waiting = subprocess.Popen(command, env=cli.environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cluster = LocalCluster(cli.directory)
    cli.until(lambda: "i1" in cluster.running(), "i1 to be started")
    # Python drops an interrupt that strikes where nothing can be raised (in a finalizer, a callback of a weak
    # reference), of which there are many while it imports; a person presses the keys again.
    for _ in range(5):
        os.kill(waiting.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            waiting.wait(10)
            break
    _, said = waiting.communicate(timeout=60)
    # Where it struck in code made by `exec`, a dataclass, Python ends by the signal: a shell says 130 then, too.
    assert waiting.returncode in (130, -signal.SIGINT), said
    assert "no longer waiting; instances that were started go on" in said
    assert "i1" in cluster.running()
