"""The command line as an operator uses it, with a local cluster of real processes behind it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from tests.typing_commands import Typist
from trimtab.cli.main import run
from trimtab.playground.ports import free_base

# As the defaults are, with longer leases: a busy machine keeps these times.
BRISK = {"TRIMTAB_TICK_MS": "100", "TRIMTAB_LEASE_MS": "4000", "TRIMTAB_OFFLINE_AFTER_MS": "6500"}
# And longer ones, where nobody is waited for to be marked Offline.
STEADY = {"TRIMTAB_TICK_MS": "100", "TRIMTAB_LEASE_MS": "6000", "TRIMTAB_OFFLINE_AFTER_MS": "10000"}
# These wait until instances are Online; for a minute, unless told otherwise.
_WAITING = ("up", "add", "start")
_ONLINE_S = "150"


def typed(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command in this process, with this environment: what it says, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, env, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


class Cli(Typist):
    """Types commands; all of them mean the cluster in one directory."""

    def __init__(self, directory: Path, timing: Mapping[str, str] = BRISK) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
        # Patient, on a busy machine; the flag of a command counts more.
        told = {"TRIMTAB_LOCAL_DIR": str(directory), "TRIMTAB_TIMEOUT": "60"}
        self.environment = kept | dict(timing) | told

    def run(self, *arguments: str, timeout_s: float = 200, **variables: str) -> subprocess.CompletedProcess[str]:
        """A process for what has processes of its own; all else is typed in this one, which has loaded it before."""
        if arguments[0] != "local":
            return typed(*arguments, env=self.environment | variables)
        if arguments[1] in _WAITING and "--timeout" not in arguments:
            arguments = (*arguments, "--timeout", _ONLINE_S)
        return subprocess.run(
            [sys.executable, "-m", "trimtab", *arguments],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def up(self, nodes: int) -> Any:
        base = free_base(nodes + 2)
        return self.json("local", "up", "--nodes", str(nodes), "--base-port", str(base))

    def status(self) -> Any:
        """What `status` shows, confirmed by a majority: a busy one may take longer than the command waits for that."""
        found: list[Any] = []

        def confirmed() -> bool:
            found[:] = [self.json("status")]
            return not found[0]["stale"] and bool(found[0]["leader"])

        self.until(confirmed, "a majority to confirm what is shown")
        return found[0]

    def row(self, instance_id: str) -> dict[str, Any]:
        rows = [each for each in self.status()["instances"] if each["instance_id"] == instance_id]
        found: dict[str, Any] = rows[-1]
        return found

    def shown(self, text: str) -> str:
        """What `status` says, once it says this: whoever was silent for 2 s is told of as if it were gone."""
        said = ""

        def is_told() -> bool:
            nonlocal said
            said = self.ok("status")
            return text in said

        self.until(is_told, f"`status` to say {text!r}")
        return said

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for: {what}"
            time.sleep(0.1)
