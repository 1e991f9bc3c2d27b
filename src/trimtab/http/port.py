"""What the HTTP door needs of an instance, and nothing else.

The door is built over this port, so it runs the same on a real instance and on a made-up one in a test. What is asked
often (health, figures) is answered from memory, without I/O and without waiting. Everything else may wait for other
members, and is refused with a code that programs compare and a text that people read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.catalog.catalog import Catalog
from trimtab.jobs.protocol import JobsReply, SteerJob
from trimtab.jobs.records import JobRecord
from trimtab.loads.protocol import LimitReply, LoadsReply
from trimtab.node.figures import Distribution, Sample
from trimtab.tablets.move_protocol import MoveReply, MoveRequest, SettingsReply
from trimtab.tablets.moves_shown import MovesShown
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.tablet_map import TabletMap
from trimtab.topology.grades import Grade, Grades
from trimtab.topology.protocol import (
    CancelRequest,
    CreateRequest,
    ProbeReply,
    ProbeRequest,
    RequestReply,
    ViewReply,
)
from trimtab.topology.records import EventRecord

NOT_FOUND = "not_found"


class Refused(Exception):
    """The instance, or the leader it asked, did not do it. `what_to_do` may be empty: the code then says it."""

    def __init__(self, code: str, text: str, what_to_do: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.what_to_do = what_to_do


@dataclass(frozen=True)
class Health:
    """How this instance stands, by its own knowledge at this moment.

    `grades` are those of its own record as applied here; `lease_ms` is what is left of its lease. `out` says why it
    serves nothing any more (it was removed, it is stopping, it failed); empty while it does.
    """

    cluster_id: str
    instance_id: str
    raft_id: int
    release: str
    role: str
    term: int
    leader: str = ""  # an instance id; empty: none is known
    grades: Grades = field(default_factory=Grades)
    lease_ms: int = 0
    disk_full: str = ""
    known: bool = True  # the cluster has taken note of this life of the process: `grades` are about it
    out: str = ""


@dataclass(frozen=True)
class Figures:
    """What a scrape reads: plain numbers that are there anyway. Counters count from the start of the process."""

    cluster_id: str = ""
    instance_id: str = ""
    raft_id: int = 0
    release: str = ""
    term: int = 0
    committed: int = 0
    applied: int = 0
    leads: bool = False
    leader: int = 0
    members: int = 0
    voters: int = 0
    log_syncs: int = 0
    log_entries: int = 0
    log_bytes: int = 0
    log_sync_seconds: float = 0.0
    sync_limits_s: tuple[float, ...] = ()
    sync_counts: tuple[int, ...] = ()  # syncs up to each limit and above the one before; the last: longer than all
    revision: int = 0
    version: int = 0
    fence: int = 0
    grades: dict[str, int] = field(default_factory=dict)  # current grade -> instances
    lease_ms: int = 0
    heard_ms: dict[str, int] = field(default_factory=dict)  # instance id -> age of its heartbeat; the leader's alone
    steps: dict[tuple[str, str], int] = field(default_factory=dict)  # (kind, outcome) -> how often
    open_requests: int = 0  # requests admitted by the serving gate that have not ended
    requests: dict[str, int] = field(default_factory=dict)  # state -> topology and global requests
    last_event: int = 0
    disk_full: bool = False
    parts: tuple[Sample | Distribution, ...] = ()  # what the instance's parts say of themselves


@dataclass(frozen=True)
class TablesShown:
    """The schema, where the tablets are, and instance ids by raft id."""

    catalog: Catalog = field(default_factory=Catalog)
    maps: Mapping[int, TabletMap] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


class ClusterPort(Protocol):
    """An instance as the door sees it. What can fail raises Refused."""

    def health(self) -> Health: ...

    def figures(self) -> Figures: ...

    async def view(self, linearizable: bool, events_after: int, events_limit: int) -> ViewReply:
        """The cluster as this instance sees it; `events_after` -1: no events."""
        ...

    async def tables(self, linearizable: bool) -> TablesShown:
        """The tables as this instance sees them."""
        ...

    async def sizes(self, table: int) -> Mapping[tuple[int, int], int]:
        """Bytes by table and tablet, of one table or of all (0), as far as they are known to a leader that answers."""
        ...

    async def loads(self, table: int, local: bool) -> LoadsReply:
        """The loads of one table, or of all (0)."""
        ...

    async def moves(self, table: int, local: bool) -> MovesShown:
        """The tablets under way of one table, or of all (0)."""
        ...

    async def move(self, request: MoveRequest) -> MoveReply: ...

    async def rebalance(self, wanted: RebalanceSettings | None) -> SettingsReply:
        """How balancing is set, after it was changed where others are given."""
        ...

    async def limit(self, rate_bytes_s: int | None) -> LimitReply:
        """What all bulk transfers together may move, after it was changed where a rate is given; 0: no limit."""
        ...

    async def create(self, request: CreateRequest) -> RequestReply: ...

    async def cancel(self, request: CancelRequest) -> RequestReply: ...

    async def jobs(self, numbers: Sequence[int], local: bool) -> JobsReply:
        """These jobs, or all; `local`: as this instance knows them."""
        ...

    async def steer(self, order: SteerJob) -> JobRecord: ...

    async def probe(self, request: ProbeRequest) -> ProbeReply: ...

    def watch_events(self, after: int) -> AsyncIterator[tuple[int, EventRecord]]:
        """Events numbered above `after`, then new ones as they happen here; it ends when the instance stops."""
        ...


def unready(health: Health) -> str:
    """Why the instance should get no requests now; empty if it should: it is Online, and under a lease."""
    current, target = health.grades.current, health.grades.target
    if health.out:
        return health.out
    if not health.known:
        return "it has just started, and the cluster has not taken note of that yet"
    if target.grade is not Grade.ONLINE:
        return f"it is told to be {target.grade.value}, and is {current.grade.value}"
    if health.grades.must_climb and current.grade is not Grade.OFFLINE:
        return f"it has been away and comes back: it is {current.grade.value} of an earlier incarnation"
    if current.grade is not Grade.ONLINE:
        return f"it is on its way to Online, and is {current.grade.value}"
    if health.lease_ms <= 0:
        return "it has no lease: the leader has not answered its heartbeats" + (
            "" if health.leader else ", and no leader is known"
        )
    return ""
