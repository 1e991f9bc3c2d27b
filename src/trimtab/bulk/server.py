"""The listening end: a thread for each connection, one request after the other, files straight from and to the disk.

Whoever connects needs no name, only tickets. Everything has a bound: connections, the size of a header, the time it may
take, how long a connection may be idle and a transfer stand still. Who has shown no good ticket yet has little time for
it: strangers can't keep the places of others. What is refused is answered with a code and a text;
what can't be read ends its connection and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NoReturn

from trimtab.bulk import protocol, tickets
from trimtab.bulk.pace import Pace, Stopping
from trimtab.bulk.protocol import Answer, BadFrame, Fetch, Idle, List, Pack, PackedFile, Request, Stage, Stat
from trimtab.bulk.sockets import cut, ended, listen, prepare
from trimtab.bulk.staging import ROOT as STAGING
from trimtab.bulk.staging import Differs, Incoming, NoRoom, SessionGone, Staging, WrongSum
from trimtab.bulk.state import NotTold, Told
from trimtab.bulk.tickets import Right, TicketRefused
from trimtab.bulk.turns import StillSent, Turns
from trimtab.storage.file_sums import sum_of

SNAPSHOTS = "snapshots"
_LISTED = 10_000
_RECEIVED_BYTES = 256 << 10  # at a time, of each connection


@dataclass(frozen=True)
class Limits:
    """What one child takes upon itself."""

    connections: int = 512  # a task of Spark has one for as long as it runs, and a cluster may run hundreds
    header_s: float = 10.0  # for a request to arrive once it has begun
    first_s: float = 5.0  # for a handshake and a request with a good ticket, from the beginning of a connection
    idle_s: float = 120.0  # between two requests
    still_s: float = 60.0  # within a transfer
    takeover_s: float = 5.0  # for an older connection to let go of a file


@dataclass
class Counters:
    """Since the child was started. Changed under a lock, read without one."""

    bytes_in: int = 0
    bytes_out: int = 0
    files_in: int = 0
    files_out: int = 0
    refused: int = 0
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: int) -> None:
        with self.lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)


class Refusal(Exception):
    """An answer that says no."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(code, text)


