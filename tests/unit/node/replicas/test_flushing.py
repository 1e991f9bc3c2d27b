"""Which replica is flushed next, and that one which can't be now is tried again: its rows are nowhere else in files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.replicas.move_stage import MoveStage, arriving, code_of, copied_store, stage_copy
from tests.unit.node.replicas.shelves import LAZY, Life, key, killed, resting, rows, until, write_run, written

from trimtab.node.replicas import flushing
from trimtab.node.replicas.flushing import FlushBounds, Flushing
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.replica_files import Filling
from trimtab.storage.late_store import LateStore
from trimtab.storage.port import DiskFull, StorageError, SyncDone
from trimtab.storage.rocks import RocksDisk

AT_ONCE = FlushBounds(age_s=0.0, copied_age_s=0.0, cut_bytes=0, cut_every_s=0.0)
OFTEN = flushing._MAX_NOT_MADE - 1
TRIED_AGAIN = "could not be brought into files"


# Who is next


@dataclass(eq=False)
class Held:
    """What is looked at of a replica. A flush is over at once."""

    name: str
    flushed: list[str]
    has_copy: bool = False
    unflushed_bytes: int = 10
    unflushed_since: float | None = 0.0
    flushed_position: int = 0
    rests_until: float = 0.0
    not_made: int = 0
    flushing: bool = False
    closed: bool = False
    held: bool = False
    stalled: None = None

    @property
    def rests(self) -> bool:
        return self.has_copy or self.name.startswith("loaded")

    @property
    def unflushed(self) -> bool:
        return self.unflushed_since is not None

    @property
    def needed_from(self) -> int:
        return self.flushed_position

    def flush(self, done: SyncDone) -> None:
        self.flushed.append(self.name)
        self.unflushed_since, self.unflushed_bytes, self.has_copy = None, 0, False
        done(None)


@dataclass
class Log:
    bytes: int = 0
    applied_position: int = 100
    cuts: list[int] = field(default_factory=list)

    def bytes_up_to(self, _position: int) -> int:
        return 0

    def cut(self, position: int) -> None:
        self.cuts.append(position)

    def nudge(self) -> None:
        pass


class Clock:
    now_s = 1000.0


def looking(replicas: list[Held], log: Log | None = None, **bounds: Any) -> Flushing:
    """After 1000 s in which nothing was flushed."""
    log_of_them: Any = log or Log()
    fatal: list[BaseException] = []
    given: Any = replicas
    return Flushing(
        lambda: given,
        log_of_them,
        FlushBounds(**bounds),
        may_cut=lambda: True,
        now=lambda: Clock.now_s,
        call_soon=lambda run: run(),
        lost=lambda _replica, error: fatal.append(error),
        fatal=fatal.append,
        complain=lambda _text: None,
    )


def test_copies_that_came_together_are_flushed_a_few_at_a_tick_and_others_do_not_wait_for_them() -> None:
    flushed: list[str] = []
    copies = [Held(f"copy {number}", flushed, has_copy=True, flushed_position=number) for number in range(5)]
    own = [Held(f"own {number}", flushed) for number in range(3)]
    to = looking([*copies, *own], copied_age_s=4.0, woken_a_tick=2)
    to.tick()
    assert [name for name in flushed if name.startswith("copy")] == ["copy 0", "copy 1"]
    assert [name for name in flushed if name.startswith("own")] == ["own 0", "own 1", "own 2"]
    for count in (4, 5, 5):
        to.tick()
        assert len(flushed) == 3 + count
    assert to.flushes == 8 and not any(each.unflushed for each in copies)


def test_what_loads_brought_is_woken_a_few_at_a_tick_too() -> None:
    flushed: list[str] = []
    loaded = [Held(f"loaded {number}", flushed) for number in range(5)]
    to = looking([*loaded, Held("own", flushed)], woken_a_tick=2)
    for count in (3, 5, 6, 6):
        to.tick()
        assert len(flushed) == count and "own" in flushed


def test_copies_that_hold_much_or_keep_a_large_log_from_being_cut_do_not_wait() -> None:
    flushed: list[str] = []
    copies = [Held(f"copy {number}", flushed, has_copy=True, unflushed_bytes=5_000) for number in range(4)]
    looking(copies, woken_a_tick=0, replica_bytes=5_000).tick()
    assert sorted(flushed) == [f"copy {number}" for number in range(4)]
    flushed.clear()
    copies = [Held(f"copy {number}", flushed, has_copy=True, flushed_position=9 - number) for number in range(4)]
    looking(copies, Log(bytes=1_000), woken_a_tick=0, log_bytes=1_000).tick()
    assert flushed == [f"copy {number}" for number in (3, 2, 1, 0)], "the one that keeps most of it comes first"


def test_copies_that_came_just_now_are_left_alone() -> None:
    flushed: list[str] = []
    to = looking([Held("copy", flushed, has_copy=True, unflushed_since=Clock.now_s - 3)], copied_age_s=4.0)
    to.tick()
    assert flushed == []


# One that can't be


def refuse(*_: object, **__: object) -> Any:
    raise StorageError("open store: IO error: While open a file for appending: LOG: Too many open files")


async def made_of_a_file(life: Life, disk: RocksDisk, tablet: int = 0) -> Replica:
    """A replica that was made of a file, and has taken row 7 since. It is what is served."""
    write_run(disk, f"staging/{tablet}", [(key(number), b"v") for number in (1, 2)])
    filling = Filling([f"staging/{tablet}"], 1, lambda: None)
    made = await life.shelf.prepare(1, tablet, 2, asyncio.get_running_loop().time() + 10, filling)
    assert filling.done and resting(made)
    life.wanted[1, tablet] = 2
    life.shelf._kept = lambda _table: (1, 2)
    life.shelf.look()
    assert await written(made, 7) is None
    return made


async def tick(to: Flushing, replica: Replica) -> None:
    """One more look, and whatever is begun is over when it returns."""
    replica.rests_until = 0.0
    to.tick()
    await until(lambda: not replica.flushing, "the flush is over")


async def often(to: Flushing, replica: Replica, meanwhile: Callable[[int], Any] = lambda _: None) -> None:
    for number in range(OFTEN):
        assert replica.not_made == number
        meanwhile(number)
        await tick(to, replica)
    assert replica.not_made == OFTEN


def test_one_that_rests_is_tried_again_however_often_it_could_not_be_woken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, {(1, 0): 1}, bounds=LAZY).start()).ready()
        replica = await made_of_a_file(life, disk)
        monkeypatch.setattr(flushing, "_REST_S", 0.0)
        life.shelf.flushing.bounds = AT_ONCE
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse)
            await often(life.shelf.flushing, replica)
            await asyncio.sleep(0.05)
            complaints = [each for each in life.said if TRIED_AGAIN in each]
            assert len(complaints) >= OFTEN and set(complaints) == {complaints[0]}
            assert complaints[0].startswith(f"{replica.title} {TRIED_AGAIN}")
            assert "Too many open files" in complaints[0] and complaints[0].endswith("it is tried again")
            assert life.shelf.get(1, 0) is replica and replica.readable and replica.stalled is None
            assert (life.shelf.quarantined, life.failures, life.rebuilds) == (0, [], [])
            assert await written(replica, 8) is None and rows(replica) == [1, 2, 7, 8]
        await tick(life.shelf.flushing, replica)
        assert replica.not_made == 0 and not replica.unflushed and rows(replica) == [1, 2, 7, 8]
        life.stop()
        disk.close()

    asyncio.run(story())


def test_the_log_is_kept_for_it_all_the_while_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, {(1, 0): 1, (1, 1): 1}, bounds=LAZY).start()).ready()
        replica, other = await made_of_a_file(life, disk), await life.replica(1, 1)
        needed = replica.needed_from
        life.shelf.flushing.bounds = AT_ONCE
        real = disk.open_database

        def refuse_one(name: str, *given: Any, **more: Any) -> Any:
            return refuse() if name == replica.name else real(name, *given, **more)

        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse_one)
            for number in range(20):
                assert await written(other, number) is None
                await tick(life.shelf.flushing, replica)
                await until(lambda: not other.flushing, "the other one is in files")
            assert life.mutations.cut_position <= needed
            after = killed(disk, tmp_path / "killed")
            again = await (await Life(after, life.wanted).start()).ready()
            assert rows(await again.replica(1, 0)) == [1, 2, 7] and rows(await again.replica(1, 1)) == [*range(20)]
            again.stop()
            after.close()
        await tick(life.shelf.flushing, replica)
        life.shelf.flushing.tick()
        assert life.mutations.cut_position == life.mutations.applied_position
        life.stop()
        disk.close()

    asyncio.run(story())


def test_a_node_that_can_not_wake_one_for_long_stops_and_its_next_life_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the log of all others from being cut, until the disk is full."""

    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, {(1, 0): 1}, bounds=LAZY).start()).ready()
        replica = await made_of_a_file(life, disk)
        life.shelf.flushing.bounds = AT_ONCE
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse)
            await often(life.shelf.flushing, replica)
            assert life.failures == []
            await tick(life.shelf.flushing, replica)
            assert len(life.failures) == 1 and "Too many open files" in str(life.failures[0])
        after = killed(disk, tmp_path / "killed")
        again = await (await Life(after, life.wanted).start()).ready()
        assert rows(await again.replica(1, 0)) == [1, 2, 7]
        for each in (life, again):
            each.stop()
        disk.close()
        after.close()

    asyncio.run(story())


