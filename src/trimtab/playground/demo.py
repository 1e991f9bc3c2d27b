"""The demo: three processes form a cluster, take rows, lose one of them to kill -9, and heal; nothing is lost.

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
from trimtab.client.database import connect
from trimtab.playground.forming import NotOnline, await_online
from trimtab.playground.local import LocalCluster
from trimtab.playground.ports import free_base
from trimtab.playground.processes import Known
from trimtab.playground.writing import KEYSPACE, TABLE, TABLETS, WAIT_S, WRITERS, Writing, create_table
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
    """What was found. Of acknowledged rows none may be lost, nor missing on the instance that was away."""

    acknowledged: int
    while_away: int
    unknown: int
    lost: int
    missing: int
    formed_ms: int
    interruption_ms: int
    marked_offline_ms: int
    returned_ms: int
    killed: str
    leader_before: str
    leader_after: str
    seconds: float

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.missing == 0


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
        pids = ", ".join(str(known.pid) for known in started.values())
        self._tell(f"Starting {', '.join(started)} (processes {pids}). None of them knows who is to lead.")
        formed_ms = await self._online(started)
        addresses = list(cluster.addresses().values())
        client = await ClusterClient.connect(addresses)
        try:
            founder = (await client.events(limit=10_000))[0][1].text
            self._tell(f"{founder.partition(' (')[0]}; the others joined. All are Online.")
            return await self._write_kill_check(client, addresses, formed_ms)
        finally:
            await client.close()

    async def _write_kill_check(self, client: ClusterClient, addresses: list[str], formed_ms: int) -> Outcome:
        writing = Writing()
        async with connect(addresses) as database:
            await create_table(database, NODES)
            self._tell(f"Keyspace {KEYSPACE} with {NODES} replicas, and in it table {TABLE} of {TABLETS} tablets.")
            writers = writing.start(database.table(TABLE))
            try:
                before, leader, killed_at = await self._write_and_kill(client, writing)
                successor, interruption_s = await self._go_on(client, writing, before, killed_at)
                marked_s = await self._marked_offline(client, leader, killed_at)
                self._tell(f"{leader} starts again from what its disk holds, while the writers go on.")
                returned_ms = await self._online(self._cluster.start([leader]))
                while_away = len(writing.acknowledged) - before
                self._tell(f"It has the {while_away:,} rows written meanwhile, and is Online again, by itself.")
            finally:
                writing.stopped = True
                await asyncio.gather(*writers, return_exceptions=True)
            acknowledged = len(writing.acknowledged)
            lost = await writing.lost(database.table(TABLE, timeout=WAIT_S))
        self._tell(f"Everything read back at QUORUM: [bold]{lost} lost[/] of {acknowledged:,} acknowledged rows.")
        missing = await self._missing_from(leader, writing)
        self._tell(
            f"[bold red]kill -9[/] of the two others. Read back at ONE from {leader} alone: [bold]{missing} missing[/]."
        )
        return Outcome(
            acknowledged=acknowledged,
            while_away=while_away,
            unknown=writing.unknown,
            lost=lost,
            missing=missing,
            formed_ms=formed_ms,
            interruption_ms=round(interruption_s * 1000),
            marked_offline_ms=round(marked_s * 1000),
            returned_ms=returned_ms,
            killed=leader,
            leader_before=leader,
            leader_after=successor,
            seconds=round(time.monotonic() - self._began, 2),
        )

    async def _write_and_kill(self, client: ClusterClient, writing: Writing) -> tuple[int, str, float]:
        """How many rows were acknowledged before the leader was killed, which one that was, and when."""
        self._tell(f"{WRITERS} writers put rows at QUORUM as fast as they are acknowledged.")
        await asyncio.sleep(WRITE_S)
        before = len(writing.acknowledged)
        self._tell(f"{before:,} rows acknowledged in {WRITE_S:.0f} s, each after it was on the disks of two.")
        leader = _leader(await client.view())
        pid = self._cluster.running()[leader].pid
        killed_at = time.monotonic()
        await asyncio.to_thread(self._cluster.kill, [leader])
        self._tell(f"[bold red]kill -9[/] of the leader, {leader} (process {pid}), in the middle of it.")
        return before, leader, killed_at

    async def _go_on(self, client: ClusterClient, writing: Writing, before: int, killed_at: float) -> tuple[str, float]:
        """Who leads now, and how long no row was acknowledged."""

        async def is_written_again() -> bool:
            # Answers that were under way when it died don't count as service.
            return len(writing.acknowledged) > before + _SERVED_AGAIN and writing.times[-1] > killed_at + 0.2

        await self._until("service after the leader's death", is_written_again)
        successor = _leader(await client.view())
        interruption_s = writing.longest_silence_s(killed_at)
        self._tell(
            f"The writers go on: at most [bold]{interruption_s * 1000:.0f} ms[/] without an acknowledgement; "
            f"{successor} leads now."
        )
        return successor, interruption_s

    async def _marked_offline(self, client: ClusterClient, leader: str, killed_at: float) -> float:
        async def is_marked() -> bool:
            return _grade(await client.view(), leader) is Grade.OFFLINE

        await self._until(f"the mark that {leader} is Offline", is_marked)
        marked_s = time.monotonic() - killed_at
        self._tell(f"Nobody has heard of {leader} for {marked_s:.0f} s: the governor marked it Offline.")
        return marked_s

    async def _missing_from(self, survivor: str, writing: Writing) -> int:
        """How many acknowledged rows one instance lacks, when nobody else is there to ask."""
        others = [name for name in self._cluster.running() if name != survivor]
        await asyncio.to_thread(self._cluster.kill, others)
        address = self._cluster.addresses([survivor])[survivor]
        async with connect(address, consistency="ONE", timeout=WAIT_S) as database:
            return await writing.lost(database.table(TABLE))

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
