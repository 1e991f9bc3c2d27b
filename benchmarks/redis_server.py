"""One Redis on loopback that syncs every write before it acknowledges it."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from benchmarks.peers import REDIS, Peers

START_TIMEOUT_S = 15


class RedisServer:
    """A Target."""

    name = "redis"
    client = "redis_client"
    client_processes = 1
    uvloop = True

    def __init__(self, peers: Peers, folder: Path) -> None:
        self.python = peers.python
        self._peers = peers
        self._folder = folder
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        data = self._folder / "redis"
        data.mkdir(exist_ok=True)
        (self._port,) = processes.free_ports(1)
        command = [str(self._peers.binary(REDIS)), "--bind", "127.0.0.1", "--port", str(self._port)]
        command += ["--dir", str(data), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._process = processes.start(command, self._folder / "redis.log", environment=self._peers.libraries(REDIS))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self._port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchmarkFailed(f"Redis did not start; its log is in {self._folder}")
            time.sleep(0.05)

    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{self._port}"]

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def stop(self) -> None:
        if self._process is not None:
            processes.stop(self._process)


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
