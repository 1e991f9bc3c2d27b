"""The record of a local cluster: whole or not at all, changed by one at a time, and found where it was left."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from trimtab.playground.processes import Known
from trimtab.playground.record import (
    FILE,
    LocalFailed,
    LocalInstance,
    LocalRecord,
    load,
    locked,
    new_directory,
    note_directory,
    present_directory,
    save,
)

INSTANCE = LocalInstance("i1", "a:1", "a:2", "a:3", "a:4", {"host": "i1"}, ["a:1"], supervisor=Known(7, 8, "boot"))
RECORD = LocalRecord("/x", "trimtab", 3301, 2, [INSTANCE])


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    save(tmp_path, RECORD)
    assert load(tmp_path) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_who_dies_while_writing_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, RECORD)

    def die(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", die)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, LocalRecord("/y", "trimtab", 1, 1, []))
    assert load(tmp_path) == RECORD


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"{", "is no record of a local cluster"), (b"[]", "is no record"), (b"\xff", "is no record")],
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(LocalFailed, match=text):
        load(tmp_path)


def test_a_record_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    save(tmp_path, LocalRecord("/x", "trimtab", 3301, 2, [], format=9))
    with pytest.raises(LocalFailed, match="newer version"):
        load(tmp_path)


def test_an_unknown_instance_is_named_with_those_there_are() -> None:
    with pytest.raises(LocalFailed, match="has no instance 'i9'; it has i1"):
        RECORD.named("i9")


def test_only_one_holds_the_lock_and_the_other_is_told_who(tmp_path: Path) -> None:
    told = pytest.raises(LocalFailed, match=r"`trimtab local up` \(process \d+\) is at work")
    with locked(tmp_path, "up", wait_s=0), told, locked(tmp_path, "down", wait_s=0):
        pass
    with locked(tmp_path, "down", wait_s=0):
        pass


def test_a_lock_that_is_soon_free_is_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        timer = threading.Timer(0.2, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        timer.start()
        with locked(tmp_path, "down", wait_s=10):
            pass
        timer.join()


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFailed, match="can't use the directory"), locked(tmp_path / "file", "up", wait_s=0):
        pass


def test_the_directory_is_the_one_brought_up_last(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    usual = tmp_path / "state" / "trimtab" / "local"
    assert new_directory(environment) == present_directory(environment) == usual
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    note_directory(elsewhere, environment)
    assert present_directory(environment) == usual, "there is no cluster yet"
    save(elsewhere, RECORD)
    assert present_directory(environment) == elsewhere
    assert new_directory(environment) == usual
    environment["TRIMTAB_LOCAL_DIR"] = str(tmp_path / "named")
    assert new_directory(environment) == present_directory(environment) == tmp_path / "named"
    note_directory(tmp_path / "other", environment)
    del environment["TRIMTAB_LOCAL_DIR"]
    assert present_directory(environment) == elsewhere, "who names a directory moves nobody else's"


def test_a_state_directory_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LocalFailed, match="say --dir"):
        note_directory(tmp_path, {"XDG_STATE_HOME": str(tmp_path / "state")})
