"""An instance says that it has the files of a load: only what is whole, and only while that may still matter."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.unit.node.replicas.load_stage import TABLETS, Stage
from tests.unit.node.replicas.shelves import model_disk, rows

from trimtab.loads.protocol import SealReply, StagedFile
from trimtab.node.replicas import sealing
from trimtab.node.replicas.staging import SealedFiles, read_sealed

ALL = list(range(TABLETS))


def test_files_that_are_whole_are_sealed_and_the_list_is_durable():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        stage.begin("a")
        files = [stage.stage("a", 0, 1, 2), stage.stage("a", 3, 4)]
        assert await stage.seal("a", *files) == SealReply()
        assert await stage.seal("a", *files) == SealReply()
        disk.abandon()
        assert read_sealed(disk, "a") == SealedFiles(1, files, 0, ALL)

    asyncio.run(story())


def test_what_is_missing_or_another_is_named_and_left_alone():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        stage.begin("a")
        right, again = stage.stage("a", 0, 1), stage.stage("a", 1, 2)
        wrong = replace(again, checksum=again.checksum ^ 1)
        lost = StagedFile(2, "never", 5, 6)
        assert (await stage.seal("a", right, wrong, lost)).missing == [(1, "a"), (2, "never")]
        assert read_sealed(disk, "a") is None
        # Anybody may ask; what the load's driver has staged must still be there for it.
        assert await stage.seal("a", right, again) == SealReply()
        assert (await stage.seal("a", right, wrong)).missing == [(1, "a")]
        assert await stage.seal("a", right, again) == SealReply()
        # Brought anew under the name of one that was found right, it is looked at all the same.
        disk.remove("staging/a/0/a")
        other = stage.stage("a", 0, 1, 7)
        assert await stage.seal("a", other, again) == SealReply()

    asyncio.run(story())


def test_a_load_of_many_files_is_sealed_in_parts_of_which_none_may_be_missing():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        stage.begin("a")
        files = [stage.stage("a", tablet, tablet) for tablet in range(3)]
        assert await stage.seal("a", files[0], last=False) == SealReply()
        refused = await stage.refused(stage.seal("a", files[2], part=2))
        assert (refused.code, "part 1 of load a was not sealed" in refused.text) == ("invalid", True)
        assert read_sealed(disk, "a") is None
        assert await stage.seal("a", files[1], part=1, last=False) == SealReply()
        assert await stage.seal("a", files[2], part=2) == SealReply()
        assert read_sealed(disk, "a") == SealedFiles(1, files, 2, ALL)

    asyncio.run(story())


def test_lists_of_two_drivers_of_one_load_are_kept_apart_and_the_committed_one_counts():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        load = stage.begin("a")
        ours = [stage.stage("a", tablet, tablet, name="ours") for tablet in range(3)]
        theirs = [stage.stage("a", tablet, 10 + tablet, name="theirs") for tablet in range(2)]
        assert await stage.seal("a", ours[0], last=False, nonce="A") == SealReply()
        assert await stage.seal("a", theirs[0], last=False, nonce="B") == SealReply()
        assert await stage.seal("a", *ours[1:], part=1, nonce="A") == SealReply()
        refused = await stage.refused(stage.seal("a", ours[2], part=1, nonce="C"))
        assert "part 0 of load a was not sealed" in refused.text
        assert await stage.seal("a", theirs[1], part=1, nonce="B") == SealReply()
        assert read_sealed(disk, "a", "A") == SealedFiles(1, ours, 1, ALL)
        assert read_sealed(disk, "a", "B") == SealedFiles(1, theirs, 1, ALL)
        stage.commit(load, nonce="A")
        assert await stage.seal("a", *ours[1:], part=1, nonce="A") == SealReply()
        assert (await stage.refused(stage.seal("a", theirs[1], part=1, nonce="B"))).code == "committed"
        await stage.adopt("a")
        assert [rows(stage.replica(tablet)) for tablet in range(TABLETS)] == [[0], [1], [2], []]

    asyncio.run(story())


def test_names_of_lists_are_checked_and_there_is_no_end_of_them_without_a_limit(monkeypatch):
    async def story():
        stage = await Stage(model_disk()).start()
        stage.begin("a")
        for nonce in ("../x", "a.b", "x" * 65):
            refused = await stage.refused(stage.seal("a", nonce=nonce))
            assert refused.code == "invalid" and "is no nonce" in refused.text
        monkeypatch.setattr(sealing, "MAX_LISTS", 2)
        for nonce in ("A", "B", "A"):
            assert await stage.seal("a", nonce=nonce) == SealReply()
        assert (await stage.refused(stage.seal("a", nonce="C"))).code == "too_many_lists"

    asyncio.run(story())


def test_nothing_is_sealed_without_an_open_session_or_anew_after_the_commit():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        assert (await stage.refused(stage.seal("never"))).code == "session_closed"
        load = stage.begin("a")
        files = [stage.stage("a", 0, 1)]
        assert await stage.seal("a", *files) == SealReply()
        stage.commit(load)
        assert await stage.seal("a", *files) == SealReply()
        refused = await stage.refused(stage.seal("a", stage.stage("a", 1, 2)))
        assert refused.code == "committed" and read_sealed(disk, "a") == SealedFiles(1, files, 0, ALL)
        stage.close_session("a")
        assert (await stage.refused(stage.seal("a", *files))).code == "session_closed"

    asyncio.run(story())


def test_a_session_that_was_just_opened_is_waited_for():
    async def story():
        stage = await Stage(model_disk()).start()
        sealing = asyncio.ensure_future(stage.seal("a"))
        await asyncio.sleep(0.01)
        assert not sealing.done()
        stage.begin("a")
        assert await sealing == SealReply()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "", "adopted", "x" * 300])
def test_names_that_are_none_of_staged_files_are_refused(name):
    async def story():
        stage = await Stage(model_disk()).start()
        stage.begin("a")
        refused = await stage.refused(stage.seal("a", StagedFile(0, name, 1, 1)))
        assert refused.code == "invalid" and "no name of a staged file" in refused.text
        twice = StagedFile(0, "x", 1, 1)
        assert "twice" in (await stage.refused(stage.seal("a", twice, twice))).text
        assert (await stage.refused(stage.seal("../a"))).code == "invalid"

    asyncio.run(story())
