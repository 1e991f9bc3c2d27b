"""One PostgreSQL on loopback with its defaults, which sync every commit before it is acknowledged."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from benchmarks.peers import POSTGRES, Peers
from benchmarks.redis_server import answers

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 60  # it writes everything down first


class PostgresServer:
    """A Target; started again, it has what it had. It refuses to be run by root, and then runs as `nobody`."""

    name = "postgresql"
    client = "postgres_client"
    client_processes = 1
    uvloop = True

    def __init__(self, peers: Peers, folder: Path) -> None:
        self.python = peers.python
        self._peers = peers
        self._folder = folder
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None

    def start(self) -> None:
        binary = self._peers.binary(POSTGRES)
        assert binary is not None
        data, environment = self._folder / "postgresql", self._peers.libraries(POSTGRES)
        if not data.exists():
            self._create(data, binary, environment)
        (self._port,) = processes.free_ports(1)
        command = [str(binary), "-D", str(data), "-p", str(self._port), "-k", "", "-h", "127.0.0.1"]
        log = self._folder / "postgresql.log"
        self._process = processes.start(command, log, environment=environment, user=self._user)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self._port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchmarkFailed(f"PostgreSQL did not start; its log is in {self._folder}")
            time.sleep(0.05)

    def _create(self, data: Path, binary: Path, environment: dict[str, str]) -> None:
        data.mkdir(mode=0o700)
        self._let_in(data)
        initdb = [str(binary.parent / "initdb"), "-D", str(data), "-U", "bench", "--auth=trust", "--encoding=UTF8"]
        share = next(iter(binary.parents[4].glob("usr/share/postgresql/*")), None)
        if share is not None:
            initdb += ["-L", str(share)]
        done = subprocess.run(initdb, env=environment, user=self._user, cwd="/", capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchmarkFailed(f"PostgreSQL could not make its directory: {done.stderr.strip()}")

    def _let_in(self, data: Path) -> None:
        """The directories above were made for one user only; the other may pass through them, not look around."""
        if self._user is None:
            return
        shutil.chown(data, self._user)
        self._folder.chmod(self._folder.stat().st_mode | 0o011)

    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{self._port}"]

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def stop(self) -> None:
        """Returns when it has written everything down."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)  # clients are cut off; SIGTERM would wait for them
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            processes.stop(self._process)
            raise BenchmarkFailed(f"PostgreSQL did not stop; its log is in {self._folder}") from None
