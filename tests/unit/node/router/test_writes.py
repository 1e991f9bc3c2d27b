"""Writes at every level: who must acknowledge, who gets a hint, and what is said when it does not work out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.node.router.stage import OWN, TABLE, HintsKept, Replicas, Topology, play

from trimtab.loads.records import EpochRecord, encode, epoch_key
from trimtab.node.answering import Refused
from trimtab.node.router.deadlines import Deadlines
from trimtab.node.router.routes import Routes
from trimtab.node.router.writes import Writes
from trimtab.rows.protocol import Failed, ReplicaWrite
from trimtab.tablets.consistency import Level
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind, transition_key
from trimtab.tablets.transitions import encode as encode_transition
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
            Routes(OWN, topology.view, topology.tables, topology.loads),
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


def test_that_all_replicas_are_overloaded_is_said_as_it_is_and_none_gets_a_hint_of_it() -> None:
    """Whoever is told so takes it that nothing was done, and writes again."""

    async def story() -> None:
        for level in (Level.ONE, Level.QUORUM, Level.ALL):
            router = Router(Topology(3, (1, 2, 3)))
            router.replicas.refusing = dict.fromkeys((1, 2, 3), "overloaded")
            code, numbers = await router.refusal(level)
            assert code == "overloaded" and numbers["failures"] == 3
            await asyncio.sleep(2)
            assert router.hints.targets == [] and len(router.topology.open) == 0
        alone = Router(Topology(1, (OWN,)))
        alone.replicas.refusing = {OWN: "overloaded"}
        assert (await alone.refusal(Level.ONE))[0] == "overloaded"

    play(story)


def test_where_one_replica_took_the_write_or_may_have_it_is_not_called_overloaded_and_hints_are_given() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {1: "overloaded", 2: "overloaded"}
        assert (await router.refusal(Level.QUORUM))[0] == "write_failed"
        assert router.hints.targets == [1, 2]
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing, router.replicas.silent = {1: "overloaded", 2: "overloaded"}, {3}
        assert (await router.refusal(Level.QUORUM))[0] == "write_failed"
        assert router.hints.targets == [1, 2]
        await asyncio.sleep(1)
        assert router.hints.targets == [1, 2, 3]
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {1: "overloaded", 2: "skew", 3: "overloaded"}
        with pytest.raises(Refused, match="may have happened on some") as refused:
            await router.write(Level.QUORUM)
        assert refused.value.code == "write_failed"
        await asyncio.sleep(0.1)
        assert router.hints.targets == [1, 3]

    play(story)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (["disk_full"] * 3, "disk_full"),
        (["disk_full", "overloaded", "disk_full"], "write_failed"),
        (["too_large"] * 3, "write_failed"),
        (["invalid", "too_late", "disk_full"], "write_failed"),
    ],
)
def test_what_all_replicas_refuse_was_not_done_and_no_hint_brings_it_later(codes: list[str], said: str) -> None:
    async def story() -> None:
        for level in (Level.ONE, Level.QUORUM, Level.ALL):
            router = Router(Topology(3, (1, 2, 3)))
            router.replicas.refusing = dict(enumerate(codes, 1))
            with pytest.raises(Refused, match="nothing was done") as refused:
                await router.write(level)
            assert refused.value.code == said and "may have happened" not in refused.value.text
            await asyncio.sleep(2)
            assert router.hints.targets == [] and len(router.topology.open) == 0
        alone = Router(Topology(1, (OWN,)))
        alone.replicas.refusing = {OWN: codes[0]}
        with pytest.raises(Refused, match="nothing was done"):
            await alone.write(Level.ONE)

    play(story)


@pytest.mark.parametrize(
    ("codes", "said", "within_s"),
    [
        (["disk_full"] * 2, "disk_full", 1.0),
        (["invalid"] * 2, "write_failed", 1.0),
        (["overloaded", "disk_full"], "write_failed", 1.0),
        (["version_mismatch"] * 2, "version_mismatch", 0.0),
    ],
)
def test_a_silent_replica_does_not_hold_up_a_refusal_and_hides_no_reason(
    codes: list[str], said: str, within_s: float
) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        for timeout_s in (0.3, 1_000.0):
            router = Router(Topology(3, (1, 2, 3)))
            router.replicas.refusing, router.replicas.silent = dict(enumerate(codes, 1)), {3}
            began = loop.time()
            with pytest.raises(Refused, match="may have happened on replica 3, which has not answered") as refused:
                await router.write(Level.QUORUM, timeout_s)
            assert loop.time() - began <= within_s
            assert refused.value.code == said and "(replica 1: no; replica 2: no)" in refused.value.text
            assert "nothing was done" not in refused.value.text
            assert msgspec.msgpack.decode(refused.value.details)["reasons"] == dict(zip("12", codes, strict=True))

    play(story)


def test_what_ran_out_of_time_keeps_the_reasons_of_those_who_refused() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing, router.replicas.silent = {1: "disk_full", 2: "invalid"}, {3}
        with pytest.raises(Refused, match=r"0 answered in time; .* \(replica 1: no; replica 2: no") as refused:
            await router.write(Level.ONE)
        assert refused.value.code == "write_timeout"
        assert msgspec.msgpack.decode(refused.value.details) == {
            "consistency": "ONE",
            "required": 1,
            "received": 0,
            "failures": 2,
            "reasons": {"1": "disk_full", "2": "invalid"},
        }

    play(story)


@pytest.mark.parametrize(("code", "within_s"), [("disk_full", 1.0), ("version_mismatch", 0.0)])
def test_a_part_of_a_request_that_hangs_does_not_hold_up_the_refusal_of_another(code: str, within_s: float) -> None:
    async def story() -> None:
        router = Router(Topology(5, (1,)))
        router.topology.tables.change(chunk_key(TABLE, 0), pack([(3,), (4,)]), 2)
        router.topology.view.version += 1
        router.replicas.refusing, router.replicas.silent = {3: code}, {4}
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Refused | None] = loop.create_future()
        began = loop.time()
        writes = [WRITE, replace(WRITE, tablet=1)]
        router.writes.begin(writes, Level.QUORUM, began + 1_000, lambda refused, _: told.set_result(refused))
        refused = await told
        assert refused is not None and loop.time() - began <= within_s
        assert refused.code == code and refused.text.endswith("other parts of the request may have happened")

    play(story)


def test_where_one_took_it_those_whose_disks_are_full_get_hints_and_it_may_have_happened() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {2: "disk_full", 3: "disk_full"}
        with pytest.raises(Refused, match="may have happened on some") as refused:
            await router.write(Level.QUORUM)
        assert refused.value.code == "disk_full"
        await asyncio.sleep(0.1)
        assert router.hints.targets == [2, 3]
        assert await router.write(Level.ONE) == 1
        await asyncio.sleep(0.1)
        assert router.hints.targets == [2, 2, 3, 3]

    play(story)


def test_that_nothing_was_done_by_the_newer_map_says_nothing_of_what_was_done_before() -> None:
    async def story() -> None:
        router = Router(Topology(3, (2, 3)))
        router.replicas.refusing = {2: "fenced", 3: "not_here"}
        writing = asyncio.ensure_future(router.write(Level.ONE))
        await asyncio.sleep(0.1)
        router.replicas.refusing = {2: "disk_full", 3: "too_large"}
        router.topology.view.version += 1
        router.topology.waits.look()
        with pytest.raises(Refused, match="may have happened on some"):
            await writing

    play(story)


def test_that_nothing_was_done_at_first_is_not_said_of_what_was_taken_by_the_newer_map() -> None:
    async def story() -> None:
        router = Router(Topology(6, (2, 3)))
        router.replicas.silent = {2, 3}
        writing = asyncio.ensure_future(router.write(Level.QUORUM))
        await asyncio.sleep(0.1)
        router.topology.tables.change(chunk_key(TABLE, 0), pack([(4, 5, 6)]), 9)
        router.topology.view.version += 1
        router.replicas.refusing = {5: "version_mismatch", 6: "version_mismatch"}
        for raft_id, answered in router.replicas.waiting:
            answered(raft_id, Failed("disk_full", "no"))
        with pytest.raises(Refused, match="may have happened on some") as refused:
            await writing
        assert refused.value.code == "version_mismatch" and set(router.replicas.taken) == {4}

    play(story)


def test_what_could_not_be_sent_by_the_newer_map_is_answered_as_it_was_before() -> None:
    async def story() -> None:
        router = Router(Topology(3, (2, 3)))
        router.replicas.refusing = {2: "fenced", 3: "not_here"}
        writing = asyncio.ensure_future(router.write(Level.ONE))
        await asyncio.sleep(0.1)
        router.topology.lease_ms = 0
        router.topology.view.version += 1
        router.topology.waits.look()
        with pytest.raises(Refused, match="may have happened on some") as refused:
            await writing
        assert refused.value.code == "write_failed"

    play(story)


@pytest.mark.parametrize(("code", "said"), [("overloaded", "write_failed"), ("disk_full", "disk_full")])
def test_of_several_writes_one_that_is_refused_does_not_say_that_nothing_was_done_of_all(code: str, said: str) -> None:
    async def story() -> None:
        router = Router(Topology(4, (1, 2, 3)))
        router.topology.tables.change(chunk_key(TABLE, 0), pack([(1, 2, 3), (4,)]), 2)
        router.topology.view.version += 1

        async def told(*refusing: int) -> Refused:
            router.replicas.refusing = dict.fromkeys(refusing, code)
            told: list[Refused | None] = []
            deadline = asyncio.get_running_loop().time() + 1
            writes = [WRITE, replace(WRITE, tablet=1)]
            router.writes.begin(writes, Level.QUORUM, deadline, lambda refused, _: told.append(refused))
            await asyncio.sleep(2)
            (refused,) = told
            assert refused is not None
            return refused

        part = await told(1, 2, 3)
        assert part.code == said and "nothing was done of this part" in part.text
        assert part.text.endswith("other parts of the request may have happened")
        whole = await told(1, 2, 3, 4)
        assert whole.code == code and "nothing was done (" in whole.text

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


def test_a_write_to_a_generation_that_was_overwritten_is_refused_as_such_and_gets_no_hint() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.replicas.refusing = {2: "version_mismatch", 3: "version_mismatch"}
        assert (await router.refusal(Level.QUORUM))[0] == "version_mismatch"
        assert router.hints.targets == []
        # Where the level was reached all the same, everybody gets it; who has another generation drops it then.
        router.replicas.refusing = {3: "version_mismatch"}
        assert await router.write(Level.QUORUM) == 2
        await asyncio.sleep(0.01)
        assert router.hints.targets == [3]

    play(story)


def test_writes_of_dropped_tables_and_of_generations_that_are_served_no_more_are_left_out() -> None:
    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        writes = [replace(WRITE, generation=generation) for generation in (1, 2, 3)]
        assert router.writes.of_known_tables([*writes, replace(WRITE, table=99)]) == writes, "two may be on their way"
        router.topology.loads.change(epoch_key(TABLE), encode(EpochRecord(5, 5, ((0, 1), (5, 2)), 3)), 1)
        assert router.writes.of_known_tables(writes) == writes[1:]
        # Rolled back at an epoch that is not known here yet: the generation before is the one that is served.
        back = replace(WRITE, generation=1, epoch=6)
        assert router.writes.of_known_tables([back]) == [back]

    play(story)


def test_without_a_lease_nobody_says_that_a_table_was_dropped() -> None:
    """Right after a start the tables are not known yet, and a batch that is held would be forgotten."""

    async def story() -> None:
        router = Router(Topology(3, (1, 2, 3)))
        router.topology.lease_ms = 0
        with pytest.raises(Refused, match="lease"):
            router.writes.of_known_tables([replace(WRITE, table=99)])

    play(story)


# Tablets that move


def under_way(topology: Topology, stage: Stage, *pending: int) -> None:
    record = TabletTransition(pending, TransitionKind.MIGRATION, stage, session="s")
    topology.tables.change(transition_key(TABLE, 0), encode_transition(record), 2)
    topology.view.version += 1


def test_while_both_sets_take_writes_the_level_is_reached_in_each() -> None:
    async def story() -> None:
        router = Router(Topology(6, (1, 2, 3)))
        under_way(router.topology, Stage.STREAMING, 1, 5, 6)
        router.replicas.silent = {5, 6}
        code, numbers = await router.refusal(Level.QUORUM)
        assert (code, numbers["required"], numbers["received"]) == ("write_timeout", 2, 1)
        router.replicas.silent = {2, 5}
        assert await router.write(Level.QUORUM) == 3
        assert set(router.replicas.taken) == {1, 2, 3, 6}

    play(story)


def test_a_write_that_finds_a_replica_gone_goes_by_the_newer_map() -> None:
    """The move of the only replica is undone: whoever was to get it knows that before this router does."""

    async def story() -> None:
        router = Router(Topology(3, (2,)))
        under_way(router.topology, Stage.STREAMING, 3)
        router.replicas.refusing = {3: "not_here"}
        writing = asyncio.ensure_future(router.write(Level.QUORUM))
        await asyncio.sleep(0.1)
        assert not writing.done() and router.hints.kept == []
        under_way(router.topology, Stage.CLEANUP_TARGET, 3)
        router.topology.waits.look()
        assert await writing == 1
        assert router.writes.rerouted == 1 and len(router.replicas.taken[2]) == 2
        assert router.topology.open.oldest() is None

    play(story)


def test_a_write_that_finds_a_replica_gone_is_refused_when_no_newer_map_comes() -> None:
    async def story() -> None:
        router = Router(Topology(3, (2, 3)))
        router.replicas.refusing = {2: "not_here", 3: "fenced"}
        code, numbers = await router.refusal(Level.ONE, timeout_s=0.5)
        assert code == "write_failed" and numbers["reasons"] == {"2": "not_here", "3": "fenced"}

    play(story)


def test_a_write_that_is_refused_where_its_tablet_has_just_been_goes_on_where_it_is() -> None:
    async def story() -> None:
        router = Router(Topology(3, (2,)))
        router.replicas.silent = {2}
        writing = asyncio.ensure_future(router.write(Level.QUORUM))
        await asyncio.sleep(0.1)
        router.topology.tables.change(chunk_key(TABLE, 0), pack([(3,)]), 9)
        router.topology.view.version += 1
        ((raft_id, answered),) = router.replicas.waiting
        answered(raft_id, Failed("not_ready", "it was closed"))
        assert await writing == 1
        assert set(router.replicas.taken) == {3}

    play(story)
