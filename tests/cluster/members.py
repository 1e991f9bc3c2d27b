"""Real members on loopback: started, killed, started again, as an operator or an outage would.

They come in one after the other, each told of the first alone, so member N is instance iN, and mostly has raft id N.
"""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.watching import members_of, run, until
from tests.conftest import Processes

VOTERS = 3


class Members:
    """A metastore of real `trimtab run` processes."""

    def __init__(self, processes: Processes, directory: Path, ports: Sequence[int], *options: str) -> None:
        self._processes = processes
        self._directory = directory
        self._options = options
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.tls: ssl.SSLContext | None = None  # to look at members that speak nothing else
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def data_dir(self, member: int) -> Path:
        return self._directory / f"i{member}"

    def output(self, member: int) -> str:
        path = self._directory / f"i{member}.log"
        return path.read_text() if path.exists() else ""

    def start(self, *members: int, options: Sequence[str] = (), listen: str = "", data_dir: Path | None = None) -> None:
        """Start members (from 1); returns when they listen, and new ones have their place (three of them a vote)."""
        for member in members:
            new = not ((data_dir or self.data_dir(member)) / "instance.json").exists()
            before = self.output(member).count("ready on")
            self.launch(member, options=options, listen=listen, data_dir=data_dir)
            self.wait(member, lambda each=member, told=before: self.output(each).count("ready on") > told, "listen")
            if new:
                self._await_place(member)

    def launch(
        self, member: int, *, options: Sequence[str] = (), listen: str = "", data_dir: Path | None = None
    ) -> None:
        """Start a member without waiting for anything."""
        command = [
            sys.executable,
            "-m",
            "trimtab",
            "run",
            "--instance-id",
            f"i{member}",
            "--http",
            "off",
            "--bulk",
            "off",
        ]
        command += ["--listen", listen or self.addresses[member - 1], "--peer", self.addresses[0]]
        command += ["--data-dir", str(data_dir or self.data_dir(member))]
        self.running[member] = self._processes.start(
            [*command, *self._options, *options], output=self._directory / f"i{member}.log"
        )

    def _await_place(self, member: int) -> None:
        async def has_place() -> bool:
            members = await members_of(self.addresses[0], self.tls)
            voters = [each.address for each in members if each.voter]
            learners = [each.address for each in members if each.learner]
            address = self.addresses[member - 1]
            return address in voters or (address in learners and len(voters) >= VOTERS)

        run(until(has_place, f"member {member} to have its place; it said:\n{self.output(member)}"))

    def wait(self, member: int, happened: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
        """Wait until something happened to a member; its output is shown if it never does."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            process = self.running.get(member)
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"member {member} did not {what}; it said:\n{self.output(member)}")
            time.sleep(0.01)

    def kill(self, member: int) -> None:
        """kill -9 of the supervisor, and with it of the node."""
        self._processes.kill(self.running.pop(member))

    def stop(self, member: int) -> int:
        """SIGTERM; the exit code."""
        return self._processes.stop(self.running.pop(member))

    def ended(self, member: int, timeout_s: float = 90) -> int:
        """Wait for a member to end by itself; its exit code."""
        return self.running.pop(member).wait(timeout_s)
