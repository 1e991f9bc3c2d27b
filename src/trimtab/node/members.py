"""Where the other members are, and the links to them.

Addresses come from the data directory (the founders, or whom a joiner was told of), from the metastore under
`instances/<raft_id>`, where they are written before the member is added, and from hellos. Each is marked with the
commit index it was true at: what is older never overwrites what is newer. Else a joiner that applies the log from its
beginning would dial where members were long ago, instead of where it was told they are.

A stranger, a member this one has not heard of, may lead: the cluster went on while this member was down, or it is new
itself. It is answered where its hello says it is. Anybody can claim that, so only a few strangers are known at a time,
and a member whose address is known is never moved by a hello.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterable
from functools import partial

from trimtab.net.client import Channel
from trimtab.net.hello import Hello
from trimtab.net.limits import Limits as NetLimits
from trimtab.node.links import Link

MAX_ADDRESSES = 1_000
MAX_STRANGERS = 16


class Members:
    """Links to all members that have an address, made and closed as addresses come and change."""

    def __init__(
        self,
        raft_id: int,
        hello: Hello,
        rng: random.Random,
        net_limits: NetLimits,
        *,
        tls: ssl.SSLContext | None,
        links: dict[int, Link],
        check: Callable[[int, Hello], str | None],
        on_down: Callable[[int, str, bool], None],
        on_up: Callable[[int], None],
        parcel_bytes: int,
    ) -> None:
        self._raft_id = raft_id
        self._hello = hello
        self._rng = rng
        self._net_limits = net_limits
        self._tls = tls
        self._links = links
        self._check = check
        self._on_down = on_down
        self._on_up = on_up
        self._parcel_bytes = parcel_bytes
        self._incarnations: dict[int, int] = {}
        self._strangers: dict[int, None] = {}
        self._marks: dict[int, int] = {}
        self.addresses: dict[int, str] = {}

    def update(self, addresses: Iterable[tuple[int, str]], marked: int = 0) -> None:
        """Take note of addresses as of the commit index `marked`; links whose address changed are made anew.

        ValueError: not an address, or too many.
        """
        for raft_id, address in addresses:
            if marked < self._marks.get(raft_id, 0):
                continue
            self._strangers.pop(raft_id, None)
            if self.addresses.get(raft_id) == address:
                self._marks[raft_id] = marked
                continue
            if raft_id not in self.addresses and len(self.addresses) >= MAX_ADDRESSES:
                raise ValueError(f"member {raft_id} is one too many: {MAX_ADDRESSES} addresses are known")
            if raft_id != self._raft_id:
                self._connect(raft_id, address)
            self.addresses[raft_id] = address
            self._marks[raft_id] = marked

    def answer_at(self, raft_id: int, address: str) -> None:
        """A hello says where its sender is; believed if nothing better is known. The oldest stranger makes room."""
        if link := self._links.get(raft_id):
            # It is up: waiting out a backoff would only keep it waiting for its leader.
            link.channel.poke()
        if raft_id in self.addresses or not address:
            return
        while len(self._strangers) >= MAX_STRANGERS:
            self.forget(next(iter(self._strangers)))
        self.update([(raft_id, address)])
        self._strangers[raft_id] = None

    def forget(self, raft_id: int) -> None:
        """A member left for good, or a stranger must make room."""
        self.addresses.pop(raft_id, None)
        self._marks.pop(raft_id, None)
        self._strangers.pop(raft_id, None)
        self._incarnations.pop(raft_id, None)
        if link := self._links.pop(raft_id, None):
            link.channel.close()

    def close(self) -> None:
        """Close all links."""
        for raft_id in list(self._links):
            self.forget(raft_id)

    def _up(self, raft_id: int, hello: Hello) -> None:
        before = self._incarnations.get(raft_id)
        self._incarnations[raft_id] = hello.incarnation
        if before is not None and before != hello.incarnation:
            # Its process died and is back before anybody found the door closed; what it led, it leads no more.
            self._on_down(raft_id, "its process is another one now", True)
        self._on_up(raft_id)

    def _connect(self, raft_id: int, address: str) -> None:
        channel = Channel(
            address,
            self._hello,
            self._rng,
            ssl=self._tls,
            limits=self._net_limits,
            on_up=partial(self._up, raft_id),
            on_down=partial(self._on_down, raft_id),
            check_hello=partial(self._check, raft_id),
        )
        if old := self._links.get(raft_id):
            old.channel.close()
        self._links[raft_id] = Link(raft_id, address, channel, self._parcel_bytes)
