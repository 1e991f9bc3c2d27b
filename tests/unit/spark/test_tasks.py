"""What a task says that gave up: the reason that ended the load, or its own where no other attempt can mend that."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.spark.plans import plan

from trimtab.spark import tasks
from trimtab.spark.load_plan import OutOfReach, StagedPart


@pytest.mark.parametrize(
    ("own", "again", "told"),
    [("the load load1 is not open any more", True, "i3 has no room"), ("the row with p0=None", False, "the row with")],
)
def test_a_task_passes_on_whether_another_attempt_at_the_load_may_help(
    monkeypatch: pytest.MonkeyPatch, own: str, again: bool, told: str
) -> None:
    monkeypatch.setattr(tasks, "stage", lambda *_args, **_named: StagedPart("a0", failed=own, again=again))
    monkeypatch.setattr(tasks, "end_load", lambda _plan, _reason: "i3 has no room")
    part = tasks.run_task(plan(), lambda _aside: [], renews=False)
    assert part.failed.startswith(told) and part.again is again


def test_a_task_out_of_reach_is_tried_again_and_then_says_that_later_it_may_be_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stage(*_args: Any, **_named: Any) -> StagedPart:
        raise OutOfReach("too few replicas")

    monkeypatch.setattr(tasks, "stage", stage)
    monkeypatch.setattr(tasks, "end_load", lambda _plan, reason: reason)
    monkeypatch.setattr(tasks, "attempt_name", lambda: ("a0", 0))
    with pytest.raises(OutOfReach):
        tasks.run_task(plan(), lambda _aside: [], renews=False)
    monkeypatch.setattr(tasks, "attempt_name", lambda: ("a1", 1))
    assert tasks.run_task(plan(), lambda _aside: [], renews=False) == StagedPart(
        "a1", failed="too few replicas", again=True
    )
