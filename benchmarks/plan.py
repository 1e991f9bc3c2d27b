"""Planning: how long it takes, how much memory, how near to the least it comes, and how even it ends.

Beside it, what rendezvous hashing and document 003's algorithm would do in the same place (`plan_cases`). Every case
runs in a process of its own, so that its memory is its own. A plan is computed, nothing moves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.load import BenchmarkFailed
from benchmarks.plan_cases import KINDS
from benchmarks.report import Options, Report, Row, describe_machine

SIZES = ((10_000, 10), (10_000, 100), (100_000, 100), (100_000, 1_000), (1_000_000, 100), (1_000_000, 1_000))
SECONDS_GOAL = 60.0
MEMORY_GOAL_MB = 4096.0
TITLES = {
    "add": "nodes added",
    "remove": "nodes drained",
    "replace": "nodes dead and replaced",
    "heal": "nodes dead",
    "capacities": "capacities 1 to 8, nodes added",
    "zipf": "zipfian sizes, nodes added",
}
_LIMIT_S = 1_800.0


def run(options: Options, say: Callable[[str], None]) -> Report:
    """`options.rows`: the most tablets of a case."""
    report = Report("plan", describe_machine(options.folder))
    for tablets, nodes in SIZES:
        if options.rows and tablets > options.rows:
            continue
        for kind in KINDS:
            case = f"{tablets:,} tablets × 3 on {nodes:,}: {TITLES[kind]}"
            say(case)
            _add(report, case, _measured(options, kind, tablets, nodes))
    report.notes.append(
        "replicas of a tablet are in different racks; ours keeps that, rendezvous too, document 003 not"
    )
    report.notes.append(
        "a tenth of the nodes is added (two of ten); one in a hundred, at least one, is drained or dead"
    )
    report.notes.append("ratios are to our lower bound for a state as even as ours; peers end less evenly")
    report.notes.append(
        "document 003 copies every shard to every new node; where one is dead and one new it does nothing"
    )
    report.notes.append("zipfian sizes: 1 ÷ rank, at most 10 times the mean, because larger tablets are split")
    return report


def _measured(options: Options, kind: str, tablets: int, nodes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.plan_cases", kind, str(tablets), str(nodes)]
    try:
        ended = subprocess.run(command, cwd=options.root, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"planning {kind} for {tablets} tablets took longer than {_LIMIT_S:g} s") from error
    if ended.returncode:
        raise BenchmarkFailed(f"planning {kind} for {tablets} tablets failed: {ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    if found["problems"] or found["again"]:
        said = found["problems"] or f"planned again, {found['again']} moves were left"
        raise BenchmarkFailed(f"planning {kind} for {tablets} tablets on {nodes} nodes: {said}")
    return found


def _add(report: Report, case: str, found: dict[str, Any]) -> None:
    hashed, document = found["rendezvous"], found["document 003"]
    report.rows += [
        Row(case, "seconds", found["seconds"], "goal", SECONDS_GOAL, "lower"),
        Row(case, "CPU seconds", found["cpu_seconds"], "goal", SECONDS_GOAL, "lower"),
        Row(case, "peak memory MB", found["peak_mb"], "goal", MEMORY_GOAL_MB, "lower"),
        Row(case, "moves", float(found["moves"]), "-", None, "lower"),
        Row(case, "moves ÷ bound", found["ratio"], "rendezvous", hashed["ratio"], "lower"),
        Row(case, "moves ÷ bound", found["ratio"], "document 003", document["ratio"], "lower"),
        Row(case, "bytes ÷ bound", found["ratio_bytes"], "goal", 1.05, "lower"),
        Row(case, "spread %", 100 * found["spread"], "rendezvous", 100 * hashed["spread"], "lower"),
        Row(case, "spread %", 100 * found["spread"], "document 003", 100 * document["spread"], "lower"),
    ]
