"""The demo: three processes form a cluster by themselves, lose their leader to kill -9, and heal; nothing is lost.

It is a story told as it happens (`tell`) and a result that says what was found (`Outcome`): the same code serves a
person and a test. Everything is bounded: the demo ends by itself, even when the cluster does not come back, and its
processes end with it, however it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from trimtab.client.cluster import ClusterClient
from trimtab.client.metastore import MetastoreClient
from trimtab.playground.forming import NotOnline, await_online
from trimtab.playground.local import LocalCluster
from trimtab.playground.ports import free_base
from trimtab.playground.processes import Known
from trimtab.playground.writing import WAIT_S, WRITERS, Writing, read_back
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import ViewReply

NODES = 3
WRITE_S = 2.0
_SERVED_AGAIN = 50
_PAUSE_S = 0.05


class DemoFailed(Exception):
    """Something that must not happen did; the text says what."""


@dataclass(frozen=True)
class Outcome:
    """What was found. `lost` and `doubled` must be zero."""

    acknowledged: int
    unknown: int
    lost: int
    doubled: int
    formed_ms: int
    interruption_ms: int
    marked_offline_ms: int
    returned_ms: int
    killed: str
    leader_before: str
    leader_after: str
    revision: int
    checksums: dict[str, str]
    seconds: float

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.doubled == 0 and len(set(self.checksums.values())) == 1


async def run(folder: Path, tell: Callable[[str], None]) -> Outcome:
    """Play the story in a folder, telling it line by line."""
    cluster = LocalCluster(folder / "cluster", attached=True)
    try:
        return await _Story(cluster, tell).play()
    finally:
        # Nothing of it is kept, so there is nothing to leave in good order.
        if cluster.exists:
            cluster.kill(list(cluster.running()))


class _Story:
    def __init__(self, cluster: LocalCluster, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._began = time.monotonic()

    async def play(self) -> Outcome:
        cluster = self._cluster
        with cluster.coming_up():
            cluster.create(NODES, free_base(NODES))
            started = cluster.start_all()
        pids = ", ".join(f"{name} (process {known.pid})" for name, known in started.items())
        self._tell(f"Starting {pids} on loopback. None of them knows who is to lead.")
        formed_ms = await self._online(started)
        client = await ClusterClient.connect(list(cluster.addresses().values()))
        try:
            founder = (await client.events(limit=10_000))[0][1].text
            self._tell(
                f"{founder.partition(' (')[0]}; the others joined. All are Online after {formed_ms / 1000:.1f} s."
            )
            return await self._write_kill_check(client, formed_ms)
        finally:
            await client.close()

    async def _write_kill_check(self, client: ClusterClient, formed_ms: int) -> Outcome:
        writing = Writing()
        writers = writing.start(client.metastore)
        try:
            self._tell(f"{WRITERS} writers put new keys as fast as they are acknowledged.")
            await asyncio.sleep(WRITE_S)
            before = len(writing.acknowledged)
            self._tell(f"{before:,} puts acknowledged in {WRITE_S:.0f} s, each on the disks of a majority first.")
            leader = _leader(await client.view())
            pid = self._cluster.running()[leader].pid
            killed_at = time.monotonic()
            await asyncio.to_thread(self._cluster.kill, [leader])
            self._tell(f"[bold red]kill -9[/] of the leader, {leader} (process {pid}), in the middle of it.")

            async def is_written_again() -> bool:
                # Answers that were under way when it died don't count as service.
                return len(writing.acknowledged) > before + _SERVED_AGAIN and writing.times[-1] > killed_at + 0.2

            await self._until("service after the leader's death", is_written_again)
            interruption_s = writing.longest_silence_s(killed_at)
            successor = _leader(await client.view())
            self._tell(f"{successor} took over: [bold]{interruption_s * 1000:.0f} ms[/] without an acknowledgement.")

            async def is_marked() -> bool:
                return _grade(await client.view(), leader) is Grade.OFFLINE

            await self._until(f"the mark that {leader} is Offline", is_marked)
            marked_s = time.monotonic() - killed_at
            self._tell(f"Nobody has heard of {leader} for {marked_s:.0f} s: the governor marked it Offline.")
        finally:
            writing.stopped = True
            await asyncio.gather(*writers, return_exceptions=True)
        self._tell(f"{leader} starts again from what its disk holds.")
        returned_ms = await self._online(self._cluster.start([leader]))
        self._tell(f"It caught up and is Online again, by itself, after {returned_ms / 1000:.1f} s.")
        sums = await self._same_everywhere()
        versions = await read_back(client.metastore)
        lost = sum(key not in versions for key in writing.acknowledged)
        doubled = sum(version > 1 for version in versions.values())
        counted = f"{lost} lost, {doubled} applied twice"
        self._tell(f"Reading everything back: [bold]{counted}[/] of {len(writing.acknowledged):,} acknowledged.")
        return Outcome(
            acknowledged=len(writing.acknowledged),
            unknown=writing.unknown,
            lost=lost,
            doubled=doubled,
            formed_ms=formed_ms,
            interruption_ms=round(interruption_s * 1000),
            marked_offline_ms=round(marked_s * 1000),
            returned_ms=returned_ms,
            killed=leader,
            leader_before=leader,
            leader_after=successor,
            revision=next(iter(sums.values()))[0],
            checksums={name: checksum for name, (_, checksum) in sums.items()},
            seconds=round(time.monotonic() - self._began, 2),
        )

    async def _online(self, started: dict[str, Known]) -> int:
        """Wait until those are Online: how long that took."""
        began = time.monotonic()
        try:
            await await_online(
                self._cluster.addresses(started),
                timeout_s=WAIT_S,
                ended=lambda: self._cluster.ended(started),
                seen=lambda _standings: None,
            )
        except NotOnline as error:
            raise DemoFailed(f"not all instances became Online: {error}") from error
        return round((time.monotonic() - began) * 1000)

    async def _same_everywhere(self) -> dict[str, tuple[int, str]]:
        """Revision and checksum of each member, once they are the same."""
        sums: dict[str, tuple[int, str]] = {}

        async def same() -> bool:
            sums.clear()
            for name, address in self._cluster.addresses().items():
                sums[name] = await _sum_of(address)
            return len(set(sums.values())) == 1

        await self._until("the same state everywhere", same)
        return sums

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not await holds():
            if time.monotonic() > deadline:
                raise DemoFailed(f"{what} did not come within {WAIT_S:.0f} s")
            await asyncio.sleep(_PAUSE_S)


def _leader(view: ViewReply) -> str:
    for each in view.instances:
        if each.raft_id == view.leader:
            return each.record.instance_id
    raise DemoFailed("there is no leader")


def _grade(view: ViewReply, instance_id: str) -> Grade:
    return next(each.record.grades.current.grade for each in view.instances if each.record.instance_id == instance_id)


async def _sum_of(address: str) -> tuple[int, str]:
    """What one member, not the leader in its place, says of its own state."""
    client = await MetastoreClient.connect([address], follow_leader=False)
    try:
        status = await client.status()
        return status.revision, status.checksum.hex()
    finally:
        await client.close()
