"""The demo as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster


def test_the_demo_loses_nothing_comes_back_within_two_seconds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", "demo", "--json", "--picture", str(tmp_path / "demo.svg")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["lost"], outcome["missing"]) == (0, 0)
    assert outcome["acknowledged"] > 100 and outcome["while_away"] > 50
    assert outcome["leader_after"] != outcome["killed"]
    assert outcome["interruption_ms"] < 2000
    assert [path.name for path in tmp_path.iterdir()] == ["demo.svg"]
    assert "<svg" in (tmp_path / "demo.svg").read_text()
