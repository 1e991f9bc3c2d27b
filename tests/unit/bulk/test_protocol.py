"""Frames over sockets: who was late, the sender or the reader."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

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
    assert read_exactly(reader, 13, time.monotonic() - 1) == b"a whole frame"


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
