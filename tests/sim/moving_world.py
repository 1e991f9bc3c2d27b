"""A cluster whose tablets move, in one line, for stories: everything of the moves scenario but its troubles.

Clients write, delete and read at QUORUM all the time; whatever the story does, every invariant of the scenario is
looked at meanwhile, and `ends` waits until all has come to its end and judges what clients saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, CreateTable
from trimtab.catalog.schema import Table
from trimtab.net.errors import RpcError
from trimtab.node import failpoints
from trimtab.node.replicas.folding import FoldPace
from trimtab.node.settings import Limits
from trimtab.rows import protocol as rows_protocol
from trimtab.rows.protocol import ChangeRequest, DeleteRequest, GetRequest, PutRequest
from trimtab.sim.machines import Machine
from trimtab.sim.moves_plan import MovesPlan, draw
from trimtab.sim.moves_rules import Tablet
from trimtab.sim.moves_run import MovesRun
from trimtab.sim.tables_workload import cell
from trimtab.sim.world import World
from trimtab.tablets import move_protocol
from trimtab.tablets.consistency import Level
from trimtab.tablets.move_protocol import MoveReply, MoveRequest
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.transitions import RebalanceRecord
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind, RequestRecord

Place = tuple[int, int]
STORY = "sim.story"  # a table that only stories write
_PLAIN = draw(0)


def calm(
    machines: int, replication: int, *, tablets: int = 4, forgetful: bool = False, heal_after_ms: int = 600_000
) -> MovesPlan:
    """A plan in which nothing happens by itself."""
    timing = replace(
        _PLAIN.tables.topology.timing,
        max_skew_ms=50,
        hint_life_ms=800 if forgetful else 3 * 3_600_000,
        repair_every_ms=800,
        catchup_grace_ms=200,
    )
    topology = replace(
        _PLAIN.tables.topology,
        peers=tuple(tuple(range(machines)) for _ in range(machines)),
        starts_s=(0.0,) * machines,
        domains=tuple({"dc": "dc1"} for _ in range(12)),
        late_machines=0,
        rates={},
        timing=timing,
        limits=Limits(disk_reserve_bytes=0),
    )
    tables = replace(
        _PLAIN.tables,
        topology=topology,
        replication={"dc1": replication},
        tablets=tablets,
        forgetful=forgetful,
        gc_grace_s=0 if forgetful else 864_000,
        history_s=0 if forgetful else 600,
        pace=FoldPace(every_s=0.2, anyway_s=0.5, rest_s=0.01),
        clients=2,
        think_s=0.08,
        partitions=3,
        rows=3,
        rates={},
    )
    loads = replace(_PLAIN.loads, tables=tables, job_drivers=1, mishap=0.0)
    return replace(
        _PLAIN,
        tables=tables,
        loads=loads,
        changes={},
        replications=(replication,),
        deaths=0.0,
        mishap=0.0,
        lateness_s=0.0,
        heal_after_ms=heal_after_ms,
        moving=256,
        loading=False,
        second_thoughts=0.0,
    )


class MovingCluster:
    """What a story does, and looks at."""

    def __init__(self, run: MovesRun) -> None:
        self.run = run
        self.world = run.world
        self.cluster = run.cluster
        self.nemesis = run.nemesis
        self._working = False

    # -- the story -------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Clients begin."""
        self._working = True
        self.run.begin_load()

    def ends(self) -> None:
        """Clients stop; all comes to its end, and nobody has seen what can't be."""
        assert self._working, "nobody has worked"
        self.run.end_load()
        self.cluster.do(self.nemesis.finish(), 60.0)
        self.run.agree()
        self.run.judge()

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def until(self, so: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
        return self.cluster.until(so, within_s, what)

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def tablets(self) -> dict[Place, Tablet]:
        return self.run.watch._tablets

    @property
    def moving(self) -> dict[Place, Tablet]:
        return {place: tablet for place, tablet in self.tablets.items() if tablet.now is not None}

    def counts(self) -> dict[str, int]:
        """How many replicas each instance holds, by its name."""
        held = self.run.watch.sizes()
        return {machine.settings.instance_id: held.get(machine.raft_id, 0) for machine in self.cluster.taking_part()}

    @property
    def table(self) -> Table:
        """The one that stories write."""
        return self.run.loads.tables.catalog.table(STORY)

    def named(self, instance_id: str) -> Machine:
        return self.cluster.of_instance(instance_id)

    def of(self, raft_id: int) -> Machine:
        machine = self.cluster.of_raft_id(raft_id)
        assert machine is not None
        return machine

    def leader(self) -> Machine:
        return self.until(self.cluster.leader, "somebody leads")  # type: ignore[no-any-return]

    def online(self, machine: Machine) -> bool:
        row = self.cluster.topology.committed.rows.get(machine.raft_id)
        return row is not None and row.grades.current.grade is Grade.ONLINE and row.grades.settled

    def directories(self, machine: Machine, place: Place) -> list[str]:
        return machine.disk.model.names(f"tablets/{place[0]}/{place[1]}.")

    def rebalance(self, table: int) -> RebalanceRecord:
        return self.run.loads.tables.rebalances[table]

    def request(self, number: int) -> RequestRecord:
        return self.cluster.topology.committed.requests[number]

    def stage_of(self, place: Place) -> str:
        return self.tablets[place].stage

    # -- wishes ----------------------------------------------------------------------------------------------------

    def join(self, number: int = 1, **domain: str) -> list[Machine]:
        """Machines that are started; whoever wants them Online waits for that."""
        found = []
        for _ in range(number):
            machine = self.nemesis._newcomer(self.world.rng(f"join/{len(self.cluster.machines)}"))
            machine.start()
            found.append(machine)
        return found

    def ask(self, kind: RequestKind, instance_id: str) -> int:
        """An operator's request; its number. RpcError: it is refused."""
        reply = self.cluster.do(self.cluster.create(self.leader(), kind, instance_id))
        return int(reply.number)

    def ended(self, number: int, within_s: float = 60.0) -> RequestRecord:
        self.until(lambda: self.request(number).state.final, f"request {number} has ended", within_s)
        return self.request(number)

    def move(self, place: Place, source: int, to: int, *, force: bool = False) -> MoveReply:
        body = move_protocol.encode(MoveRequest(*place, source, to, force, "a story wants it"))
        answer = self._tell(move_protocol.ASK, body)
        reply: MoveReply = move_protocol.decode_move_reply(answer)
        return reply

    def replication(self, number: int) -> None:
        assert self.cluster.do(self.nemesis.replication(number, tries=5)), f"replication {number} was refused"

    def balancing(self, settings: RebalanceSettings) -> None:
        assert self.cluster.do(self.nemesis.settings(settings, tries=5))

    def _tell(self, method: str, body: bytes) -> bytes:
        rng = self.world.rng(f"story/{self.world.events}")
        return self.cluster.do(self.cluster.ask(self.leader(), method, body, rng, 3.0))  # type: ignore[no-any-return]

    # -- copies ----------------------------------------------------------------------------------------------------

    def hold_copies(self) -> None:
        """From now on copies wait when their snapshots are taken, before anything of them is staged."""
        self.run.streams.hold = asyncio.Event()

    def release_copies(self) -> None:
        hold, self.run.streams.hold = self.run.streams.hold, None
        assert hold is not None
        hold.set()

    def somebody_else(self, place: Place, *others: int) -> int:
        """A member that has no replica of a tablet; 0: everybody has one."""
        tablet = self.tablets[place]
        taken = {*tablet.stable, *(tablet.now.pending if tablet.now is not None else ()), *others}
        members = sorted(machine.raft_id for machine in self.cluster.running())
        return next((raft_id for raft_id in members if raft_id not in taken), 0)

    # -- rows ------------------------------------------------------------------------------------------------------

    def put(self, id: int, value: str) -> None:
        table = self.table
        request = PutRequest(table.id, table.version, [1, 2], [[cell(id), value.encode()]], Level.QUORUM)
        self._rows(rows_protocol.PUT, request)

    def delete(self, id: int) -> None:
        self._rows(rows_protocol.DELETE, DeleteRequest(self.table.id, self.table.version, [cell(id)]))

    def get(self, id: int, level: Level = Level.QUORUM) -> str | None:
        request = GetRequest(self.table.id, self.table.version, [[cell(id)]], [2], level)
        (row,) = rows_protocol.decode_rows(self._rows(rows_protocol.GET, request)).rows
        return row[0].decode() if row is not None and row[0] is not None else None

    def place_of(self, id: int) -> Place:
        return self.table.id, self.run.promises._tablet(self.table, id)

    def _rows(self, method: str, request: Any) -> bytes:
        last: RpcError | None = None
        for _ in range(10):
            machine = next(iter(self.cluster.running()))
            rng = self.world.rng(f"rows/{self.world.events}")
            asking = self.cluster.ask(machine, method, rows_protocol.encode(request), rng, 3.0)
            try:
                return self.cluster.do(asking)  # type: ignore[no-any-return]
            except RpcError as error:
                last = error
                self.pass_time(0.3)
        assert last is not None
        raise last


@contextmanager
def moving(machines: int, replication: int = 3, *, seed: int = 1, **more: Any) -> Iterator[MovingCluster]:
    """A cluster of so many machines with three tables, balanced and at rest. All failpoints are free."""
    failpoints.disarm()
    with World(seed) as world:
        run = MovesRun(world, calm(machines, replication, **more))
        try:
            run.form()
            _make_table(run)
            yield MovingCluster(run)
        finally:
            failpoints.disarm()


def _make_table(run: MovesRun) -> None:
    columns = [ColumnSpec("p", "bigint"), ColumnSpec("a", "text")]
    tables = run.plan.tables
    options: dict[str, Any] = {"gc_grace_s": tables.gc_grace_s, "history_s": tables.history_s}
    command = CreateTable("sim", "story", columns, ["p"], options=options, tablets=tables.tablets)
    body = rows_protocol.encode(ChangeRequest(commands.encode(command), "story"))
    machine = next(iter(run.cluster.machines.values()))
    run.cluster.do(run.cluster.ask(machine, rows_protocol.CHANGE, body, run.world.rng("story"), 10.0))
