"""The HTTP door of an instance: from a bound port to an orderly end, on the loop that is running anyway.

The port is bound first and alone (`bind`), before the instance says anything to anybody: a port that is taken is a
mistake of the operator, and the instance does not start. The rest (`open_door`) comes when the instance is ready. What
FastAPI needs is imported and built in a thread, because it takes a few tenths of a second in which Raft must not stand
still.

uvicorn's server is not used, only its protocol: its loop wakes ten times a second, for nothing here, and it would take
the signals.

With TLS files in the settings the door speaks HTTPS with client certificates, for every path: TLS knows no paths.
Probes and scrapers then need a certificate of the cluster's authority too.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from trimtab.net.addresses import format_address, parse_address

if TYPE_CHECKING:
    import ssl

    from trimtab.http.door import Door
    from trimtab.http.guard import DoorLimits
    from trimtab.http.port import ClusterPort

Closer = Callable[[], Awaitable[None]]


class CannotListen(OSError):
    """The HTTP port can't be had; the text says why, and what to do."""


def bind(address: str) -> socket.socket:
    """A socket for `HOST:PORT`, bound but not listening yet."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(address, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(where)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise _cannot_listen(address, error) from error
    return bound


def _cannot_listen(address: str, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        why, remedy = "the port is taken", "stop what listens there"
    elif error.errno == errno.EACCES:
        why, remedy = "the system does not allow it", "use a port above 1023"
    else:
        why, remedy = str(error.strerror or error), "see that the address is one of this machine"
    return CannotListen(
        error.errno, f"can't serve HTTP on {address}: {why}; {remedy}, or choose another with --http HOST:PORT"
    )


async def open_door(
    port: ClusterPort,
    bound: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    known_as: tuple[str, ...] = (),
    story: Callable[[str], None] = lambda _line: None,
    limits: DoorLimits | None = None,
) -> Closer:
    """Serve `port` on a bound socket until the closer is called. `known_as`: addresses others know the door by."""
    loop = asyncio.get_running_loop()
    make = await loop.run_in_executor(None, _import_door)
    door = make(port, limits, story)
    loopback = is_loopback(bound)
    if not loopback and tls is None:
        story(
            f"warning: HTTP on {format_address(bound.getsockname()[:2])} is reachable from other machines and TLS is "
            "off: whoever connects can change the cluster; give --tls-authority, --tls-certificate and --tls-key, or "
            "--http 127.0.0.1:PORT"
        )
    own_names = frozenset(parse_address(address)[0].lower() for address in known_as)
    build = partial(door.build, loopback=loopback, own_names=own_names)
    app = await loop.run_in_executor(None, build)
    await door.listen(app, bound, tls)
    return door.close


def _import_door() -> type[Door]:
    from trimtab.http.door import Door

    return Door


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can connect."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback
