"""`topology`, `events`, `tasks list/show` and `probe`: what is printed of a made-up cluster."""

from __future__ import annotations

import json

import pytest
from tests.unit.cli.operator import MadeUp, Operator
from tests.unit.client.views import instance, view

from trimtab.client.errors import Error, Timeout
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import Level, ProbeReply
from trimtab.topology.records import EventRecord, RequestKind, RequestRecord, RequestState
from trimtab.topology.states import NodeState

EVENTS = {number: EventRecord(1_700_000_000_000 + number, "online", f"i{number} is Online") for number in (7, 8, 9)}
STATIC = {"key", "transition_state", "global_topology_request", "new_cdc_generation_data_uuid"}
STATIC |= {"current_cdc_generation_timestamp", "current_cdc_generation_uuid", "unpublished_cdc_generations"}
OF_A_NODE = {"host_id", "datacenter", "ignore_msb", "node_state", "num_tokens", "rack", "rebuild_option", "tokens"}
OF_A_NODE |= {"release_version", "replaced_id", "ignore_nodes", "shard_count", "topology_request"}


def test_the_topology_has_all_columns_of_the_table(operator: Operator) -> None:
    shown = operator.json(MadeUp(view()), "topology")
    assert shown.keys() >= STATIC and shown["nodes"][0].keys() >= OF_A_NODE


def test_the_topology_is_a_table_of_what_there_is(operator: Operator) -> None:
    leaving = RequestRecord(RequestKind.LEAVE, RequestState.RUNNING, raft_id=2)
    code, out, _ = operator(MadeUp(view(requests={3: leaving})), "topology")
    assert code == 0
    assert "version: 12" in out and "new_cdc_generation_data_uuid" not in out
    assert any(line.split() == ["i2", "uuid-2", "normal", "leave", "0.1.0"] for line in out.splitlines())


def test_events_come_newest_last(operator: Operator) -> None:
    _, out, _ = operator(MadeUp(view(events=EVENTS, last_event=9)), "events", "--limit", "2")
    assert [line.split()[0] for line in out.splitlines()] == ["8", "9"]
    assert out.splitlines()[-1].endswith("i9 is Online")


def test_events_go_on_as_they_happen_one_json_object_a_line(operator: Operator) -> None:
    cluster = MadeUp(view(events=EVENTS, last_event=9))
    cluster.followed = [(9, EVENTS[9]), (10, EventRecord(1_700_000_000_010, "down", "i1 is Offline"))]
    _, out, _ = operator(cluster, "events", "--follow", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["number"] for line in lines] == [7, 8, 9, 10]
    assert lines[-1]["text"] == "i1 is Offline" and lines[-1]["at"] == "2023-11-14T22:13:20.010Z"


def test_none_of_the_old_events_are_shown_where_none_are_wanted(operator: Operator) -> None:
    cluster = MadeUp(view(events=EVENTS, last_event=9))
    cluster.followed = [(9, EVENTS[9]), (10, EVENTS[9])]
    _, out, _ = operator(cluster, "events", "--follow", "--limit", "0")
    assert [line.split()[0] for line in out.splitlines()] == ["10"]


TASKS = {
    number: RequestRecord(RequestKind.JOIN, RequestState.DONE, raft_id=1, asked_ms=1_700_000_000_000)
    for number in range(1, 31)
} | {31: RequestRecord(RequestKind.LEAVE, RequestState.FAILED, raft_id=2, reason="i2 is dead")}


def test_tasks_show_the_last_that_ended_and_scripts_get_all(operator: Operator) -> None:
    cluster = MadeUp(view(requests=TASKS))
    _, out, _ = operator(cluster, "tasks", "list", "--limit", "2")
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["30", "31"]
    assert "i2 is dead" in out and "i2 leaves the cluster" in out
    shown = operator.json(cluster, "tasks", "list")
    assert len(shown) == 31
    wanted = {
        "id",
        "kind",
        "state",
        "why",
        "progress_bytes",
        "total_bytes",
        "rate_bytes_s",
        "eta_s",
        "started",
        "error",
    }
    assert wanted <= shown[0].keys() and shown[-1]["error"] == "i2 is dead"


def test_a_cluster_nothing_was_asked_of_has_no_tasks(operator: Operator) -> None:
    assert operator(MadeUp(view()), "tasks", "list")[1] == "No tasks: nothing was asked of the cluster yet.\n"
    assert operator.json(MadeUp(view()), "tasks", "list") == []


def test_one_task_is_shown_with_all_that_is_known(operator: Operator) -> None:
    _, out, _ = operator(MadeUp(view(requests=TASKS)), "tasks", "show", "31")
    assert ["error", "i2", "is", "dead"] in [line.split() for line in out.splitlines()]
    code, _, err = operator(MadeUp(view(requests=TASKS)), "tasks", "show", "99")
    assert code == 1 and "there is no task 99; `trimtab tasks list`" in err


def test_a_probe_says_who_answered_and_how_fresh(operator: Operator) -> None:
    cluster = MadeUp(view())
    cluster.answer = ProbeReply(2, 12, False, 40)
    code, out, _ = operator(cluster, "probe", "i2")
    assert code == 0 and out.startswith("i2 answered at QUORUM, under its lease, by topology version 12")
    cluster.answer = ProbeReply(2, 12, True, 40)
    shown = operator.json(cluster, "probe", "i2", "--level", "one")
    assert (shown["stale"], shown["level"], shown["raft_id"]) == (True, "ONE", 2)
    assert cluster.asked == [(2, Level.QUORUM), (2, Level.ONE)]


def test_a_probe_that_is_refused_fails_with_the_reason(operator: Operator) -> None:
    cluster = MadeUp(view())
    cluster.answer = Error("no_lease: i2 has no lease")
    assert operator(cluster, "probe", "i2")[::2] == (1, "trimtab: no_lease: i2 has no lease.\n")


def test_a_probe_of_nobody_names_who_there_is(operator: Operator) -> None:
    code, _, err = operator(MadeUp(view(instance(1), instance(2))), "probe", "i9")
    assert code == 1 and "there is no instance 'i9' in the cluster 'shop'; it has i1, i2." in err


def test_a_probe_of_an_instance_that_left_says_so_at_once(operator: Operator) -> None:
    cluster = MadeUp(view(instance(1), instance(2, Grade.EXPELLED, Grade.EXPELLED, state=NodeState.LEFT)))
    assert operator(cluster, "probe", "i2")[::2] == (
        1,
        "trimtab: i2 has left the cluster for good, so it serves nothing.\n",
    )
    assert not cluster.asked


@pytest.mark.parametrize(
    "command", [["topology"], ["events", "--limit", "0"], ["tasks", "list"], ["tasks", "show", "31"]]
)
def test_what_no_majority_confirmed_is_marked_beside_the_output(operator: Operator, command: list[str]) -> None:
    cluster = MadeUp(Timeout("no majority"))
    cluster.surveyed = {"127.0.0.1:1": view(requests=TASKS)}
    code, out, err = operator(cluster, *command)
    assert (code, err) == (0, "trimtab: not confirmed by a majority: nobody answers.\n")
    assert "not confirmed" not in out
