"""Directories for files of tasks: open to a group where the one above is, and to nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from trimtab.spark import shared_folders


@pytest.fixture
def narrow() -> Iterator[None]:
    """As a careful operator has it: what is made is one's own."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("above", "made"),
    [(0o2775, 0o2770), (0o2750, 0o2700), (0o775, 0o700), (0o1777, 0o700)],
    ids=["shared", "read", "group", "everybody"],
)
def test_what_is_made_is_shared_by_the_group_that_shares_what_is_above(tmp_path: Path, above: int, made: int) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(above)
    shared_folders.make(fs.LocalFileSystem(), str(base / "a" / "b"))
    assert [stat.S_IMODE((base / each).stat().st_mode) for each in ("a", "a/b")] == [made, made]


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "a").mkdir(parents=True)
    base.chmod(0o2775)
    (base / "a").chmod(0o700)
    shared_folders.make(fs.LocalFileSystem(), str(base / "a"))
    assert stat.S_IMODE((base / "a").stat().st_mode) == 0o700
