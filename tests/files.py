"""Files of a process that goes on working: what is looked at may be gone in the next moment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Those that are there, or were a moment ago."""
    return [Path(where) / name for where, _, names in os.walk(folder) for name in names]


def names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing, where that is not there (any more)."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(path.name for path in folder.iterdir())
    return []


def bytes_below(folder: Path) -> int:
    found = 0
    for path in files_below(folder):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found
