"""Rows of three instances, RF 3, QUORUM: killed -9 one after another while clients write and read.

TRIMTAB_TEST_WRITES=100000 makes of the sample what the promise says; reads come on top.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import trimtab
from tests.cluster.instances import Instances
from tests.cluster.patience import scanned
from tests.cluster.replica_reads import replicas_of
from tests.cluster.rows_load import FACTS, REGISTERS, History, Load, create_tables, value_of
from tests.cluster.synced_lengths import SyncedLengths
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.net.errors import NetError

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

OUTCOMES = int(os.environ.get("TRIMTAB_TEST_WRITES", "2400"))
# Of each thread of a client after each request: else a sample takes all of the machine, as many are meant to.
PAUSE_S = 0.05 if OUTCOMES < 20_000 else 0.005


async def start(three: Instances, env: dict[int, dict[str, str]] | None = None) -> trimtab.Database:
    for number in (1, 2, 3):
        three.start(number, env=(env or {}).get(number))
    await three.online()
    db = trimtab.connect(",".join(three.listen.values()), timeout=60)
    create_tables(db)
    return db


async def come_back(three: Instances, number: int, env: dict[str, str] | None = None) -> None:
    three.start(number, env=env)
    await three.online(number)


def at_quorum(db: trimtab.Database) -> tuple[dict[int, Any], dict[int, Any]]:
    facts = {row["id"]: row["value"] for row in scanned(db.table(FACTS, consistency="QUORUM"))}
    registers = {row["id"]: row["n"] for row in scanned(db.table(REGISTERS, consistency="QUORUM"))}
    return facts, registers


async def nothing_is_lost(three: Instances, db: trimtab.Database, history: History) -> None:
    """Every acknowledged write is there at QUORUM, and, when hints have arrived, on each replica by itself."""
    print(f"\n{history}")
    history.check()
    facts, registers = at_quorum(db)
    assert not history.lost(facts, registers)
    for number in three.running:
        await three.wait_for(partial(holds_all, three, number, history), f"i{number} holds everything")


async def holds_all(three: Instances, number: int, history: History) -> bool:
    try:
        async with replicas_of(three, number) as replicas:
            facts, registers = await replicas.rows(FACTS), await replicas.rows(REGISTERS)
    except NetError:
        return False  # it refuses to answer just now: it has lost its lease, or the topology has changed
    lost = history.lost(
        {key: row["value"] for key, row in facts.items()}, {key: row["n"] for key, row in registers.items()}
    )
    return not lost


def test_instances_killed_one_after_another_and_all_at_once_lose_no_acknowledged_write_and_answer_nothing_stale(
    three: Instances, processes: Processes, tmp_path: Path
) -> None:
    async def tell() -> None:
        db = await start(three)
        load = Load(processes, tmp_path / "load", list(three.listen.values()), pause_s=PAUSE_S)
        for number in (1, 2, 3):
            load.await_more(OUTCOMES // 8)
            three.kill(number)
            load.await_more(OUTCOMES // 8)
            await come_back(three, number)
        load.await_more(OUTCOMES // 8)
        three.kill(1, 2, 3)
        three.start(1, 2, 3)
        await three.online()
        load.await_more(OUTCOMES // 8)
        await nothing_is_lost(three, db, load.stop())
        db.close()

    run(tell())


def test_puts_that_travel_together_are_lost_with_nobody_who_coordinates_or_stores_them(three: Instances) -> None:
    """Those of an asyncio client with many under way, each of which is awaited, and counted, by itself."""
    stamps: dict[int, int] = {}  # of facts that were acknowledged
    unknown = 0

    async def write(table: Any, facts: Iterator[int], ends: asyncio.Event) -> None:
        nonlocal unknown
        while not ends.is_set():
            fact = next(facts)
            try:
                stamps[fact] = await table.put({"id": fact, "value": value_of(fact)}, timeout=30)
            except trimtab.Error:
                unknown += 1
                await asyncio.sleep(0.02)
            await asyncio.sleep(PAUSE_S)

    async def more(count: int) -> None:
        wanted = len(stamps) + count
        await three.wait_for(lambda: asyncio.sleep(0, len(stamps) >= wanted), f"{count} more acknowledged puts")

    async def tell() -> None:
        db = await start(three)
        ends, facts = asyncio.Event(), itertools.count()
        async with await trimtab.aio.connect(",".join(three.listen.values())) as client:
            table = client.table(FACTS, consistency="QUORUM")
            writers = [asyncio.create_task(write(table, facts, ends)) for _ in range(64)]
            for number in (1, 2, 3):
                await more(OUTCOMES // 8)
                three.kill(number)
                await more(OUTCOMES // 8)
                await come_back(three, number)
            await more(OUTCOMES // 8)
            three.kill(1, 2, 3)
            three.start(1, 2, 3)
            await three.online()
            await more(OUTCOMES // 8)
            ends.set()
            await asyncio.gather(*writers)
        kinds = Counter(stamps.values())
        print(f"\n{len(stamps)} puts acknowledged, {unknown} unknown, in {len(kinds)} requests")
        assert len(kinds) * 2 < len(stamps), "they travel together"
        found, _ = at_quorum(db)
        assert not [fact for fact in stamps if found.get(fact) != value_of(fact)]
        db.close()

    run(tell())


def test_an_instance_that_loses_its_unsynced_tail_loses_no_acknowledged_write(
    three: Instances, processes: Processes, tmp_path: Path
) -> None:
    """A loss of power at one of them, twice at least: of its newest log only what was synced is certain."""
    lengths = SyncedLengths(tmp_path / "lengths")

    async def tell() -> None:
        db = await start(three, {2: lengths.env})
        # So many that something is unsynced at any time.
        load = Load(processes, tmp_path / "load", list(three.listen.values()), pause_s=PAUSE_S / 5)
        cut = 0
        for turn, share in enumerate((1.0, random.Random(4).random(), *[1.0] * 6)):
            if turn > 1 and cut > 0:
                break  # else everything happened to be synced each time
            load.await_more(OUTCOMES // 8)
            three.kill(2)
            cut += lengths.cut_tail(three.data_dir(2) / "log", share)
            load.await_more(OUTCOMES // 8)
            await come_back(three, 2, lengths.env)
        history = load.stop()
        print(f"\n{cut} bytes were cut off")
        assert cut > 0
        await nothing_is_lost(three, db, history)
        db.close()

    run(tell())
