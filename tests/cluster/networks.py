"""Machines for a test: network namespaces with a bridge between them, all made by the test and removed after it.

A cut has one direction: whoever is cut off from another keeps a wrong hardware address for it, so what it sends is
delivered to nobody, silently, as on a broken wire. What the other sends still arrives. That needs no packet filter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:00:99"
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Machines 1, 2, … with the addresses 10.77.0.1, 10.77.0.2, …; the test looks on from 10.77.0.254."""

    def __init__(self, name: str, machines: int) -> None:
        self._name = name
        self._machines = range(1, machines + 1)

    def namespace(self, machine: int) -> str:
        """Machine 0 is the hub."""
        return f"{self._name}-{machine}"

    @staticmethod
    def address(machine: int) -> str:
        return f"10.77.0.{machine or 254}"

    def enter(self, machine: int) -> list[str]:
        """The beginning of a command that runs on a machine."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(machine)}"]

    def make(self) -> None:
        for machine in (0, *self._machines):
            _ip("netns", "add", self.namespace(machine))
            self._on(machine, "link", "set", "lo", "up")
        self._on(0, "link", "add", "bridge", "type", "bridge")
        self._on(0, "addr", "add", f"{self.address(0)}/24", "dev", "bridge")
        self._on(0, "link", "set", "bridge", "up")
        for machine in self._machines:
            port = f"port{machine}"
            self._on(0, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.namespace(machine))
            self._on(0, "link", "set", port, "master", "bridge", "up")
            self._on(machine, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
            self._on(machine, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for machine in (*self._machines, 0):
            subprocess.run(["ip", "netns", "del", self.namespace(machine)], capture_output=True)

    def cut(self, sender: int, *receivers: int) -> None:
        """What `sender` sends to these no longer arrives; what they send still does."""
        for receiver in receivers:
            neighbour = ("neigh", "replace", self.address(receiver), "lladdr", _NOBODY, "dev", "eth0")
            self._on(sender, *neighbour, "nud", "permanent")

    def heal(self, sender: int, *receivers: int) -> None:
        for receiver in receivers:
            self._on(sender, "neigh", "del", self.address(receiver), "dev", "eth0")

    def look_on(self, story: Callable[[], Awaitable[None]]) -> None:
        """Run the story where all machines can be reached, whatever is cut between them."""
        failure: list[BaseException] = []

        async def main() -> None:
            await story()

        def there() -> None:
            try:
                # Of this thread alone; its sockets are the hub's.
                with Path(f"/run/netns/{self.namespace(0)}").open("rb") as namespace:
                    if _libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                uvloop.run(main())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=there, name="looking on")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]

    def _on(self, machine: int, *arguments: str) -> None:
        _ip("-n", self.namespace(machine), *arguments)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def network(machines: int) -> Iterator[Network]:
    """A network for one test; a skip that says why where it can't be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("only root with `ip` and `nsenter` can make the network namespaces of this test")
    made = Network(f"trimtab-{os.getpid()}", machines)
    try:
        try:
            made.make()
        except OSError as error:
            pytest.skip(f"network namespaces can't be made here: {error}")
        yield made
    finally:
        made.remove()
