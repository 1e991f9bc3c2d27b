"""Ports of this machine: which are free, and who has those that are not."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path

SPACING = 10  # between the instances of a local cluster
PORTS_EACH = 4  # node, CQL, HTTP, bulk
_LISTENING = "0A"


def usable() -> range:
    """Ports to choose from: below those that the kernel gives to outgoing connections, which come and go.

    TRIMTAB_PORTS ("first-end") keeps programs apart that run side by side.
    """
    first, _, end = os.environ.get("TRIMTAB_PORTS", "10000-32000").partition("-")
    return range(int(first), int(end))


def free_base(instances: int, *, spacing: int = SPACING, attempts: int = 200) -> int:
    """A port from which so many instances, `spacing` apart, find all theirs free. OSError when none was found."""
    ports = usable()
    for _ in range(attempts):
        base = random.randrange(ports.start, ports.stop - instances * spacing)
        wanted = (base + number * spacing + each for number in range(instances) for each in range(PORTS_EACH))
        if not any(why_taken("127.0.0.1", port) for port in wanted):
            return base
    raise OSError(errno.EADDRINUSE, f"no free ports for {instances} instances were found in {attempts} attempts")


def why_taken(host: str, port: int) -> str:
    """Why an instance could not listen there, in words; empty when it could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        # As a server does it: connections that have ended and only linger are no hindrance.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return f"port {port} of {host} can't be used: {error.strerror}"
        except OverflowError:
            return f"{port} is no port"
        else:
            return ""
    owner = owner_of(port)
    return f"port {port} is taken" + (f" by {owner}" if owner else "")


def owner_of(port: int) -> str:
    """The process that listens on a port, as far as we may see: only our own user's processes show theirs."""
    inodes = set(_listening_inodes(port))
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").iterdir() if inodes else ():
        if not folder.name.isdigit():
            continue
        try:
            if wanted.isdisjoint(str(each.readlink()) for each in (folder / "fd").iterdir()):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        return f"process {folder.name} ({command[:80]})"
    return ""


def _listening_inodes(port: int) -> Iterable[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
