"""Three members of a cluster as processes of this machine, that can be killed and started again.

Each is the same `trimtab run` an operator would start. They end with the process that started them, whatever ends that:
the kernel tells them. Only processes started here are ever signalled, by their ids.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_STOP_TIMEOUT_S = 5.0


class MemberFailed(Exception):
    """A member ended by itself; the text has its last words."""


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@dataclass
class Member:
    instance_id: str
    address: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def start(self) -> None:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                preexec_fn=_end_with_parent,
            )

    def kill(self) -> None:
        """SIGKILL: no goodbye, nothing flushed, as when the machine's memory ran out."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def check(self) -> None:
        """Raise if it ended without being told to."""
        if self.process is not None and self.process.poll() is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            last = lines[-1] if lines else "it said nothing"
            raise MemberFailed(f"{self.instance_id} ended with code {self.process.returncode}: {last}")


class Members:
    """A cluster of `count` members i1, i2, ... with their data in `folder`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        peers = [argument for address in self.addresses for argument in ("--peer", address)]
        self.members: list[Member] = []
        for number, address in enumerate(self.addresses, start=1):
            name = f"i{number}"
            command = [sys.executable, "-m", "trimtab", "run", "--instance-id", name, "--listen", address, *peers]
            command += ["--data-dir", str(folder / name)]
            self.members.append(Member(name, address, command, folder / f"{name}.log"))

    def at(self, address: str) -> Member:
        return next(member for member in self.members if member.address == address)

    def start(self) -> None:
        for member in self.members:
            member.start()

    def check(self) -> None:
        for member in self.members:
            member.check()

    def stop(self) -> None:
        """End all that still run: told together, waited for one after the other."""
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.process.terminate()
        for member in self.members:
            member.stop()
