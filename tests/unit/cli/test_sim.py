"""`trimtab sim` as scripts see it: ranges, JSON, exit codes, and what a failure tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.cli.errors import WrongUsage
from trimtab.cli.main import run
from trimtab.cli.sim import parse_seeds
from trimtab.sim import runner
from trimtab.sim.run import Outcomes


def test_a_range_of_seeds_is_half_open() -> None:
    assert list(parse_seeds("3:6")) == [3, 4, 5]
    for wrong in ("5", "5:", ":5", "6:6", "7:3", "a:b", "-1:4"):
        with pytest.raises(WrongUsage, match="range of seeds"):
            parse_seeds(wrong)


def test_one_seed_tells_its_story_and_writes_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace"
    assert run(["sim", "--seed", "1", "--scenario", "calm", "--trace", str(trace)]) == 0
    told = capsys.readouterr().out
    assert "leads term" in told
    assert "seed 1 passed" in told
    assert "HEARTBEAT" in trace.read_text()


def test_json_has_the_promised_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--seeds", "1:2", "--scenario", "calm", "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["seeds"], report["passed"], report["failed"]) == (1, 1, [])
    assert report["events"] > 0
    assert report["seconds"] > 0


def test_a_failure_is_told_with_its_seed_and_gives_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_the_second(seed: int, scenario: str) -> Outcomes:
        why = "two leaders in term 7: 1 and 2" if seed == 1 else ""
        return Outcomes(seed, scenario, why, "the evidence", story=[(1.5, "n1", "leads term 7")])

    monkeypatch.setattr(runner, "run_seed", fail_the_second)
    assert run(["sim", "--seeds", "0:3", "--workers", "1"]) == 1
    told = capsys.readouterr().out
    for words in ("seed 1 FAILED: two leaders", "the evidence", "leads term 7", "replay it with: trimtab sim --seed 1"):
        assert words in told
    assert "2 of 3 seeds passed" in told
    assert run(["sim", "--seeds", "0:3", "--workers", "1", "--fail-fast", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] == [{"seed": 1, "why": "two leaders in term 7: 1 and 2"}]
    assert report["seeds"] == 2


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim"]) == 2
    assert run(["sim", "--seed", "1", "--seeds", "1:2"]) == 2
    assert run(["sim", "--seed", "1", "--scenario", "war"]) == 2
    assert run(["sim", "--seeds", "1:2", "--trace", "x"]) == 2
    assert "there is no scenario 'war'" in capsys.readouterr().err


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--list"]) == 0
    assert "chaos" in capsys.readouterr().out


def test_many_seeds_run_in_processes_of_their_own() -> None:
    report = runner.run_seeds(range(1, 4), "calm", workers=2)
    assert (report.seeds, report.passed) == (3, 3)
