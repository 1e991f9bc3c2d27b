"""Sealing: an instance says that it holds all files of a load, whole and durable, and remembers which they are.

That is what a commit stands on. The answer leaves when every file was read and is what it should be (its length and its
checksum), and the list of them is durable (`staging`). A file that is missing, or is another, is named and left alone:
whoever loads brings it again, with a ticket, and asks once more. Sealing needs no ticket, so it must not take anything
away. Asking again is cheap: a file that was found right is not read twice in one life.

Every list has a name that its driver made up (`nonce`), so that the lists of two drivers of one load can't mix. A list
also names the tablets that are held when it is noted: the commit counts on this instance for no others.

Only while the session is open, and before the commit: afterwards the list stays as it was when the load was committed.
"""

from __future__ import annotations

import asyncio
from functools import partial

from trimtab.loads import protocol
from trimtab.loads.protocol import SealReply, SealRequest, StagedFile
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.loads.rules import is_nonce
from trimtab.loads.view import LoadView
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.replicas.staging import (
    MAX_PARTS,
    ROOT,
    SEALED,
    SealedFiles,
    check_file,
    check_session,
    encode_sealed,
    path_of,
    read_sealed,
    sealed_path,
)
from trimtab.node.replicas.waiting import off_loop
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.storage.port import Disk, DiskFull, StorageError
from trimtab.tablets.view import TableView

STILL_LOOKING = "not_ready"  # whoever seals asks again
SESSION_CLOSED = "session_closed"
MAX_MISSING = 1_000  # that are named in one answer
MAX_UNDER_WAY = 100
MAX_LISTS = 200  # of one session
# So long a session that is not known here is waited for: it may just have been opened.
SESSION_WAIT_S = 3.0
_MARGIN_S = 0.1


