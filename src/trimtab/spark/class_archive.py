"""Spark's classes, read and checked once and kept as Java maps them into memory: sessions start in half the time.

Java writes such an archive when it ends. The first session of a place (this Java, this installation of Spark) is told
to write one, to a name of its own; the next session takes one that is whole and gives it the final name. Nobody waits
for it, and a session that was killed leaves nothing that is used. Writing costs as much as a start, so of sessions that
begin within two minutes only the first is told to. Java itself compares archive, jars and options when it starts, and
goes on without a word, and slowly, with an archive that does not fit: so archives are called after the jars that they
are of. Those of other jars, which were installed here before, are large, and removed when nobody has used them for a
week. Nothing that goes wrong with any of this keeps a session from starting.

The class path may hold no directory with files in it, or Java refuses to write an archive: that is why the quiet log
configuration is named by an option and Spark's directory of configuration is an empty one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

CACHE_VARIABLE = "TRIMTAB_CACHE_DIR"
_MAGIC = 0xF00BABA8.to_bytes(4, sys.byteorder)  # of archives that a process writes when it ends
_GROUND = "ground.jsa"
_GROUND_S = 60.0
_CLAIM = "writer"
_CLAIM_S = 120.0
_UNUSED_S = 7 * 86_400.0
_LEFT_S = 600.0  # an unfinished archive older than this belongs to nobody


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where things are kept that can be made again: TRIMTAB_CACHE_DIR, else `trimtab` in the user's cache."""
    if named := environment.get(CACHE_VARIABLE):
        return Path(named)
    base = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 Path.home() raises
    return Path(base) / "trimtab"


class ClassArchive:
    """The archive of the jars of one place; its folder is made when it is first needed.

    `place` and `jars`: what tells places and jars from each other, in any words.
    `program`: a Java that comes without an archive of its own classes, which are the ground for those of Spark; the
    first session makes one.
    """

    def __init__(self, cache: Path, *, place: Sequence[str], jars: Sequence[str], program: Path | None = None) -> None:
        self.folder = cache / "spark" / _digest(place)
        self._jars = _digest(jars)
        self._program = program

    @property
    def path(self) -> Path:
        return self.folder / f"classes-{self._jars}.jsa"

    @property
    def ready(self) -> bool:
        return self.path.is_file()

    def options(self) -> list[str]:
        """What to tell Java: to use the archive, or to write one when it ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settle()
        ground = self._ground()
        if self.ready:
            with contextlib.suppress(OSError):
                os.utime(self.path)
            both = ":".join(str(each) for each in (ground, self.path) if each)
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={both}", *_QUIET]
        found = [f"-XX:SharedArchiveFile={ground}"] if ground else []
        if not self._is_first():
            return [*found, *_QUIET]
        return [*found, f"-XX:ArchiveClassesAtExit={self.folder / f'new-{self._jars}-{os.getpid()}.jsa'}", *_QUIET]

    def _is_first(self) -> bool:
        """Whether no other process has begun to write an archive lately."""
        path, own = self.folder / _CLAIM, str(os.getpid())
        with contextlib.suppress(FileNotFoundError):
            if path.read_text() != own and time.time() - path.stat().st_mtime < _CLAIM_S:
                return False
        path.write_text(own)
        return True

    def _ground(self) -> Path | None:
        """Java's own classes, where it does not bring them along."""
        path = self.folder / _GROUND
        if self._program is None or path.is_file():
            return None if self._program is None else path
        aside = self.folder / f"ground-{os.getpid()}.jsa"
        command = [str(self._program), "-Xshare:dump", f"-XX:SharedArchiveFile={aside}"]
        try:
            subprocess.run(command, capture_output=True, timeout=_GROUND_S, check=True)
            return aside.replace(path)
        except (OSError, subprocess.SubprocessError):
            # It has no room, or no time on a busy machine: slower, and nothing else.
            with contextlib.suppress(OSError):
                aside.unlink()
            return None

    def settle(self) -> None:
        """Take over what an earlier session has written; remove what others left unfinished, and what is of no use."""
        for each in sorted(self.folder.glob("new-*.jsa")):  # none, where there is no folder
            own = each.name.startswith(f"new-{self._jars}-")
            with contextlib.suppress(OSError):  # somebody else's, or gone
                if own and not self.ready and _whole(each):
                    each.replace(self.path)
                elif (own and self.ready) or time.time() - each.stat().st_mtime > _LEFT_S:
                    each.unlink()
        for each in self.folder.glob("classes*.jsa"):
            with contextlib.suppress(OSError):
                if each != self.path and time.time() - each.stat().st_mtime > _UNUSED_S:
                    each.unlink()


# The archive is for speed alone: that Java can't use one is no news for whoever reads the log of a job.
_QUIET = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _whole(path: Path) -> bool:
    """The header is written last."""
    with path.open("rb") as file:
        return file.read(4) == _MAGIC
