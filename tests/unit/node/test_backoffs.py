"""Leaving alone what has just failed."""

from __future__ import annotations

from trimtab.node.backoffs import Backoffs


def test_each_failure_in_a_row_doubles_the_rest_up_to_a_limit() -> None:
    backoffs: Backoffs[int] = Backoffs(0.1, 10.0)
    waits = [backoffs.failed(7, 0.0) for _ in range(9)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_one_that_fails_does_not_hold_up_another_and_a_success_forgets() -> None:
    backoffs: Backoffs[int] = Backoffs(0.1, 10.0)
    backoffs.failed(1, 0.0)
    backoffs.failed(1, 0.0)
    assert backoffs.waiting(0.15) == {1}
    assert backoffs.waiting(0.25) == frozenset()
    backoffs.succeeded(1)
    assert backoffs.failed(1, 1.0) == 0.1


def test_what_nobody_tried_for_long_begins_anew() -> None:
    backoffs: Backoffs[int] = Backoffs(0.1, 10.0)
    for _ in range(8):
        backoffs.failed(1, 0.0)
    backoffs.waiting(200.0)
    assert backoffs.failed(1, 200.0) == 0.1
