"""A made-up cluster behind the door's port: three instances, requests that are taken and never carried out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.commands import ColumnSpec, CreateKeyspace, CreateTable, CreateType
from trimtab.catalog.planning import plan
from trimtab.http.port import Figures, Health, Refused, TablesShown
from trimtab.jobs import records as jobs
from trimtab.jobs import rules
from trimtab.jobs.protocol import JobsReply, Progress, SteerJob
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.jobs.view import JobView
from trimtab.loads.protocol import LimitReply, LoadsReply
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.tablets.move_protocol import MoveReply, MoveRequest, SettingsReply
from trimtab.tablets.moves_shown import MovesShown, ShownMove
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.records import entries
from trimtab.tablets.selectors import Stage
from trimtab.tablets.tablet_map import TabletMap
from trimtab.tablets.transitions import RebalanceRecord, RebalanceState, TabletTransition, TransitionKind
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import (
    CancelRequest,
    CreateRequest,
    InstanceView,
    Level,
    ProbeReply,
    ProbeRequest,
    RequestReply,
    ViewReply,
)
from trimtab.topology.records import (
    EventRecord,
    InstanceRecord,
    JoinTicket,
    RequestKind,
    RequestRecord,
    RequestState,
    TransitionRecord,
    job_key,
)
from trimtab.topology.states import NodeState, TransitionState

ONLINE = Grades(Standing(Grade.ONLINE, 1), Standing(Grade.ONLINE, 1))
EXPELLED = Grades(Standing(Grade.EXPELLED, 1), Standing(Grade.EXPELLED, 1))
STANDING = Health("shop", "i1", 1, "0.1.0", "leader", 3, "i1", ONLINE, 2_500)
MEASURED = Figures(
    "shop", "i1", 1, "0.1.0", term=3, leads=True, leader=1, heard_ms={"i2": 120}, steps={("sync", "done"): 4}
)
TRANSITION = TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.JOIN, [1], 7)


def _instance(raft_id: int, **changes: object) -> InstanceRecord:
    record = InstanceRecord(
        instance_id=f"i{raft_id}",
        address=f"127.0.0.1:33{raft_id:02}",
        uuid=f"{raft_id:032x}",
        grades=ONLINE,
        failure_domain={"host": f"h{raft_id}", "rack": "r1", "dc": "dc1"},
        weight=1.0,
        release="0.1.0",
        http_address=f"127.0.0.1:34{raft_id:02}",
        joined_ms=1_700_000_000_000,
    )
    return msgspec.structs.replace(record, **changes)


def _catalog() -> Catalog:
    """A keyspace with two tables and a type."""
    catalog = Catalog()
    for command in (
        CreateKeyspace("shop", {"dc1": 2}),
        CreateType("shop", "address", [("street", "text")]),
        CreateTable(
            "shop",
            "users",
            [ColumnSpec("id", "bigint"), ColumnSpec("at", "timestamp"), ColumnSpec("home", "frozen<address>")],
            ["id"],
            [("at", True)],
            {"comment": "who buys"},
            4,
        ),
        CreateTable("shop", "orders", [ColumnSpec("id", "bigint"), ColumnSpec("total", "double")], ["id"], tablets=2),
    ):
        update = plan(catalog, command, 1_700_000_000_000, {"dc1"}, lambda _replication: 2)
        assert update is not None
        catalog = catalog.apply(update)
    return catalog


@dataclass
class MadeUpCluster:
    """A ClusterPort. Tests change its fields to tell their story."""

    standing: Health = STANDING
    measured: Figures = MEASURED
    instances: dict[int, InstanceRecord] = field(
        default_factory=lambda: {
            1: _instance(1),
            2: _instance(2),
            3: _instance(3, state=NodeState.BOOTSTRAPPING, grades=Grades(), weight=0.0),
            4: _instance(4, state=NodeState.LEFT, grades=EXPELLED, weight=0.0, left_ms=1_700_000_009_000),
        }
    )
    requests: dict[int, RequestRecord] = field(
        default_factory=lambda: {
            1: RequestRecord(
                RequestKind.JOIN,
                RequestState.RUNNING,
                3,
                asked_ms=1_700_000_000_000,
                started_ms=1_700_000_000_100,
                join=JoinTicket("i3", f"{3:032x}", "n", "127.0.0.1:3303"),
            ),
            2: RequestRecord(RequestKind.REMOVE, RequestState.FAILED, 4, "it is alive", 1_700_000_000_000),
        }
    )
    events: dict[int, EventRecord] = field(
        default_factory=lambda: {
            number: EventRecord(1_700_000_000_000 + number, "sync", f"step {number}", 3, ["i1"])
            for number in range(1, 6)
        }
    )
    queue: dict[int, JobRecord] = field(
        default_factory=lambda: {
            3: JobRecord(3, Command(JobKind.LOAD, {"table": "shop.users"}), JobState.SUCCEEDED, result={"rows": 5}),
            4: JobRecord(
                4, Command(JobKind.COUNT, {"table": "shop.users"}), JobState.RUNNING, owner_term=1, attempts=1
            ),
        }
    )
    transition: TransitionRecord | None = TRANSITION
    catalog: Catalog = field(default_factory=lambda: _catalog())
    measured_tablets: dict[tuple[int, int], int] = field(default_factory=lambda: {(1, 0): 77})
    # Tablet 1 of shop.users is under way from i1 to i3.
    under_way: dict[tuple[int, int], TabletTransition] = field(
        default_factory=lambda: {
            (1, 1): TabletTransition(
                (3, 2),
                TransitionKind.MIGRATION,
                Stage.STREAMING,
                "s1",
                job=4,
                why="i3 is new",
                began_ms=1_700_000_000_000,
            )
        }
    )
    settings: RebalanceSettings = field(default_factory=RebalanceSettings)
    rate_bytes_s: int = 0
    refusal: Refused | None = None
    delay_s: float = 0.0
    asked: list[object] = field(default_factory=list)
    waiting: int = 0  # requests that are held up
    ended: int = 0  # event streams that have ended
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def health(self) -> Health:
        return self.standing

    def figures(self) -> Figures:
        return self.measured

    async def view(self, linearizable: bool, events_after: int, events_limit: int) -> ViewReply:
        if linearizable:
            await self._maybe_refuse()
        chosen = sorted(self.events.items()) if events_after >= 0 else []
        chosen = [(number, event) for number, event in chosen if number > events_after][:events_limit]
        return ViewReply(
            cluster_id="shop",
            genesis="g",
            asked=1,
            leader=1,
            term=3,
            revision=40,
            version=7,
            fence=2,
            transition=self.transition,
            instances=[
                InstanceView(raft_id, record, raft_id < 3, raft_id == 3, 120, 39)
                for raft_id, record in self.instances.items()
            ],
            requests=sorted(self.requests.items()),
            events=chosen,
            last_event=max(self.events, default=0),
            lease_ms=2_500,
        )

    async def tables(self, linearizable: bool) -> TablesShown:
        if linearizable:
            await self._maybe_refuse()
        maps = {
            table.id: TabletMap.unpacked(list(entries(table.id, [(1, 2)] * table.tablets).values()))
            for table in self.catalog.tables.values()
        }
        return TablesShown(self.catalog, maps, {raft_id: each.instance_id for raft_id, each in self.instances.items()})

    async def sizes(self, table: int) -> dict[tuple[int, int], int]:
        await self._maybe_refuse()
        return {place: size for place, size in self.measured_tablets.items() if table in (0, place[0])}

    async def create(self, request: CreateRequest) -> RequestReply:
        await self._maybe_refuse()
        self.asked.append(request)
        named = {record.instance_id: raft_id for raft_id, record in self.instances.items() if not record.left}
        if request.instance_id and request.instance_id not in named:
            raise Refused("not_found", f"no instance is called {request.instance_id!r}")
        number = max(*self.requests, *self.queue) + 1
        record = RequestRecord(
            RequestKind.REMOVE if request.expel and request.instance_id == "i3" else request.kind,
            raft_id=named.get(request.instance_id, 0),
            asked_ms=1_700_000_010_000,
        )
        if number < 200:
            self.requests[number] = record
        return RequestReply(number, record)

    async def cancel(self, request: CancelRequest) -> RequestReply:
        await self._maybe_refuse()
        self.asked.append(request)
        record = self.requests.get(request.number)
        if record is None:
            raise Refused("not_found", f"there is no task {request.number}")
        if record.state.final:
            raise Refused("conflict", f"task {request.number} has ended: it is {record.state.value}")
        record = msgspec.structs.replace(record, cancel=request.reason or "an operator asked")
        self.requests[request.number] = record
        return RequestReply(request.number, record)

    async def moves(self, table: int, local: bool) -> MovesShown:
        if not local:
            await self._maybe_refuse()
        chosen = {place: each for place, each in self.under_way.items() if table in (0, place[0])}
        shown = [ShownMove(*place, (1, 2), each, 40, 100, 6.0, "running") for place, each in sorted(chosen.items())]
        running = {
            1: RebalanceRecord(RebalanceState.RUNNING, 3, 39, began_ms=1_700_000_000_000, moves=2, moved_bytes=8)
        }
        names = {number: each.full_name for number, each in self.catalog.tables.items()}
        return MovesShown(shown, running if table in (0, 1) else {}, names=names, rates={1: 10.0}, told=True)

    async def move(self, request: MoveRequest) -> MoveReply:
        await self._maybe_refuse()
        self.asked.append(request)
        place = (request.table, request.tablet)
        if request.tablet >= self.catalog.tables[request.table].tablets:
            raise Refused("not_found", f"there is no tablet {request.tablet}")
        if not request.to:
            if place not in self.under_way:
                raise Refused("conflict", f"tablet {request.tablet} is not under way")
            self.under_way[place] = msgspec.structs.replace(self.under_way[place], stage=Stage.CLEANUP_TARGET, job=0)
            return MoveReply("undone", [1, 2])
        if request.source != 1 or request.to != 3:
            raise Refused("conflict", "only from i1 to i3")
        self.under_way[place] = TabletTransition((3, 2), TransitionKind.MIGRATION, session="s2")
        return MoveReply("pending", [3, 2])

    async def rebalance(self, wanted: RebalanceSettings | None) -> SettingsReply:
        await self._maybe_refuse()
        if wanted is not None:
            self.settings = msgspec.structs.replace(wanted, set_ms=1_700_000_000_000)
        return SettingsReply(self.settings, self.settings.keeps_still(0), ["tablet 3 has lost all its replicas"])

    async def limit(self, rate_bytes_s: int | None) -> LimitReply:
        await self._maybe_refuse()
        self.rate_bytes_s = self.rate_bytes_s if rate_bytes_s is None else rate_bytes_s
        return LimitReply(self.rate_bytes_s, self.rate_bytes_s // 2, 2)

    async def loads(self, table: int, local: bool) -> LoadsReply:
        if not local:
            await self._maybe_refuse()
        known = [
            LoadRecord("a", 1, LoadKind.APPEND, LoadState.PUBLISHED, 999, epoch=1, rows=5, sealed=(1, 9), begun_ms=5),
            LoadRecord("b", 77, LoadKind.OVERWRITE, LoadState.ABORTED, 1999, reason="its table was dropped"),
        ]
        return LoadsReply([each for each in known if table in (0, each.table)], {1: (1, 1)})

    async def jobs(self, numbers: Sequence[int], local: bool) -> JobsReply:
        if not local:
            await self._maybe_refuse()
        chosen = [job for number, job in sorted(self.queue.items()) if not numbers or number in numbers]
        return JobsReply(chosen, [Progress(4, 50, 200, 5, 20, 25.0, 6.0, "reading")])

    async def steer(self, order: SteerJob) -> JobRecord:
        await self._maybe_refuse()
        self.asked.append(order)
        view = JobView()
        for number, job in self.queue.items():
            view.change(job_key(number), jobs.encode(job), 1)
        try:
            job = rules.steer(view, order, 1_700_000_020_000)
        except rules.JobRefused as error:
            raise Refused(error.code, str(error)) from error
        self.queue[order.number] = job
        return job

    async def probe(self, request: ProbeRequest) -> ProbeReply:
        await self._maybe_refuse()
        self.asked.append(request)
        stale = not self.standing.lease_ms
        if stale and request.level is Level.QUORUM:
            raise Refused("no_lease", "this instance has no lease")
        return ProbeReply(request.target or 1, 7, stale, 39)

    async def watch_events(self, after: int) -> AsyncIterator[tuple[int, EventRecord]]:
        try:
            while True:
                self._news.clear()
                for number in sorted(self.events):
                    if number > after:
                        after = number
                        yield number, self.events[number]
                await self._news.wait()
        finally:
            self.ended += 1

    def happen(self, text: str) -> int:
        """A new event; its number."""
        number = max(self.events, default=0) + 1
        self.events[number] = EventRecord(1_700_000_000_000 + number, "online", text, 3, ["i1"])
        self._news.set()
        return number

    def stand(self, **changes: object) -> None:
        self.standing = replace(self.standing, **changes)  # type: ignore[arg-type]

    async def _maybe_refuse(self) -> None:
        if self.delay_s:
            self.waiting += 1
            try:
                await asyncio.sleep(self.delay_s)
            finally:
                self.waiting -= 1
        if self.refusal is not None:
            raise self.refusal
