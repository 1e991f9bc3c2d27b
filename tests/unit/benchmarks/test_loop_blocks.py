"""Whose doing it is that a loop stood still."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.loop_blocks import LoopBlocks, long_blocks
from benchmarks.report import Report
from benchmarks.standstill import Standstill

BEFORE = Counter({10.0: 500, 20.0: 7, 50.0: 1, 100.0: 0, 60_000.0: 0})


def after(**more: int) -> Counter[float]:
    found = BEFORE.copy()
    found.update({float(name[1:]): count for name, count in more.items()})
    return found


class Instances:
    def __init__(self, *seen: Counter[float]) -> None:
        self._seen = list(seen)

    def pids(self) -> list[int]:
        return [1, 2]

    def loop_blocks(self) -> Counter[float]:
        return self._seen.pop(0)


class Machine:
    """Stood still for so long in each round."""

    known = True

    def __init__(self, *rounds_ms: list[float]) -> None:
        self._rounds_ms = [[], *rounds_ms]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def lately(self) -> list[float]:
        return self._rounds_ms.pop(0)


@pytest.mark.parametrize(
    ("now", "count", "longest_ms"),
    [
        (after(), 0, 0.0),
        (after(_10=100, _20=3), 0, 20.0),
        (after(_50=2), 2, 50.0),
        (after(_20=3, _100=1), 1, 100.0),
        (after(_50=1, _60000=1), 2, 60_000.0),
    ],
)
def test_long_blocks_are_those_above_the_goal(now: Counter[float], count: int, longest_ms: float) -> None:
    assert long_blocks(BEFORE, now) == (count, longest_ms)


def test_a_standstill_of_the_machine_accounts_for_one_block_of_each_instance(tmp_path: Path) -> None:
    blocks = LoopBlocks(tmp_path)
    blocks._standstill = Machine([5.0, 30.0], [9.0, 9.0, 9.0], [15.0, 40.0])  # type: ignore[assignment]
    ours = Instances(BEFORE, after(_50=3), after(_50=4), after(_50=8))
    blocks.begin(ours)
    blocks.look()
    assert (blocks.own, blocks.machines) == (1, 2), "two instances, one standstill"
    blocks.look()
    assert (blocks.own, blocks.machines) == (2, 2), "many short ones are none"
    blocks.look()
    assert (blocks.own, blocks.machines) == (2, 6)
    report = Report("serve", {})
    blocks.end()
    blocks.tell(report)
    assert [(row.metric, row.ours) for row in report.rows] == [
        ("blocks of more than 20 ms", 2.0),
        ("the same while the machine stood still", 6.0),
        ("longest of all, ms, at most", 50.0),
    ]
    assert report.notes[0].startswith("goal MISSED") and "late by up to 40 ms" in report.notes[1]


def test_a_standstill_is_told_once_when_its_line_is_whole(tmp_path: Path) -> None:
    watch = Standstill(tmp_path)
    assert watch.lately() == []
    watch = Standstill(tmp_path)
    first, *others = sorted(os.sched_getaffinity(0))
    (tmp_path / f"standstill-{first}").write_text("1.0 0.030\n2.0 0.010\n1e18 0.050\n3.0 0.0")
    for other in others:
        (tmp_path / f"standstill-{other}").write_text("1.0 0.020\n")
    assert watch.lately() == pytest.approx([30.0, 10.0])
    assert watch.lately() == []
