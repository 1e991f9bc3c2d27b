"""What lies in the directory of a store, looked at without RocksDB; and how files and their names are made durable."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from trimtab.storage.manifest import framing_trouble, manifest_of
from trimtab.storage.port import Corrupt

CONFIG = "rocksdict-config.json"
_RESTING_TABLES = 32  # which are all open, as long as the store rests


def is_store(path: Path) -> bool:
    return (path / "CURRENT").exists() or (path / "IDENTITY").exists() or (path / "LOCK").exists()


def may_rest(path: Path) -> bool:
    """Whether all there is of it is in tables, and these are few: it was never open for writing, and is there."""
    if not (path / "CURRENT").exists():
        return False
    endings = [each.suffix for each in path.iterdir()]
    return ".log" not in endings and endings.count(".sst") <= _RESTING_TABLES


def check_skeleton(path: Path) -> None:
    """Refuse what RocksDB would take for a new database and fill, deleting the tables of the old one."""
    names = [entry.name for entry in path.iterdir()]
    has_data = any(name.endswith(".sst") for name in names) or any(
        name.endswith(".log") and (path / name).stat().st_size for name in names
    )
    if "CURRENT" not in names:
        if has_data:
            raise Corrupt(str(path), "the file CURRENT is missing, but there is data")
    else:
        manifest = manifest_of(path)
        if manifest is None:
            raise Corrupt(str(path / "CURRENT"), "it does not name a manifest that exists")
        trouble = framing_trouble(manifest)
        if trouble is not None:
            raise Corrupt(str(manifest), trouble[1], offset=trouble[0])
    config = path / CONFIG
    if config.exists():
        # Written without a sync when the store was created, so a crash may have left it empty. It can be done without.
        try:
            json.loads(config.read_bytes())
        except ValueError:
            config.unlink()


def entries(directory: Path) -> list[Path]:
    """What is in it; nothing, where there is none: another thread may just have removed it."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def sync_path(path: Path) -> None:
    """A file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_unless_gone(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync_path(path)
