"""Whole runs in processes of their own, compared by their traces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def assert_same_trace(seed: int, scenario: str, folder: Path) -> None:
    """The seed gives the same trace to the byte, whatever the order of sets and the addresses of objects are."""
    traces = []
    for hash_seed in ("1", "31337"):
        path = folder / f"trace-{hash_seed}"
        command = [sys.executable, "-m", "trimtab", "sim", "--seed", str(seed), "--scenario", scenario]
        done = subprocess.run(
            [*command, "--trace", str(path)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        traces.append(path.read_bytes())
    assert len(traces[0].splitlines()) > 1000
    assert traces[0] == traces[1]
