"""A generation that was made of the files of an overwrite is only read from them until it has to be written."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.node.replicas.load_stage import STAMP, TABLE, TABLETS, Stage
from tests.unit.node.replicas.overwrites import KINDS, NEW, disk_of, made, next_life, over, sealed
from tests.unit.node.replicas.shelves import flushed, key, killed, resting, rows, until, written

from trimtab.loads.records import LoadKind
from trimtab.node.answering import Refused
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.storage.port import Corrupt, Disk, DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk


async def served_anew(disk: Disk) -> Stage:
    """An overwrite is published, and what it brought is all there is."""
    stage = await Stage(disk).start()
    load, _ = await sealed(stage)
    await stage.adopt("a")
    stage.publish(load)
    assert stage.shelf.get(TABLE, 0) is stage.replica(0, NEW)
    return stage


def newest(replica: Replica) -> dict[int, bytes]:
    """Of each row the version that counts; those of loads are older than all writes here."""
    found: dict[int, bytes] = {}
    for number, (_, value) in zip(rows(replica), replica.scan(b"", None), strict=True):
        found.setdefault(number, value)
    return found


@pytest.mark.parametrize("when", ["stopped", "killed", "flushed and killed", "flushed, written again and killed"])
def test_what_is_written_to_it_is_kept_over_a_restart(when: str, tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        replica = stage.replica(0, NEW)
        assert await written(replica, 7, 1, value=b"since", stamp=STAMP + 1) is None
        assert await written(stage.replica(1, NEW), 11) is None
        assert resting(replica) and replica.memory_bytes > 0
        expected = {0: b"loaded", 1: b"since", 7: b"since"}
        assert newest(replica) == expected
        if "flushed" in when:
            assert await flushed(replica) is None
            assert not resting(replica) and newest(replica) == expected and not replica.unflushed
            assert resting(stage.replica(1, NEW))
        if "again" in when:
            assert await written(replica, 8, value=b"since") is None
            expected[8] = b"since"
        # A log that may be cut keeps what is in memory only.
        stage.shelf.flushing.bounds = replace(stage.shelf.flushing.bounds, cut_bytes=0, cut_every_s=0)
        stage.shelf.flushing._cut()
        assert await written(stage.replica(3, NEW), 31) is None  # that is durable now
        if when == "stopped":
            stage.stop()
        again = await next_life(stage, disk if when == "stopped" else killed(disk, tmp_path / "killed"))
        assert newest(again.replica(0, NEW)) == expected
        assert [rows(each) for each in made(again)[1:]] == [[11], [20, 21], [31]]
        assert all(each.readable and each.adopted == 1 for each in made(again))
        assert await written(again.replica(0, NEW), 9, value=b"later") is None
        assert newest(again.replica(0, NEW)) == {**expected, 9: b"later"}
        over(again, *(() if when == "stopped" else (stage,)))

    asyncio.run(story())


def test_writes_that_come_while_it_wakes_up_are_kept_too(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        replica = stage.replica(0, NEW)
        for number in range(100, 400):
            assert await written(replica, number) is None
        flushing = asyncio.ensure_future(flushed(replica))
        number = 400
        while not flushing.done():
            assert await written(replica, number) is None
            number += 1
        assert await flushing is None and not resting(replica)
        expected = [0, 1, *range(100, number)]
        assert rows(replica) == expected
        again = await next_life(stage, killed(disk, tmp_path / "killed"))
        assert rows(again.replica(0, NEW)) == expected
        over(stage, again)

    asyncio.run(story())


def test_rows_that_were_folded_in_one_that_rests_stay_folded(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        replica = stage.replica(0, NEW)
        assert await written(replica, 0, value=b"second", stamp=STAMP + 1) is None
        assert rows(replica) == [0, 0, 1]
        assert replica.rewrite([key(0, STAMP)], [])
        assert rows(replica) == [0, 1] and newest(replica)[0] == b"second" and resting(replica)
        assert await flushed(replica) is None and not resting(replica)
        assert rows(replica) == [0, 1] and newest(replica)[0] == b"second"
        again = await next_life(stage, killed(disk, tmp_path / "killed"))
        assert rows(again.replica(0, NEW)) == [0, 1]
        over(stage, again)

    asyncio.run(story())


@KINDS
def test_a_rollback_goes_back_to_one_that_was_made_like_this_and_away_from_it(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        disk = disk_of(kind, tmp_path)
        stage = await Stage(disk).start()
        assert await written(stage.replica(0), 5) is None
        first, _ = await sealed(stage)
        await stage.adopt("a")
        stage.publish(first)
        assert await written(stage.replica(0, NEW), 7) is None
        stage.roll_back(first)
        served = stage.shelf.get(TABLE, 0)
        assert served is stage.replica(0, 1) and rows(served) == [5] and not stage.shelf.missing()
        assert rows(stage.replica(0, NEW)) == [0, 1, 7], "scans that began before still read it"
        # And from one to another of them.
        second, _ = await sealed(stage, "b", 3, epoch=3)
        await stage.adopt("b")
        stage.publish(second)
        await until(lambda: not disk.exists(f"tablets/{TABLE}/0.2"), "the one that nobody goes back to is removed")
        assert await written(stage.replica(0, 3), 8) is None
        third, _ = await sealed(stage, "c", 4, epoch=4)
        await stage.adopt("c")
        stage.publish(third)
        assert await written(stage.replica(0, 4), 9) is None
        stage.roll_back(third)
        served = stage.shelf.get(TABLE, 0)
        assert served is stage.replica(0, 3) and rows(served) == [0, 1, 8] and served.readable
        assert resting(served) is (kind == "rocks")
        assert await written(served, 10) is None
        stage.stop()
        again = await next_life(stage)
        served = again.shelf.get(TABLE, 0)
        assert served is not None and (served.generation, rows(served)) == (3, [0, 1, 8, 10])
        assert rows(again.replica(0, 4)) == [0, 1, 9]
        over(again)

    asyncio.run(story())


def test_rows_that_are_appended_to_one_that_rests_come_to_those_it_has(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        assert await written(stage.replica(0, NEW), 7) is None
        load = stage.begin("b", LoadKind.APPEND, NEW)
        files = [stage.stage("b", 0, 2, 3, name="b-file")]
        assert not (await stage.seal("b", *files)).missing
        stage.commit(load, 2)
        await stage.adopt("b")
        assert [rows(each) for each in made(stage)] == [[0, 1, 2, 3, 7], [], [20, 21], []]
        assert [each.adopted for each in made(stage)] == [2] * TABLETS
        assert [resting(each) for each in made(stage)] == [False, True, True, True]
        again = await next_life(stage, killed(disk, tmp_path / "killed"))
        assert [rows(each) for each in made(again)] == [[0, 1, 2, 3, 7], [], [20, 21], []]
        assert [each.adopted for each in made(again)] == [2] * TABLETS
        over(stage, again)

    asyncio.run(story())


def test_an_append_to_one_that_can_not_be_woken_up_now_is_refused_and_taken_over_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        load = stage.begin("b", LoadKind.APPEND, NEW)
        files = [stage.stage("b", 0, 2, 3, name="b-file")]
        assert not (await stage.seal("b", *files)).missing
        stage.commit(load, 2)
        replica = stage.replica(0, NEW)

        def refuse(*_: object, **__: object) -> None:
            raise StorageError("While open a file for appending: Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse)
            refused = await stage.refused(stage.adopt("b"))
            assert refused.code == "failed" and "Too many open files" in refused.text
        assert resting(replica) and rows(replica) == [0, 1] and not (replica.held or replica.stalled)
        assert await written(replica, 7) is None
        await stage.adopt("b")
        assert rows(replica) == [0, 1, 2, 3, 7] and replica.adopted == 2
        over(stage)

    asyncio.run(story())


def test_a_copy_of_one_that_rests_has_what_is_in_memory_too(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        replica, other = stage.replica(0, NEW), stage.replica(2, NEW)
        assert await written(replica, 7) is None
        before = [*replica.store.scan(b"", None)]
        for tablet in (replica, other):
            tablet.store.checkpoint(f"snapshots/{tablet.tablet}")
        assert not resting(replica) and resting(other), "only what holds something has to write it"
        for tablet, expected in ((replica, before), (other, [*other.store.scan(b"", None)])):
            copy = disk.open(f"snapshots/{tablet.tablet}", wal=False)
            assert [*copy.scan(b"", None)] == expected
            copy.close()
        assert await written(other, 22) is None and rows(other) == [20, 21, 22]
        over(stage)

    asyncio.run(story())


# Trouble of one that rests


async def refused_flush(replica: Replica) -> BaseException:
    error = await flushed(replica)
    assert error is not None
    return error


def test_one_that_finds_no_room_to_wake_up_loses_nothing_when_there_is_some_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had in memory is taken for what its files have, unless it comes from the log once more."""

    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        replica = stage.replica(0, NEW)
        assert await written(replica, 7) is None

        def no_space(name: str, *_: object, **__: object) -> None:
            raise DiskFull(name, free_bytes=0, reserve_bytes=0, detail=os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", no_space)
            assert "disk full" in str(await refused_flush(replica))
            assert replica.stalled is not None
        stage.shelf.look()
        await until(lambda: replica.stalled is None, "it takes writes again")
        assert rows(replica) == [0, 1, 7] and await written(stage.replica(2, NEW), 8) is None
        # The log may be cut now, as far as nobody needs it.
        stage.shelf.flushing.bounds = replace(stage.shelf.flushing.bounds, cut_bytes=0, cut_every_s=0)
        stage.shelf.flushing._cut()
        assert await written(stage.replica(2, NEW), 9) is None  # and now that is durable
        again = await next_life(stage, killed(disk, tmp_path / "killed"))
        assert rows(again.replica(2, NEW)) == [8, 9, 20, 21]
        assert rows(again.replica(0, NEW)) == [0, 1, 7]
        over(stage, again)

    asyncio.run(story())


def test_one_that_is_damaged_when_it_wakes_up_is_put_aside(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await served_anew(disk)
        replica = stage.replica(0, NEW)
        assert await written(replica, 7) is None
        path = disk.path_of(replica.name)
        (path / "MANIFEST-000001").write_bytes(b"no manifest")
        error = await refused_flush(replica)
        assert isinstance(error, Corrupt | Refused)
        await until(lambda: stage.life.rebuilds, "it is put aside")
        assert stage.replica(0, NEW).state is ReplicaState.REBUILDING and stage.life.failures == []
        assert rows(stage.replica(2, NEW)) == [20, 21]
        over(stage)

    asyncio.run(story())
