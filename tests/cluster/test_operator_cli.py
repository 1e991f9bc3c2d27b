"""What operators and scripts type against a real cluster: the shapes they rely on, and what is wrong in a sentence."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.operator import Cli
from trimtab.playground.local import LocalCluster
from trimtab.playground.ports import free_base

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

OF_AN_INSTANCE = {"instance_id", "raft_id", "address", "failure_domain", "state", "current_grade", "target_grade"}
OF_AN_INSTANCE |= {"incarnation", "voter", "weight", "tablets", "bytes"}
OF_A_TASK = {"id", "kind", "state", "why", "progress_bytes", "total_bytes", "rate_bytes_s", "eta_s", "started", "error"}
STATIC = {"key", "transition_state", "current_cdc_generation_timestamp", "current_cdc_generation_uuid"}
STATIC |= {"unpublished_cdc_generations", "global_topology_request", "new_cdc_generation_data_uuid"}
OF_A_NODE = {"host_id", "datacenter", "ignore_msb", "node_state", "num_tokens", "rack", "rebuild_option", "tokens"}
OF_A_NODE |= {"release_version", "replaced_id", "ignore_nodes", "shard_count", "topology_request"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Three instances for all of these stories, in their order: those that others have no use for any more are last."""
    cli = Cli(tmp_path_factory.mktemp("operator") / "local")
    try:
        cli.up(3)
        yield cli
    finally:
        made = LocalCluster(cli.directory)
        if made.exists:
            with contextlib.suppress(ProcessLookupError):
                made.kill(list(made.running()))


@pytest.fixture
def cli(cluster: Cli) -> Cli:
    """All that did not leave are up, whatever became of the story before."""
    cluster.ok("local", "up")
    return cluster


def test_scripts_find_the_shapes_they_rely_on_and_mistakes_are_told(cli: Cli) -> None:
    cli.shown("All is well")
    status = cli.status()
    assert {"cluster_id", "leader", "topology_version", "instances"} <= status.keys()
    assert all(each.keys() >= OF_AN_INSTANCE for each in status["instances"])
    assert status["leader"] in {each["instance_id"] for each in status["instances"]}
    cli.until(lambda: cli.json("status")["verdict"] == "well", "all to be well for scripts, too")

    topology = cli.json("topology")
    assert topology.keys() >= STATIC and topology["key"] == "topology"
    assert all(node.keys() >= OF_A_NODE for node in topology["nodes"])
    assert {node["node_state"] for node in topology["nodes"]} == {"normal"}

    lines = cli.ok("events", "--limit", "1000", "--json").splitlines()
    events = [json.loads(line) for line in lines]
    assert events[0]["kind"] == "founded" and events[-1]["number"] > events[0]["number"]
    assert [event["number"] for event in events] == sorted(event["number"] for event in events)
    assert any("is Online" in event["text"] for event in events)
    assert cli.ok("events", "--limit", "2").count("\n") == 2

    tasks = cli.json("tasks", "list")
    assert [task["kind"] for task in tasks] == ["join", "join"]
    assert all(task.keys() >= OF_A_TASK for task in tasks)
    assert cli.json("tasks", "show", str(tasks[0]["id"])) == tasks[0]
    assert cli.json("tasks", "wait", str(tasks[0]["id"]))["state"] == "done"

    probed = cli.json("probe", "i2")
    assert (probed["instance_id"], probed["stale"], probed["level"]) == ("i2", False, "QUORUM")
    assert "answered at ONE" in cli.ok("probe", "i3", "--level", "one")

    def well() -> bool:
        found = cli.json("doctor", "--listen", f"127.0.0.1:{free_base(1)}")["checks"]
        checks = {check["name"]: check["grade"] for check in found}
        assert checks["version"] == "ok"
        return checks["cluster"] == "ok"

    cli.until(well, "the doctor to find the cluster well")

    for command in ("expel", "decommission", "remove", "rebuild"):
        assert "there is no instance 'i9'; there are: i1, i2, i3" in cli.refused(command, "i9")
    assert "is alive, and only a dead instance is removed" in cli.refused("remove", "i3")
    assert "there is no instance 'i9' in the cluster" in cli.refused("probe", "i9")
    assert "there is no task 77" in cli.refused("tasks", "show", "77")
    assert "there is no task 77" in cli.refused("tasks", "cancel", "77")
    assert "is done already" in cli.refused("tasks", "cancel", "1")
    assert "is not an address" in cli.refused("status", "--peer", "nowhere", code=2)
    assert "Invalid value" in cli.refused("probe", "i1", "--level", "SOME", code=2)
    nobody = f"127.0.0.1:{free_base(1)}"
    wrong = cli.refused("status", "--peer", nobody, "--timeout", "1")
    assert f"no member of a cluster answers at {nobody} (asked for 1 s)" in wrong
    assert "Is it running, and is the address right?" in wrong
    # One wrong peer of two does no harm.
    assert cli.json("status", "--peer", nobody, "--peer", status["instances"][0]["address"])["leader"]


