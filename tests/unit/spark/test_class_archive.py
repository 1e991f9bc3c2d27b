from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trimtab.spark.class_archive import _MAGIC, ClassArchive, cache_directory


def archive_of(cache: Path, place: str = "java 17", jars: str = "spark 4") -> ClassArchive:
    return ClassArchive(cache, place=[place], jars=[jars])


def written(archive: ClassArchive) -> ClassArchive:
    """As if a session had begun and ended, and another begun."""
    Path(archive.options()[0].partition("=")[2]).write_bytes(_MAGIC + b"classes")
    archive.options()
    return archive


def test_the_first_session_writes_an_archive_and_the_next_uses_it(tmp_path: Path) -> None:
    archive = archive_of(tmp_path)
    first = archive.options()[0]
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    Path(first.partition("=")[2]).write_bytes(_MAGIC + b"classes")
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options()
    assert archive.path.read_bytes() == _MAGIC + b"classes"


def test_what_a_killed_session_left_is_not_used(tmp_path: Path) -> None:
    archive = archive_of(tmp_path)
    unfinished = Path(archive.options()[0].partition("=")[2])
    unfinished.write_bytes(bytes(1000))
    assert archive.options()[0].startswith("-XX:ArchiveClassesAtExit=")
    assert not archive.ready


def test_of_sessions_that_begin_together_one_writes_an_archive_and_later_ones_may_again(tmp_path: Path) -> None:
    archive = archive_of(tmp_path)
    archive.options()
    claim = archive.folder / "writer"
    claim.write_text("1")  # somebody else's
    assert not any("ArchiveClassesAtExit" in option for option in archive.options())
    os.utime(claim, (0, 0))
    assert any("ArchiveClassesAtExit" in option for option in archive.options())


def test_another_java_or_spark_has_an_archive_of_its_own(tmp_path: Path) -> None:
    made = written(archive_of(tmp_path))
    other = written(archive_of(tmp_path, place="java 21"))
    assert made.ready and other.ready and made.folder != other.folder


def test_where_other_jars_are_installed_an_archive_is_written_anew_and_the_old_one_goes_in_the_end(
    tmp_path: Path,
) -> None:
    """Java would say nothing, and be slow from then on."""
    old = written(archive_of(tmp_path))
    new = archive_of(tmp_path, jars="spark 4, installed again")
    assert not new.ready
    written(new)
    assert new.ready and new.folder == old.folder and old.ready, "somebody else may use it"
    os.utime(old.path, (0, 0))
    old.options()
    new.settle()
    assert old.ready, "it was used a moment ago"
    os.utime(old.path, (0, 0))
    new.settle()
    assert new.ready and not old.ready


def test_what_a_session_with_other_jars_is_still_writing_is_left_to_it(tmp_path: Path) -> None:
    other = Path(archive_of(tmp_path).options()[0].partition("=")[2])
    other.write_bytes(_MAGIC + b"classes")
    archive = archive_of(tmp_path, jars="spark 5")
    archive.options()
    assert other.exists() and not archive.ready


@pytest.mark.parametrize(
    "error", [subprocess.TimeoutExpired("java", 60), subprocess.CalledProcessError(1, "java"), OSError("no memory")]
)
def test_a_java_that_does_not_get_its_own_classes_written_keeps_no_session_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run(command: list[str], **_: Any) -> None:
        Path(command[-1].partition("=")[2]).write_bytes(b"half")
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    archive = ClassArchive(tmp_path, place=["bundled"], jars=["spark 4"], program=Path("java"))
    assert not any("SharedArchiveFile" in option for option in archive.options())
    assert not list(archive.folder.glob("ground*")), "nor is half of it left"


def test_the_cache_is_where_it_was_put_else_the_users(tmp_path: Path) -> None:
    assert cache_directory({"TRIMTAB_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert cache_directory({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/trimtab")
