from __future__ import annotations

import dataclasses

import pytest

from trimtab.playground.demo import Outcome
from trimtab.playground.writing import WAIT_S, Writing

GOOD = Outcome(
    acknowledged=100,
    unknown=0,
    lost=0,
    doubled=0,
    formed_ms=3000,
    interruption_ms=150,
    marked_offline_ms=6000,
    returned_ms=1500,
    killed="i1",
    leader_before="i1",
    leader_after="i2",
    revision=100,
    checksums={"i1": "ab", "i2": "ab", "i3": "ab"},
    seconds=8.0,
)


def test_the_longest_silence_begins_with_the_kill_itself() -> None:
    writing = Writing(times=[1.0, 2.0, 2.1, 3.5, 3.6])
    assert writing.longest_silence_s(since=2.05) == pytest.approx(1.4)
    assert writing.longest_silence_s(since=0.0) == pytest.approx(1.4)


def test_a_service_that_never_came_back_counts_as_the_whole_wait() -> None:
    assert Writing(times=[1.0]).longest_silence_s(since=2.0) == WAIT_S


def test_a_loss_a_double_or_a_different_checksum_makes_it_a_failure() -> None:
    assert GOOD.good
    assert not dataclasses.replace(GOOD, lost=1).good
    assert not dataclasses.replace(GOOD, doubled=1).good
    assert not dataclasses.replace(GOOD, checksums={"i1": "ab", "i2": "ab", "i3": "cd"}).good
