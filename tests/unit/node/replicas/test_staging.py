"""What was staged goes when its session is over, and not a moment before that is certain."""

from __future__ import annotations

import asyncio

from tests.unit.node.replicas.load_stage import Stage
from tests.unit.node.replicas.shelves import model_disk, until

from trimtab.loads.records import session_key
from trimtab.node.replicas import staging
from trimtab.node.replicas.staging import SealedFiles, encode_sealed, read_sealed, sealed_path
from trimtab.storage.rocks import RocksDisk


def test_what_belongs_to_no_open_session_is_removed_with_everything_in_it(tmp_path):
    async def story():
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        stage.begin("open")
        stage.begin("over")
        for id in ("open", "over"):
            stage.stage(id, 0, 1)
        # What is being brought has no name yet; it has to go too.
        unfinished = tmp_path / "disk" / "staging" / "gone" / "3"
        unfinished.mkdir(parents=True)
        (unfinished / ".part").write_bytes(b"half")
        stage.close_session("over")
        await stage.sweeping.sweep()
        assert disk.entries("staging") == ["open"] and stage.gone == ["gone", "over"] and stage.sweeping.swept == 2
        stage.stop()
        disk.close()

    asyncio.run(story())


def test_nothing_is_removed_while_it_is_not_certain_which_sessions_are_open():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        stage.stage("a", 0, 1)
        stage.current = False
        await stage.sweeping.sweep()
        assert disk.entries("staging") == ["a"]
        stage.current = True
        stage.loads.change(session_key("a"), b"of a newer release", 1)
        await stage.sweeping.sweep()
        assert disk.entries("staging") == ["a"], "its session is open, though nobody here can read it"
        stage.loads.change(session_key("a"), None, 2)
        await stage.sweeping.sweep()
        assert disk.entries("staging") == []

    asyncio.run(story())


def test_it_is_looked_at_once_at_the_start_when_a_session_ends_and_from_time_to_time(monkeypatch):
    monkeypatch.setattr(staging, "SWEEP_EVERY_S", 0.02)

    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        stage.stage("left", 0, 1)
        stage.sweeping.start()
        await until(lambda: not disk.entries("staging"))
        stage.stage("late", 0, 1)
        await until(lambda: not disk.entries("staging"))
        stage.begin("a")
        stage.stage("a", 0, 1)
        stage.close_session("a")
        stage.sweeping.wake()
        await until(lambda: not disk.entries("staging"))
        stage.sweeping.stop()

    asyncio.run(story())


def test_a_list_that_is_damaged_or_lacks_a_part_is_none():
    async def story():
        disk = model_disk()
        disk.write_file(sealed_path("a"), b"?")
        assert read_sealed(disk, "a") is None
        disk.write_file(sealed_path("a"), encode_sealed(SealedFiles(1, [], 1)))
        assert read_sealed(disk, "a") is None
        disk.write_file(sealed_path("a", 0), encode_sealed(SealedFiles(1, [])))
        assert read_sealed(disk, "a") == SealedFiles(1, [], 1)

    asyncio.run(story())
