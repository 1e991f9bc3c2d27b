"""What the bulk child and its clients say to each other, and the bytes between.

    frame   = u32 big-endian length, then one msgpack array: a request, or an Answer
    fetch   request ▶   ◀ Answer(size_bytes), then chunks: u32 length, u64 checksum, so many bytes; length 0 ends them,
                          length FAILED means that the file can't be read on, and an Answer says why
    stage   request ▶   ◀ Answer(offset: from here on) or Answer(done)
            bytes   ▶   ◀ Answer(done): it is whole, checked, and durable
    pack    request ▶   ◀ Answer(verdicts: of each file whether its bytes are wanted, or why not)
            bytes   ▶   ◀ Answer(verdicts, done): of all that were wanted, one behind the other
    stat    request ▶   ◀ Answer(offset: so much is here; done)
    list    request ▶   ◀ Answer(files)

Requests follow each other on one connection. An Answer with a code is a refusal; after one the connection stays usable
unless the code is among those that END it: then the two sides may not agree where the next frame begins.

Names are checked here, once, for both sides: whatever passes can be joined to a directory and stays below it.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from typing import Annotated

import msgspec

from trimtab.storage import file_sums

MAX_HEADER_BYTES = 64 << 10
MAX_ANSWER_BYTES = 4 << 20  # a listing
MAX_FILE_BYTES = 1 << 40
CHUNK_BYTES = 1 << 20
PACK_FILES = 128
PACK_BYTES = 4 << 20  # of all files of a pack
FAILED = 0xFFFF_FFFF

INVALID = "invalid"
NOT_FOUND = "not_found"
BAD_TICKET = "bad_ticket"
EXPIRED = "expired_ticket"
NO_SESSION = "unknown_session"
DISK_FULL = "disk_full"
WRONG_SUM = "wrong_sum"
CONFLICT = "conflict"
BUSY = "busy"
OVERLOADED = "overloaded"
NOT_READY = "not_ready"
FAILURE = "failed"
# Verdicts on files of a pack that are no refusals.
WANTED = ""
THERE = "there"
# After these the connection is closed by whoever refuses.
END = frozenset((INVALID, OVERLOADED, FAILURE))
# Who is told this has not shown a good ticket, or nobody can say yet.
NO_TICKET = frozenset((BAD_TICKET, EXPIRED, NOT_READY))
# Worth asking again, after a moment.
AGAIN = frozenset((BUSY, OVERLOADED, NOT_READY))

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_length = struct.Struct(">I")
chunk_header = struct.Struct(">IQ")

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Checksum = Annotated[int, msgspec.Meta(ge=0, le=file_sums.MOST)]


class BadFrame(Exception):
    """What came is no frame of this protocol, or not in time; the text says how."""


class Idle(BadFrame):
    """Nothing at all came: no fault, and nobody waits for an answer."""


class Fetch(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A file of a snapshot, by its path below the data directory. `length` 0: to its end.

    With a ticket for staging also what was staged whole under its session: `staging/<session>/<tablet>/<name>`.
    """

    ticket: bytes
    path: str
    offset: Natural = 0
    length: Natural = 0


class Stage(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A file for `staging/<session>/<tablet>/<name>`: all of it, or what is not there yet.

    `replace`: what is there under that name is damaged, and this one takes its place.
    """

    ticket: bytes
    session: str
    tablet: Natural
    name: str
    size_bytes: Natural
    checksum: Checksum
    replace: bool = False


class Stat(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """How much of a staged file is there."""

    ticket: bytes
    session: str
    tablet: Natural
    name: str
    size_bytes: Natural
    checksum: Checksum


class List(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """The files of one directory of a snapshot."""

    ticket: bytes
    path: str


class PackedFile(msgspec.Struct, array_like=True, frozen=True):
    """As in Stage. `ticket` is the number of one in the pack."""

    ticket: Natural
    session: str
    tablet: Natural
    name: str
    size_bytes: Natural
    checksum: Checksum


class Pack(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """Small files, of one session or of many, that are staged together and made durable together.

    They appear in this order. Each has a verdict of its own; whatever happens to one does not concern the others.
    """

    tickets: list[bytes]
    files: list[PackedFile]


Request = Fetch | Stage | Stat | List | Pack


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """`code` empty: yes. `size_bytes` of the file; `offset`: what the other side has of it, or where to go on."""

    code: str = ""
    text: str = ""
    size_bytes: int = 0
    offset: int = 0
    done: bool = False
    files: list[tuple[str, int]] = []
    verdicts: list[tuple[str, str]] = []  # code and text, for each file of a pack


encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def decode_request(data: bytes) -> Request:
    try:
        found: Request = _decode_request(data)
        return found
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"the request can't be read: {error}") from None


def decode_answer(data: bytes) -> Answer:
    try:
        return _decode_answer(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"the answer can't be read: {error}") from None


# Names


def wrong_session(session: str) -> str:
    """Why this can't be the name of a session; empty if it can."""
    if _SESSION.fullmatch(session) and ".." not in session:
        return ""
    return f"{session[:64]!r} is no name of a session"


def wrong_name(name: str) -> str:
    """Why this can't be the name of a staged file; empty if it can."""
    if _NAME.fullmatch(name) and ".." not in name:
        return ""
    return f"{name[:64]!r} is no name for a file: use letters, digits, '_', '-' and '.', and begin with no dot"


def parts_of(path: str) -> list[str]:
    """The parts of a path below the data directory; ValueError for one that could leave it."""
    parts = path.split("/")
    for part in parts:
        if not part or part[0] == "." or "\\" in part or "\0" in part or len(part) > 255:
            raise ValueError(f"{path[:100]!r} is no path below the data directory")
    return parts


# Frames over a blocking socket

_LAST_LOOK_S = 0.001
_LATE_S = 1.0


def frame(message: Request | Answer) -> bytes:
    data = encode(message)
    return _length.pack(len(data)) + data


def read_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    """So many bytes, or fewer if the other side ended; BadFrame when they did not come before `deadline`.

    A process that had no processor for long may find all of them when it is over: then it was not the sender who was
    late. So it takes what lies ready, for a moment longer.
    """
    data = bytearray()
    while len(data) < count:
        left_s = deadline - time.monotonic()
        sock.settimeout(max(left_s, _LAST_LOOK_S))
        try:
            piece = sock.recv(min(count - len(data), 256 << 10))
        except TimeoutError:
            piece = None
        if piece == b"":
            break
        data += piece or b""
        late = left_s <= 0 and (piece is None or left_s < -_LATE_S)
        if late and len(data) < count:
            raise BadFrame(f"only {len(data)} of {count} bytes came in time")
    return bytes(data)


def read_frame(sock: socket.socket, limit_bytes: int, *, idle_s: float, header_s: float) -> bytes | None:
    """The next frame; None when the other side has ended between two. It may take `idle_s` to begin."""
    sock.settimeout(idle_s)
    try:
        first = sock.recv(1)
    except TimeoutError:
        raise Idle(f"nothing came for {idle_s:g} s") from None
    if not first:
        return None
    deadline = time.monotonic() + header_s
    prefix = first + read_exactly(sock, 3, deadline)
    if len(prefix) < 4:
        raise BadFrame("the connection ended within a frame")
    (length,) = _length.unpack(prefix)
    if not 0 < length <= limit_bytes:
        raise BadFrame(f"a frame of {length} bytes; 1 to {limit_bytes} are allowed (is this the bulk port?)")
    data = read_exactly(sock, length, deadline)
    if len(data) < length:
        raise BadFrame("the connection ended within a frame")
    return data
