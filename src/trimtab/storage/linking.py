"""A copy of a RocksDB database as links to its tables, which may be open: what RocksDB calls a checkpoint.

RocksDB's own keeps the interpreter while it is made, with its syncs. Here it is links, and the manifest's records once
more. A table that has gone meanwhile was merged into others, and a later look finds those.
Where the manifest is not understood, or there are no links, RocksDB is asked after all.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trimtab.storage.manifest import NotUnderstood, live_tables, manifest_of

# A file system that has no links, no more of them, or not to this file; or the file is gone.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOENT)
_TRIES = 3


def link_tables(source: Path, target: Path, *, resting: bool = False) -> bool:
    """Make the directory `target`, a copy of the database `source`, which may be open; not synced. `resting`: nobody
    writes to it, so its manifest is linked as well.

    False, and there is nothing: it can't be done like this. What is in memory only is not in it. OSError: whoever asked
    removes what there is.
    """
    for _ in range(_TRIES):
        manifest = manifest_of(source)
        if manifest is None:
            continue  # there is another one in a moment
        try:
            data = manifest.read_bytes()
            live, end = live_tables(data)
        except FileNotFoundError:
            continue
        except NotUnderstood:
            return False
        target.mkdir()
        whole = resting and end == len(data)
        if _linked(source, target, live, manifest.name, whole=whole):
            if not whole:
                (target / manifest.name).write_bytes(data[:end])
            return True
        _empty(target)
    return False


def _linked(source: Path, target: Path, live: set[int], manifest: str, *, whole: bool) -> bool:
    """Whether all of them were there, with that manifest, and links can be made. `whole`: also to the manifest."""
    names = ["CURRENT", *(f"{number:06}.sst" for number in live), *([manifest] if whole else [])]
    try:
        for name in names:
            os.link(source / name, target / name)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return False
    # It is never written in place: another manifest comes with another file of that name.
    return (target / "CURRENT").read_text() == f"{manifest}\n"


def _empty(target: Path) -> None:
    for path in target.iterdir():
        path.unlink()
    target.rmdir()