def test_it_rests_between_two_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, {(1, 0): 1, (1, 1): 1}, bounds=LAZY).start()).ready()
        replica, other = await made_of_a_file(life, disk), await life.replica(1, 1)
        life.shelf.flushing.bounds = AT_ONCE
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse)
            await tick(life.shelf.flushing, replica)
            for _ in range(5):
                life.shelf.flushing.tick()
                await asyncio.sleep(0.01)
            assert replica.not_made == 1 and replica.rests_until > asyncio.get_running_loop().time()
            assert await written(other, 5) is None
            life.shelf.flushing.tick()
            await until(lambda: not other.unflushed, "others have their turn")
        life.shelf.flushing.tick()
        assert not replica.flushing and replica.unflushed
        await tick(life.shelf.flushing, replica)
        assert not replica.unflushed and replica.not_made == 0
        life.stop()
        disk.close()

    asyncio.run(story())


def test_one_that_is_rebuilding_is_not_given_up_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, {(1, 0): 1}, bounds=LAZY).start()).ready()
        replica = await made_of_a_file(life, disk)
        assert replica.change_meta(state=ReplicaState.REBUILDING)
        life.shelf.flushing.bounds = AT_ONCE
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse)
            await often(life.shelf.flushing, replica)
        assert life.shelf.get(1, 0) is replica and life.shelf.quarantined == 0 and life.failures == []
        life.stop()
        disk.close()

    asyncio.run(story())