class BulkServer:
    """Serves one data directory. `start`, then `stop`."""

    def __init__(
        self,
        directory: Path,
        told: Told,
        pace: Pace,
        *,
        free_bytes: Callable[[], int],
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        complain: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.counters = Counters()
        self._directory = directory
        self._told = told
        self._pace = pace
        self._tls = tls
        self._limits = limits or Limits()
        self._wall_ms = wall_ms
        self._complain = complain
        self._staging = Staging(directory, free_bytes)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._turns = Turns(self._limits.takeover_s)
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def start(self, host: str, port: int) -> int:
        """Listen, in a thread; the port. OSError: it can't be had."""
        listener = listen(host, port)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="bulk accept", daemon=True).start()
        number: int = listener.getsockname()[1]
        return number

    def stop(self) -> None:
        """Take nobody any more and cut everybody off."""
        self._stopping.set()
        self._pace.stop()
        if self._listener is not None:
            cut(self._listener)
            self._listener.close()
        with self._lock:
            for sock in self._open:
                cut(sock)

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                # Out of descriptors, say: those that are open go on and give theirs back.
                self._complain(f"no connection could be taken: {error}")
                self._stopping.wait(0.1)
                continue
            self.counters.add(connections=1)
            with self._lock:
                room = len(self._open) < self._limits.connections
                if room:
                    self._open.add(sock)
            if not room:
                self._turn_away(sock)
                continue
            threading.Thread(target=self._serve, args=(sock,), name="bulk connection", daemon=True).start()

    def _turn_away(self, sock: socket.socket) -> None:
        self.counters.add(refused=1)
        text = f"{self._limits.connections} connections are open here already; try again shortly"
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            # A handshake takes time that nobody has here: under TLS its end is all that the other side hears, which
            # a client takes for the same.
            if self._tls is None:
                sock.send(protocol.frame(Answer(protocol.OVERLOADED, text)))
        sock.close()

    def _serve(self, raw: socket.socket) -> None:
        sock = raw
        first_until_s = time.monotonic() + self._limits.first_s
        try:
            prepare(raw)
            if self._tls is not None:
                raw.settimeout(self._limits.first_s)
                sock = self._tls.wrap_socket(raw, server_side=True)
                with self._lock:
                    self._open.discard(raw)
                    self._open.add(sock)
            known = False
            while not self._stopping.is_set():
                left_s = self._limits.idle_s if known else first_until_s - time.monotonic()
                if left_s <= 0 or (served := self._one(sock, left_s)) is None:
                    break
                known = known or served
        except (OSError, Stopping):
            # The other side is gone, or this one ends; whoever needs the file comes again.
            pass
        except Exception as error:
            self._complain(f"a bulk connection met a defect: {error!r}")
        finally:
            with self._lock:
                self._open.discard(raw)
                self._open.discard(sock)
            with contextlib.suppress(OSError):
                sock.close()

    def _one(self, sock: socket.socket, idle_s: float) -> bool | None:
        """Serve one request; whether its ticket was good. None: no other may follow."""
        header_s = min(self._limits.header_s, idle_s)
        try:
            data = protocol.read_frame(sock, protocol.MAX_HEADER_BYTES, idle_s=idle_s, header_s=header_s)
            if data is None:
                return None
            request = protocol.decode_request(data)
        except Idle:
            # Said now, it would be taken for the answer to what is asked next.
            return None
        except BadFrame as error:
            self._refuse(sock, Answer(protocol.INVALID, str(error)))
            return None
        try:
            self._carry_out(sock, request)
        except Refusal as refusal:
            self._refuse(sock, refusal.answer)
            code = refusal.answer.code
            return None if code in protocol.END else code not in protocol.NO_TICKET
        return True

    def _refuse(self, sock: socket.socket, answer: Answer, *, last: bool = False) -> None:
        self.counters.add(refused=1)
        self._answer(sock, answer)
        if last or answer.code in protocol.END:
            # What is still on its way here must not make the kernel throw the answer away.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(0.2)
                for _ in range(64):
                    if not sock.recv(64 << 10):
                        break

    def _answer(self, sock: socket.socket, answer: Answer) -> None:
        sock.settimeout(self._limits.still_s)
        sock.sendall(protocol.frame(answer))

    def _carry_out(self, sock: socket.socket, request: Request) -> None:
        match request:
            case Fetch():
                self._fetch(sock, request)
            case List():
                self._list(sock, request)
            case Stage():
                self._stage(sock, request)
            case Stat():
                self._stat(sock, request)
            case Pack():
                self._pack(sock, request)

    # Tickets

    def _claims(self, ticket: bytes, right: Right) -> tickets.Claims:
        try:
            state = self._told.await_now()
        except NotTold as error:
            raise Refusal(protocol.NOT_READY, str(error)) from error
        try:
            claims = tickets.read(state.key, ticket, self._wall_ms())
        except TicketRefused as error:
            raise Refusal(protocol.EXPIRED if error.expired else protocol.BAD_TICKET, str(error)) from error
        if claims.right is not right:
            raise Refusal(
                protocol.BAD_TICKET, f"this ticket is for {claims.right.name.lower()}, not for {right.name.lower()}"
            )
        if claims.instance_id not in ("", state.instance_id):
            raise Refusal(protocol.BAD_TICKET, f"this ticket is for {claims.instance_id}, not for {state.instance_id}")
        return claims

    def _readable_path(self, ticket: bytes, path: str) -> Path:
        """A file of the ticket's snapshot; or one that was staged whole under its session, for another to stage it."""
        kept = STAGING if path.startswith(f"{STAGING}/") else SNAPSHOTS
        claims = self._claims(ticket, Right.STAGE if kept == STAGING else Right.FETCH)
        try:
            parts = protocol.parts_of(path)
        except ValueError as error:
            raise Refusal(protocol.INVALID, str(error)) from error
        if len(parts) < 2 or parts[:2] != [kept, claims.subject]:
            what = "session" if kept == STAGING else "snapshot"
            raise Refusal(protocol.BAD_TICKET, f"this ticket is for the {what} {claims.subject}, not for {path[:200]}")
        found = self._directory.joinpath(*parts)
        root = self._directory / kept / claims.subject
        # No part begins with a dot, so only a link could lead elsewhere, and nobody makes one here.
        if not found.resolve().is_relative_to(root.resolve()):
            raise Refusal(protocol.INVALID, f"{path[:200]} leads out of {kept}")
        return found

    def _target(self, request: Stage | Stat | PackedFile, ticket: bytes, asked_s: float) -> Path:
        claims = self._claims(ticket, Right.STAGE)
        if wrong := protocol.wrong_session(request.session) or protocol.wrong_name(request.name):
            raise Refusal(protocol.INVALID, wrong)
        if claims.subject != request.session:
            text = f"this ticket is for the session {claims.subject}, not for {request.session}"
            raise Refusal(protocol.BAD_TICKET, text)
        if request.size_bytes > protocol.MAX_FILE_BYTES:
            raise Refusal(protocol.INVALID, f"a file has at most {protocol.MAX_FILE_BYTES} bytes")
        try:
            known = self._told.await_open(request.session, asked_s)
        except NotTold as error:
            raise Refusal(protocol.NOT_READY, str(error)) from error
        if not known:
            raise _no_session(request.session)
        return self._staging.target(request.session, request.tablet, request.name)

    # Out

    def _fetch(self, sock: socket.socket, request: Fetch) -> None:
        path = self._readable_path(request.ticket, request.path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _no_file(request.path, error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refusal(protocol.NOT_FOUND, f"{request.path[:200]} is no file")
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            size_bytes = os.fstat(descriptor).st_size
            if request.offset > size_bytes:
                text = f"{request.path[:200]} has {size_bytes} bytes, and byte {request.offset} was asked for"
                raise Refusal(protocol.INVALID, text)
            end = size_bytes if request.length == 0 else min(request.offset + request.length, size_bytes)
            self._answer(sock, Answer(size_bytes=size_bytes, offset=request.offset))
            self._send(sock, file, request.offset, end)
        self.counters.add(files_out=1)

    def _send(self, sock: socket.socket, file: BinaryIO, offset: int, end: int) -> None:
        """Chunk after chunk, each behind its checksum."""
        descriptor = file.fileno()
        buffer = memoryview(bytearray(min(protocol.CHUNK_BYTES, max(end - offset, 1))))
        sock.settimeout(self._limits.still_s)
        while offset < end:
            want = min(end - offset, protocol.CHUNK_BYTES)
            try:
                # The pages that this brings into memory are those that are sent next, without another copy.
                got = os.preadv(descriptor, [buffer[:want]], offset)
            except OSError as error:
                got, why = 0, str(error)
            else:
                why = "it has become shorter"
            if got <= 0:
                sock.sendall(protocol.chunk_header.pack(protocol.FAILED, 0))
                self._answer(sock, Answer(protocol.FAILURE, f"the file can't be read at byte {offset}: {why}"))
                raise ConnectionAbortedError(why)
            sock.sendall(protocol.chunk_header.pack(got, sum_of(buffer[:got])))
            chunk_end = offset + got
            while offset < chunk_end:
                piece = min(chunk_end - offset, self._pace.piece_bytes)
                self._pace.take(piece)
                sent = sock.sendfile(file, offset, piece)
                if sent != piece:
                    raise ConnectionAbortedError("the file has become shorter while it was sent")
                offset += sent
                self.counters.add(bytes_out=sent)
        sock.sendall(protocol.chunk_header.pack(0, 0))

    def _list(self, sock: socket.socket, request: List) -> None:
        path = self._readable_path(request.ticket, request.path)
        try:
            files = sorted((each.name, each.stat().st_size) for each in os.scandir(path) if each.is_file())
        except OSError as error:
            raise _no_file(request.path, error) from error
        self._answer(sock, Answer(files=files[:_LISTED], done=len(files) <= _LISTED))

    # In

    def _stat(self, sock: socket.socket, request: Stat) -> None:
        target = self._target(request, request.ticket, self._told.clock_s())
        if self._is_there(target, request):
            self._answer(sock, Answer(size_bytes=request.size_bytes, offset=request.size_bytes, done=True))
            return
        have = self._staging.part_bytes(target, request.size_bytes, request.checksum)
        self._answer(sock, Answer(size_bytes=request.size_bytes, offset=have))

    def _is_there(self, target: Path, request: Stage | Stat | PackedFile) -> bool:
        replace = isinstance(request, Stage) and request.replace
        try:
            return self._staging.is_there(target, request.size_bytes, request.checksum, replace=replace)
        except Differs as error:
            raise Refusal(protocol.CONFLICT, str(error)) from error

    def _stage(self, sock: socket.socket, request: Stage) -> None:
        target = self._target(request, request.ticket, self._told.clock_s())
        try:
            with self._turns.at(target, sock):
                if not self._is_there(target, request):
                    self._take_in(sock, request, target)
        except StillSent as error:
            raise Refusal(protocol.BUSY, str(error)) from error
        except NoRoom as error:
            raise Refusal(protocol.DISK_FULL, str(error)) from error
        except SessionGone as error:
            raise _no_session(request.session) from error
        self.counters.add(files_in=1)
        self._answer(sock, Answer(size_bytes=request.size_bytes, offset=request.size_bytes, done=True))

    def _pack(self, sock: socket.socket, request: Pack) -> None:
        """Many small files, each with a verdict of its own."""
        size_bytes = sum(file.size_bytes for file in request.files)
        if not 0 < len(request.files) <= protocol.PACK_FILES or size_bytes > protocol.PACK_BYTES:
            text = f"a pack has 1 to {protocol.PACK_FILES} files and {protocol.PACK_BYTES} bytes at most"
            raise Refusal(protocol.INVALID, text)
        asked_s = self._told.clock_s()
        targets: list[Path | None] = []
        verdicts: list[tuple[str, str]] = []
        for file in request.files:
            target = None
            try:
                ticket = request.tickets[file.ticket] if file.ticket < len(request.tickets) else b""
                target = self._target(file, ticket, asked_s)
                verdicts.append((protocol.THERE if self._is_there(target, file) else protocol.WANTED, ""))
            except Refusal as refusal:
                verdicts.append((refusal.answer.code, refusal.answer.text))
            targets.append(target)
        if all(code in protocol.NO_TICKET for code, _ in verdicts):
            raise Refusal(*verdicts[0])
        self._answer(sock, Answer(size_bytes=size_bytes, verdicts=verdicts))
        came: list[tuple[int, Path, bytes]] = []
        for number, (file, target) in enumerate(zip(request.files, targets, strict=True)):
            if target is not None and verdicts[number][0] == protocol.WANTED:
                came.append((number, target, self._received(sock, file.size_bytes)))
        for number, code, text in self._keep(request, came):
            verdicts[number] = code, text
        self.counters.add(files_in=len(came))
        self._answer(sock, Answer(size_bytes=size_bytes, done=True, verdicts=verdicts))

    def _received(self, sock: socket.socket, count: int) -> bytes:
        data = bytearray(count)
        rest = memoryview(data)
        sock.settimeout(self._limits.still_s)
        while rest:
            got = sock.recv_into(rest, min(len(rest), self._pace.piece_bytes))
            if not got:
                raise ConnectionAbortedError("the sender ended within a file")
            rest = rest[got:]
            self.counters.add(bytes_in=got)
            self._pace.take(got)
        return bytes(data)

    def _keep(self, request: Pack, came: list[tuple[int, Path, bytes]]) -> Iterator[tuple[int, str, str]]:
        """What becomes of files that came: those that are not kept, and why."""
        kept: list[tuple[int, Path, bytes]] = []
        for number, target, data in came:
            file = request.files[number]
            try:
                if sum_of(data) != file.checksum:
                    yield number, protocol.WRONG_SUM, f"{file.name} came with another checksum than was announced"
                elif not self._told.is_open(file.session):
                    yield number, protocol.NO_SESSION, str(_no_session(file.session))
                else:
                    kept.append((number, target, data))
            except NotTold as error:
                yield number, protocol.NOT_READY, str(error)
        found = self._staging.take_all([(target, data) for _, target, data in kept]) if kept else []
        for (number, _, _), failed in zip(kept, found, strict=True):
            if failed is None:
                continue
            if isinstance(failed, SessionGone):
                yield number, protocol.NO_SESSION, str(_no_session(request.files[number].session))
            elif isinstance(failed, NoRoom) or getattr(failed, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
                yield number, protocol.DISK_FULL, str(failed)
            else:
                self._complain(f"a file could not be staged: {failed}")
                yield number, protocol.FAILURE, f"the disk refuses it: {failed}"

    def _take_in(self, sock: socket.socket, request: Stage, target: Path) -> None:
        with self._staging.take(target, request.size_bytes, request.checksum) as incoming:
            self._answer(sock, Answer(size_bytes=request.size_bytes, offset=incoming.have))
            try:
                self._receive(sock, incoming, request.session)
                if not self._told.is_open(request.session):
                    incoming.discard()
                    raise _no_session(request.session)
                self._finish(incoming)
            except WrongSum as error:
                raise Refusal(protocol.WRONG_SUM, str(error)) from error
            except NotTold as error:
                raise Refusal(protocol.NOT_READY, str(error)) from error

    def _finish(self, incoming: Incoming) -> None:
        try:
            incoming.finish()
        except OSError as error:
            # After a failed sync nobody knows what is on the disk: it has to come again, as a whole.
            incoming.discard()
            self._complain(f"a staged file could not be made durable: {error}")
            raise Refusal(protocol.FAILURE, f"the file could not be made durable: {error}") from error

    def _receive(self, sock: socket.socket, incoming: Incoming, session: str) -> None:
        buffer = memoryview(bytearray(min(_RECEIVED_BYTES, max(incoming.left, 1))))
        sock.settimeout(self._limits.still_s)
        while incoming.left:
            if self._pace.rate_bytes_s and ended(sock):
                raise ConnectionAbortedError("the sender gave up within a file")
            if not self._still_open(session):
                incoming.discard()
                self._refuse_within(sock, _no_session(session).answer)
            got = sock.recv_into(buffer, min(incoming.left, self._pace.piece_bytes, len(buffer)))
            if not got:
                raise ConnectionAbortedError("the sender ended within a file")
            try:
                incoming.write(buffer[:got])
            except OSError as error:
                incoming.discard()
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not full:
                    self._complain(f"a file could not be staged: {error}")
                code = protocol.DISK_FULL if full else protocol.FAILURE
                self._refuse_within(sock, Answer(code, f"the disk refuses it: {error}"))
            self.counters.add(bytes_in=got)
            self._pace.take(got)

    def _still_open(self, session: str) -> bool:
        """Whether a file of this session is worth going on with: each piece asks, so a long one does not outlive it.

        A node that has just started again may not know of it yet, and is asked once more. One that says nothing ends
        nothing: whether the file is kept is decided when it is whole.
        """
        try:
            return self._told.await_open(session, self._told.clock_s())
        except NotTold:
            return True

    def _refuse_within(self, sock: socket.socket, answer: Answer) -> NoReturn:
        """The sender is in the middle of the bytes, so nothing else can follow on this connection."""
        self._refuse(sock, answer, last=True)
        raise ConnectionAbortedError(answer.text)


def _no_file(path: str, error: OSError) -> Refusal:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return Refusal(protocol.NOT_FOUND, f"there is no {path[:200]}; the lease of its snapshot may have ended")
    return Refusal(protocol.NOT_FOUND, f"{path[:200]} can't be read: {error}")


def _no_session(session: str) -> Refusal:
    return Refusal(protocol.NO_SESSION, f"the session {session} is not open: it was ended, or never begun")
