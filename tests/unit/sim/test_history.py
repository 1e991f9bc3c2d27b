"""What clients saw is judged: answers that fit one order pass, a stale read does not."""

from __future__ import annotations

from trimtab.sim.history import History, Outcome
from trimtab.sim.linearizability import Verdict
from trimtab.sim.models import Get, Put


def record(history: History, client: str, deed: Get | Put, began: float, ended: float | None, result: object) -> None:
    operation = history.invoke(client, deed, began)
    operation.returned_at, operation.result = ended, result
    operation.outcome = Outcome.OK if ended is not None else Outcome.UNKNOWN


def test_a_read_that_misses_a_finished_write_is_not_linearizable() -> None:
    history = History()
    record(history, "c1", Put(b"k", b"a"), 0.0, 1.0, 1)
    record(history, "c1", Put(b"k", b"b"), 2.0, 3.0, 2)
    record(history, "c2", Get(b"k"), 4.0, 5.0, (b"a", 1))
    assert history.judge(10_000).verdict is Verdict.NOT_LINEARIZABLE
    assert "c2: Get(key=b'k') -> ok (b'a', 1)" in history.operations[-1].describe()


def test_a_write_of_unknown_outcome_may_show_up_later_or_never() -> None:
    for shown in (None, (b"a", 1)):
        history = History()
        record(history, "c1", Put(b"k", b"a"), 0.0, None, None)
        record(history, "c2", Get(b"k"), 4.0, 5.0, shown)
        assert history.judge(10_000).verdict is Verdict.LINEARIZABLE


def test_a_failed_write_that_shows_up_is_not_linearizable() -> None:
    history = History()
    history.invoke("c1", Put(b"k", b"a"), 0.0).outcome = Outcome.FAILED
    record(history, "c2", Get(b"k"), 4.0, 5.0, (b"a", 1))
    assert history.judge(10_000).verdict is Verdict.NOT_LINEARIZABLE
    assert history.count(Outcome.FAILED) == 1
