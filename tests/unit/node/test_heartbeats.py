"""Heartbeats: none before the cluster has taken note of this life, and as many as the leader's leases ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from trimtab.node.clock_watch import ClockWatch
from trimtab.node.heartbeats import Heartbeats
from trimtab.node.presence import Granted
from trimtab.sim.world import World
from trimtab.topology.leases import LeaseHolder
from trimtab.topology.protocol import Grant, Heartbeat
from trimtab.topology.view import View


class Heart:
    """Instance 1, which leads itself; `lease_ms` is what it grants."""

    def __init__(self, now: Callable[[], float], lease_ms: int = 3_000) -> None:
        self.now = now
        self.lease_ms = lease_ms
        self.holder = LeaseHolder()
        self.beats: list[tuple[float, Heartbeat]] = []
        group: Any = SimpleNamespace(
            raw=SimpleNamespace(raft=SimpleNamespace(lead=1, term=1)), machine=SimpleNamespace(applied_index=1)
        )
        self.heartbeats = Heartbeats(
            1,
            "u1",
            group,
            View(),
            {},
            self.holder,
            now,
            ClockWatch(500, lambda: int(now() * 1000), now),
            at_own_desk=self._desk,
            every_s=0.5,
            timeout_s=3.0,
        )

    def _desk(self, beat: Heartbeat, granted: Granted) -> None:
        self.beats.append((self.now(), beat))
        granted(Grant(beat.number, 1, self.lease_ms, 1))


def play(story: Callable[[Callable[[], float]], Any]) -> None:
    with World(1) as world:
        process = world.process("i1", "10.0.0.1")
        process.start()
        world.run_until_done(process.spawn(story(lambda: world.now)), 1_000)


def test_no_heartbeat_asks_for_a_lease_before_the_cluster_has_taken_note_of_this_life() -> None:
    """The row may have the timing of an earlier life, and a leader grants by the row."""

    async def story(now: Callable[[], float]) -> None:
        heart = Heart(now)
        heart.heartbeats.beat()
        assert heart.beats == []
        heart.heartbeats.start(0.2)
        assert len(heart.beats) == 1 and heart.holder.valid(now())
        await asyncio.sleep(2)
        assert len(heart.beats) == 5

    play(story)


def test_that_it_gives_its_lease_up_is_said_in_any_case() -> None:
    async def story(now: Callable[[], float]) -> None:
        heart = Heart(now)
        heart.holder.surrender("it is shutting down")
        heart.heartbeats.beat()
        assert [beat.surrendered for _, beat in heart.beats] == [True]

    play(story)


def test_a_leader_with_shorter_leases_is_asked_more_often() -> None:
    async def story(now: Callable[[], float]) -> None:
        heart = Heart(now, lease_ms=600)
        heart.heartbeats.start(0.1)
        held = []
        for _ in range(40):
            await asyncio.sleep(0.05)
            held.append(heart.holder.valid(now()))
        assert all(held) and len(heart.beats) >= 18
        heart.lease_ms = 30_000
        await asyncio.sleep(1)
        heart.beats.clear()
        await asyncio.sleep(2)
        assert 3 <= len(heart.beats) <= 5

    play(story)
