"""Where the other members are, and the links to them.

The founders' addresses come from the settings; those of members added later come from the metastore, under
`instances/<raft_id>`, where they are written before the member is added, so that every member learns them from its own
copy. What the metastore says wins.

A stranger, a member this one has not heard of, may lead: the cluster went on while this member was down, or it is new
itself. It is answered where its hello says it is. Anybody can claim that, so only a few strangers are known at a time,
and a member whose address is known is never moved by a hello.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from trimtab.net.client import Channel
from trimtab.net.hello import Hello
from trimtab.net.limits import Limits as NetLimits
from trimtab.node.links import Link

INSTANCES = b"instances/"
MAX_ADDRESSES = 1_000
MAX_STRANGERS = 16
MAX_RAFT_ID = (1 << 63) - 1


class InstanceRecord(msgspec.Struct, frozen=True):
    """What the metastore keeps of an instance.

    Written before the member is added, and marked `removed` before it is removed: so an id that is in no configuration
    and not marked was never in one.
    """

    instance_id: str
    address: str
    removed: bool = False


def instance_key(raft_id: int) -> bytes:
    """The metastore key of an instance; zero-padded, so that keys sort like ids."""
    return INSTANCES + b"%020d" % raft_id


def parse_instance(key: bytes, value: bytes) -> tuple[int, InstanceRecord]:
    """Raft id and record; ValueError on anything that is neither."""
    try:
        raft_id, record = int(key.removeprefix(INSTANCES)), msgspec.json.decode(value, type=InstanceRecord)
    except ValueError as error:
        raise ValueError(f"the metastore key {key!r} does not hold an instance record: {error}") from error
    if not 0 < raft_id <= MAX_RAFT_ID:
        raise ValueError(f"the metastore key {key!r} names no raft id")
    return raft_id, record


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
        self.addresses: dict[int, str] = {}

    def update(self, addresses: Iterable[tuple[int, str]]) -> None:
        """Take note of addresses; links whose address changed are made anew. ValueError: not an address, or too many"""
        for raft_id, address in addresses:
            self._strangers.pop(raft_id, None)
            if self.addresses.get(raft_id) == address:
                continue
            if raft_id not in self.addresses and len(self.addresses) >= MAX_ADDRESSES:
                raise ValueError(f"member {raft_id} is one too many: {MAX_ADDRESSES} addresses are known")
            if raft_id != self._raft_id:
                self._connect(raft_id, address)
            self.addresses[raft_id] = address

    def answer_at(self, raft_id: int, address: str) -> None:
        """A hello says where its sender is; believed if nothing better is known. The oldest stranger makes room."""
        if raft_id in self.addresses or not address:
            return
        while len(self._strangers) >= MAX_STRANGERS:
            self.forget(next(iter(self._strangers)))
        self.update([(raft_id, address)])
        self._strangers[raft_id] = None

    def forget(self, raft_id: int) -> None:
        """A member left for good, or a stranger must make room."""
        self.addresses.pop(raft_id, None)
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
