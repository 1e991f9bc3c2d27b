"""The data directory is taken by one supervisor at a time, and loses its database but never its identity."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trimtab.node import data_directory, identity
from trimtab.node.data_directory import DataDirectory, DirectoryRefused


def fill(path: Path, instance_id: str = "i1") -> None:
    """What an instance leaves behind."""
    path.mkdir(exist_ok=True)
    (path / "instance.json").write_text(json.dumps({"format": 2, "instance_id": instance_id}))
    (path / "discovery.json").write_text("{}")
    (path / "peers.json").write_text("{}")
    for store in ("log", "metastore"):
        (path / store).mkdir()
        (path / store / "000001.sst").write_bytes(b"data")
    (path / ".half").write_text("")


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_it_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = DataDirectory.claim(tmp_path / "a" / "b", "i1")
    assert (tmp_path / "a" / "b" / "lock").read_text() == f"{os.getpid()}\n"
    directory.release()


def test_what_outlives_a_drop_is_what_identity_says_it_is() -> None:
    assert data_directory.KEPT_FILES == identity.KEPT_FILES


def test_a_second_claim_is_refused_and_names_the_process_that_has_it(tmp_path: Path) -> None:
    first = DataDirectory.claim(tmp_path, "i1")
    with pytest.raises(DirectoryRefused, match=f"in use by process {os.getpid()}; stop that instance first"):
        DataDirectory.claim(tmp_path, "i1")
    first.release()
    DataDirectory.claim(tmp_path, "i1").release()


def test_a_lock_whose_supervisor_is_dead_is_waited_for(tmp_path: Path) -> None:
    """A killed supervisor's child holds the lock until the kernel has ended it too."""
    first = DataDirectory.claim(tmp_path, "i1")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    (tmp_path / "lock").write_text(f"{pid}\n")
    with pytest.raises(DirectoryRefused, match=f"in use by process {pid}"):
        DataDirectory.claim(tmp_path, "i1", dying_s=0.1)
    first.release()


def test_dropping_the_database_keeps_identity_and_acquaintances(tmp_path: Path) -> None:
    fill(tmp_path)
    directory = DataDirectory.claim(tmp_path, "i1")
    before = (tmp_path / "instance.json").read_text()
    directory.drop_database()
    assert names(tmp_path) == {"instance.json", "discovery.json", "lock"}
    assert (tmp_path / "instance.json").read_text() == before
    directory.release()


def test_dropping_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("")
    fill(tmp_path / "data")
    (tmp_path / "data" / "tablets").symlink_to(tmp_path / "elsewhere")
    directory = DataDirectory.claim(tmp_path / "data", "i1")
    directory.drop_database()
    assert names(tmp_path / "elsewhere") == {"precious"} and "tablets" not in names(tmp_path / "data")
    directory.release()


def test_a_drop_that_was_interrupted_is_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    directory = DataDirectory.claim(tmp_path, "i1")

    def crash(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", crash)
    with pytest.raises(KeyboardInterrupt):
        directory.drop_database()
    monkeypatch.undo()
    directory.release()
    assert {"log", "dropping"} <= names(tmp_path)
    DataDirectory.claim(tmp_path, "i1").release()
    assert names(tmp_path) == {"instance.json", "discovery.json", "lock"}


@pytest.mark.parametrize("content", ["", "not json", "[]", "{}", '{"instance_id": "i2"}', "[" * 10_000])
def test_nothing_is_dropped_where_the_directory_is_not_certainly_ours(tmp_path: Path, content: str) -> None:
    fill(tmp_path)
    (tmp_path / "instance.json").write_text(content)
    directory = DataDirectory.claim(tmp_path, "i1")
    before = names(tmp_path)
    with pytest.raises(DirectoryRefused, match="removed"):
        directory.drop_database()
    assert names(tmp_path) == before
    directory.release()


def test_a_directory_with_files_of_others_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DirectoryRefused, match=r"holds files \(thesis\.tex\) but no instance\.json"):
        DataDirectory.claim(tmp_path, "i1")
    assert names(tmp_path) == {"thesis.tex"}


def test_a_fresh_file_system_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").mkdir()
    DataDirectory.claim(tmp_path, "i1").release()


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DirectoryRefused, match="can't be used: File exists; give --data-dir a directory"):
        DataDirectory.claim(tmp_path / "data", "i1")
    with pytest.raises(DirectoryRefused, match="can't be used: Not a directory"):
        DataDirectory.claim(tmp_path / "data" / "below", "i1")
