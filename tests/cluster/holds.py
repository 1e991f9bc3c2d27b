"""Copies of tablets that wait half-way where a test wants it, in the processes of tasks that make them.

TRIMTAB_TEST_HOLDS names a folder: the next copy of a tablet waits where there is a file `hold-TABLE-TABLET` in it. That
becomes `held-…` when the copy is there, and the copy goes on when it is removed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from trimtab.node import failpoints

HOLDS = "TRIMTAB_TEST_HOLDS"
_HELD_S = 400.0  # a test that takes longer has failed


def arm() -> None:
    if folder := os.environ.get(HOLDS):
        failpoints.arm("stream.task.half", lambda name, who: _hold(Path(folder), who))


def _hold(folder: Path, who: str) -> None:
    """Wait here, if that is wanted of whoever comes first."""
    name = who.replace("/", "-")
    try:
        (folder / f"hold-{name}").rename(folder / f"held-{name}")
    except FileNotFoundError:
        return
    until = time.monotonic() + _HELD_S
    while (folder / f"held-{name}").exists() and time.monotonic() < until:
        time.sleep(0.01)
