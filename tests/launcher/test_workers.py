"""Commands that start worker processes work when they are started as users start them: through the installed script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_many_seeds_run_in_workers_from_the_installed_script(project_root: Path) -> None:
    """A script without a main guard is run again by every worker it starts, which then starts workers, for ever."""
    script = Path(sys.executable).parent / "trimtab"
    if not script.exists():
        pytest.skip("trimtab is not installed as a script here")
    done = subprocess.run(
        [script, "sim", "--seeds", "0:2", "--json"], cwd=project_root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] == 2