def test_a_lost_majority_is_told_as_such_and_nothing_pretends_to_work(cli: Cli) -> None:
    cli.ok("local", "kill", "i2", "i3")
    said = cli.shown("No majority: 1 of 3 voters answer, 2 are needed; there is no leader.")
    assert said.startswith("No majority")
    assert "Start i2 and i3 again." in said
    assert "as i1 last knew it, not confirmed by a majority" in said
    shown: dict[str, Any] = {}

    def is_told() -> bool:
        # While i1 is too busy to answer, there is nothing to show.
        done = cli.run("status", "--json")
        if done.returncode == 0:
            shown.update(json.loads(done.stdout))
        return done.returncode == 0 and shown["verdict"] == "stopped"

    cli.until(is_told, "scripts to be told that the cluster is stopped")
    assert shown["stale"] is True
    # While i1 is so busy that it does not answer, nobody knows.
    cli.until(lambda: "nothing was executed" in cli.refused("expel", "i2", "--timeout", "3"), "a certain answer")
    cli.until(lambda: cli.run("probe", "i1").returncode != 0, "the lease of i1 to end")
    assert "no_lease" in cli.refused("probe", "i1")
    assert cli.json("probe", "i1", "--level", "ONE")["stale"] is True
    assert cli.ok("events", "--limit", "1")

    def told() -> bool:
        doctor = cli.run("doctor", "--listen", f"127.0.0.1:{free_base(1)}")
        assert doctor.returncode == 1
        return "No majority" in doctor.stdout

    cli.until(told, "the doctor to tell of the majority")
    cli.ok("local", "start", "i2", "i3")
    assert cli.shown("All is well").startswith("All is well")


def test_instances_are_rebuilt_expelled_dead_or_alive_and_never_the_last(cli: Cli) -> None:
    done = cli.json("rebuild", "i3", "--source", "dc1")
    assert (done["kind"], done["state"], done["instance_id"]) == ("rebuild", "done", "i3")
    assert cli.row("i3")["state"] == "normal"

    asked = cli.json("decommission", "i3", "--no-wait")
    assert asked["kind"] == "leave" and asked["state"] in ("pending", "running")
    waited = cli.run("tasks", "wait", str(asked["id"]))
    assert waited.returncode == 0, waited.stderr
    row = cli.row("i3")
    assert (row["state"], row["current_grade"], row["target_grade"]) == ("left", "Expelled", "Expelled")
    assert "has left the cluster already" in cli.refused("expel", "i3")
    cli.until(lambda: "i3" not in LocalCluster(cli.directory).running(), "the process of i3 to end")
    cli.until(lambda: "i3" not in cli.ok("status"), "i3 not to be shown any more")
    assert "i3" in cli.ok("status", "--all")
    assert "was expelled from the cluster" in cli.refused("local", "start", "i3")
    # Brought up again as a whole, the cluster knows that it is without i3.
    cli.ok("local", "up")
    assert [each["left"] for each in cli.json("local", "list")["instances"]] == [False, False, True]

    # The leader itself, and the command's only contact at that.
    leader = cli.status()["leader"]
    gone = cli.json("expel", leader, "--peer", cli.row(leader)["address"])
    assert gone["state"] == "done"
    [last] = [each for each in cli.status()["instances"] if each["state"] == "normal"]
    name = last["instance_id"]
    assert "is the last member of the cluster" in cli.refused("expel", name)
    assert cli.status()["leader"] == name

    # Dead: a new one comes, dies, and is removed. Its name is free again, its number is not.
    numbers = [each["raft_id"] for each in cli.status()["instances"]]
    cli.ok("local", "add")
    assert cli.row("i4")["raft_id"] > max(numbers)


def test_what_happens_is_followed_as_it_happens(cli: Cli) -> None:
    command = [sys.executable, "-m", "trimtab", "events", "--follow", "--limit", "1", "--json"]
    following = subprocess.Popen(command, env=cli.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert following.stdout is not None
        # It follows from when it has shown what was the last event until then.
        assert json.loads(following.stdout.readline())["number"] > 0
        (added,) = cli.json("local", "add")["changed"]
        seen: list[dict[str, Any]] = []
        for line in following.stdout:
            seen.append(json.loads(line))
            if seen[-1]["text"] == f"{added} is Online":
                break
        of_it = [event["text"] for event in seen if event["text"].startswith(f"{added} ")]
        assert of_it[0].startswith(f"{added} at 127.0.0.1:")
    finally:
        following.kill()
        following.wait(60)
