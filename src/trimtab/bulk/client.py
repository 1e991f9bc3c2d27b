"""The asking end: fetches files of snapshots and stages files, whatever happens to the connection meanwhile.

A transfer goes on where it was when a connection breaks. Attempts are bounded: so many in a row without a byte of
progress, with growing pauses between them. What a server refuses for good is raised at once. Every chunk that is
fetched is checked before it is kept, so what is kept is right; what is staged is checked by the server, as a whole.

    client = BulkClient("127.0.0.1:3304")
    client.fetch_to(target, "snapshots/read-1/7/3.1/000009.sst", ticket)
    client.stage(source, session, tablet, name, ticket)

One connection, one thread at a time; `cancel` may be called from any other. Blocking: meant for Spark's tasks.
"""

from __future__ import annotations

import contextlib
import io
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from trimtab.bulk import protocol
from trimtab.bulk.protocol import Answer, BadFrame, Fetch, List, Pack, PackedFile, Request, Stage, Stat
from trimtab.bulk.sockets import prepare
from trimtab.bulk.sources import Pieces, Source, opened
from trimtab.net.addresses import parse_address
from trimtab.storage.file_sums import sum_of

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes so far, bytes in all

_READ_BYTES = 1 << 20
_SEND_BYTES = 1 << 20
_NO_ROOM = "it ended the connection before it had answered anything; it may have too many open, or want TLS"
# How the end of a connection looks to the other side, without TLS and with it; alerts and timeouts are something else.
_ENDED = (ConnectionAbortedError, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class BulkError(Exception):
    """A transfer did not happen; the text says where and why."""


class BulkRefused(BulkError):
    """The server says no, for good. `code` is one of the protocol's."""

    def __init__(self, address: str, code: str, text: str) -> None:
        super().__init__(f"the bulk server {address} refused: {text} ({code})")
        self.code = code
        self.text = text


class BulkLost(BulkError):
    """No server could be reached, or connections to it broke again and again without progress."""


class BulkCancelled(BulkError):
    """`cancel` was called."""


@dataclass(frozen=True)
class Patience:
    """`attempts` in a row without progress; pauses double from the first to the longest.

    A server that says that it has no room just now, or does not know yet what to serve, is asked again for `room_s`. So
    is one that takes a connection and ends it without a word: under TLS it can't say that it has no room.
    """

    attempts: int = 8
    first_pause_s: float = 0.1
    longest_pause_s: float = 3.0
    connect_s: float = 5.0
    still_s: float = 60.0  # without a byte, at the lowest rate that can be set
    room_s: float = 60.0


@dataclass(frozen=True)
class Staged:
    """What was staged. `sent_bytes`: what went over the network for it."""

    size_bytes: int
    checksum: int
    sent_bytes: int


@dataclass(frozen=True)
class SmallFile:
    """One of many that are staged together."""

    ticket: bytes
    session: str
    tablet: int
    name: str
    data: bytes


@dataclass(frozen=True)
class Packed:
    """What became of a small file. `code` empty: it is there, whole and durable, and `sent_bytes` went for it."""

    sent_bytes: int
    code: str = ""
    text: str = ""


class _Again(Exception):
    """This attempt failed; another may do. `later`: the server said so itself."""

    def __init__(self, text: str, *, later: bool = False) -> None:
        super().__init__(text)
        self.later = later


class BulkClient:
    """A client of one bulk server. A context manager; `tls` as for every client of the cluster."""

    def __init__(
        self,
        address: str,
        tls: ssl.SSLContext | None = None,
        *,
        patience: Patience | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.address = address
        self.attempts = 0  # connections that were begun
        self._host, self._port = parse_address(address)
        self._tls = tls
        self._patience = patience or Patience()
        self._rng = rng or random.Random()
        self._sock: socket.socket | None = None
        self._cancelled = threading.Event()
        self._moved = 0  # bytes of progress, of all transfers

    def __enter__(self) -> BulkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def cancel(self) -> None:
        """End what is under way, and everything that comes after it, with BulkCancelled."""
        self._cancelled.set()
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                # What has not arrived is not to arrive: at a low rate the rest would take its time.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Of the socket below TLS: another thread is in the middle of using that.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    # Out of the server

    def fetch_to(
        self, target: Path, path: str, ticket: bytes, *, size_bytes: int | None = None, progress: Progress | None = None
    ) -> int:
        """Download a file to `target`, which appears when it is whole; its bytes.

        What an earlier call left unfinished beside it (`.<name>.….part`) is gone on with.
        """
        # Of this very file: one of the same name in another snapshot is another.
        part = target.with_name(f".{target.name}.{sum_of(path.encode()):016x}.part")
        with part.open("a+b", buffering=0) as file:
            total = self._going_on(lambda: self._fetch(file, path, ticket, file.tell(), 0, progress))
            if file.tell() != total or size_bytes not in (None, total):
                expected = total if size_bytes is None else size_bytes
                text = f"{file.tell()} of {total} bytes of {path} came from {self.address}; {expected} were expected"
                file.truncate(0)
                raise BulkError(text)
        part.rename(target)
        return total

    def fetch(self, path: str, ticket: bytes, *, offset: int = 0, length: int = 0) -> bytes:
        """A part of a file, in memory. `length` 0: to its end."""
        file = io.BytesIO()

        def attempt() -> int:
            have = file.tell()
            if length and have >= length:
                return have
            return self._fetch(file, path, ticket, offset + have, length - have if length else 0, None)

        self._going_on(attempt)
        return file.getvalue()

    def files(self, path: str, ticket: bytes) -> list[tuple[str, int]]:
        """Names and bytes of the files in a directory of a snapshot."""
        return self._going_on(lambda: self._ask(List(ticket, path))).files

    def _fetch(
        self, file: BinaryIO, path: str, ticket: bytes, offset: int, length: int, progress: Progress | None
    ) -> int:
        """Append what comes, chunk by chunk; the bytes of the whole file at the server."""
        answer = self._ask(Fetch(ticket, path, offset, length))
        sock = self._connected()
        buffer = memoryview(bytearray(protocol.CHUNK_BYTES))
        while True:
            header = self._exactly(sock, protocol.chunk_header.size)
            count, checksum = protocol.chunk_header.unpack(header)
            if count == 0:
                return answer.size_bytes
            if count == protocol.FAILED:
                refusal = self._read_answer(sock)
                self.close()
                raise _Again(refusal.text)
            if count > protocol.CHUNK_BYTES:
                self.close()
                raise _Again(f"a chunk of {count} bytes was announced")
            filled = 0
            while filled < count:
                got = sock.recv_into(buffer[filled:count])
                if not got:
                    raise ConnectionAbortedError("the server ended within a chunk")
                filled += got
            if sum_of(buffer[:count]) != checksum:
                self.close()
                raise _Again(f"bytes of {path} from {offset} on came with another checksum than they were sent with")
            file.write(buffer[:count])
            offset += count
            self._moved += count
            if progress is not None:
                progress(offset, answer.size_bytes)

    # Into the server

    def stage(
        self,
        source: Path | Pieces,
        session: str,
        tablet: int,
        name: str,
        ticket: bytes,
        *,
        checksum: int | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Staged:
        """Send a file; when it returns the server has it, whole and durable. `checksum`: if it is known already.

        `replace`: in the place of another of that name, which is damaged; else that is refused.
        """
        if wrong := protocol.wrong_session(session) or protocol.wrong_name(name):
            raise ValueError(wrong)
        with opened(source) as file:
            size_bytes = file.size_bytes
            known = file.checksum() if checksum is None else checksum
            request = Stage(ticket, session, tablet, name, size_bytes, known, replace)
            sent = farthest = 0

            def attempt() -> None:
                nonlocal sent, farthest
                answer = self._ask(request)
                # Progress is what arrived. After a wrong checksum the server begins anew, which is none.
                self._moved += max(answer.offset - farthest, 0)
                farthest = max(answer.offset, farthest)
                if not answer.done:
                    sent += self._send(file, answer.offset, size_bytes, progress)
                    answer = self._read_answer(self._connected())
                    self._check(answer)
                if not answer.done:
                    self.close()
                    raise _Again("the server does not say that it has the file")

            self._going_on(attempt)
        return Staged(size_bytes, known, sent)

    def pack(self, files: Sequence[SmallFile]) -> list[Packed]:
        """Send many small files at once; what became of each. All of them together fit into a pack of the protocol."""
        for file in files:
            if wrong := protocol.wrong_session(file.session) or protocol.wrong_name(file.name):
                raise ValueError(wrong)
        tickets = {ticket: number for number, ticket in enumerate(dict.fromkeys(file.ticket for file in files))}
        listed = [
            PackedFile(tickets[file.ticket], file.session, file.tablet, file.name, len(file.data), sum_of(file.data))
            for file in files
        ]
        request, sent = Pack(list(tickets), listed), [0] * len(files)

        def attempt() -> list[Packed]:
            answer = self._ask(request)
            wanted = [number for number, (code, _) in enumerate(answer.verdicts) if code == protocol.WANTED]
            sock = self._connected()
            for number in wanted:
                sock.sendall(files[number].data)
                sent[number] += len(files[number].data)
            answer = self._read_answer(sock)
            self._check(answer)
            self._moved += sum(code == protocol.WANTED for code, _ in answer.verdicts)
            if again := [text for code, text in answer.verdicts if code in protocol.AGAIN | {protocol.WRONG_SUM}]:
                # Those that are there by now are not sent once more.
                raise _Again(again[0], later=True)
            return [
                Packed(count, "" if code == protocol.THERE else code, text)
                for count, (code, text) in zip(sent, answer.verdicts, strict=True)
            ]

        return self._going_on(attempt)

    def stat(self, session: str, tablet: int, name: str, ticket: bytes, size_bytes: int, checksum: int) -> Answer:
        """How much of a staged file the server has: `offset` bytes; `done`: all of it, durable."""
        return self._going_on(lambda: self._ask(Stat(ticket, session, tablet, name, size_bytes, checksum)))

    def _send(self, file: Source, offset: int, size_bytes: int, progress: Progress | None) -> int:
        sock = self._connected()
        begun = offset
        try:
            while offset < size_bytes:
                if _has_news(sock):
                    # It has nothing to say before it has all bytes, but that it does not want them.
                    self._heed_last_word(sock, ConnectionAbortedError("the server ended the transfer"))
                sent = file.send(sock, offset, min(size_bytes - offset, _SEND_BYTES))
                if not sent:
                    self.close()
                    raise BulkError(f"the file to be sent has become shorter: {offset} of {size_bytes} bytes")
                offset += sent
                if progress is not None:
                    progress(offset, size_bytes)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._heed_last_word(sock, error)
        return offset - begun

    def _heed_last_word(self, sock: socket.socket, error: OSError) -> None:
        """A server that ends a transfer says why first; else the connection just broke."""
        try:
            answer = self._read_answer(sock)
        except (OSError, BadFrame):
            raise error from None
        finally:
            self.close()
        self._check(answer)
        raise error

    # Attempts

    def _going_on(self, attempt: Callable[[], T]) -> T:
        """The result of the first attempt that does not fail. BulkLost: too many in a row got nowhere."""
        patience, pause_s, failures = self._patience, self._patience.first_pause_s, 0
        room_until_s = time.monotonic() + patience.room_s
        while True:
            if self._cancelled.is_set():
                raise BulkCancelled(f"the transfer with {self.address} was cancelled")
            before = self._moved
            try:
                return attempt()
            except (OSError, BadFrame, _Again) as error:
                if not isinstance(error, _Again):
                    self.close()
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise BulkLost(f"the bulk server {self.address} can't be trusted: {error}") from error
                why = str(error) or type(error).__name__
                later = isinstance(error, _Again) and error.later
            if self._moved > before:
                failures, pause_s = 0, patience.first_pause_s
                room_until_s = time.monotonic() + patience.room_s
            if not later or time.monotonic() > room_until_s:
                failures += 1
            if self._cancelled.is_set():
                continue
            if failures >= patience.attempts:
                raise BulkLost(
                    f"the bulk server {self.address} got nowhere in {failures} attempts; the last reason: {why}"
                )
            self._cancelled.wait(pause_s * (0.5 + self._rng.random()))
            pause_s = min(pause_s * 2, patience.longest_pause_s)

    def _ask(self, request: Request) -> Answer:
        if self._sock is not None and _has_news(self._sock):
            # Nothing was asked, so that is its end: the server closes connections that were idle for long.
            self.close()
        fresh = self._sock is None
        sock = self._connected()
        try:
            answer = self._first_answer(sock, request) if fresh else self._answer_to(sock, request)
        except (OSError, BadFrame):
            self.close()
            if fresh:
                raise
            # It may have been closed just now.
            answer = self._first_answer(self._connected(), request)
        self._check(answer)
        return answer

    def _answer_to(self, sock: socket.socket, request: Request) -> Answer:
        sock.sendall(protocol.frame(request))
        return self._read_answer(sock)

    def _first_answer(self, sock: socket.socket, request: Request) -> Answer:
        """To the first request of a connection, which a server with no room for it ends."""
        try:
            # Where it says so first, that is there to be read even if it does not take the request.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(protocol.frame(request))
            return self._read_answer(sock)
        except _ENDED as error:
            self.close()
            raise _Again(_NO_ROOM, later=True) from error

    def _check(self, answer: Answer) -> None:
        """Raise a refusal."""
        if not answer.code:
            return
        if answer.code in protocol.END:
            self.close()
        if answer.code in protocol.AGAIN or answer.code == protocol.WRONG_SUM:
            raise _Again(answer.text, later=answer.code in protocol.AGAIN)
        raise BulkRefused(self.address, answer.code, answer.text)

    # The connection

    def _connected(self) -> socket.socket:
        if self._sock is None:
            if self._cancelled.is_set():
                raise BulkCancelled(f"the transfer with {self.address} was cancelled")
            self.attempts += 1
            sock = socket.create_connection((self._host, self._port), timeout=self._patience.connect_s)
            try:
                prepare(sock)
                if self._tls is not None:
                    try:
                        sock = self._tls.wrap_socket(sock)
                    except _ENDED as error:
                        raise _Again(_NO_ROOM, later=True) from error
                sock.settimeout(self._patience.still_s)
            except BaseException:
                sock.close()
                raise
            self._sock = sock
        return self._sock

    def _exactly(self, sock: socket.socket, count: int) -> bytes:
        data = protocol.read_exactly(sock, count, time.monotonic() + self._patience.still_s)
        if len(data) < count:
            raise ConnectionAbortedError("the server ended within a file")
        sock.settimeout(self._patience.still_s)
        return data

    def _read_answer(self, sock: socket.socket) -> Answer:
        still_s = self._patience.still_s
        data = protocol.read_frame(sock, protocol.MAX_ANSWER_BYTES, idle_s=still_s, header_s=still_s)
        if data is None:
            raise ConnectionAbortedError("the server closed the connection")
        sock.settimeout(still_s)
        return protocol.decode_answer(data)


def _has_news(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
