"""A cluster that exists only as values, with tables in it: whoever holds replicas, and where they go.

Moves are not carried out here: `place` writes a tablet's new replicas as the end of a move would, and `under_way` what
there is before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from tests.unit.governor.driver import TICK_MS, World, cluster

from trimtab.catalog.commands import AlterKeyspace, ColumnSpec, Command, CreateKeyspace, CreateTable
from trimtab.governor.plan import RULES, applicable
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Step, Write
from trimtab.jobs.records import JobRecord, JobState
from trimtab.jobs.records import encode as encode_job
from trimtab.jobs.view import JobView
from trimtab.tablets.changes import plan_change
from trimtab.tablets.departures import Problem
from trimtab.tablets.domains import may_hold
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.records import CHUNK_TABLETS, chunk_key, pack
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.transitions import Proposal, TabletTransition, encode, transition_key
from trimtab.tablets.view import TableView
from trimtab.topology.records import job_key

HEAL_AFTER_MS = 60_000
PUMP = "trimtab.governor.moves"


@dataclass
class Holding(World):
    """`proposals` and `problems` are what a test lets the planner say."""

    tables: TableView = field(default_factory=TableView)
    jobs: JobView = field(default_factory=JobView)
    settings: RebalanceSettings = field(default_factory=lambda: RebalanceSettings(heal_after_ms=HEAL_AFTER_MS))
    proposals: tuple[Proposal, ...] = ()
    problems: tuple[Problem, ...] = ()
    planned: bool = True

    def write(self, write: Write) -> bool:
        if not super().write(write):
            return False
        for key, value in write.puts.items():
            self.tables.change(key, value, self.revision)
            self.jobs.change(key, value, self.revision)
        for key in write.deletes:
            self.tables.change(key, None, self.revision)
            self.jobs.change(key, None, self.revision)
        return True

    def state(self, **fields: object) -> ClusterState:
        given: dict[str, object] = {
            "tables": self.tables,
            "jobs": self.jobs,
            "rebalance": self.settings,
            "proposals": self.proposals,
            "problems": self.problems,
            "planned": self.planned,
        }
        return super().state(**(given | fields))

    def next_step(self) -> Step | None:
        if not self.leader:
            return None
        state = self.state()
        steps = (rule(state) for rule in RULES if rule.__module__ != PUMP)
        return next((step for step in steps if step is not None and applicable(state, step)), None)

    # What a test does

    def schema(self, command: Command) -> None:
        change = plan_change(self.view, self.tables, command, "", self.now_ms)
        assert self.write(Write({}, change.puts, change.deletes))

    def create(self, replication: int | dict[str, int], *tables: str, tablets: int = 8) -> None:
        """A keyspace `shop` with these tables."""
        self.schema(CreateKeyspace("shop", replication))
        for name in tables or ("users",):
            self.schema(CreateTable("shop", name, [ColumnSpec("id", "bigint")], ["id"], tablets=tablets))

    def replicate(self, replication: int | dict[str, int]) -> None:
        self.schema(AlterKeyspace("shop", replication))

    def place(self, table: int, tablet: int, replicas: Replicas) -> None:
        tablets = self.tables.maps[table]
        first = tablet - tablet % CHUNK_TABLETS
        numbers = range(first, min(first + CHUNK_TABLETS, tablets.count))
        data = pack([replicas if number == tablet else tablets.replicas(number) for number in numbers])
        assert self.write(
            Write({}, {chunk_key(table, tablet // CHUNK_TABLETS): data}, (transition_key(table, tablet),))
        )

    def under_way(self, table: int, tablet: int, transition: TabletTransition) -> None:
        assert self.write(Write({}, {transition_key(table, tablet): encode(transition)}))

    def move_away(self, name: str, most: int = 1_000) -> None:
        """So many of an instance's replicas go to others that have none of the tablet, and who stay."""
        raft_id = self.id_of(name)
        for table, tablets in list(self.tables.maps.items()):
            for tablet in tablets.of(raft_id)[:most]:
                before = tablets.replicas(tablet)
                loads = self.tables.loads()
                free = [i for i, row in self.view.members().items() if i not in before and may_hold(row)]
                other = min(free, key=lambda i: (loads.get(i, 0), i))
                self.place(table, tablet, tuple(other if i == raft_id else i for i in before))

    def end_jobs(self, state: JobState = JobState.SUCCEEDED, error: str = "", **result: object) -> list[JobRecord]:
        """All open jobs end; what they were."""
        found = self.jobs.open_jobs()
        for job in found:
            ended = msgspec.structs.replace(job, state=state, error=error, result=result, ended_ms=self.now_ms)
            assert self.write(Write({}, {job_key(job.number): encode_job(ended)}))
        return found

    def wait(self, ms: int) -> None:
        """Time passes with nothing done meanwhile; then what there is to do is done."""
        self.now_ms += ms - TICK_MS
        self.pass_time(TICK_MS)

    def held(self, name: str) -> int:
        return self.tables.loads().get(self.id_of(name), 0)


def holding(size: int) -> Holding:
    """So many instances, i1 to iN, all Online, without tables."""
    world = cluster(size, kind=Holding)
    assert isinstance(world, Holding)
    return world
