from __future__ import annotations

import dataclasses

from trimtab.playground.demo_outcome import Act, Outcome

GOOD = Outcome(
    acts=[Act("three instances form a cluster", 3.0)],
    rows=1000,
    writes=100,
    reads=100,
    failed=0,
    wrong=0,
    errors=[],
    replicas_equal=True,
    rows_equal=True,
    killed="i1",
    peers=["127.0.0.1:3301"],
    seconds=60.0,
)


def test_a_row_that_is_lost_changed_or_differs_between_replicas_makes_it_a_failure() -> None:
    assert GOOD.good
    assert not dataclasses.replace(GOOD, rows_equal=False).good
    assert not dataclasses.replace(GOOD, replicas_equal=False).good
    assert not dataclasses.replace(GOOD, wrong=1).good


def test_a_request_that_failed_while_an_instance_was_dead_loses_nothing() -> None:
    assert dataclasses.replace(GOOD, failed=1, errors=["nobody answered"]).good
