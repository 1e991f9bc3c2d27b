"""Ports that somebody else has."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def taken(host: str, port: int) -> Iterator[None]:
    """Somebody listens there. Connections that have ended and only linger are no hindrance, as for `free_base`."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, port))
        other.listen()
        yield
