"""A metastore of three real processes: kill -9, snapshots, bad peers. Nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.cluster.members import Members
from tests.cluster.watching import (
    caught_up,
    everything,
    leader_of,
    members_of,
    outage_s,
    run,
    same_state,
    status_of,
    until,
)
from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient

PUTS = 10_000
WRITERS = 16


@pytest.mark.cluster
@pytest.mark.slow
def test_each_member_killed_in_turn_during_ten_thousand_puts_loses_nothing(members: Members) -> None:
    members.start(1, 2, 3)
    acknowledged: dict[bytes, bytes] = {}
    times: list[float] = []
    killed: list[tuple[float, int, bool]] = []

    async def writer(client: MetastoreClient, place: int, killing: asyncio.Task[None]) -> None:
        # Until everybody was killed once, and at least so many puts were made.
        for number in itertools.count(place, WRITERS):
            if number >= PUTS and killing.done():
                return
            key, value = b"put/%06d" % number, b"value %d" % number
            await client.put(key, value, timeout_s=60)
            acknowledged[key] = value
            times.append(time.monotonic())

    async def killer() -> None:
        # Each member once, whichever leads then, and the leader of the moment once more.
        for member in (1, 2, 3, 0):
            before = len(acknowledged)
            await until(lambda before=before: _at_least(acknowledged, before + PUTS // 8), "more puts")
            leader = await leader_of([members.addresses[each - 1] for each in members.running])
            victim = member or leader
            members.kill(victim)
            killed.append((time.monotonic(), victim, victim == leader))
            before = len(acknowledged)
            await until(lambda before=before: _at_least(acknowledged, before + 200), "puts after the kill")
            await asyncio.to_thread(members.start, victim)
            await until(partial(caught_up, members.addresses[victim - 1]), f"member {victim} to catch up")

    async def story() -> None:
        client = await MetastoreClient.connect(members.addresses)
        killing = asyncio.create_task(killer())
        await asyncio.gather(killing, *[writer(client, place, killing) for place in range(WRITERS)])
        found = await everything(client, b"put/")
        assert {key: value for key, (value, _) in found.items()} == acknowledged
        assert len(acknowledged) >= PUTS
        assert {version for _, version in found.values()} == {1}, "a put was applied twice"
        await client.close()
        final = [await status_of(address) for address in members.addresses]
        await until(lambda: same_state(members.addresses), f"all members to have the same state, not {final}")

    run(story())
    assert any(led for _, _, led in killed)
    for moment, victim, led in killed:
        if not led:
            continue
        gap_s = outage_s(times, moment)
        assert gap_s < 20, f"{gap_s:.2f} s without service after the leader (member {victim}) was killed"


def test_an_outage_is_measured_from_the_kill_however_long_it_was() -> None:
    steady = [number / 10 for number in range(100)]
    assert outage_s(steady, 5.0) == pytest.approx(0.1)
    assert outage_s([each for each in steady if not 5.0 < each < 5.9], 5.0) == pytest.approx(0.9)
    assert outage_s([each for each in steady if each < 5] + [40.0], 5.0) == pytest.approx(35.1)
    # What was under way when the leader died may still be acknowledged a little later.
    assert outage_s([each for each in steady if each < 5] + [5.01, 40.0], 5.0) == pytest.approx(34.99)
    with pytest.raises(AssertionError, match="nothing"):
        outage_s([each for each in steady if each < 5], 5.0)


async def _at_least(what: dict[bytes, bytes], count: int) -> bool:
    return len(what) >= count


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fresh_member_receives_a_large_snapshot_while_writes_go_on(
    members: Members, free_ports: Callable[[int], list[int]]
) -> None:
    members.start(1, 2, 3, options=["--message-limit-kb", "1024"])
    value = bytes(range(256)) * 1024  # 256 KiB
    total_mb = 200
    newcomer = f"127.0.0.1:{free_ports(1)[0]}"

    async def story() -> None:
        client = await MetastoreClient.connect(members.addresses)
        waiting: set[asyncio.Task[int]] = set()
        for number in range(total_mb * 4):
            waiting.add(asyncio.create_task(client.put(b"large/%06d" % number, value, timeout_s=60)))
            if len(waiting) >= 8:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*waiting)

        async def cut() -> bool:
            return all([(await status_of(address)).first_index > 100 for address in members.addresses])

        await until(cut, "the logs to be cut, so that only a snapshot can help")
        members.launch(4, listen=newcomer, options=["--message-limit-kb", "1024"])
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                with contextlib.suppress(Error):
                    await client.put(b"small/%06d" % written, b"x")
                    written += 1
                await asyncio.sleep(0.05)

        async def arrived() -> bool:
            # Mostly without a vote; but it may get that of one that was busy for too long.
            if newcomer not in {each.address for each in await members_of(newcomer)}:
                return False
            status = await status_of(newcomer)
            return status.revision >= total_mb * 4 and status.applied >= status.committed - 5

        writing = asyncio.create_task(write())
        await until(arrived, "the newcomer to have everything", 180)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert written > 10, "writes went on meanwhile"
        alone = await MetastoreClient.connect([newcomer], follow_leader=False)
        entry = await alone.get(b"large/%06d" % (total_mb * 4 - 1), linearizable=False)
        assert entry is not None and entry.value == value
        await alone.close()
        await client.close()

    run(story())
    assert "fetching the snapshot" in members.output(4)
