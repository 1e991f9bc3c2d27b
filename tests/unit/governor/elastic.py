"""A cluster as values in which tablets really move: the planner, the governor's rules and the pump, all as they are.

Instances do their part in moves at once, and jobs succeed, while they are up. After every write it is checked that each
tablet has somebody who answers, that its replicas are on distinct hosts, and that nobody has left with what it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from tests.unit.governor.driver import MAX_STEPS, NoMajority, cluster
from tests.unit.governor.holdings import Holding

from trimtab.governor.move_scenes import job_seen
from trimtab.governor.moves import crossed
from trimtab.governor.plan import plan
from trimtab.governor.state import Attempt, ClusterState, MoveFacts, Trouble
from trimtab.governor.steps import AskMoves, CrossMoves, Step, Write
from trimtab.jobs.records import JobKind, JobState
from trimtab.jobs.records import encode as encode_job
from trimtab.tablets.departures import going
from trimtab.tablets.domains import domain_of
from trimtab.tablets.move_protocol import ADOPT, CLEAN, PREPARE
from trimtab.tablets.replanning import by_balancer, outline, planned
from trimtab.tablets.sizes import SizeLedger, SizesReport
from trimtab.tablets.stages import JobPart
from trimtab.topology.records import CATALOG, INSTANCES, REQUESTS, RequestKind, job_key

SIZE = 64 << 20


@dataclass
class Elastic(Holding):
    facts: dict[str, dict[Attempt, frozenset[int]]] = field(default_factory=dict)
    troubles: dict[Attempt, dict[int, Trouble]] = field(default_factory=dict)
    hold_jobs: bool = False  # jobs stay as they are
    forsaken: set[int] = field(default_factory=set)  # who was lost with the majority, and left with what it had
    moves: int = 0  # how many tablets were given other replicas
    _planned_at: object = None

    # The planner and the pump

    def replan(self) -> bool:
        """Whether there was something new to look at."""
        lost = self.state().lost
        seen = (self.revision, lost)
        if seen == self._planned_at:
            return False
        self._planned_at = seen
        leaving = frozenset(i for i, kind in going(self.view).items() if kind is RequestKind.LEAVE) - lost
        sizes = self.ledger()
        seen_now = outline(self.view, self.tables, sizes, lost=lost, draining=leaving, trigger=self.revision)
        made = planned(seen_now, by_balancer)
        self.proposals, self.problems, self.planned = made.proposals, made.problems, True
        return True

    def ledger(self) -> SizeLedger:
        """All tablets are of the same size."""
        ledger = SizeLedger()
        counts = {table: tablets.count for table, tablets in self.tables.maps.items()}
        for raft_id in self.view.members():
            sizes = {table: dict.fromkeys(tablets.of(raft_id), SIZE) for table, tablets in self.tables.maps.items()}
            ledger.take(SizesReport(raft_id, "", 1, sizes, anew=True), counts)
        return ledger

    def state(self, **fields: object) -> ClusterState:
        prepared, adopted, cleaned = (self.facts.get(method, {}) for method in (PREPARE, ADOPT, CLEAN))
        troubles = {attempt: tuple(found.values()) for attempt, found in self.troubles.items()}
        given: dict[str, object] = {"moves": MoveFacts(prepared, adopted, cleaned, troubles)}
        return super().state(**(given | fields))

    def next_step(self) -> Step | None:
        if not self.leader:
            return None
        return plan(self.state())

    def deed(self, step: Step) -> Write | None:
        if isinstance(step, AskMoves):
            if not self.up(step.node):
                self._rest(step)
                return None
            done = self.facts.setdefault(step.method, {})
            for tablet, job in zip(step.tablets, step.jobs, strict=True):
                attempt = (tablet.table, tablet.tablet, tablet.session)
                part = job_seen(self.state(), tablet.tablet, job).part
                if step.method == ADOPT and part is not JobPart.COPIED:
                    trouble = Trouble(step.node, "no_copy", "no whole copy is staged here", job)
                    self.troubles.setdefault(attempt, {})[step.node] = trouble
                    continue
                done[attempt] = done.get(attempt, frozenset()) | {step.node}
            return None
        if isinstance(step, CrossMoves):
            if self._barrier(step) is None:
                return None
            found = crossed(self.state(), step.version)
            return found.write if found is not None else None
        return super().deed(step)

    def elect(self, to: int = 0) -> None:
        self.facts.clear()
        self.troubles.clear()
        self.proposals, self.problems = (), ()
        self._planned_at = None
        super().elect(to)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        for _ in range(MAX_STEPS * 4):
            if until is not None and until():
                return
            try:
                self.behave()
            except NoMajority:
                self.elect()
            if self.leader and not self.hold_jobs and self.jobs.open:
                self._run_jobs()
            step = self.next_step()
            if step is not None:
                self.carry_out(step)
            elif not self.leader or not self.replan():
                assert until is None, f"it never came to pass; the last steps: {self.story[-5:]}"
                return
        raise AssertionError(f"no end of steps: {self.story[-10:]}")

    def _run_jobs(self) -> None:
        for job in self.jobs.open_jobs():
            result: dict[str, object] = {"failed": self._not_copied(job.command.parameters)}
            ended = msgspec.structs.replace(job, state=JobState.SUCCEEDED, result=result, ended_ms=self.now_ms)
            if job.wanted == "cancel":
                ended = msgspec.structs.replace(job, state=JobState.CANCELLED, ended_ms=self.now_ms)
            assert self.write(Write({}, {job_key(job.number): encode_job(ended)}))
            assert job.command.kind in (JobKind.STREAM, JobKind.REPAIR)

    def _not_copied(self, parameters: dict[str, object]) -> list[list[object]]:
        copies = parameters.get("copies", [])
        assert isinstance(copies, list)
        return [
            [copy["tablet"], copy["target"], "gone", "somebody is down"]
            for copy in copies
            if not all(self.up(raft_id) for raft_id in (copy["target"], *copy["sources"]))
        ]

    # What must hold

    def write(self, write: Write) -> bool:
        before = {table: list(tablets) for table, tablets in self.tables.maps.items()}
        if not super().write(write):
            return False
        if any(key.startswith((INSTANCES, REQUESTS, CATALOG)) for key in write.puts):
            self.proposals, self.planned = (), False
        replaced = {row.replaces for row in self.view.instances.values()}
        for raft_id in self.tables.loads():
            left = self.view.instances[raft_id].left
            assert not left or raft_id in replaced | self.forsaken, f"{raft_id} has left with what it had"
        for table, tablets in self.tables.maps.items():
            if table in before:
                self.moves += sum(new != old for new, old in zip(tablets, before[table], strict=True))
            for tablet, replicas in tablets:
                sets = self.tables.sets(table, tablet)
                assert sets.reads, f"nobody answers for tablet {tablet}"
                for each in (replicas, *sets.writes):
                    hosts = [domain_of(self.view.instances[i]).host for i in each]
                    assert len(set(hosts)) == len(hosts), f"tablet {tablet} is twice on a host: {each}"
        return True

    # Looking

    def counts(self) -> dict[str, int]:
        """Replicas of everybody who is in the cluster."""
        loads = self.tables.loads()
        return {row.instance_id: loads.get(raft_id, 0) for raft_id, row in sorted(self.view.members().items())}

    def factors(self) -> set[int]:
        """How many replicas tablets have."""
        return {len(replicas) for tablets in self.tables.maps.values() for _, replicas in tablets}

    def assert_even(self) -> None:
        counts = self.counts().values()
        assert max(counts) - min(counts) <= 1, self.counts()

    def assert_still(self) -> None:
        """Nothing moves, nothing should, and nobody has a problem."""
        self.run()
        assert not self.tables.transitions, self.tables.transitions
        assert not self.proposals and not self.problems, (self.proposals, self.problems)
        assert not self.jobs.open


def elastic(size: int, replication: int | dict[str, int] = 3, tablets: int = 8) -> Elastic:
    """So many instances with a table `shop.users`."""
    world = cluster(size, kind=Elastic)
    assert isinstance(world, Elastic)
    world.create(replication, tablets=tablets)
    world.run()
    world.assert_still()
    assert world.moves == 0
    world.story.clear()
    return world
