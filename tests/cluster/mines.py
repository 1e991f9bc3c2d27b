"""Failpoints of a running cluster that can be armed one after the other: whoever comes to an armed one first dies.

A failpoint `kill:FILE` does nothing while its file exists. So a cluster is started with all of them, and with all the
files; a file that is removed arms its place, once, for whichever instance comes there first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.node.failpoints import VARIABLE


class Mines:
    """The failpoints of these names."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        folder.mkdir()
        self._files = {name: folder / name for name in names}
        for file in self._files.values():
            file.touch()

    @property
    def env(self) -> dict[str, str]:
        return {VARIABLE: ",".join(f"{name}=kill:{file}" for name, file in self._files.items())}

    def arm(self, *names: str) -> None:
        """The next one that comes to each of these places dies there."""
        for name in names:
            self._files[name].unlink()

    def disarm(self, *names: str) -> None:
        """Nobody dies at these places any more."""
        for name in names:
            self._files[name].touch()

    @property
    def armed(self) -> list[str]:
        """Where nobody has died yet."""
        return [name for name, file in self._files.items() if not file.exists()]
