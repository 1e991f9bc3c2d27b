"""`expel`, `decommission`, `remove`, `rebuild`, `tasks wait/cancel`: what is asked for, and how its end is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.cli.operator import MadeUp, Operator
from tests.unit.client.views import view

from trimtab.client.errors import InvalidRequest
from trimtab.topology.protocol import RequestReply, ViewReply
from trimtab.topology.records import RequestKind, RequestRecord, RequestState


def leaving(state: RequestState, reason: str = "") -> RequestRecord:
    return RequestRecord(RequestKind.LEAVE, state, raft_id=2, reason=reason)


def showing(*records: RequestRecord) -> list[ViewReply]:
    return [view(requests={4: record}) for record in records]


def asked(*records: RequestRecord) -> MadeUp:
    cluster = MadeUp(*showing(*records))
    cluster.answer = RequestReply(4, records[0])
    return cluster


@pytest.mark.parametrize(
    ("arguments", "kind", "options"),
    [
        (["expel", "i2"], RequestKind.LEAVE, {"expel": True, "drain": False, "deadline_ms": 0}),
        (["expel", "i2", "--drain"], RequestKind.LEAVE, {"expel": True, "drain": True, "deadline_ms": 0}),
        (["decommission", "i2", "--deadline", "1.5"], RequestKind.LEAVE, {"drain": True, "deadline_ms": 1_500}),
        (["remove", "i2", "--ignore", "i3"], RequestKind.REMOVE, {"ignore": ["i3"], "deadline_ms": 0}),
        (["rebuild", "i2", "--source", "dc1"], RequestKind.REBUILD, {"source": "dc1", "deadline_ms": 0}),
    ],
)
def test_each_command_asks_for_what_it_says(
    operator: Operator, arguments: list[str], kind: RequestKind, options: dict[str, Any]
) -> None:
    cluster = asked(leaving(RequestState.PENDING), leaving(RequestState.RUNNING), leaving(RequestState.DONE))
    code, out, _ = operator(cluster, *arguments)
    assert cluster.asked == [(kind, "i2", options)]
    assert code == 0 and out.startswith("Request 4, leave of i2, is done (")


def test_a_change_that_fails_says_why_and_exits_with_1(operator: Operator) -> None:
    cluster = asked(leaving(RequestState.RUNNING), leaving(RequestState.FAILED, "no other member is alive."))
    code, out, err = operator(cluster, "expel", "i2")
    assert (code, out) == (1, "")
    assert err == "trimtab: request 4, leave of i2, is failed: no other member is alive.\n"


def test_a_change_that_is_not_waited_for_says_how_to_look_at_it(operator: Operator) -> None:
    code, out, _ = operator(asked(leaving(RequestState.PENDING)), "expel", "i2", "--no-wait")
    assert code == 0
    assert "is pending. `trimtab tasks show 4` shows it, `trimtab tasks cancel 4` cancels it." in out
    shown = operator.json(asked(leaving(RequestState.PENDING)), "expel", "i2", "--no-wait")
    assert (shown["id"], shown["kind"], shown["state"]) == (4, "leave", "pending")


def test_scripts_get_the_task_even_if_it_failed(operator: Operator) -> None:
    code, out, err = operator(asked(leaving(RequestState.CANCELLED, "thought again")), "expel", "i2", "--json")
    shown = json.loads(out)
    assert (code, shown["state"], shown["error"]) == (1, "cancelled", "thought again")
    assert "is cancelled: thought again" in err


def test_a_refused_change_is_told_in_the_clusters_words(operator: Operator) -> None:
    cluster = asked(leaving(RequestState.PENDING))
    cluster.answer = InvalidRequest("i2 is the last member of the cluster")
    assert operator(cluster, "expel", "i2")[::2] == (1, "trimtab: i2 is the last member of the cluster.\n")


def test_leaving_the_wait_says_that_the_request_goes_on(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    cluster = asked(leaving(RequestState.RUNNING))
    monkeypatch.setattr(cluster, "wait", interrupted)
    code, _, err = operator(cluster, "expel", "i2")
    assert code == 130
    assert "no longer waiting; request 4 goes on. `trimtab tasks show 4` shows it" in err


def test_a_task_is_waited_for(operator: Operator) -> None:
    assert operator(asked(leaving(RequestState.RUNNING), leaving(RequestState.DONE)), "tasks", "wait", "4")[0] == 0
    assert operator(asked(leaving(RequestState.FAILED, "x")), "tasks", "wait", "4")[0] == 1


def test_a_task_is_cancelled_with_a_reason(operator: Operator) -> None:
    cluster = asked(leaving(RequestState.RUNNING))
    code, out, _ = operator(cluster, "tasks", "cancel", "4", "--reason", "thought again")
    assert cluster.asked == [(4, "thought again")]
    assert code == 0 and "will be cancelled; `trimtab tasks wait 4` waits for its end" in out
    _, out, _ = operator(asked(leaving(RequestState.CANCELLED)), "tasks", "cancel", "4")
    assert out == "Task 4 (i2 leaves the cluster) is cancelled.\n"


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_what_is_no_task_is_wrong_usage(operator: Operator, number: str) -> None:
    assert operator(MadeUp(view()), "tasks", "wait", "--", number)[0] == 2
