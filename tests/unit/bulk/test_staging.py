"""Files that come in, at the disk itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trimtab.bulk.staging import _AHEAD_BYTES, Incoming, Staging
from trimtab.storage.file_sums import sum_of


def test_no_manifest_is_there_before_all_of_its_files_are(tmp_path: Path) -> None:
    """One of a pack can't be written; what came with it for another tablet is taken all the same."""
    staging = Staging(tmp_path, lambda: 1 << 30)
    first, third = (staging.target("s1", 3, name) for name in ("x.1.sst", "x.3.sst"))
    manifest, other = staging.target("s1", 3, "x.manifest.json"), staging.target("s1", 4, "x.manifest.json")
    broken = staging.target("s1", 3, "x.2.sst")
    broken.mkdir(parents=True)  # nothing can be renamed to it
    files = [first, broken, third, manifest, other]
    failed = staging.take_all([(target, b"data") for target in files])
    assert [isinstance(each, OSError) for each in failed] == [False, True, True, True, False]
    assert first.exists() and other.exists() and not (third.exists() or manifest.exists())
    broken.rmdir()
    assert staging.take_all([(target, b"data") for target in files]) == [None] * 5
    assert manifest.read_bytes() == b"data"


def test_a_file_that_the_node_takes_while_it_is_looked_at_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was cut without a word, and all that had come with it was lost."""
    staging = Staging(tmp_path, lambda: 1 << 30)
    target = staging.target("s1", 3, "x.1.sst")
    assert staging.take_all([(target, b"data")]) == [None]
    assert staging.is_there(target, 4, sum_of(b"data"))
    look = Staging._sum_of

    def taken(self: Staging, target: Path, found: object) -> int:
        target.unlink()
        self._sums.clear()
        return look(self, target, found)  # type: ignore[arg-type]

    monkeypatch.setattr(Staging, "_sum_of", taken)
    assert not staging.is_there(target, 4, sum_of(b"data"))


def test_a_file_that_comes_in_is_given_to_the_disk_bit_by_bit_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, start, length, _how: given.append((start, length)))
    piece = bytes(_AHEAD_BYTES // 2 + 1)
    incoming = Incoming(tmp_path / "part", tmp_path / "whole", 5 * len(piece), sum_of(5 * piece))
    for _ in range(5):
        incoming.write(memoryview(piece))
    incoming.finish()
    incoming.close()
    assert given == [(0, 2 * len(piece)), (2 * len(piece), 2 * len(piece))], "the rest goes with the sync"
    assert (tmp_path / "whole").read_bytes() == 5 * piece
