"""Files that were brought here under a session: where they lie, the list of those that count, and their end.

    staging/<session>/<tablet>/<name>     a file, whole and durable once it has this name
    staging/<session>/sealed-<nonce>      which of them make up the load (`SealedFiles`); with .<n>: parts before it
    staging/<session>/<tablet>/adopted    the marker that goes into a replica with them

Each driver that works on a load makes a list of its own, and the commit says which one counts (`LoadRecord.nonce`).

What is not on the list is of attempts that failed. Nobody takes it, and it goes with the rest: when the session's
record is gone from the metastore, the whole directory is removed, at a start too. That is certain only where this
instance has been told, in this life, what there is (`current`): at a start its metastore may be older than what it had
staged.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial

import msgspec

from trimtab.loads.protocol import StagedFile
from trimtab.loads.records import session_key
from trimtab.loads.view import LoadView
from trimtab.node import failpoints
from trimtab.node.answering import Refused
from trimtab.node.background import telling
from trimtab.node.replicas.waiting import off_loop
from trimtab.storage.port import Disk, StorageError

ROOT = "staging"
SEALED = "sealed"
MARKER = "adopted"
SWEEP_EVERY_S = 5.0
MAX_PARTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")


class SealedFiles(msgspec.Struct, frozen=True, array_like=True):
    """The files of a load that this instance holds. `parts`: so many lists come before this, the last one.

    `tablets`: those that the list is about, in the last one: what this instance held when it sealed. Of a tablet that
    came to it later it knows nothing. None: a release that did not note them wrote the list.
    """

    table: int
    files: list[StagedFile]
    parts: int = 0
    tablets: list[int] | None = None


encode_sealed = msgspec.msgpack.Encoder().encode
_decode_sealed = msgspec.msgpack.Decoder(SealedFiles).decode


def check_session(session: str) -> str:
    """The session itself; Refused where it can be no name of a directory."""
    if not _NAME.fullmatch(session):
        raise Refused("invalid", f"{session!r} is no session: use letters, digits, _, - and .")
    return session


def check_file(file: StagedFile) -> StagedFile:
    """The file itself; Refused where its name can be none of a staged file."""
    if not _NAME.fullmatch(file.name) or file.name == MARKER or file.tablet < 0:
        raise Refused("invalid", f"{file.name!r} of tablet {file.tablet} is no name of a staged file")
    return file


def path_of(session: str, tablet: int, name: str) -> str:
    return f"{ROOT}/{session}/{tablet}/{name}"


def sealed_path(session: str, part: int | None = None, nonce: str = "") -> str:
    name = f"{SEALED}-{nonce}" if nonce else SEALED
    return f"{ROOT}/{session}/{name}" if part is None else f"{ROOT}/{session}/{name}.{part}"


def read_sealed(disk: Disk, session: str, nonce: str = "") -> SealedFiles | None:
    """All files of a list; None: it was not sealed here, or what says so is damaged. Not for the loop."""
    last = _read(disk, sealed_path(session, None, nonce))
    if last is None:
        return None
    files: list[StagedFile] = []
    for part in range(min(last.parts, MAX_PARTS)):
        found = _read(disk, sealed_path(session, part, nonce))
        if found is None:
            return None
        files += found.files
    return SealedFiles(last.table, files + last.files, last.parts, last.tablets)


def _read(disk: Disk, name: str) -> SealedFiles | None:
    data = disk.read_file(name)
    try:
        return None if data is None else _decode_sealed(data)
    except msgspec.DecodeError:
        return None


class Sweeping:
    """Removes what was staged under sessions that are over. `busy`: sessions whose files are being taken over."""

    def __init__(
        self,
        disk: Disk,
        loads: LoadView,
        *,
        current: Callable[[], bool],
        busy: Callable[[str], bool],
        on_gone: Callable[[str], None],
        name: str,
        complain: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._loads = loads
        self._current = current
        self._busy = busy
        self._on_gone = on_gone
        self._name = name
        self._complain = complain
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.swept = 0

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="sweeping of staged files")
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """A session may have ended."""
        self._news.set()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                await self.sweep()
            except StorageError as error:
                self._complain(f"staged files could not be looked at: {error}; it is tried again")
            news = self._loop.create_task(self._news.wait())
            try:
                await asyncio.wait((news,), timeout=SWEEP_EVERY_S)
            finally:
                news.cancel()

    async def sweep(self) -> None:
        """Remove what belongs to no open session."""
        if not self._current():
            return
        for session in await off_loop(self._disk, partial(self._disk.entries, ROOT)):
            if self._open(session) or self._busy(session) or session.startswith("."):
                continue
            failpoints.hit("load.sweep", self._name)
            try:
                await off_loop(self._disk, partial(self._disk.remove, f"{ROOT}/{session}"))
            except StorageError as error:
                self._complain(f"{ROOT}/{session} could not be removed: {error}; it is tried again")
                continue
            self.swept += 1
            self._on_gone(session)

    def _open(self, session: str) -> bool:
        # One that can't be read here (a newer release wrote it) is open all the same.
        return session in self._loads.sessions or session_key(session) in self._loads.unreadable
