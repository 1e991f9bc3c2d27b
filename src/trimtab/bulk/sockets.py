"""Sockets of bulk transfers, as both ends use them."""

from __future__ import annotations

import contextlib
import select
import socket

_BACKLOG = 128
_TCP_NOTSENT_LOWAT = 25
_NOT_SENT_BYTES = 256 << 10


def ended(sock: socket.socket) -> bool:
    """Whether the other side has ended the connection, however much of what it sent is still to be read."""
    looking = select.poll()
    looking.register(sock, select.POLLRDHUP)
    return bool(looking.poll(0))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; OSError when it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def prepare(sock: socket.socket) -> None:
    """A connection of either side: no waiting for small frames, and silence of a dead machine is noticed.

    The kernel holds little that has not left: so progress is what the other side has, and a sender that stops has soon
    stopped, also where the rate is low.
    """
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def cut(sock: socket.socket) -> None:
    """Wake up whoever waits for this socket."""
    with contextlib.suppress(OSError):
        # Of the socket below TLS: another thread is in the middle of using that.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
