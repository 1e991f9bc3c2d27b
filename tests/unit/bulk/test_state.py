"""What a bulk child makes of the answers of its node: what they say, and when they came."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trimtab.bulk.state import SESSION_S, STALE_S, NotTold, Told
from trimtab.loads.protocol import BulkState

ASKED_S = 100.0


class Node:
    """Time passes each time it is asked; it answers what the test says, or nothing."""

    def __init__(self, answers: Callable[[float], list[str] | None]) -> None:
        self._answers = answers
        self.now_s = ASKED_S
        self.told = Told(lambda: self.now_s)
        self.told.take(state([]))
        self.told.ask = self.ask

    def ask(self) -> None:
        self.now_s += 0.5
        if (sessions := self._answers(self.now_s - ASKED_S)) is not None:
            self.told.take(state(sessions))


def state(sessions: list[str]) -> BulkState:
    return BulkState("i1", b"key", 0, sessions, 1 << 40, 0)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Condition.wait", lambda self, timeout=None: True)


def test_a_session_that_is_known_is_not_asked_for() -> None:
    node = Node(lambda _: None)
    node.told.take(state(["s1"]))
    assert node.told.await_open("s1", ASKED_S) and node.now_s == ASKED_S


def test_a_session_is_refused_by_an_answer_that_is_younger_than_the_question() -> None:
    node = Node(lambda _: [])
    assert not node.told.await_open("s1", ASKED_S)
    assert node.now_s == ASKED_S + SESSION_S
    # All that a question named is asked for once.
    assert not node.told.await_open("s2", ASKED_S) and node.now_s == ASKED_S + SESSION_S


def test_a_node_that_is_too_busy_to_answer_has_not_refused_a_session() -> None:
    node = Node(lambda after_s: ["s1"] if after_s >= 4 * SESSION_S else None)
    assert node.told.await_open("s1", ASKED_S)


def test_a_node_that_falls_silent_refuses_nothing_and_is_told_of() -> None:
    node = Node(lambda _: None)
    with pytest.raises(NotTold, match=r"has not answered for 1\d s"):
        node.told.await_open("s1", ASKED_S)
    assert node.now_s <= ASKED_S + STALE_S + SESSION_S


def test_a_child_that_was_just_started_asks_before_it_refuses_anything() -> None:
    node = Node(lambda after_s: ["s1"] if after_s >= 1.0 else None)
    node.told = Told(lambda: node.now_s)
    node.told.ask = node.ask
    with pytest.raises(NotTold, match="has not answered yet"):
        node.told.now()
    assert node.told.await_now().sessions == ["s1"] and node.now_s == ASKED_S + 1.0


def test_a_node_that_does_not_answer_at_all_is_not_waited_for_for_long() -> None:
    node = Node(lambda _: None)
    node.told = Told(lambda: node.now_s)
    node.told.ask = node.ask
    with pytest.raises(NotTold, match="has not answered yet"):
        node.told.await_now()
    assert node.now_s <= ASKED_S + 3.0
