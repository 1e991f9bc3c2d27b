"""The demo: a metastore of three processes loses its leader to kill -9 while it is written to, and nothing is lost.

It is a story told as it happens (`tell`) and a result that says what was found (`Outcome`): the same code serves a
person and a test. Every put goes to a key of its own; an acknowledged one must be there at the end, exactly once.
A put whose outcome is unknown (the client gave up) may or may not be; it is counted apart. Everything is bounded:
the demo ends by itself in well under half a minute, even when the cluster does not come back.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.requests import STATUS, StatusReply, decode_status
from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.playground.members import Member, Members

WRITERS = 8
WRITE_S = 2.0
WAIT_S = 15.0
PREFIX = b"demo/"


class DemoFailed(Exception):
    """Something that must not happen did; the text says what."""


@dataclass(frozen=True)
class Outcome:
    """What was found. `lost` and `doubled` must be zero."""

    acknowledged: int
    unknown: int
    lost: int
    doubled: int
    interruption_ms: int
    killed: str
    leader_before: str
    leader_after: str
    revision: int
    checksums: dict[str, str]
    seconds: float

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.doubled == 0 and len(set(self.checksums.values())) == 1


@dataclass
class Writing:
    """Puts under way: what was acknowledged, and when, so that the longest silence can be told."""

    acknowledged: set[bytes] = field(default_factory=set)
    unknown: int = 0
    times: list[float] = field(default_factory=list)
    stopped: bool = False
    number: int = 0

    async def write(self, client: MetastoreClient) -> None:
        while not self.stopped:
            self.number += 1
            key = PREFIX + b"%08d" % self.number
            try:
                await client.put(key, key)
            except Error:
                self.unknown += 1
                continue
            self.acknowledged.add(key)
            self.times.append(time.monotonic())

    def longest_silence_s(self, since: float) -> float:
        """The longest time without an acknowledgement, from a moment on."""
        moments = [since, *(moment for moment in self.times if moment > since)]
        return max((after - before for before, after in itertools.pairwise(moments)), default=WAIT_S)


async def until(what: str, holds: Callable[[], Awaitable[bool]], members: Members) -> None:
    """Wait for something, for a bounded time, as long as no member ends by itself."""
    deadline = time.monotonic() + WAIT_S
    while not await holds():
        members.check()
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what} did not happen within {WAIT_S:.0f} s")
        await asyncio.sleep(0.02)


async def status_of(address: str) -> StatusReply | None:
    """What one member, not the leader in its place, says of itself; None when it doesn't answer."""
    channel = Channel(address, Hello(), random.Random())
    try:
        await channel.wait_connected(1.0)
        return decode_status(await channel.call(STATUS, b"", 1.0))
    except NetError:
        return None
    finally:
        channel.close()


async def leader_of(members: Members) -> Member | None:
    """The leader that a living majority agrees on, if there is one."""
    alive = [member for member in members.members if member.process is not None]
    answers = await asyncio.gather(*(status_of(member.address) for member in alive))
    named = {answer.leader_address for answer in answers if answer is not None}
    if len(named) == 1 and None not in answers and (address := named.pop()):
        return members.at(address)
    return None


async def checksums_of(members: Members) -> dict[str, tuple[int, str]]:
    """Revision and checksum of each member that answers."""
    found = {}
    for member in members.members:
        if status := await status_of(member.address):
            found[member.instance_id] = (status.revision, status.checksum.hex())
    return found


async def read_back(client: MetastoreClient) -> dict[bytes, int]:
    """Every key of the demo with the number of times it was written, read linearizably, page by page."""
    versions: dict[bytes, int] = {}
    low: bytes | None = PREFIX
    while low is not None:
        page = await client.range(low, PREFIX + b"\xff")
        versions.update({entry.key: entry.version for entry in page.entries})
        low = page.next_key
    return versions


async def run(folder: Path, tell: Callable[[str], None]) -> Outcome:
    """Play the story in a folder, telling it line by line."""
    members = Members(folder, 3)
    began = time.monotonic()
    try:
        members.start()
        tell("Starting three members on loopback, each a process with a disk directory of its own.")
        leaders: list[Member] = []

        async def is_led() -> bool:
            leader = await leader_of(members)
            leaders.extend([leader] if leader else [])
            return leader is not None

        await until("an election", is_led, members)
        leader = leaders[-1]
        tell(f"They elected [bold]{leader.instance_id}[/] after {time.monotonic() - began:.1f} s.")
        client = await MetastoreClient.connect(members.addresses)
        try:
            return await _write_kill_check(members, leader, client, began, tell)
        finally:
            await client.close()
    finally:
        members.stop()


async def _write_kill_check(
    members: Members, leader: Member, client: MetastoreClient, began: float, tell: Callable[[str], None]
) -> Outcome:
    writing = Writing()
    writers = [asyncio.ensure_future(writing.write(client)) for _ in range(WRITERS)]
    try:
        tell(f"{WRITERS} writers put new keys as fast as they are acknowledged.")
        await asyncio.sleep(WRITE_S)
        before = len(writing.acknowledged)
        tell(f"{before:,} puts acknowledged in {WRITE_S:.0f} s, each on the disks of a majority first.")

        pid = leader.pid
        killed_at = time.monotonic()
        leader.kill()
        tell(f"[bold red]kill -9[/] of the leader, {leader.instance_id} (process {pid}), in the middle of it.")

        async def is_written_again() -> bool:
            # Answers that were under way when it died don't count as service.
            return len(writing.acknowledged) > before + 50 and writing.times[-1] > killed_at + 0.2

        await until("service after the leader's death", is_written_again, members)
        await asyncio.sleep(WRITE_S)
        interruption_s = writing.longest_silence_s(killed_at)
        successors: list[Member] = []

        async def is_led_again() -> bool:
            found = await leader_of(members)
            successors.extend([found] if found else [])
            return found is not None

        await until("agreement on a new leader", is_led_again, members)
        successor = successors[-1]
        tell(
            f"[bold]{successor.instance_id}[/] took over: [bold]{interruption_s * 1000:.0f} ms[/] without an "
            f"acknowledgement, {len(writing.acknowledged):,} puts so far."
        )
    finally:
        writing.stopped = True
        await asyncio.gather(*writers, return_exceptions=True)

    leader.start()
    tell(f"{leader.instance_id} starts again from what its disk holds and catches up.")
    sums: dict[str, tuple[int, str]] = {}

    async def is_caught_up() -> bool:
        sums.clear()
        sums.update(await checksums_of(members))
        return len(sums) == len(members.members) and len({revision for revision, _ in sums.values()}) == 1

    await until(f"catching up of {leader.instance_id}", is_caught_up, members)
    versions = await read_back(client)
    lost = sum(key not in versions for key in writing.acknowledged)
    doubled = sum(version > 1 for version in versions.values())
    tell(f"Reading everything back: [bold]{lost} lost, {doubled} applied twice[/] of {len(writing.acknowledged):,}.")
    return Outcome(
        acknowledged=len(writing.acknowledged),
        unknown=writing.unknown,
        lost=lost,
        doubled=doubled,
        interruption_ms=round(interruption_s * 1000),
        killed=leader.instance_id,
        leader_before=leader.instance_id,
        leader_after=successor.instance_id,
        revision=next(iter(sums.values()))[0],
        checksums={name: checksum for name, (_, checksum) in sums.items()},
        seconds=round(time.monotonic() - began, 2),
    )
