"""The same seed gives the same trace to the byte, in any process and under any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("gossip_run.py")


def trace(seed: int, hash_seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, str(SCRIPT), str(seed)], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_the_same_seed_gives_the_same_trace_to_the_byte_in_two_processes_with_different_hash_seeds() -> None:
    one, other = trace(7, "1"), trace(7, "4242")
    assert len(one.splitlines()) > 1000
    assert one == other


def test_another_seed_gives_another_trace() -> None:
    assert trace(7, "1") != trace(8, "1")
