"""Whether the address of `--listen` can be had, tried before anything else of a node begins.

The server that uses it comes late: after the data is opened, or the others are asked. A mistake in the address is told
before that, and by its own name: the other ports are derived from it, and would be blamed for it.
"""

from __future__ import annotations

import errno
import socket

from trimtab.node.settings import SettingsError, split_address


def check_listen(address: str) -> None:
    """SettingsError: nobody can listen there now; the text says why and what to do."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _name, where in found:
            with socket.socket(family, kind, protocol) as trial:
                # As the server does it: what an earlier life left behind is no obstacle, who listens is.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(where)
    except OSError as error:
        why, remedy = _reason(error)
        raise SettingsError(
            f"can't listen on {address}: {why}; {remedy}, or choose another with --listen HOST:PORT"
        ) from error


def in_words(error: BaseException) -> str:
    """The error without numbers of the operating system."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename is not None else error.strerror


def _reason(error: OSError) -> tuple[str, str]:
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is taken", "stop what listens there"
        case errno.EACCES:
            return "the system does not allow it", "use a port above 1023"
        case errno.EADDRNOTAVAIL:
            return "it is no address of this machine", "bring its network interface up"
        case _:
            return in_words(error), "see that the address is one of this machine"
