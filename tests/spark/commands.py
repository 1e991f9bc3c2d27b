"""Commands as somebody types them in a shell, each a process of its own, which means one cluster."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.spark.trio import WAIT_S
from tests.typing_commands import Typist

_PATIENCE_S = "60"  # of one answer, on a busy machine


class Commands(Typist):
    """`trimtab …`, at the cluster of these members."""

    def __init__(self, peer: str) -> None:
        self._environment = os.environ | {"TRIMTAB_CONTACT": peer, "TRIMTAB_TIMEOUT": _PATIENCE_S}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trimtab", *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=WAIT_S)