class Sealing:
    """Answers load.seal for one instance, whose raft id is `own`."""

    def __init__(self, own: int, disk: Disk, tables: TableView, loads: LoadView, waits: Waits, *, name: str) -> None:
        self._own = own
        self._disk = disk
        self._tables = tables
        self._loads = loads
        self._waits = waits
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._running: dict[bytes, asyncio.Task[SealReply]] = {}
        # Bytes and checksums of files that were found right, by session, tablet and name.
        self._right: dict[str, dict[tuple[int, str], tuple[int, int]]] = {}
        # Flushes of replicas use the same threads: one file is read at a time.
        self._reading = asyncio.Semaphore(1)
        self.sealed = 0

    def methods(self) -> dict[str, Method]:
        return {protocol.SEAL: self.seal}

    def stop(self) -> None:
        for task in self._running.values():
            task.cancel()

    def busy(self, session: str) -> bool:
        """Whether files of a session are being looked at."""
        return any(task.get_name() == session for task in self._running.values())

    def forget(self, session: str) -> None:
        self._right.pop(session, None)

    async def seal(self, asked: Asked) -> bytes:
        """Answered when the files are there, durably, and noted; or with those that are not."""
        request: SealRequest = protocol.decode_seal(asked.body)
        self._check(request)
        await self._opened(request, asked.deadline)
        task = self._running.get(asked.body)
        if task is None:
            if len(self._running) >= MAX_UNDER_WAY:
                raise Refused("overloaded", f"{MAX_UNDER_WAY} loads are being sealed here already; ask again")
            task = self._loop.create_task(self._seal(request), name=request.session)
            self._running[asked.body] = task
            task.add_done_callback(partial(self._ended, asked.body))
        await asyncio.wait((task,), timeout=max(asked.deadline - _MARGIN_S - self._loop.time(), 0.0))
        if not task.done():
            raise Refused(STILL_LOOKING, f"{self._name} is still looking at the files of {request.session}; ask again")
        if task.cancelled():
            raise Refused("stopped", "this instance is stopping; ask again when it is back")
        return protocol.encode(task.result())

    def _ended(self, body: bytes, task: asyncio.Task[SealReply]) -> None:
        self._running.pop(body, None)
        if not task.cancelled():
            task.exception()  # told to whoever still waits, and else to who asks again

    def _check(self, request: SealRequest) -> None:
        check_session(request.session)
        if not 0 <= request.part < MAX_PARTS:
            raise Refused("invalid", f"part {request.part} of a load; there may be {MAX_PARTS}")
        if not is_nonce(request.nonce):
            raise Refused("invalid", f"{request.nonce[:80]!r} is no nonce; use letters and digits")
        names = [(check_file(file).tablet, file.name) for file in request.files]
        if len(set(names)) != len(names):
            raise Refused("invalid", f"a file of {request.session} is named twice")

    async def _opened(self, request: SealRequest, deadline: float) -> None:
        """Returns when the session is open here; Refused where it is not."""
        try:
            await self._waits.until(
                lambda: (request.table, request.session) in self._loads.loads,
                min(deadline - _MARGIN_S, self._loop.time() + SESSION_WAIT_S),
                f"session {request.session} to be known here",
            )
        except WaitedTooLong:
            text = f"{request.session} is no load of table {request.table} that is open; begin a new one"
            raise Refused(SESSION_CLOSED, text) from None
        self._open(request)

    def _open(self, request: SealRequest) -> LoadRecord:
        load = self._loads.loads.get((request.table, request.session))
        if load is None or request.session not in self._loads.sessions:
            reason = f" ({load.reason or load.state.value})" if load is not None else ""
            text = f"the session of load {request.session} is closed{reason}; begin a new load"
            raise Refused(SESSION_CLOSED, text)
        return load

    async def _seal(self, request: SealRequest) -> SealReply:
        try:
            failpoints.hit("load.seal.before", self._name)
            # Before the files are looked at: the sender can't know of what comes to this instance meanwhile.
            held = self._tables.held_by(self._own).get(request.table, [])
            if self._open(request).state is not LoadState.STAGING:
                return await self._sealed_before(request)
            missing = [
                (file.tablet, file.name) for file in request.files if not await self._is_right(request.session, file)
            ]
            failpoints.hit("load.seal.checked", self._name)
            if missing:
                return SealReply(missing[:MAX_MISSING])
            if self._open(request).state is not LoadState.STAGING:
                return await self._sealed_before(request)
            await self._note(request, held)
            failpoints.hit("load.seal.after", self._name)
        except DiskFull as error:
            raise Refused("disk_full", str(error)) from error
        except StorageError as error:
            raise Refused("failed", f"the files of {request.session} can't be read: {error}") from error
        self._open(request)
        self.sealed += request.last
        return SealReply()

    async def _is_right(self, session: str, file: StagedFile) -> bool:
        right = self._right.setdefault(session, {})
        place, wanted = (file.tablet, file.name), (file.size_bytes, file.checksum)
        if right.get(place) == wanted:
            return True
        path = path_of(session, file.tablet, file.name)
        async with self._reading:
            found = await off_loop(self._disk, partial(self._disk.digest, path))
        if found != wanted:
            return False
        right[place] = wanted
        return True

    async def _note(self, request: SealRequest, held: list[int]) -> None:
        session, nonce = request.session, request.nonce
        if request.last:
            for part in range(request.part):
                if not await off_loop(self._disk, partial(self._disk.exists, sealed_path(session, part, nonce))):
                    text = f"part {part} of load {session} was not sealed here; seal all parts in order"
                    raise Refused("invalid", text)
        found = await off_loop(self._disk, partial(self._disk.entries, f"{ROOT}/{session}"))
        lists = {name.partition(".")[0] for name in found if name.startswith(f"{SEALED}-")}
        if f"{SEALED}-{nonce}" not in lists and len(lists) >= MAX_LISTS:
            raise Refused("too_many_lists", f"load {session} was sealed here {len(lists)} times; begin a new load")
        path = sealed_path(session, None if request.last else request.part, nonce)
        parts = request.part if request.last else 0
        data = encode_sealed(SealedFiles(request.table, request.files, parts, held if request.last else None))
        await off_loop(self._disk, partial(self._disk.write_file, path, data))

    async def _sealed_before(self, request: SealRequest) -> SealReply:
        """It is committed: an answer that was lost on its way is given again, and nothing changes any more."""
        nonce = self._open(request).nonce
        known = await off_loop(self._disk, partial(read_sealed, self._disk, request.session, nonce))
        if known is not None and set(request.files) <= set(known.files):
            return SealReply()
        text = f"load {request.session} is committed already, and these are not the files that were sealed for it here"
        raise Refused("committed", text)
