"""A cluster of real `trimtab run` processes: started, killed, frozen, and watched through its own doors.

Every wait is bounded and ends with what the instances said. Each instance has a supervisor in a process group of its
own, which the fixture ends by its id, whatever becomes of the test. HTTP is off unless asked for: it takes longer to
load than all the rest. So is the bulk child, unless there are `bulk` addresses for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import free_ports

from tests.conftest import Processes
from trimtab.client.cluster import ClusterClient
from trimtab.client.errors import Error
from trimtab.node.attending import DRIVER_NAME
from trimtab.node.attending import NAME as BULK_NAME
from trimtab.playground.forming import NotOnline, await_online
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import InstanceView, ViewReply
from trimtab.topology.records import RequestKind, RequestState

# Nobody loses a lease because the machine is busy: a change of the leader takes less, and so do standstills of seconds.
STEADY = ("--tick-ms", "100", "--lease-ms", "6000", "--offline-after-ms", "10000")
# Where it is waited for that somebody who is silent is marked Offline. An election waits 0.6 to 1.2 s.
BRISK = ("--tick-ms", "60", "--lease-ms", "2500", "--offline-after-ms", "4000")
ONLINE_S = 120.0
_GOES_WELL = (RequestState.PENDING, RequestState.RUNNING, RequestState.DONE)
_PAUSE_S = 0.05


class Instances:
    """Instances i1, i2, …: numbers from 1 on. `options` and `env` are for all of them."""

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        listen: Sequence[str],
        *,
        options: Sequence[str] = STEADY,
        env: Mapping[str, str] | None = None,
        inside: Callable[[int], Sequence[str]] = lambda number: (),
        bulk: Sequence[str] = (),
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._options = options
        self._env = dict(env or {})
        self._inside = inside
        self.listen = dict(enumerate(listen, start=1))
        self.bulk = dict(enumerate(bulk, start=1))
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving: dict[int, subprocess.Popen[bytes]] = {}

    # Processes

    def start(
        self,
        *numbers: int,
        peers: Iterable[int] | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start instances; does not wait. `peers`: the numbers of those that they are told of; default: the first 3."""
        seeds = [self.listen[number] for number in (peers or list(self.listen)[:3])]
        for number in numbers:
            command = [*self._inside(number), sys.executable, "-m", "trimtab", "run", "--instance-id", f"i{number}"]
            command += ["--listen", self.listen[number], "--data-dir", str(self.data_dir(number)), "--http", "off"]
            command += ["--failure-domain", f"host=h{number}", "--bulk", self.bulk.get(number, "off")]
            for address in seeds:
                command += ["--peer", address]
            self.running[number] = self._processes.start(
                [*command, *self._options, *options],
                output=self._log(number),
                env={**os.environ, **self._env, **(env or {})},
            )

    def kill(self, *numbers: int) -> None:
        """kill -9 of their supervisors and nodes, all at once."""
        for number in numbers:
            os.killpg(self.running[number].pid, signal.SIGKILL)
        for number in numbers:
            self._processes.kill(self.running.pop(number))

    def stop(self, number: int) -> int:
        """SIGTERM, as an operator would; the exit code."""
        return self._processes.stop(self.running.pop(number))

    def tell_to_stop(self, number: int) -> None:
        """SIGTERM, without waiting for the end."""
        self.running[number].terminate()

    def let_go(self, number: int) -> None:
        """It is about to end by itself: it counts as running no more, and `ended` waits for it later."""
        self._leaving[number] = self.running.pop(number)

    def ended(self, number: int, timeout_s: float = 90) -> int:
        """Wait for an instance that ends by itself; its exit code."""
        if number in self.running:
            self.let_go(number)
        try:
            return self._leaving.pop(number).wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"i{number} did not end within {timeout_s} s\n{self.said()}") from None

    def node(self, number: int) -> int:
        """The process id of an instance's node; 0 while it has none."""
        supervisor = self.running[number].pid
        return next((pid for pid in _children(supervisor) if _name(pid) not in (BULK_NAME, DRIVER_NAME)), 0)

    def bulk_child(self, number: int) -> int:
        """The process id of an instance's bulk child; 0 while it has none."""
        return next((pid for pid in _children(self.running[number].pid) if _name(pid) == BULK_NAME), 0)

    def kill_node(self, number: int) -> None:
        """kill -9 of the node alone: its supervisor starts it again."""
        os.kill(self._once_there(lambda: self.node(number), f"i{number} has a node"), signal.SIGKILL)

    def kill_bulk_child(self, number: int) -> int:
        """kill -9 of the bulk child alone, when there is one: its supervisor starts it again. Its process id."""
        pid = self._once_there(lambda: self.bulk_child(number), f"i{number} has a bulk child")
        os.kill(pid, signal.SIGKILL)
        return pid

    def _once_there(self, find: Callable[[], int], what: str) -> int:
        """The process id, looked up once: a child that is gone at a second look would be 0, which is all of us."""
        found = 0

        def there() -> bool:
            nonlocal found
            found = find()
            return found != 0

        self.until(there, what)
        return found

    # What they leave behind

    def data_dir(self, number: int) -> Path:
        return self._folder / f"i{number}"

    def _log(self, number: int) -> Path:
        return self._folder / f"i{number}.log"

    def output(self, number: int) -> str:
        return self._log(number).read_text() if self._log(number).exists() else ""

    def last_line(self, number: int) -> str:
        """What it ended with: one line, and no traceback before it."""
        assert "Traceback" not in self.output(number), self.output(number)
        return self.output(number).splitlines()[-1]

    def said(self) -> str:
        return "\n".join(f"--- i{number}\n{self.output(number)}" for number in self.listen)

    def identity(self, number: int) -> dict[str, Any]:
        """The instance.json of an instance; empty while there is none."""
        path = self.data_dir(number) / "instance.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    # Waiting and looking

    def until(self, happened: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.said()}"
            time.sleep(_PAUSE_S)

    async def wait_for(self, happened: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 90) -> None:
        """Wait until something holds; errors of a cluster that is between leaders count as not yet."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(Error):
                if await happened():
                    return
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.said()}"
            await asyncio.sleep(_PAUSE_S)

    async def online(self, *numbers: int, timeout_s: float = ONLINE_S) -> None:
        """Wait until these (default: all that run) are Online in their present lives."""
        wanted = {f"i{number}": self.listen[number] for number in numbers or self.running}

        def ended() -> dict[str, str]:
            return {
                f"i{number}": self.output(number)[-200:]
                for number, process in self.running.items()
                if process.poll() is not None and f"i{number}" in wanted
            }

        try:
            await await_online(wanted, timeout_s=timeout_s, ended=ended, seen=lambda standings: None)
        except NotOnline as error:
            raise AssertionError(f"not all Online within {timeout_s} s: {error}\n{self.said()}") from error

    @contextlib.asynccontextmanager
    async def client(self, *numbers: int, follow_leader: bool = True) -> AsyncIterator[ClusterClient]:
        """A client of these instances; default: of all that run."""
        addresses = [self.listen[number] for number in numbers or self.running]
        client = ClusterClient.unconnected(addresses, timeout_s=60, follow_leader=follow_leader)
        try:
            yield client
        finally:
            await client.close()

    async def view(self, *numbers: int, linearizable: bool = True) -> ViewReply:
        """The cluster as these instances see it; default: all that run."""
        async with self.client(*numbers) as client:
            return await client.view(linearizable=linearizable)

    async def leader(self) -> int:
        """The number of the instance that leads now; waited for, where nobody is known to."""
        found: list[int] = []

        async def known() -> bool:
            view = await self.view()
            found[:] = [number_of(each) for each in view.instances if each.raft_id == view.leader]
            return bool(found)

        await self.wait_for(known, "somebody leads")
        return found[0]

    async def row(self, number: int) -> InstanceView:
        """The last row of an instance."""
        return max(await self.rows(number), key=lambda each: each.raft_id)

    async def rows(self, number: int) -> list[InstanceView]:
        return [each for each in (await self.view()).instances if number_of(each) == number]

    async def is_now(self, number: int, grade: Grade) -> bool:
        """Whether an instance's current grade is this one."""
        return (await self.row(number)).record.grades.current.grade is grade

    async def vote(self, *numbers: int) -> None:
        """Wait until exactly these vote: votes are given a moment after an instance is Online."""

        async def they_do() -> bool:
            return {number_of(each) for each in (await self.view()).instances if each.voter} == set(numbers)

        await self.wait_for(they_do, f"exactly {numbers} vote")

    async def expel(self, number: int, *through: int) -> None:
        """Put an instance out of the cluster, asked of these (default: of all that run); returns when that is done.

        Whoever is asked may be gone, or the client too late, before the answer comes: then the request is found, under
        way or done. One that was silent for a moment makes the cluster give the request up: it is asked for again.
        """
        raft_id = (await self.row(number)).raft_id
        async with self.client(*through) as client:

            async def done() -> bool:
                found = [each for _, each in (await client.view()).requests if each.raft_id == raft_id]
                found = [each for each in found if each.kind in (RequestKind.LEAVE, RequestKind.REMOVE)]
                if not found or found[-1].state is RequestState.CANCELLED:
                    await client.create(RequestKind.LEAVE, f"i{number}", expel=True, timeout_s=30)
                    return False
                assert found[-1].state in _GOES_WELL, found
                return found[-1].state is RequestState.DONE

            await self.wait_for(done, f"i{number} is expelled", 120)

    async def events(self) -> list[str]:
        """What `trimtab events` shows: `kind: text`, oldest first."""
        async with self.client() as client:
            return [f"{event.kind}: {event.text}" for _, event in await client.events(limit=1_000)]


def _children(supervisor: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def loopback(count: int) -> list[str]:
    """Addresses for so many instances, with room for all their doors."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def number_of(row: InstanceView) -> int:
    return int(row.record.instance_id.removeprefix("i"))
