"""Real members on loopback: started, killed, started again, as an operator or an outage would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.conftest import Processes


class Members:
    """A metastore of real `trimtab run` processes."""

    def __init__(self, processes: Processes, directory: Path, ports: Sequence[int], *options: str) -> None:
        self._processes = processes
        self._directory = directory
        self._options = options
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def data_dir(self, member: int) -> Path:
        return self._directory / f"i{member}"

    def output(self, member: int) -> str:
        path = self._directory / f"i{member}.log"
        return path.read_text() if path.exists() else ""

    def start(self, *members: int, options: Sequence[str] = (), listen: str = "", data_dir: Path | None = None) -> None:
        """Start members (from 1); returns when they listen."""
        before = {member: self.output(member).count("ready on") for member in members}
        for member in members:
            command = [sys.executable, "-m", "trimtab", "run", "--instance-id", f"i{member}"]
            command += ["--listen", listen or self.addresses[member - 1]]
            command += ["--data-dir", str(data_dir or self.data_dir(member))]
            for address in self.addresses:
                command += ["--peer", address]
            self.running[member] = self._processes.start(
                [*command, *self._options, *options], output=self._directory / f"i{member}.log"
            )
        for member in members:
            self.wait(member, lambda member=member: self.output(member).count("ready on") > before[member], "listen")

    def wait(self, member: int, happened: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        """Wait until something happened to a member; its output is shown if it never does."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            process = self.running.get(member)
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"member {member} did not {what}; it said:\n{self.output(member)}")
            time.sleep(0.01)

    def kill(self, member: int) -> None:
        """kill -9."""
        self._processes.kill(self.running.pop(member))

    def stop(self, member: int) -> int:
        """SIGTERM; the exit code."""
        return self._processes.stop(self.running.pop(member))

    def ended(self, member: int, timeout_s: float = 20) -> int:
        """Wait for a member to end by itself; its exit code."""
        return self.running.pop(member).wait(timeout_s)

    def pause(self, member: int) -> None:
        os.kill(self.running[member].pid, signal.SIGSTOP)

    def resume(self, member: int) -> None:
        os.kill(self.running[member].pid, signal.SIGCONT)
