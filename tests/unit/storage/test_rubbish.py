"""What is removed from a disk is gone at once, and its files a moment later."""

import os
import threading
import time

import pytest

from trimtab.storage import rubbish
from trimtab.storage.rocks import RocksDisk


def until(so):
    """Returns when it is so; what a thread does a moment later."""
    deadline = time.monotonic() + 10
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_is_removed_has_lost_its_name_at_once_and_its_files_a_moment_later(tmp_path):
    gone, deleting = threading.Event(), threading.Event()
    unlink = os.unlink

    def slowly(path, **given):
        if str(path).endswith("file"):
            deleting.set()
            assert gone.wait(10)
        unlink(path, **given)

    disk = RocksDisk(tmp_path / "data")
    disk.write_file("snapshots/one/3/file", b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", slowly)
        disk.remove("snapshots/one")
        assert deleting.wait(10) and not disk.exists("snapshots/one")
        disk.write_file("snapshots/one/3/other", b"y")
        gone.set()
        until(lambda: not list((tmp_path / "data").glob(".unfinished-*")))
    assert disk.read_file("snapshots/one/3/other") == b"y"
    disk.close()


def test_what_is_not_deleted_before_the_disk_is_closed_is_swept_away_when_it_is_opened(tmp_path):
    going_on, begun = threading.Event(), threading.Event()
    rmdir = os.rmdir

    def late(path, **given):
        begun.set()
        assert going_on.wait(60)
        rmdir(path, **given)

    disk = RocksDisk(tmp_path / "data")
    for name in ("one", "two", "three"):
        disk.write_file(f"{name}/file", b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rmdir", late)
        for name in ("one", "two", "three"):
            disk.remove(name)
        assert begun.wait(60)
        closing = threading.Thread(target=disk.close)
        closing.start()
        until(lambda: disk._rubbish._closed)
        going_on.set()
        closing.join(10)
    assert len(list((tmp_path / "data").glob(".unfinished-*"))) == 2
    again = RocksDisk(tmp_path / "data")
    again.await_deleted()
    assert not list((tmp_path / "data").iterdir())
    again.close()


def test_what_can_not_be_deleted_is_told_and_keeps_nobody_from_starting(tmp_path):
    told: list[str] = []
    unlink = os.unlink

    def refuse(path, **given):
        if str(path).endswith("stubborn"):
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        disk = RocksDisk(tmp_path / "data", report=told.append)
        disk.write_file("one/stubborn", b"x")
        disk.write_file("one/usual", b"x")
        disk.remove("one")
        disk.await_deleted()
        assert "could not be deleted: [Errno 1] Operation not permitted" in told[0]
        assert disk.names() == [] and not list((tmp_path / "data").rglob("usual"))
        disk.close()
        disk = RocksDisk(tmp_path / "data", report=told.append)
        disk.await_deleted()
        assert len(told) == 2
        disk.close()
    disk = RocksDisk(tmp_path / "data", report=told.append)
    disk.await_deleted()
    assert len(told) == 2 and not list((tmp_path / "data").iterdir())
    disk.close()


def test_of_a_link_the_link_is_removed_and_not_what_it_leads_to(tmp_path):
    disk = RocksDisk(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"x")
    disk.write_file("within/file", b"x")
    for name in ("linked", "within/linked"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere")
    disk.remove("linked")
    disk.remove("within")
    disk.await_deleted()
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"x"
    assert not list((tmp_path / "data").iterdir())
    disk.close()


def test_whoever_brings_more_than_may_wait_deletes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(rubbish, "MAX_WAITING", 0)
    disk = RocksDisk(tmp_path / "data")
    disk.write_file("one/file", b"x")
    disk.remove("one")
    assert not list((tmp_path / "data").iterdir())
    disk.close()
