"""Writes at every level: who must acknowledge, who gets a hint, and what is said when it does not work out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.node.router.stage import OWN, TABLE, HintsKept, Replicas, Topology, play

from trimtab.node.answering import Refused
from trimtab.node.router.deadlines import Deadlines
from trimtab.node.router.routes import Routes
from trimtab.node.router.writes import Writes
from trimtab.rows.protocol import ReplicaWrite
from trimtab.tablets.consistency import Level
from trimtab.topology.grades import Grade

WRITE = ReplicaWrite(TABLE, 0, [b"key", b"value"], 1_000)


class Router:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.replicas = Replicas()
        self.hints = HintsKept()
        parts: Any = self.replicas
        self.writes = Writes(
            OWN,
            Routes(OWN, topology.view, topology.tables),
            parts,
            parts,
            self.hints,
            topology.serving,
            topology.open,
            topology.waits,
            Deadlines(),
        )

    async def write(self, level: Level, timeout_s: float = 1.0) -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def done(refused: Refused | None, acknowledged: int) -> None:
            assert not future.done(), "it was answered twice"
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result(acknowledged)

        self.writes.begin([WRITE], level, loop.time() + timeout_s, done)
        return await future

    async def refusal(self, level: Level, timeout_s: float = 1.0) -> tuple[str, dict[str, Any]]:
        with pytest.raises(Refused) as refused:
            await self.write(level, timeout_s)
        return refused.value.code, msgspec.msgpack.decode(refused.value.details) if refused.value.details else {}


# level -> replicas that are needed of three in dc1 (1, 2, 3) and two in dc2 (4, 5), and how many may be away per dc
NEEDED = [
    (Level.ONE, 1),
    (Level.TWO, 2),
    (Level.THREE, 3),
    (Level.QUORUM, 3),
    (Level.ALL, 5),
    (Level.LOCAL_ONE, 1),
    (Level.LOCAL_QUORUM, 2),
]


@pytest.mark.parametrize(("level", "needed"), NEEDED)
def test_a_level_is_reached_with_as_many_replicas_as_it_needs_and_not_with_one_less(level: Level, needed: int) -> None:
    async def story() -> None:
        local = level in (Level.LOCAL_ONE, Level.LOCAL_QUORUM)
        others = [2, 3] if local else [2, 3, 4, 5]
        for acknowledging, reached in ((needed, True), (needed - 1, False)):
            router = Router(Topology(5, (1, 2, 3, 4, 5), {4: "dc2", 5: "dc2"}))
            yes = [OWN, *others][:acknowledging]
            router.replicas.silent = {1, 2, 3, 4, 5} - set(yes)
            if reached:
                assert await router.write(level) == needed
            else:
                code, numbers = await router.refusal(level)
                assert code == "write_timeout"
                assert numbers == {"consistency": level.name, "required": needed, "received": needed - 1}

    play(story)


def test_each_quorum_needs_one_in_each_data_centre() -> None:
    async def story() -> None:
        router = Router(Topology(5, (1, 2, 3, 4, 5), {4: "dc2", 5: "dc2"}))
        router.replicas.silent = {3}
        assert await router.write(Level.EACH_QUORUM) == 4
        router.replicas.silent = {5}
        code, numbers = await router.refusal(Level.EACH_QUORUM)
        assert (code, numbers["required"], numbers["received"]) == ("write_timeout", 2, 1)
        router.replicas.away = {4}
        code, numbers = await router.refusal(Level.EACH_QUORUM)
        assert (code, numbers["required"], numbers["alive"]) == ("unavailable", 2, 1)

    play(story)


def test_too_few_live_replicas_are_known_before_anything_is_sent() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.away = {2}
        router.topology.stand(3, Grade.OFFLINE)
        code, numbers = await router.refusal(Level.QUORUM)
        assert code == "unavailable"
        assert numbers == {"consistency": "QUORUM", "required": 2, "alive": 1}
        assert router.replicas.taken == {} and router.hints.kept == []
        assert await router.write(Level.ONE) == 1

    play(story)


def test_one_that_catches_up_takes_writes_and_counts() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.away = {2}
        router.topology.stand(3, Grade.RAFT_SYNCED)
        assert await router.write(Level.QUORUM) == 2

    play(story)


def test_whoever_does_not_acknowledge_gets_a_hint_at_every_level() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {2: "not_ready"}
        assert await router.write(Level.ONE) == 1
        await asyncio.sleep(0.1)
        assert router.hints.targets == [2]
        router.replicas.refusing, router.replicas.away = {}, {3}
        assert await router.write(Level.QUORUM) == 2
        assert router.hints.targets == [2, 3]
        router.replicas.away, router.replicas.silent = set(), {2}
        assert await router.write(Level.QUORUM, timeout_s=2.0) == 2
        assert router.hints.targets == [2, 3] and len(router.topology.open) == 1
        await asyncio.sleep(3)
        assert router.hints.targets == [2, 2, 3] and len(router.topology.open) == 0

    play(story)


def test_a_late_acknowledgement_is_not_counted_any_more() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.silent = {2, 3}
        assert (await router.refusal(Level.QUORUM))[0] == "write_timeout"
        for raft_id, answered in router.replicas.waiting:
            answered(raft_id, None)
        assert router.hints.targets == [2, 3]

    play(story)


def test_refusals_that_leave_no_hope_are_told_at_once_with_their_reasons() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {2: "skew", 3: "disk_full"}
        code, numbers = await router.refusal(Level.QUORUM, timeout_s=1_000.0)
        assert code == "write_failed"
        assert numbers["required"] == 2 and numbers["failures"] == 2
        assert numbers["reasons"] == {"2": "skew", "3": "disk_full"}
        router.replicas.refusing = {1: "disk_full", 2: "disk_full", 3: "disk_full"}
        assert (await router.refusal(Level.QUORUM))[0] == "disk_full"

    play(story)


@pytest.mark.parametrize("code", ["skew", "too_large", "invalid", "too_late"])
def test_what_replicas_refuse_because_of_the_write_itself_does_not_slip_through_as_a_hint(code: str) -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {2: code, 3: code}
        assert (await router.refusal(Level.QUORUM))[0] == "write_failed"
        assert router.hints.targets == []
        router.replicas.refusing = {1: code, 2: code, 3: code}
        assert (await router.refusal(Level.ANY))[0] == "write_failed"
        assert router.hints.targets == []
        # Where the level is reached it was promised, and everybody has to come to have it.
        router.replicas.refusing = {2: code}
        assert await router.write(Level.QUORUM) == 2
        await asyncio.sleep(0.1)
        assert router.hints.targets == [2]

    play(story)


def test_that_the_own_replica_did_not_take_a_write_is_noted() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {OWN: "overloaded"}
        assert await router.write(Level.QUORUM) == 2
        await asyncio.sleep(0.1)
        assert router.hints.targets == [OWN]
        router.replicas.refusing, router.replicas.silent = {}, {OWN}
        assert await router.write(Level.QUORUM) == 2
        await asyncio.sleep(2)
        assert router.hints.targets == [OWN, OWN]

    play(story)


def test_any_is_reached_by_a_hint_that_is_durable() -> None:
    async def story() -> None:
        router = Router(Topology(4, (2, 3, 4)))
        router.replicas.away = {2, 3, 4}
        assert await router.write(Level.ANY) == 0
        assert router.hints.targets == [2, 3, 4]
        assert (await router.refusal(Level.ONE))[0] == "unavailable"
        router.hints.full = True
        assert (await router.refusal(Level.ANY))[0] == "write_timeout"

    play(story)


def test_without_a_lease_nothing_is_written() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.topology.lease_ms = 0
        assert (await router.refusal(Level.ANY))[0] == "no_lease"
        assert router.replicas.taken == {}

    play(story)


def test_a_table_that_is_not_there_is_not_found() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.topology.tables.maps.clear()
        router.topology.view.version += 1
        assert (await router.refusal(Level.ONE))[0] == "not_found"

    play(story)
