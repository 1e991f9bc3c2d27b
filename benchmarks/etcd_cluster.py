"""Three etcd members on loopback, as Debian ships them, with their defaults."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.load import BenchmarkFailed

START_TIMEOUT_S = 30


class EtcdCluster:
    """A Target. Its members sync every write before they acknowledge it, which is etcd's default."""

    name = "etcd"
    client = "etcd_client"
    client_processes = 3  # chosen on a busy machine among 1 to 4, which did not differ clearly
    uvloop = True

    def __init__(self, binary: Path, python: Path, folder: Path) -> None:
        self.python = python
        self._binary = binary
        self._folder = folder
        self._members: list[subprocess.Popen[str]] = []
        self._client_ports: list[int] = []

    def start(self) -> None:
        ports = processes.free_ports(6)
        self._client_ports, peer_ports = ports[:3], ports[3:]
        cluster = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(peer_ports))
        for n, (client_port, peer_port) in enumerate(zip(self._client_ports, peer_ports, strict=True)):
            client_url, peer_url = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
            command = [str(self._binary), "--name", f"m{n}", "--data-dir", str(self._folder / f"etcd-{n}")]
            command += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
            command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
            command += ["--initial-cluster", cluster, "--initial-cluster-state", "new"]
            command += ["--logger", "zap", "--log-level", "error"]
            self._members.append(processes.start(command, self._folder / f"etcd-{n}.log"))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._leader_port():
            if time.monotonic() > deadline or any(member.poll() is not None for member in self._members):
                raise BenchmarkFailed(f"etcd did not start; its logs are in {self._folder}")
            time.sleep(0.1)

    def _status(self, port: int) -> Any:
        url = f"http://127.0.0.1:{port}/v3/maintenance/status"
        # No proxy: the members are on loopback whatever the environment says about the rest of the world.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(urllib.request.Request(url, data=b"{}"), timeout=2) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def _leader_port(self) -> int | None:
        """The leader's port once every member answers and knows it."""
        found = None
        for port in self._client_ports:
            status = self._status(port)
            if not status or status.get("leader", "0") == "0":
                return None
            if status["leader"] == status["header"]["member_id"]:
                found = port
        return found

    def endpoints(self) -> list[str]:
        leader = self._leader_port()
        ports = sorted(self._client_ports, key=lambda port: port != leader)
        return [f"127.0.0.1:{port}" for port in ports]

    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    def stop(self) -> None:
        for member in self._members:
            processes.stop(member)
        self._members.clear()
