"""What an instance is told when it starts, and the limits it keeps.

Everything here is a plain value: the command line, a configuration file, a test and the simulator all fill the same
struct, so a number that matters can be found, and changed, in one place.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.net.addresses import parse_address


class SettingsError(ValueError):
    """The instance was started with something that can't work; the text says what and how to mend it."""


@dataclass(frozen=True)
class Timing:
    """How long things may take. A tick is the unit of Raft's clocks."""

    tick_ms: int = 100
    heartbeat_ticks: int = 1
    election_ticks: int = 10
    takeover_ms: int = 60
    takeover_step_ms: int = 250
    first_election_step_ms: int = 3_000
    read_retry_ms: int = 500
    housekeeping_ms: int = 1_000
    disk_retry_ms: int = 200
    keepalive_ms: int = 1_000
    dead_peer_ms: int = 4_000


@dataclass(frozen=True)
class Limits:
    """How much of anything there may be."""

    frame_bytes: int = 1 << 20
    append_bytes: int = 256 << 10
    inflight_messages: int = 256
    inflight_bytes: int = 8 << 20
    uncommitted_bytes: int = 32 << 20
    apply_bytes: int = 2 << 20
    waiting_proposals: int = 20_000
    waiting_reads: int = 20_000
    log_keep_entries: int = 50_000
    log_keep_bytes: int = 32 << 20
    log_compact_entries: int = 20_000
    log_compact_bytes: int = 64 << 20
    snapshot_chunk_bytes: int = 256 << 10
    snapshot_idle_ms: int = 10_000
    snapshot_keep_ms: int = 30_000
    idle_ticks_before_quiescence: int = 2
    promote_lag_entries: int = 1_000
    history_keep_ms: int = 3_600_000
    disk_reserve_bytes: int = 64 << 20


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for mutual TLS between members and clients."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Settings:
    """One instance.

    `peers` are the addresses of the founding members in an order that is the same for all of them: a founder's raft id
    is its place in that list. An instance whose address is not in it is a newcomer: it needs a `raft_id` of its own,
    founds nothing, and waits until a leader adds it. So does one that takes a removed founder's place at its address.

    `advertise` is the address others reach it at, and it is known by, where that is not the one it listens on.
    """

    instance_id: str
    listen: str
    peers: tuple[str, ...]
    cluster_id: str = "trimtab"
    raft_id: int = 0
    advertise: str = ""
    tls: TlsFiles | None = None
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.instance_id:
            raise SettingsError("an instance needs an id: --instance-id NAME")
        if not self.peers:
            raise SettingsError("an instance needs the founding members' addresses: --peer HOST:PORT, once for each")
        for address in (self.listen, self.address, *self.peers):
            split_address(address)
        if len(set(self.peers)) != len(self.peers):
            raise SettingsError(f"--peer names an address twice: {', '.join(self.peers)}")
        if self.founder or self.raft_id > len(self.peers):
            return
        if self.address in self.peers:
            raise SettingsError(
                f"--raft-id {self.raft_id} contradicts the peer list, where {self.address} is member "
                f"{self.peers.index(self.address) + 1}; leave --raft-id out"
            )
        raise SettingsError(
            f"{self.address} is not among the founding members ({', '.join(self.peers)}), so it is a newcomer and "
            f"needs --raft-id with a number above {len(self.peers)} that was never used in this cluster; or, if others "
            "reach it at another address than it listens on, --advertise HOST:PORT"
        )

    @property
    def address(self) -> str:
        """Where the others reach this instance."""
        return self.advertise or self.listen

    @property
    def founder(self) -> bool:
        """Whether this instance is one of the members the cluster began with."""
        return self.address in self.peers and self.raft_id in (0, self.peers.index(self.address) + 1)

    @property
    def member_id(self) -> int:
        """The raft id."""
        return self.peers.index(self.address) + 1 if self.founder else self.raft_id

    @property
    def exposed(self) -> bool:
        """Whether others than this machine may connect, without having to prove who they are."""
        host = split_address(self.listen)[0]
        try:
            return self.tls is None and not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return self.tls is None and host != "localhost"

    @property
    def genesis(self) -> str:
        """A digest of what the founders must agree on; members with different ones refuse each other."""
        text = "\n".join((self.cluster_id, *self.peers))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` taken apart; IPv6 hosts stand in brackets."""
    try:
        return parse_address(address)
    except ValueError as error:
        raise SettingsError(str(error)) from error
