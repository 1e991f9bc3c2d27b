"""The office of the leader: confirmations are as old as their question, and a gap in time begins it anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trimtab.node.office import Office
from trimtab.raft.roles import StateType


class Leading:
    def __init__(self) -> None:
        self.now = 100.0
        self.raft = SimpleNamespace(state=StateType.LEADER, term=3)
        self.machine = SimpleNamespace(applied_term=3)
        self.asked: list[Any] = []
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=self.raft), machine=self.machine)
        host: Any = SimpleNamespace(read=lambda _group, done: self.asked.append(done))
        self.office = Office(host, group, lambda: self.now, gap_s=2.0)


def test_a_leader_is_in_office_when_it_has_applied_an_entry_of_its_own_term() -> None:
    leading = Leading()
    leading.machine.applied_term = 2
    assert not leading.office.look() and leading.office.term == 0
    leading.machine.applied_term = 3
    assert leading.office.look() and leading.office.term == 3 and not leading.office.look()
    leading.raft.state = StateType.FOLLOWER
    assert leading.office.look() and leading.office.term == 0


def test_a_confirmation_is_as_old_as_the_question_however_late_the_answer() -> None:
    leading = Leading()
    leading.office.look()
    done: list[Exception | None] = []
    leading.office.confirm(500, done.append)
    leading.office.confirm(500, done.append)
    assert len(leading.asked) == 1 and done == []
    leading.now += 5.0
    leading.asked.pop()(None)
    assert done == [None, None] and leading.office.confirmed_ms_ago() == 5000.0
    # Too old for the next one, so another round is asked.
    leading.office.confirm(500, done.append)
    assert len(leading.asked) == 1 and len(done) == 2


def test_one_confirmation_serves_many_while_it_is_fresh() -> None:
    leading = Leading()
    leading.office.look()
    leading.office.confirm(500, lambda _error: None)
    leading.asked.pop()(None)
    leading.now += 0.4
    done: list[Exception | None] = []
    leading.office.confirm(500, done.append)
    assert done == [None] and leading.asked == []


def test_an_answer_that_comes_when_it_leads_no_more_confirms_nothing() -> None:
    leading = Leading()
    leading.office.look()
    leading.office.confirm(500, lambda _error: None)
    leading.raft.state = StateType.FOLLOWER
    leading.asked.pop()(None)
    assert leading.office.confirmed_ms_ago() == float("inf")


def test_a_process_that_stood_still_begins_its_time_in_office_anew() -> None:
    leading = Leading()
    leading.office.look()
    for _ in range(10):
        leading.now += 1.0
        assert not leading.office.tick()
    assert leading.office.in_office_ms == 10_000
    leading.now += 30.0
    assert leading.office.tick() and leading.office.in_office_ms == 0
