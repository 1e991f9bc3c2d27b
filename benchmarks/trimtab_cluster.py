"""Members of Trimtab on loopback, started as an operator would start them, with their defaults."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import processes
from benchmarks.load import BenchmarkFailed

START_TIMEOUT_S = 30
MEMBERS = 3


class TrimtabCluster:
    """A Target."""

    name = "trimtab"
    client = "trimtab_client"
    client_processes = 2
    uvloop = True

    def __init__(self, folder: Path, members: int = MEMBERS) -> None:
        self.python = Path(sys.executable)
        self._folder = folder
        self._count = members
        self._members: list[subprocess.Popen[str]] = []
        self._addresses: list[str] = []

    def start(self) -> None:
        # As `local` lays them out: every instance has a few ports above the one it listens on.
        from trimtab.playground.ports import SPACING, free_base

        base = free_base(self._count)
        self._addresses = [f"127.0.0.1:{base + n * SPACING}" for n in range(self._count)]
        peers = [argument for address in self._addresses for argument in ("--peer", address)]
        for n, address in enumerate(self._addresses, start=1):
            command = [str(self.python), "-m", "trimtab", "run", "--instance-id", f"i{n}", "--listen", address]
            command += [*peers, "--data-dir", str(self._folder / f"{self.name}-{n}"), "--failure-domain", f"host=h{n}"]
            self._members.append(processes.start(command, self._folder / f"{self.name}-{n}.log"))
        asyncio.run(self._wait_until_all_vote())

    async def _wait_until_all_vote(self) -> None:
        """A put must be on two of three disks: before all of them vote, less would be measured."""
        from trimtab.client.errors import Error
        from trimtab.client.metastore import MetastoreClient

        deadline = time.monotonic() + START_TIMEOUT_S
        why = ""
        while True:
            try:
                client = await MetastoreClient.connect(self._addresses)
                try:
                    voters = sum(member.voter for member in (await client.status()).members)
                    if voters == self._count:
                        await client.put(b"bench/started", b"yes")
                        return
                    why = f"{voters} of {self._count} members vote"
                finally:
                    await client.close()
            except Error as error:
                why = str(error)
            if time.monotonic() > deadline or any(member.poll() is not None for member in self._members):
                raise BenchmarkFailed(f"Trimtab did not start: {why} (logs in {self._folder})")
            await asyncio.sleep(0.1)

    def endpoints(self) -> list[str]:
        return self._addresses  # the client finds the leader

    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    def stop(self) -> None:
        for member in self._members:
            processes.stop(member)
        self._members.clear()
