"""When an instance counts as Online: not because its row says so, but because it says so itself, too."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.views import instance, view

from trimtab.playground import forming
from trimtab.playground.forming import NotOnline, Standing, await_online, standing
from trimtab.topology.grades import Grade
from trimtab.topology.states import NodeState

HELD = view(lease_ms=2_000)
NONE = view(lease_ms=0)


def test_who_holds_a_lease_and_is_online_has_arrived() -> None:
    assert standing("i2", HELD, view()) == Standing("Online", online=True)


def test_a_row_from_before_a_crash_proves_nothing() -> None:
    assert standing("i2", "connection refused", view()).text == "does not answer yet (connection refused)"
    assert standing("i2", NONE, view()).text == "up, waiting for a lease"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (instance(2, Grade.RAFT_SYNCED, state=NodeState.BOOTSTRAPPING), "bootstrapping, RaftSynced → Online"),
        (instance(2, Grade.OFFLINE, Grade.OFFLINE), "normal, Offline → Offline"),
        (instance(7), "up, not in the cluster yet"),
    ],
)
def test_it_is_told_how_far_an_instance_is(row: object, text: str) -> None:
    assert standing("i2", HELD, view(row)) == Standing(text)  # type: ignore[arg-type]


def test_before_there_is_a_leader_nobody_has_arrived() -> None:
    assert standing("i2", HELD, None) == Standing("up")
    assert standing("i2", HELD, None, "timeout").text == "up, but the cluster has no leader yet (timeout)"


def test_who_was_expelled_never_arrives() -> None:
    gone = instance(2, Grade.EXPELLED, Grade.EXPELLED, state=NodeState.LEFT, reason="it was decommissioned")
    found = standing("i2", "connection refused", view(instance(1), gone))
    assert found == Standing("has left the cluster: it was decommissioned", left=True)


def test_a_name_that_was_used_before_means_the_last_who_has_it() -> None:
    gone = instance(2, Grade.EXPELLED, Grade.EXPELLED, state=NodeState.LEFT)
    assert standing("i2", HELD, view(gone, instance(5, name="i2"))).online


def test_the_failure_says_who_is_where() -> None:
    error = NotOnline(
        {"i1": Standing("Online", online=True), "i2": Standing("up"), "i3": Standing("x")}, {"i3": "port taken"}
    )
    assert str(error) == "i3 ended by itself: port taken; i2: up"


def test_one_that_is_slow_when_time_is_up_is_not_told_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def look(_client: object, _wanted: object, answer_s: float) -> tuple[dict[str, Standing], bool]:
        asked.append(answer_s)
        return {"i1": Standing("up" if answer_s > 1 else "does not answer yet")}, False

    monkeypatch.setattr(forming, "look", look)
    waiting = await_online({"i1": "127.0.0.1:1"}, timeout_s=0.01, ended=dict, seen=lambda _standings: None)
    with pytest.raises(NotOnline, match=r"^i1: up$"):
        asyncio.run(waiting)
    assert asked[-2:] == [0.3, 2.0]
