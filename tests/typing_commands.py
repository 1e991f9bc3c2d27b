"""Commands that tests type: one succeeds, or is refused with sentences."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from typing import Any


class Typist(ABC):
    @abstractmethod
    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`trimtab …`, as it ended."""

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
