"""Files that come in, at the disk itself."""

from __future__ import annotations

from pathlib import Path

from trimtab.bulk.staging import Staging


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
