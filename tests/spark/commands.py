"""Commands as somebody types them in a shell, each a process of its own, which means one cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.spark.trio import WAIT_S

_PATIENCE_S = "60"  # of one answer, on a busy machine


class Commands:
    """`trimtab …`, at the cluster of these members."""

    def __init__(self, peer: str) -> None:
        self._environment = os.environ | {"TRIMTAB_CONTACT": peer, "TRIMTAB_TIMEOUT": _PATIENCE_S}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trimtab", *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=WAIT_S)

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        """What is said about what can't be done, in sentences."""
        done = self.run(*arguments)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr
