"""What an instance is told when it starts, and the limits it keeps.

Everything here is a plain value: the command line, a configuration file, a test and the simulator all fill the same
struct, so a number that matters can be found, and changed, in one place.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.net.addresses import format_address, parse_address
from trimtab.net.limits import Limits as NetLimits
from trimtab.tablets.clock import DEFAULT_MAX_SKEW_MS
from trimtab.topology import leases, names

_ANY_HOST = ("0.0.0.0", "::", "*")


class SettingsError(ValueError):
    """The instance was started with something that can't work; the text says what and how to mend it."""


@dataclass(frozen=True)
class Timing:
    """How long things may take. A tick is the unit of Raft's clocks.

    A lease counts from the sending of a heartbeat. Whoever was not heard for `offline_after_ms` is marked Offline; by
    then its lease must have ended for certain, also if the leader changed meanwhile.
    """

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
    lease_ms: int = 3_000
    lease_heartbeat_ms: int = 500
    offline_after_ms: int = 6_000
    stall_after_ms: int = 30_000
    discover_every_ms: int = 200
    join_every_ms: int = 1_000
    handshake_timeout_ms: int = 2_000
    silent_peer_ms: int = 5_000
    silent_peer_again_ms: int = 30_000
    farewell_ms: int = 3_000
    # How far clocks may differ; how long a hint lives, and with it any write on its way; how long a member that can't
    # be asked is waited for by one that catches up; how often all replicas of a tablet are compared.
    max_skew_ms: int = DEFAULT_MAX_SKEW_MS
    hint_life_ms: int = 3 * 3_600_000
    catchup_grace_ms: int = 1_000
    repair_every_ms: int = 7 * 24 * 3_600_000  # where no job has done it: `jobs.repair_schedule` has them oftener
    spared_ms: int = 600_000  # for so long balancing leaves a tablet alone whose move an operator undid
    batch_replay_ms: int = 10_000  # a batch that its coordinator left is carried out by its holders after so long

    @property
    def election_max_ms(self) -> int:
        """The longest an election waits for: timeouts are drawn between one and two of `election_ticks`."""
        return 2 * self.election_ticks * self.tick_ms


@dataclass(frozen=True)
class Limits:
    """How much of anything there may be."""

    frame_bytes: int = 1 << 20
    answer_bytes: int = 16 << 20  # a row may grow beyond a frame, by many writes
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
    hint_bytes: int = 64 << 20  # for each other instance
    hint_count: int = 200_000
    row_cache_bytes: int = 32 << 20  # rows that were read lately, ready to be answered


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for mutual TLS between members and clients."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Settings:
    """One instance.

    `peers` are where it looks for others when it starts for the first time; any two instances must share one. Who it is
    to the others (its raft id) it is told when it joins, and finds in its data directory from then on.

    `advertise` is the address others reach it at, and it is known by, where that is not the one it listens on. `http`
    is where its HTTP door listens; empty: it has none. `replace` is the id of a dead instance whose place it takes.

    `bulk` is where its bulk child listens; empty: it has none. The child shows `bulk_token` to be told the key of
    tickets.

    `capacity_bytes` is how much it should hold at most; its share of all tablets is in proportion to it. 0: what is
    free on its disk when it joins.
    """

    instance_id: str
    listen: str
    peers: tuple[str, ...]
    cluster_id: str = "trimtab"
    advertise: str = ""
    tls: TlsFiles | None = None
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    failure_domain: dict[str, str] = field(default_factory=dict)
    replace: str = ""
    http: str = ""
    stale_reads: bool = True
    bulk: str = ""
    bulk_token: bytes = field(default=b"", repr=False)
    capacity_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.instance_id:
            raise SettingsError("an instance needs an id: --instance-id NAME")
        if not self.cluster_id:
            raise SettingsError("a cluster needs an id: --cluster-id NAME")
        if len(self.cluster_id) > names.MAX_ID_CHARACTERS or not self.cluster_id.isprintable():
            raise SettingsError(f"a cluster id has at most {names.MAX_ID_CHARACTERS} printable characters")
        if self.capacity_bytes < 0:
            raise SettingsError(f"a capacity of {self.capacity_bytes} bytes is below zero")
        if not self.peers:
            raise SettingsError(
                "an instance needs somebody to ask for the cluster: --peer HOST:PORT, once for each "
                "(its own address, to begin a cluster alone)"
            )
        doors = [each for each in (self.http, self.bulk) if each]
        for address in (self.listen, self.address, *self.peers, *doors):
            split_address(address)
        if len(set(self.peers)) != len(self.peers):
            raise SettingsError(f"--peer names an address twice: {', '.join(self.peers)}")
        if self.http == self.listen:
            raise SettingsError(f"{self.http} can't be both --listen and --http; give the HTTP door another port")
        if self.bulk and self.bulk in (self.listen, self.http):
            raise SettingsError(f"{self.bulk} can't be --bulk and another door as well; give it another port")
        for wrong in (
            names.wrong_instance_id(self.instance_id),
            names.wrong_instance_id(self.replace) if self.replace else None,
            names.unreachable_address(self.address),
            names.wrong_failure_domain(self.failure_domain),
            leases.check_timing(self.timing.lease_ms, self.timing.offline_after_ms, self.timing.election_max_ms),
        ):
            if wrong:
                raise SettingsError(wrong)

    @property
    def address(self) -> str:
        """Where the others reach this instance."""
        return self.advertise or self.listen

    @property
    def http_address(self) -> str:
        """Where the HTTP door is reached; it has the host of the advertised address where it listens on any."""
        return self._reached(self.http)

    @property
    def bulk_address(self) -> str:
        """Where the bulk child is reached; likewise."""
        return self._reached(self.bulk)

    def _reached(self, door: str) -> str:
        if not door or split_address(door)[0] not in _ANY_HOST:
            return door
        return format_address((split_address(self.address)[0], split_address(door)[1]))

    @property
    def net_limits(self) -> NetLimits:
        """The bounds of its connections."""
        return NetLimits(
            max_frame_bytes=self.limits.frame_bytes,
            max_answer_bytes=max(self.limits.answer_bytes, self.limits.frame_bytes),
            keepalive_s=self.timing.keepalive_ms / 1000,
            dead_after_s=self.timing.dead_peer_ms / 1000,
        )

    @property
    def exposed(self) -> bool:
        """Whether others than this machine may connect, without having to prove who they are."""
        host = split_address(self.listen)[0]
        try:
            return self.tls is None and not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return self.tls is None and host != "localhost"


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` taken apart; IPv6 hosts stand in brackets."""
    try:
        return parse_address(address)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def read_failure_domain(pairs: Iterable[str]) -> dict[str, str]:
    """A failure domain from `key=value` texts."""
    domain: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"'{pair}' is no part of a failure domain; write KEY=VALUE, such as rack=r1")
        if key in domain:
            raise SettingsError(f"the failure domain names '{key}' twice")
        domain[key] = value
    if wrong := names.wrong_failure_domain(domain):
        raise SettingsError(wrong)
    return domain
