"""The generation that an overwrite brings is made of the staged files and its marker, in one step: all or nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.node.replicas.load_stage import TABLE, TABLETS, Stage
from tests.unit.node.replicas.overwrites import (
    KINDS,
    LOADED,
    NEW,
    disk_of,
    has_all_of_it,
    made,
    next_life,
    over,
    sealed,
)
from tests.unit.node.replicas.shelves import killed, resting, rows, until, written

from trimtab.loads.records import LoadKind
from trimtab.node import failpoints
from trimtab.node.replicas import adopting
from trimtab.node.replicas.replica import ReplicaState
from trimtab.node.replicas.replica_files import Name
from trimtab.storage import composing, rocks
from trimtab.storage.composing import Part
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Corrupt, Disk, StorageError
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.sst_file import TRAILER_BYTES, open_table


def half_made(disk: Disk) -> set[str]:
    """What lies beside the names that count. A disk has some of its own there."""
    if not isinstance(disk, RocksDisk):
        return set()
    disk.await_deleted()
    return {path.name for path in disk.path.glob(".unfinished-*")}


@pytest.fixture
def hits() -> Iterator[list[str]]:
    """Where whoever takes loads over has come to."""
    noted: list[str] = []
    names = [name for name in failpoints.NAMES if name.startswith("load.adopt.")]
    for name in names:
        failpoints.arm(name, lambda name, _who: noted.append(name.removeprefix("load.adopt.")))
    yield noted
    failpoints.disarm(*names)


@KINDS
def test_it_is_made_of_the_files_where_they_lie_and_every_replica_has_the_marker(
    kind: str, tmp_path: Path, hits: list[str]
) -> None:
    async def story() -> None:
        disk = disk_of(kind, tmp_path)
        stage = await Stage(disk).start()
        _, files = await sealed(stage)
        await stage.adopt("a")
        assert hits == ["before", *["composed", "prepared"] * TABLETS, "rest", "after"], "nothing was ingested"
        assert has_all_of_it(stage) and all(each.readable for each in made(stage))
        assert [resting(each) for each in made(stage)] == [kind == "rocks"] * TABLETS
        assert stage.adopting.adopted_loads == 1 and stage.adopting.adopted_files == len(files)
        assert stage.adopting.adopted_bytes == sum(file.size_bytes for file in files)
        assert all(disk.exists(f"staging/a/{file.tablet}/{file.name}") for file in files)
        assert not stage.mended and not any("could not" in each for each in stage.life.said)
        await stage.adopt("a")
        assert stage.adopting.adopted_files == len(files), "what is done is done"
        # What was staged is swept in the end, and is no part of them any more.
        disk.remove("staging/a")
        assert has_all_of_it(stage)
        stage.stop()
        again = await next_life(stage)
        assert has_all_of_it(again)
        assert [resting(each) for each in made(again)] == [kind == "rocks"] * TABLETS, "nothing was written to them"
        over(again)

    asyncio.run(story())


def test_each_replica_that_is_made_has_a_number_of_its_own_in_the_log(tmp_path: Path) -> None:
    """What was written to the generation before is not replayed into the one that was made beside it."""

    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        for tablet in range(TABLETS):
            assert await written(stage.replica(tablet), 5) is None
        await sealed(stage)
        await stage.adopt("a")
        numbers = [stage.replica(tablet, generation).incarnation for tablet in range(TABLETS) for generation in (1, 2)]
        assert len(set(numbers)) == 2 * TABLETS
        with_it = killed(disk, tmp_path / "killed")
        again = await next_life(stage, with_it)
        assert has_all_of_it(again) and [rows(each) for each in made(again, 1)] == [[5]] * TABLETS
        over(stage, again)

    asyncio.run(story())


# Crashes


class Mortal:
    """A model disk that dies when so many more things have been asked of it."""

    def __init__(self, rng: random.Random | None) -> None:
        self.left = 0
        self.died = asyncio.Event()
        self.disk = ModelDisk(self._call_later)
        self._rng = rng

    def _call_later(self, seconds: float, run: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0:
            self.died.set()
            if self._rng is None:
                self.disk.abandon()
            else:
                self.disk.crash(self._rng)
        asyncio.get_running_loop().call_later(seconds, run)


async def ended_or_died(work: Awaitable[None], died: asyncio.Event) -> bool:
    """Whether it came to its end."""
    doing, death = asyncio.ensure_future(work), asyncio.ensure_future(died.wait())
    await asyncio.wait((doing, death), return_when=asyncio.FIRST_COMPLETED)
    ended = doing.done() and not died.is_set()
    for task in (doing, death):
        task.cancel()
    await asyncio.wait((doing, death))
    if ended:
        doing.result()
    elif not doing.cancelled():
        doing.exception()
    return ended


@pytest.mark.parametrize("power", [False, True], ids=["killed", "no power"])
def test_whichever_step_is_the_last_one_the_next_life_takes_over_what_is_left(power: bool) -> None:
    async def story() -> None:
        steps = 0
        for steps in range(1, 200):
            mortal = Mortal(random.Random(steps) if power else None)
            stage = await Stage(mortal.disk).start()
            load, _ = await sealed(stage)
            mortal.left = steps
            ended = await ended_or_died(stage.adopt("a"), mortal.died)
            mortal.left = 0
            stage.adopting.stop()
            if ended:
                stage.stop()
            elif stage.life.shelf._task is not None:
                stage.life.shelf._task.cancel()
            again = await next_life(stage)
            there = [again.shelf.find(TABLE, tablet, NEW) for tablet in range(TABLETS)]
            for tablet, replica in enumerate(there):
                if replica is not None:
                    assert (rows(replica), replica.adopted) == (LOADED[tablet], 1), "all of it, or there is none"
            await again.adopt("a")
            assert has_all_of_it(again) and not again.mended and all(each.readable for each in made(again))
            assert again.adopting.adopted_files == [there[0], there[2]].count(None)
            again.publish(load)
            assert await written(again.replica(0, NEW), 7) is None
            mortal.disk.abandon()
            third = await next_life(again)
            served = third.shelf.get(TABLE, 0)
            assert served is not None and rows(served) == [0, 1, 7] and served.generation == NEW
            third.stop()
            if ended:
                break
        assert 10 < steps < 199, "it ended by itself at last"

    asyncio.run(story())


ONCE = ("load.adopt.before", "load.adopt.rest", "load.adopt.after")
FOR_EACH = ("load.adopt.composed", "load.adopt.prepared")
PLACES = [*((place, 1) for place in ONCE), *((place, time) for place in FOR_EACH for time in range(1, TABLETS + 1))]


@pytest.mark.parametrize(("place", "time"), PLACES)
def test_a_process_that_is_killed_anywhere_in_between_is_continued_by_the_next(
    place: str, time: int, tmp_path: Path
) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        assert await written(stage.replica(0), 5) is None
        load, _ = await sealed(stage)
        left: list[RocksDisk] = []
        hits = 0

        def kill(_name: str, _who: str) -> None:
            nonlocal hits
            hits += 1
            if hits == time:
                left.append(killed(disk, tmp_path / "killed"))
                raise failpoints.FailpointError("the process is killed here")

        failpoints.arm(place, kill)
        try:
            with pytest.raises(failpoints.FailpointError):
                await stage.adopt("a")
        finally:
            failpoints.disarm(place)
        stage.stop()
        disk.close()
        again = await next_life(stage, left[0])
        await again.adopt("a")
        assert has_all_of_it(again) and not again.mended and all(each.readable for each in made(again))
        assert rows(again.replica(0)) == [5] and again.life.failures == []
        again.publish(load)
        assert await written(again.replica(1, NEW), 11) is None
        third = await next_life(again, killed(left[0], tmp_path / "killed again"))
        assert [rows(each) for each in made(third)] == [[0, 1], [11], [20, 21], []]
        over(again, third)

    asyncio.run(story())


@pytest.mark.parametrize("half", [True, False], ids=["half linked", "all but its name"])
def test_what_was_half_made_when_the_process_was_killed_is_nothing(
    half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        await sealed(stage)
        left: list[RocksDisk] = []
        there: set[str] = set()
        compose = composing.compose

        def die(directory: Path, parts: list[Part]) -> None:
            if not left:
                if half:
                    os.link(parts[0].path, directory / "000002.sst")
                else:
                    compose(directory, parts)
                there.update(path.name for path in disk.path.glob(".unfinished-*"))
                left.append(killed(disk, tmp_path / "killed"))
            raise StorageError("it is dead")

        monkeypatch.setattr(rocks, "compose", die)
        monkeypatch.setattr(adopting, "OPEN_WAIT_S", 0.05)
        await stage.refused(stage.adopt("a"))
        stage.stop()
        disk.close()
        monkeypatch.undo()
        again = await next_life(stage, left[0])
        assert again.shelf.find(TABLE, 0, NEW) is None and not left[0].exists(f"tablets/{TABLE}/0.2")
        await again.adopt("a")
        assert has_all_of_it(again)
        assert there and not there & half_made(left[0])
        again.stop()
        left[0].close()

    asyncio.run(story())


# Refusals, damage, no room


@KINDS
def test_a_session_that_is_closed_while_it_is_about_to_be_made_leaves_no_directory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        disk = disk_of(kind, tmp_path)
        stage = await Stage(disk).start()
        await sealed(stage)
        exists, before = disk.exists, half_made(disk)

        def looked_for(name: str) -> bool:
            if name == f"tablets/{TABLE}/2.2":
                stage.close_session("a")
            return exists(name)

        monkeypatch.setattr(disk, "exists", looked_for)
        refused = await stage.refused(stage.adopt("a"))
        assert refused.code == "session_closed"
        assert has_all_of_two(stage) and not exists(f"tablets/{TABLE}/2.2")
        assert Name(TABLE, 2, NEW) not in stage.shelf._files.recorded and not stage.shelf._in_hand
        assert stage.life.failures == [] and not stage.mended
        assert half_made(disk) == before
        stage.stop()
        disk.close()

    def has_all_of_two(stage: Stage) -> bool:
        there = [stage.shelf.find(TABLE, tablet, NEW) for tablet in range(TABLETS)]
        return [each is not None and rows(each) for each in there] == [[0, 1], [], False, False]

    asyncio.run(story())


@KINDS
@pytest.mark.parametrize("trouble", ["lost", "damaged", "cut short", "empty"])
def test_of_files_that_are_lost_or_damaged_nothing_is_made_and_the_rows_come_from_others(
    trouble: str, kind: str, tmp_path: Path, hits: list[str]
) -> None:
    async def story() -> None:
        disk = disk_of(kind, tmp_path)
        stage = await Stage(disk).start()
        _, files = await sealed(stage)
        path = "staging/a/2/a-file"
        data = disk.read_file(path)
        assert data is not None
        disk.remove(path)
        if trouble != "lost":
            disk.write_file(path, {"damaged": b"no table" * 20, "cut short": data[:-1], "empty": b""}[trouble])
        await stage.adopt("a")
        assert stage.mended == [(2, 1)]
        assert [rows(each) for each in made(stage)] == [[0, 1], [], [], []]
        assert [each.adopted for each in made(stage)] == [1] * TABLETS
        assert [resting(each) for each in made(stage)] == [kind == "rocks" and tablet != 2 for tablet in range(4)]
        assert stage.adopting.adopted_files == 1 and stage.adopting.adopted_bytes == files[0].size_bytes
        assert "ingested" not in hits and stage.shelf.quarantined == 0
        over(stage)

    asyncio.run(story())


def test_a_file_whose_index_is_damaged_is_not_taken_and_nothing_is_put_aside(tmp_path: Path, hits: list[str]) -> None:
    """It says what it has, so a replica is made of it; that can't be opened, and was nobody's before."""

    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        _, files = await sealed(stage)
        path = disk.path_of("staging/a/2/a-file")
        table = open_table(path)
        data = bytearray(path.read_bytes())
        data[int(table.offsets[-1] + table.sizes[-1]) + TRAILER_BYTES] ^= 0x10
        path.write_bytes(data)
        await stage.adopt("a")
        assert stage.mended == [(2, 1)] and stage.shelf.quarantined == 0
        assert [each.adopted for each in made(stage)] == [1] * TABLETS
        assert all(each.state is ReplicaState.OPEN for each in made(stage))
        assert stage.adopting.adopted_files == 1 and stage.adopting.adopted_bytes == files[0].size_bytes
        assert "ingested" not in hits
        over(stage)

    asyncio.run(story())


def test_damage_within_a_file_that_looks_whole_is_found_by_who_reads_it_and_the_replica_rebuilt(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        load, _ = await sealed(stage)
        path = disk.path_of("staging/a/0/a-file")
        data = bytearray(path.read_bytes())
        data[20] ^= 0x10
        path.write_bytes(data)
        await stage.adopt("a")
        stage.publish(load)
        with pytest.raises(Corrupt):
            rows(stage.replica(0, NEW))
        await until(lambda: stage.life.rebuilds, "it is put aside")
        fresh = stage.replica(0, NEW)
        assert stage.life.rebuilds == [fresh] and fresh.state is ReplicaState.REBUILDING and rows(fresh) == []
        assert rows(stage.replica(2, NEW)) == [20, 21] and stage.life.failures == []
        over(stage)

    asyncio.run(story())


def test_tables_that_do_not_say_what_lies_in_them_are_ingested(tmp_path: Path, hits: list[str]) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        _, files = await sealed(stage, older=True)
        await stage.adopt("a")
        assert has_all_of_it(stage) and hits.count("ingested") == 2 and not stage.mended
        assert [resting(each) for each in made(stage)] == [False, True, False, True], (
            "without files nothing is in the way"
        )
        assert stage.adopting.adopted_files == 2
        assert stage.adopting.adopted_bytes == sum(file.size_bytes for file in files)
        again = await next_life(stage, killed(disk, tmp_path / "killed"))
        assert has_all_of_it(again)
        over(stage, again)

    asyncio.run(story())


def test_one_table_that_can_only_be_ingested_has_those_beside_it_ingested_too(tmp_path: Path) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        load = stage.begin("a", LoadKind.OVERWRITE, NEW)
        files = [stage.stage("a", 0, 1, 2, name="x"), stage.stage("a", 0, 2, 3, name="y", older=True)]
        assert not (await stage.seal("a", *files)).missing
        stage.commit(load)
        await stage.adopt("a")
        assert rows(stage.replica(0, NEW)) == [1, 2, 3] and not resting(stage.replica(0, NEW))
        assert stage.replica(0, NEW).adopted == 1 and stage.adopting.adopted_files == 2
        over(stage)

    asyncio.run(story())


def test_where_there_are_no_links_files_are_ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        await sealed(stage)

        def refuse(*_: object) -> None:
            raise OSError(errno.EMLINK, "Too many links")

        with monkeypatch.context() as patched:
            patched.setattr(rocks, "compose", refuse)
            await stage.adopt("a")
        assert has_all_of_it(stage) and not any(resting(each) for each in made(stage))
        over(stage)

    asyncio.run(story())


@KINDS
def test_on_a_full_disk_it_is_not_made_and_is_when_there_is_room_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        disk = disk_of(kind, tmp_path)
        stage = await Stage(disk).start()
        assert await written(stage.replica(0), 5) is None
        await sealed(stage)
        before = half_made(disk)
        monkeypatch.setattr(adopting, "OPEN_WAIT_S", 0.1)
        with monkeypatch.context() as patched:
            if isinstance(disk, ModelDisk):
                model = disk

                def full(name: str, *_: object) -> bool:
                    raise model.full_error(name)

                patched.setattr(disk, "compose", full)
            else:

                def no_space(directory: Path, parts: list[Part]) -> None:
                    (directory / "000002.sst").hardlink_to(parts[0].path)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                patched.setattr(rocks, "compose", no_space)
            refused = await stage.refused(stage.adopt("a"))
            assert refused.code == "not_ready" and "to be open" in refused.text
        assert any("tablets/1/0.2 could not be opened" in each and "full" in each for each in stage.life.said)
        assert not disk.exists(f"tablets/{TABLE}/0.2") and Name(TABLE, 0, NEW) not in stage.shelf._files.recorded
        assert rows(stage.replica(0)) == [5] and await written(stage.replica(0), 6) is None
        await stage.adopt("a")
        assert has_all_of_it(stage) and all(each.readable for each in made(stage)) and not stage.mended
        assert half_made(disk) == before
        over(stage)

    asyncio.run(story())


@KINDS
def test_one_that_was_here_before_and_is_gone_begins_without_rows_and_is_rebuilt(kind: str, tmp_path: Path) -> None:
    """It may have taken writes that these files know nothing of."""

    async def story() -> None:
        disk = disk_of(kind, tmp_path)
        stage = await Stage(disk).start()
        await sealed(stage)
        await stage.adopt("a")
        stage.stop()
        disk.remove(f"tablets/{TABLE}/0.2")
        again = await next_life(stage)
        assert again.shelf.find(TABLE, 0, NEW) is None
        await again.adopt("a")
        lost = again.replica(0, NEW)
        assert lost.state is ReplicaState.REBUILDING and not resting(lost) and again.life.rebuilds == [lost]
        assert has_all_of_it(again), "what the files have it has nevertheless"
        assert [each.readable for each in made(again)] == [False, True, True, True]
        assert not disk.exists("staging/a/0/a-file") and disk.exists("staging/a/2/a-file")
        over(again)

    asyncio.run(story())
