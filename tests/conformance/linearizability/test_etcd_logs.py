"""Every published history of a real etcd under faults gets its published verdict, quickly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.linearizability.jepsen_log import parse, read
from trimtab.sim.linearizability import UNKNOWN_RESULT, Budget, Verdict, check
from trimtab.sim.models import Read, Register, Swap, Write

ROOT = Path(__file__).resolve().parents[3]
GIVEN = os.environ.get("TRIMTAB_VECTORS")
FOLDER = (Path(GIVEN) if GIVEN else ROOT.parent / "shared" / "vectors") / "linearizability"


def _verdicts() -> list[tuple[str, bool]]:
    file = FOLDER / "verdicts.txt"
    if not file.exists():
        return []
    lines = (line.split() for line in file.read_text().splitlines() if line.strip() and not line.startswith("#"))
    return [(name, verdict == "true") for name, verdict in lines]


VERDICTS = _verdicts()


def test_the_vectors_are_there() -> None:
    if not VERDICTS:
        if GIVEN:
            pytest.fail(f"TRIMTAB_VECTORS is set and {FOLDER}/verdicts.txt is missing or empty")
        pytest.skip(f"no histories in {FOLDER}: set TRIMTAB_VECTORS to the folder of the public vectors")
    missing = [name for name, _ in VERDICTS if not (FOLDER / name).exists()]
    assert not missing


@pytest.mark.parametrize("failed_swaps", [True, False], ids=["failed swaps seen", "failed swaps left out"])
@pytest.mark.parametrize(("name", "linearizable"), VERDICTS)
def test_a_history_gets_its_verdict(name: str, linearizable: bool, failed_swaps: bool) -> None:
    report = check(read(FOLDER / name, failed_swaps=failed_swaps), Register(), Budget(500_000))
    assert report.verdict is (Verdict.LINEARIZABLE if linearizable else Verdict.NOT_LINEARIZABLE), str(report)
    if not linearizable:
        assert report.explanation is not None and report.explanation.stuck


def test_the_parser_knows_every_kind_of_line() -> None:
    history = parse(
        "INFO  jepsen.util - 0\t:invoke\t:write\t3\n"
        "INFO  jepsen.util - 1   :invoke :read   nil\n"
        "INFO  jepsen.util - 1   :fail   :read   :timed-out\n"
        "INFO  jepsen.util - 2\t:invoke\t:cas\t[3 4]\n"
        "INFO  jepsen.util - 0\t:info\t:write\t:timed-out\n"
        "INFO  jepsen.util - 2\t:fail\t:cas\t[3 4]\n"
        "INFO  jepsen.core - nemesis\t:info\t:start\tnil\n"
        "INFO  jepsen.util - 0\t:invoke\t:read\tnil\n"
        "INFO  jepsen.util - 0\t:ok\t:read\tnil\n"
        "INFO  jepsen.util - 3\t:invoke\t:write\t1\n"
        "INFO  jepsen.util - 3\t:invoke\t:write\t2\n"
    )
    assert [(o.op, o.result) for o in history] == [
        (Write(3), UNKNOWN_RESULT),
        (Swap(3, 4), False),
        (Read(), None),
        (Write(1), UNKNOWN_RESULT),
        (Write(2), UNKNOWN_RESULT),
    ]
