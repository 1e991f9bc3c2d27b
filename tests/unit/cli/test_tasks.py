"""`trimtab tasks` with jobs among them, and how commands that are jobs wait for their end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.cli.operator import MadeUp, MadeUpJobs, Operator
from tests.unit.client.views import view

from trimtab.client.errors import InvalidRequest
from trimtab.jobs.protocol import Progress
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.topology.records import RequestKind, RequestRecord, RequestState

JOINED = {1: RequestRecord(RequestKind.JOIN, RequestState.DONE, raft_id=1, asked_ms=1_700_000_000_000)}
LOAD = JobRecord(
    2, Command(JobKind.LOAD, {"table": "shop.users"}), JobState.RUNNING, attempts=1, owner_term=1, asked_ms=1
)
# What scripts rely on.
FIELDS = {"id", "kind", "state", "why", "progress_bytes", "total_bytes", "rate_bytes_s", "eta_s", "started", "error"}


def changed(**fields: Any) -> JobRecord:
    return msgspec.structs.replace(LOAD, **fields)


def cluster(*jobs: JobRecord) -> MadeUp:
    made = MadeUp(view(requests=JOINED))
    made.jobs = MadeUpJobs(*jobs)
    made.jobs.progress = [Progress(2, 25 << 20, 100 << 20, 5, 20, float(5 << 20), 15.0, "writing")]
    return made


def test_requests_and_jobs_are_listed_together_with_how_far_they_are(operator: Operator) -> None:
    shown = operator.json(cluster(LOAD), "tasks", "list")
    assert [(task["id"], task["kind"], task["state"]) for task in shown] == [
        (1, "join", "done"),
        (2, "load", "running"),
    ]
    assert all(task.keys() == shown[0].keys() >= FIELDS for task in shown)
    assert (shown[1]["why"], shown[1]["rate_bytes_s"], shown[1]["eta_s"]) == ("load of shop.users", 5 << 20, 15.0)
    _, out, _ = operator(cluster(LOAD), "tasks", "list")
    assert "running, writing, 25% of 100 MiB, 5 rows, 5.0 MiB/s, 15 s left" in out


def test_a_job_that_is_to_be_tried_again_says_why(operator: Operator) -> None:
    _, out, _ = operator(cluster(changed(state=JobState.QUEUED, error="no answer")), "tasks", "list")
    assert "queued" in out
    assert "no answer" in out


def test_a_job_that_nobody_runs_says_so(operator: Operator) -> None:
    _, out, _ = operator(cluster(changed(state=JobState.QUEUED)), "tasks", "show", "2")
    assert "no driver runs; the leader's supervisor starts one, or `trimtab pipeline` does" in out


def test_all_that_is_known_of_a_job_is_shown(operator: Operator) -> None:
    ended = changed(state=JobState.SUCCEEDED, result={"rows": 5}, why="nightly", waits_for=(1,))
    _, out, _ = operator(cluster(ended), "tasks", "show", "2")
    assert 'result            {"rows": 5}' in out
    assert "nightly" in out
    code, _, err = operator(cluster(ended), "tasks", "show", "3")
    assert code == 1
    assert "there is no task 3; `trimtab tasks list`" in err


@pytest.mark.parametrize(
    ("order", "after", "said"),
    [
        ("pause", changed(wanted="pause"), "Task 2 (load of shop.users) will pause; `trimtab tasks resume 2`"),
        ("pause", changed(state=JobState.PAUSED), "Task 2 (load of shop.users) is paused."),
        ("resume", changed(state=JobState.QUEUED), "Task 2 (load of shop.users) is queued."),
        ("cancel", changed(wanted="cancel"), "will be cancelled; `trimtab tasks wait 2` waits for its end."),
        ("cancel", changed(state=JobState.CANCELLED), "Task 2 (load of shop.users) is cancelled."),
    ],
)
def test_a_job_is_steered_and_it_is_said_what_that_means(
    operator: Operator, order: str, after: JobRecord, said: str
) -> None:
    made = cluster(LOAD)
    made.jobs.steered = after
    code, out, _ = operator(made, "tasks", order, "2")
    assert code == 0
    assert said in out
    assert made.jobs.asked == [(2, order, "")]


def test_a_request_can_only_be_cancelled_and_what_is_refused_says_why(operator: Operator) -> None:
    code, _, err = operator(cluster(LOAD), "tasks", "pause", "1")
    assert code == 1
    assert "is a request; only jobs and tablets under way can be told to pause." in err
    made = cluster(LOAD)
    made.jobs.steered = InvalidRequest("job 2 (load) is succeeded already")
    code, _, err = operator(made, "tasks", "cancel", "2")
    assert (code, err) == (1, "trimtab: job 2 (load) is succeeded already.\n")


def test_waiting_for_a_job_ends_with_how_it_ended(operator: Operator) -> None:
    made = cluster(LOAD)
    made.jobs.states = [LOAD, changed(state=JobState.SUCCEEDED)]
    code, out, _ = operator(made, "tasks", "wait", "2")
    assert code == 0
    assert out.startswith("Job 2 (load of shop.users) succeeded (")
    made.jobs.states = [changed(state=JobState.FAILED, error="no space")]
    code, _, err = operator(made, "tasks", "wait", "2")
    assert (code, err) == (1, "trimtab: job 2 (load of shop.users) failed: no space.\n")


def test_waiting_for_a_job_tells_what_it_found_as_its_command_does(operator: Operator) -> None:
    found = {"equal": False, "table": "shop.users", "differences": 0, "troubles": ["i2 could not be asked"]}
    verify = changed(command=Command(JobKind.VERIFY, {"table": "shop.users"}), state=JobState.SUCCEEDED, result=found)
    made = cluster(verify)
    made.jobs.states = [verify]
    code, out, _ = operator(made, "tasks", "wait", "2")
    assert code == 1
    assert out.startswith("not compared: i2 could not be asked (")
    count = changed(command=Command(JobKind.COUNT), state=JobState.SUCCEEDED, result={"rows": 1200})
    made = cluster(count)
    made.jobs.states = [count]
    code, out, _ = operator(made, "tasks", "wait", "2")
    assert code == 0
    assert out.startswith("1,200 rows (")


def test_orders_to_a_task_that_is_not_there_say_so(operator: Operator) -> None:
    for order in ("pause", "resume", "cancel"):
        code, _, err = operator(cluster(LOAD), "tasks", order, "77")
        assert (code, err) == (1, "trimtab: there is no task 77; `trimtab tasks list` shows those there are.\n")


def test_waiting_for_a_task_that_is_not_there_says_so(operator: Operator) -> None:
    code, _, err = operator(cluster(), "tasks", "wait", "77")
    assert code == 1 and "there is no task 77" in err
