"""Replicas that are compared, and take from each other what they lack."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.node.replicas.memory_replicas import (
    MemoryReplica,
    Neighbours,
    delete,
    narrow_table,
    put,
    some_writes,
    wide_table,
)

from trimtab.node.replicas import walking
from trimtab.node.replicas.mending import Hopeless, Mending
from trimtab.node.replicas.repair import Repair, RepairFailed, RepairService
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.layout import RowLayout
from trimtab.rows.reading import Limits

WIDE, NARROW = wide_table(), narrow_table()


@pytest.mark.parametrize("layout", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("seed", range(5))
def test_replicas_that_missed_different_writes_are_equal_after_each_took_from_the_other(
    layout: RowLayout, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    # Steps that end anywhere: inside partitions, between deletions and rows.
    monkeypatch.setattr(
        walking, "STEP", Limits(answer_bytes=300, scanned_bytes=10_000, scanned_pairs=rng.choice((1, 3, 7)))
    )
    monkeypatch.setattr("trimtab.node.replicas.repair.PAGE_BYTES", 400)
    monkeypatch.setattr("trimtab.node.replicas.repair.FEW_PAIRS", 5)
    monkeypatch.setattr("trimtab.node.replicas.repair.MAX_PAIRS_PER_REQUEST", 20)
    around = Neighbours(layout, 3)
    everything = MemoryReplica(layout)
    for pairs in some_writes(layout, rng, 150, 12):
        everything.add(pairs)
        for raft_id in rng.sample((1, 2, 3), rng.randrange(1, 4)):
            around.held[raft_id].add(pairs)

    async def story() -> None:
        repair = around.repair()
        for own in (1, 2, 3):
            for peer in (1, 2, 3):
                if peer != own:
                    await repair.against(around.held[own], peer)
        wanted = await everything.content()
        # The first took from the others before these had taken from it; what any had at first, all have now.
        for raft_id in (1, 2, 3):
            assert await around.held[raft_id].content() == wanted
        taken = repair.taken.pairs
        await repair.against(around.held[1], 2)
        assert repair.taken.pairs == taken, "equal replicas take nothing"

    asyncio.run(story())


def test_digests_don_t_depend_on_steps_and_say_what_is_empty() -> None:
    replica = MemoryReplica(WIDE)
    for pairs in some_writes(WIDE, random.Random(5), 300, 20):
        replica.add(pairs)

    async def story() -> None:
        cuts = [replica.low, *(bytes((each,)) + bytes(7) for each in range(16, 256, 16)), b""]
        before = await replica.walk(0, gentle=False).digests(cuts)
        assert len(before) == 16 and len(set(before)) > 2
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(walking, "STEP", Limits(1, 1, 1))
            assert await replica.walk(0, gentle=False).digests(cuts) == before
            first, pairs = await replica.walk(0, gentle=False).first_digests(cuts, 30)
            assert 0 < len(first) < 16 and first == before[: len(first)] and sum(pairs) > 0
        assert await MemoryReplica(WIDE).walk(0, gentle=False).digests(cuts) == [b""] * 16

    asyncio.run(story())


def test_nothing_anywhere_takes_one_question() -> None:
    around = Neighbours(NARROW, 2)

    async def story() -> None:
        await around.repair().against(around.held[1], 2)
        assert around.asked == [(2, protocol.DIGESTS)]

    asyncio.run(story())


def test_a_few_rows_among_many_are_found_with_a_few_pages() -> None:
    around = Neighbours(NARROW, 2)
    for number in range(4_000):
        pairs = put(NARROW, number, "v", 1_000_000)
        around.held[2].add(pairs)
        if number % 2_000:
            around.held[1].add(pairs)

    async def story() -> None:
        repair = around.repair()
        await repair.against(around.held[1], 2)
        assert len(around.held[1].pairs) == 4_000
        assert repair.taken.pairs == 2 and repair.taken.pages == 2

    asyncio.run(story())


def test_a_deletion_that_was_forgotten_on_one_side_makes_no_difference() -> None:
    """Else the two would hand it back and forth for ever."""
    around = Neighbours(WIDE, 2)
    for replica in around.held.values():
        replica.add(put(WIDE, 1, "old", 1_000_000, row=1))
        replica.add(put(WIDE, 2, "kept", 1_000_000, row=1))
        replica.repaired_through_ms = 5_000
    around.held[2].add(delete(WIDE, 1, 2_000_000))
    around.held[1].pairs = {key: value for key, value in around.held[1].pairs.items() if b"old" not in value}
    around.held[1].keys = sorted(around.held[1].pairs)

    async def story() -> None:
        repair = around.repair()
        await repair.against(around.held[1], 2)
        await repair.against(around.held[2], 1)
        assert repair.taken.pages == 0

    asyncio.run(story())


def test_a_row_does_not_come_back_from_a_replica_that_holds_its_deletion() -> None:
    around = Neighbours(WIDE, 2)
    around.held[2].add(put(WIDE, 1, "old", 1_000_000, row=1))
    around.held[2].add(delete(WIDE, 1, 2_000_000))

    async def story() -> None:
        await around.repair().against(around.held[1], 2)
        assert [value for value in around.held[1].pairs.values() if b"old" in value] == []
        assert len(around.held[1].pairs) == 1, "the deletion came"

    asyncio.run(story())


def test_who_is_down_not_synced_rebuilt_or_of_another_schema_repairs_nobody() -> None:
    around = Neighbours(NARROW, 2)
    around.held[2].add(put(NARROW, 1, "v", 1_000_000))

    async def refused(text: str) -> None:
        with pytest.raises(RepairFailed, match=text):
            await around.repair().against(around.held[1], 2)

    async def story() -> None:
        around.down.add(2)
        await refused("down")
        around.down.clear()
        around.unsynced.add(2)
        await refused("does not know the cluster's state yet")
        around.unsynced.clear()
        around.held[2].answers = False
        await refused("being rebuilt")
        around.held[2].answers = True
        versions = iter((1, 2, 2))
        around.services[2]._catalog = lambda: next(versions) + 1
        await refused("schema is at version")

    asyncio.run(story())


def test_a_page_that_slept_for_longer_than_a_hint_lives_is_thrown_away() -> None:
    around = Neighbours(NARROW, 2)
    around.held[2].add(put(NARROW, 1, "v", 1_000_000))

    async def story() -> None:
        ask = around.ask

        async def slow(raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
            answer = await ask(raft_id, method, body, timeout_s)
            if method == protocol.PAGE:
                around.now_ms += 20_000
            return answer

        around.ask = slow  # type: ignore[method-assign]
        with pytest.raises(RepairFailed, match="longer than a hint lives"):
            await around.repair().against(around.held[1], 2)
        assert around.held[1].pairs == {}

    asyncio.run(story())


def test_a_replica_that_lacks_a_load_takes_it_only_from_those_that_have_it() -> None:
    around = Neighbours(NARROW, 3)
    for raft_id in (1, 2, 3):
        around.held[raft_id].add(put(NARROW, 1, "a", 5))
    around.held[2].add(put(NARROW, 2, "b", 999))
    around.held[2].adopted, around.held[1].needs = 4, 4

    async def story() -> None:
        repair = around.repair()
        with pytest.raises(RepairFailed, match="it has loads up to epoch 0 only, and 4 is needed"):
            await repair.against(around.held[1], 3)
        mending = Mending(1, repair, around, story=lambda _line: None)
        assert await mending.mend(around.held[1], intact=True, gentle=False)
        assert around.held[1].adopted == 4 and await around.held[1].content() == await around.held[2].content()
        # With nobody to ask it stays without, rather than saying that it has it.
        around.held[3].needs = 5
        around.down = {1, 2}
        mended = asyncio.ensure_future(
            Mending(3, repair, around, story=lambda _line: None).mend(around.held[3], intact=True, gentle=False)
        )
        await asyncio.sleep(0.05)
        assert not mended.done() and around.held[3].adopted == 0
        mended.cancel()

    asyncio.run(story())


def test_a_replica_without_others_that_lacks_a_load_is_hopeless() -> None:
    around = Neighbours(NARROW, 1)
    around.held[1].needs = 2

    async def story() -> None:
        with pytest.raises(Hopeless):
            await Mending(1, around.repair(), around, story=lambda _line: None).mend(
                around.held[1], intact=True, gentle=False
            )

    asyncio.run(story())


def test_rows_of_loads_are_taken_only_when_these_loads_are_known_here() -> None:
    around = Neighbours(NARROW, 2)
    around.held[2].add(put(NARROW, 2, "b", 999))
    known: list[tuple[int, int]] = []

    async def wait(table: int, epoch: int) -> None:
        assert not around.held[1].pairs
        known.append((table, epoch))

    async def story() -> None:
        around.services[2] = RepairService(
            lambda _table, _tablet, _generation: around.held[2],
            synced=lambda: True,
            catalog=lambda: around.catalog,
            committed=lambda _table: 3,
        )
        repair = Repair(around.ask, catalog=lambda: 1, wall_ms=lambda: 1, hint_life_ms=10_000, known=wait)
        await repair.against(around.held[1], 2)
        assert known == [(7, 3)] and len(around.held[1].pairs) == 1

    asyncio.run(story())