async def with_a_copy(disk: RocksDisk, other: RocksDisk) -> MoveStage:
    """A replica that took row 5 while it arrived, then a copy with row 1, and then row 7."""
    stage = await arriving(disk)
    assert await written(stage.replica(), 5) is None
    stage_copy(disk, await copied_store(other, 0, [1]))
    assert code_of(await stage.adopt()) == ""
    assert await written(stage.replica(), 7) is None
    return stage


def test_one_whose_copy_has_come_is_not_given_up_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its move has ended, and nobody else has what was written since."""

    async def story() -> None:
        disk, other = (RocksDisk(tmp_path / name, reserve_bytes=0) for name in ("disk", "other"))
        stage = await with_a_copy(disk, other)
        replica, to = stage.replica(), stage.shelf.flushing
        assert isinstance(replica.store, LateStore) and replica.has_copy and not replica.arriving
        to.bounds = AT_ONCE
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", refuse)
            await often(to, replica)
            assert stage.replica() is replica and stage.shelf.quarantined == 0
            assert sum(TRIED_AGAIN in each for each in stage.said) == OFTEN
            assert set(rows(replica)) - {1_000} == {1, 5, 7} and replica.has_copy
        after = killed(disk, tmp_path / "killed")
        await tick(to, replica)
        assert not replica.unflushed and not replica.has_copy and set(rows(replica)) - {1_000} == {1, 5, 7}
        again = await MoveStage(after, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) - {1_000} == {1, 5, 7} and again.replica().readable
        for life in (stage, again):
            life.stop()
        for each in (disk, after, other):
            each.close()

    asyncio.run(story())


def test_what_a_copy_has_taken_is_kept_in_the_log_though_it_found_no_room_to_be_opened_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had in memory was taken for what its files have."""

    async def story() -> None:
        disk, other = (RocksDisk(tmp_path / name, reserve_bytes=0) for name in ("disk", "other"))
        stage = await with_a_copy(disk, other)
        replica, to = stage.replica(), stage.shelf.flushing
        to.bounds = AT_ONCE

        def no_room(name: str, *_: object, **__: object) -> None:
            raise DiskFull(name, free_bytes=0, reserve_bytes=0, detail="No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_database", no_room)
            await tick(to, replica)
            assert replica.stalled is not None
        to.bounds = replace(LAZY, cut_bytes=0, cut_every_s=0.0)
        stage.shelf.look()
        await until(lambda: replica.stalled is None, "it takes writes again")
        assert set(rows(replica)) - {1_000} == {1, 5, 7}
        to._cut()
        assert await written(replica, 8) is None  # and now that is durable
        after = killed(disk, tmp_path / "killed")
        again = await MoveStage(after, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) - {1_000} == {1, 5, 7, 8} and again.replica().readable
        for life in (stage, again):
            life.stop()
        for each in (disk, after, other):
            each.close()

    asyncio.run(story())
