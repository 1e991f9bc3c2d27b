"""Frames over sockets: who was late, the sender or the reader."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trimtab.bulk.protocol import BadFrame, read_exactly


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_what_came_in_time_is_read_however_late(pair: tuple[socket.socket, socket.socket]) -> None:
    """A reader that had no processor for long refused whole frames as invalid."""
    sender, reader = pair
    sender.sendall(b"a whole frame")
    assert read_exactly(reader, 13, time.monotonic() - 0.5) == b"a whole frame"


class Pieces:
    """A socket that gives some bytes at a time, as one with TLS gives records; after the last it is silent."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recv(self, _count: int) -> bytes:
        if not self.pieces:
            raise TimeoutError
        return self.pieces.pop(0)


def test_what_lies_ready_in_several_pieces_is_read_to_its_end() -> None:
    pieces: Any = Pieces(b"a ", b"whole ", b"frame")
    assert read_exactly(pieces, 13, time.monotonic() - 0.5) == b"a whole frame"


def test_a_sender_that_trickles_is_late() -> None:
    pieces: Any = Pieces(*(b"x" for _ in range(13)))
    with pytest.raises(BadFrame, match="only 1 of 13 bytes"):
        read_exactly(pieces, 13, time.monotonic() - 60)


@pytest.mark.parametrize("sent", [b"", b"a part"])
def test_what_did_not_come_in_time_is_not_waited_for(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    sender, reader = pair
    sender.sendall(sent)
    with pytest.raises(BadFrame, match=f"only {len(sent)} of 13 bytes"):
        read_exactly(reader, 13, time.monotonic() + 0.01)


def test_an_end_is_told_as_it_is(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, reader = pair
    sender.sendall(b"a part")
    sender.close()
    assert read_exactly(reader, 13, time.monotonic() + 60) == b"a part"
