"""The command line as an operator uses it, with a local cluster of real processes behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.playground.ports import free_base

# Quicker than the defaults, in the same proportions.
BRISK = {"TRIMTAB_TICK_MS": "40", "TRIMTAB_LEASE_MS": "1000", "TRIMTAB_OFFLINE_AFTER_MS": "2000"}


class Cli:
    """Types commands; all of them mean the cluster in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
        self.environment = kept | BRISK | {"TRIMTAB_LOCAL_DIR": str(directory)}

    def run(self, *arguments: str, timeout_s: float = 100, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trimtab", *arguments],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        """What is said, on standard error alone and in sentences, about what can't be done."""
        done = self.run(*arguments)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr

    def up(self, nodes: int) -> Any:
        base = free_base(nodes + 2)
        return self.json("local", "up", "--nodes", str(nodes), "--base-port", str(base))

    def row(self, instance_id: str) -> dict[str, Any]:
        rows = [each for each in self.json("status")["instances"] if each["instance_id"] == instance_id]
        found: dict[str, Any] = rows[-1]
        return found

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for: {what}"
            time.sleep(0.05)
