"""Watching a metastore of real members from a test: its status, its leader, its content."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import uvloop

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.layout import prefix_end
from trimtab.metastore.requests import MemberStatus, StatusReply
from trimtab.topology.grades import Grade
from trimtab.topology.records import instance_key, parse_instance

T = TypeVar("T")
# Acknowledgements of a member that was killed may still arrive for so long.
_ECHO_S = 0.2


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return uvloop.run(main())


async def status_of(address: str) -> StatusReply:
    """What a member says of itself."""
    client = await MetastoreClient.connect([address], follow_leader=False, timeout_s=30)
    try:
        return await client.status()
    finally:
        await client.close()


async def members_of(address: str, tls: ssl.SSLContext | None = None) -> list[MemberStatus]:
    """All members, as this one sees them; none while it can't be asked.

    Who is who, their addresses say: one that was given up as it joined comes again under another raft id.
    """
    try:
        client = await MetastoreClient.connect([address], tls=tls, follow_leader=False, timeout_s=2)
    except Error:
        return []
    try:
        return (await client.status()).members
    except Error:
        return []
    finally:
        await client.close()


def is_online(address: str) -> Callable[[], Awaitable[bool]]:
    """Whether the first member is Online, as it says itself."""

    async def online() -> bool:
        client = await MetastoreClient.connect([address])
        try:
            entry = await client.get(instance_key(1))
        finally:
            await client.close()
        if entry is None:
            return False
        return parse_instance(entry.key, entry.value)[1].grades.current.grade is Grade.ONLINE

    return online


async def caught_up(address: str) -> bool:
    """Whether a member follows a leader and has applied all it knows to be committed."""
    status = await status_of(address)
    return status.leader != 0 and status.applied >= status.committed


async def same_state(addresses: list[str]) -> bool:
    return len({(status.revision, status.checksum) for status in [await status_of(each) for each in addresses]}) == 1


async def until(happened: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 90) -> None:
    """Wait until something holds; errors of a cluster that is between leaders count as not yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        why = ""
        try:
            if await happened():
                return
        except Error as error:
            why = f" ({error})"
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for: {what}{why}"
        await asyncio.sleep(0.05)


def outage_s(times: Sequence[float], killed_at: float) -> float:
    """The longest time without an acknowledgement that began before or just after a kill, whenever it ended."""
    assert times[0] < killed_at, "nothing was acknowledged before the kill"
    assert times[-1] > killed_at + _ECHO_S, "nothing was acknowledged after the kill"
    return max(
        late - early for early, late in itertools.pairwise(times) if late > killed_at and early < killed_at + _ECHO_S
    )


async def leader_of(addresses: list[str]) -> int:
    client = await MetastoreClient.connect(addresses)
    try:
        found = 0

        async def known() -> bool:
            nonlocal found
            found = (await client.status()).leader
            return found != 0

        await until(known, "a leader")
        return found
    finally:
        await client.close()


async def everything(client: MetastoreClient, prefix: bytes, *, local: bool = False) -> dict[bytes, tuple[bytes, int]]:
    """All keys with a prefix: value and version."""
    found: dict[bytes, tuple[bytes, int]] = {}
    low: bytes | None = prefix
    while low is not None:
        page = await client.range(low, prefix_end(prefix), limit=5_000, linearizable=not local)
        found.update({entry.key: (entry.value, entry.version) for entry in page.entries})
        low = page.next_key
    return found
