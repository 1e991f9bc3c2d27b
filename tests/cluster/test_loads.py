"""Loads of three instances, RF 3: all or nothing for whoever reads, whoever is killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

import trimtab
from tests.cluster.instances import Instances, loopback
from tests.cluster.mines import Mines
from tests.cluster.patience import create_keyspace, create_table, put_rows, scanned
from tests.cluster.replica_reads import await_rows, rows_on
from tests.cluster.staged_loads import Loader, Reader, Rows
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.client.loads import LoadRefused
from trimtab.loads.protocol import SealRequest
from trimtab.loads.records import LoadKind, LoadState
from trimtab.topology.grades import Grade

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TABLE = "shop.users"
COLUMNS = {"id": "bigint", "value": "text"}
OLD: Rows = dict.fromkeys(range(300), "old")


async def start(three: Instances, tablets: int = 4) -> trimtab.Database:
    three.start(1, 2, 3)
    await three.online()
    db = trimtab.connect(",".join(three.listen.values()), timeout=60)
    create_keyspace(db, "shop", replication=3)
    create_table(db, TABLE, COLUMNS, tablets)
    return db


def put(db: trimtab.Database, rows: Rows) -> None:
    put_rows(db.table(TABLE, consistency="ALL"), [{"id": id, "value": value} for id, value in rows.items()])


def rows_of(db: trimtab.Database) -> dict[int, str]:
    return {row["id"]: row["value"] for row in scanned(db.table(TABLE, consistency="QUORUM"), page_rows=100)}


async def on_replicas(three: Instances, number: int, table: str = TABLE) -> dict[int, str]:
    """What one instance answers by itself."""
    return {id: row["value"] for id, row in (await rows_on(three, number, table)).items()}


async def await_on_all(three: Instances, rows: Rows) -> None:
    """Each has heard of what is published: a moment later than others, perhaps."""
    for number in (1, 2, 3):
        await await_rows(three, number, TABLE, {id: {"id": id, "value": value} for id, value in rows.items()})


def test_a_load_appears_at_once_an_overwrite_swaps_a_rollback_goes_back_and_what_is_given_up_is_swept(
    three: Instances,
) -> None:
    async def tell() -> None:
        db = await start(three)
        put(db, OLD)
        addresses, loader = ",".join(three.listen.values()), Loader(three, TABLE)
        new = dict.fromkeys(range(100, 1200), "new")
        loaded = {**OLD, **new}
        reader = Reader(addresses, TABLE, OLD, loaded)
        reader.await_state(0)
        # Asked again because an answer was lost, it may be seen already.
        assert loader.run("first", new).state in (LoadState.COMMITTED, LoadState.PUBLISHED)
        reader.await_state(1)
        assert loader.ended("first").state is LoadState.PUBLISHED
        reader.stop()
        await await_on_all(three, loaded)
        # What is written while a load is on its way wins over it.
        load = loader.begin("second")
        put(db, {5: "later"})
        sealed = loader.seal(load, loader.stage(load, {5: "loaded", 6: "loaded"}, (1, 2, 3)))
        loader.commit(load, sealed)
        loader.ended("second")
        loaded |= {5: "later", 6: "loaded"}
        assert rows_of(db) == loaded
        # An overwrite.
        other = dict.fromkeys(range(500), "other")
        reader = Reader(addresses, TABLE, loaded, other)
        reader.await_state(0)
        loader.run("third", other, kind=LoadKind.OVERWRITE)
        reader.await_state(1)
        assert loader.ended("third").state is LoadState.PUBLISHED
        reader.stop()
        put(db, {7: "since"})
        assert rows_of(db) == {**other, 7: "since"}
        # And back.
        told = loader.client.rollback(loader.table.id, "third")
        assert not told.applied and rows_of(db) == {**other, 7: "since"}
        reader = Reader(addresses, TABLE, {**other, 7: "since"}, loaded)
        reader.await_state(0)
        rolled_back = loader.patiently(lambda: loader.client.rollback(loader.table.id, "third", apply=True))
        assert rolled_back.applied
        reader.await_state(1)
        reader.stop()
        put(db, {8: "after"})
        loader.run("fourth", {9: "fourth"})
        loader.ended("fourth")
        assert rows_of(db) == {**loaded, 8: "after", 9: "fourth"}
        await await_on_all(three, {**loaded, 8: "after", 9: "fourth"})
        what_is_not_whole_is_not_sealed(three, loader)
        # Nobody drives this one.
        assert loader.abandon("quiet", {1: "never"}).state is LoadState.ABORTED
        three.until(lambda: not loader.staged(), "nothing is left in staging")
        assert rows_of(db) == {**loaded, 8: "after", 9: "fourth"}
        loader.close()
        db.close()

    run(tell())


def what_is_not_whole_is_not_sealed(three: Instances, loader: Loader) -> None:
    load = loader.begin("broken")
    files = loader.stage(load, dict.fromkeys(range(200), "new"), (1, 2, 3))
    raft_id, its = next(iter(files.items()))
    path = three.data_dir(loader.number(raft_id)) / "staging" / load.id / str(its[0].tablet) / its[0].name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    reply = loader.client.seal(raft_id, SealRequest(load.id, load.table, its))
    assert reply.missing == [(its[0].tablet, its[0].name)]
    with pytest.raises(LoadRefused, match="is not complete") as refused:
        loader.commit(load, [each for each in files if each != raft_id])
    assert raft_id in refused.value.missing
    loader.client.abort(load.table, load.id, "enough")

    def is_refused() -> bool:
        try:
            loader.client.seal(raft_id, SealRequest(load.id, load.table, []))
        except LoadRefused as error:
            assert "session of load broken is closed" in str(error)
            return True
        return False

    # The one that is asked may hear of the end later than the leader.
    three.until(is_refused, "nothing is sealed for a load that was given up")


# The others are tried where it is quicker, in tests/unit/node/replicas/test_adopting.py.
OF_OVERWRITES = ("load.adopt.composed", "load.adopt.prepared")
PLACES = ("load.seal.after", "load.adopt.tablet", "load.adopt.ingested", *OF_OVERWRITES)


def test_an_instance_killed_anywhere_between_sealing_and_taking_over_leaves_all_or_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    mines = Mines(tmp_path / "mines", PLACES)
    three = Instances(processes, tmp_path, loopback(3), env=mines.env)

    async def tell() -> None:
        db = await start(three)
        put(db, OLD)
        addresses, loader, state = ",".join(three.listen.values()), Loader(three, TABLE), dict(OLD)
        for number, place in enumerate(PLACES):
            kind = LoadKind.OVERWRITE if place in OF_OVERWRITES else LoadKind.APPEND
            new = dict.fromkeys(range(number, number + 300), place)
            after = {**state, **new} if kind is LoadKind.APPEND else new
            reader = Reader(addresses, TABLE, state, after)
            reader.await_state(0)
            mines.arm(place)
            loader.run(f"load-{number}", new, kind=kind)
            assert loader.ended(f"load-{number}").state is LoadState.PUBLISHED
            reader.await_state(1)
            three.until(lambda: not mines.armed, f"somebody died at {place}")
            await three.online()
            reader.stop()
            await await_on_all(three, after)
            state = after
        three.until(lambda: not loader.staged(), "nothing is left in staging")
        loader.close()
        db.close()

    run(tell())


def test_an_instance_that_was_down_during_loads_has_their_rows_when_it_is_back(three: Instances) -> None:
    async def tell() -> None:
        db = await start(three)
        put(db, OLD)
        create_table(db, "shop.others", COLUMNS, tablets=2)
        loader, others = Loader(three, TABLE), Loader(three, "shop.others")
        three.kill(3)

        async def is_down() -> bool:
            return await three.is_now(3, Grade.OFFLINE)

        await three.wait_for(is_down, "i3 is marked Offline")
        new, other = dict.fromkeys(range(100, 600), "new"), dict.fromkeys(range(50), "other")
        load = loader.run("missed", new, (1, 2))
        assert len(load.missed) == 1 and loader.ended("missed").state is LoadState.PUBLISHED
        others.run("overwritten", other, (1, 2), kind=LoadKind.OVERWRITE)
        others.ended("overwritten")
        three.start(3)
        await three.online()
        assert await on_replicas(three, 3) == {**OLD, **new}
        assert await on_replicas(three, 3, "shop.others") == other
        # And one that is killed when it has sealed, and comes back when all is over.
        load = loader.begin("sealed")
        sealed = loader.seal(load, loader.stage(load, {60: "sealed"}, (1, 2, 3)))
        three.kill(3)
        loader.commit(load, sealed)
        loader.ended("sealed")
        three.start(3)
        await three.online()
        assert await on_replicas(three, 3) == {**OLD, **new, 60: "sealed"}
        three.until(lambda: not loader.staged(), "nothing is left in staging")
        loader.close()
        others.close()
        db.close()

    run(tell())
