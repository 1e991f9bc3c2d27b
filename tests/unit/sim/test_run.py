"""A seed passes only when every check has spoken."""

from __future__ import annotations

import pytest

from trimtab.sim import run
from trimtab.sim.run import run_seed


def test_a_history_that_could_not_be_judged_is_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(1, "calm").passed
    monkeypatch.setattr(run, "MAX_JUDGE_STEPS", 1)
    undecided = run_seed(1, "calm")
    assert not undecided.passed
    assert "could not be judged within 1 steps" in undecided.why
