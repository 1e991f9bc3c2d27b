"""A table whose tablets move, as values: replicas hold sets of writes, routers know the metastore up to some moment.

The leader's rules run on it as they are. Instances do what `tablets.move_protocol` says, by what they themselves know;
jobs copy what sources have when they run. After every event what must hold is checked (`Moves.check`):

- no acknowledged write can be missed by whoever reads a quorum of the set that its own view names
- from the lock on every acknowledged write is on a quorum of the new set
- nothing that was deleted for good comes back: a replica has no rows of an attempt that was given up
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from tests.unit.governor.governed import Governed
from tests.unit.loads.ledger import USERS

from trimtab.governor.crossing import absent, barrier_nodes, unfenced
from trimtab.governor.moves import advance_moves, ask_moves, begin_moves, cross_moves, crossed
from trimtab.governor.rebasing import rebased
from trimtab.governor.state import Attempt, ClusterState, MoveFacts, Trouble
from trimtab.governor.steps import AskMoves, CommitMoves, CrossMoves, Step, Write
from trimtab.jobs import records as job_records
from trimtab.jobs.records import JobKind, JobRecord, JobState
from trimtab.jobs.view import JobView
from trimtab.metastore.limits import MAX_CONDITIONS, MAX_OPERATIONS
from trimtab.tablets import move_protocol
from trimtab.tablets.consistency import Level, goal, quorum_of
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import ReplicaSets, Stage
from trimtab.tablets.transitions import (
    ADJUSTABLE,
    UNDOING,
    Cause,
    Proposal,
    RebalanceRecord,
    TabletTransition,
    holders,
)
from trimtab.topology.grades import Grade
from trimtab.topology.records import FENCE_KEY, VERSION_KEY, encode, instance_key, job_key

Place = tuple[int, int]  # raft id, tablet


@dataclass
class Replica:
    """A directory. `session`: it was made for an attempt, and answers nothing until `adopted`."""

    session: str = ""
    adopted: bool = True
    rows: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Seen:
    """What a member knows, once it has applied so much."""

    version: int
    fence: int
    sets: tuple[ReplicaSets, ...]
    holders: tuple[tuple[int, ...], ...]
    arriving: tuple[tuple[str, tuple[int, ...]], ...]


class Moves(Governed):
    """`users` is the table. Every instance is a router, too."""

    rules = (ask_moves, advance_moves, cross_moves, begin_moves)

    def __init__(
        self,
        replicas: Sequence[tuple[int, ...]],
        *,
        instances: int = 5,
        dcs: dict[int, str] | None = None,
        seed: int = 0,
    ) -> None:
        self.jobs = JobView()
        self.history: list[Seen] = []
        super().__init__(replicas, instances=instances, dcs=dcs)
        self.random = random.Random(seed)
        self.dcs = {raft_id: (dcs or {}).get(raft_id, "dc1") for raft_id in self.view.instances}
        self.leader = 1
        self.proposals: list[Proposal] = []
        self.settings = RebalanceSettings()
        self.facts: dict[str, dict[Attempt, frozenset[int]]] = {}
        self.troubles: dict[Attempt, tuple[Trouble, ...]] = {}
        self.put_off: set[tuple[int, int]] = set()
        self.serial = 0
        self.memory: dict[object, object] = {}
        self.events: list[str] = []
        self.stages: dict[int, list[Stage]] = {}
        self.replicas = {(raft_id, tablet): Replica() for tablet, members in enumerate(replicas) for raft_id in members}
        self.staged: dict[tuple[int, int, str], set[int]] = {}  # target, tablet, session
        self.acknowledged: dict[int, set[int]] = {tablet: set() for tablet in range(len(replicas))}
        self.given_up: dict[int, set[int]] = {tablet: set() for tablet in range(len(replicas))}
        self.next_write = 1
        self.put({VERSION_KEY: b"1", FENCE_KEY: b"0"})
        self.knows = dict.fromkeys(self.view.instances, len(self.history) - 1)
        self.took_office()

    # The metastore

    def put(self, puts: dict[bytes, bytes], deletes: Sequence[bytes] = ()) -> None:
        super().put(puts, deletes)
        for key, value in puts.items():
            self.jobs.change(key, value, self.revision)
        for key in deletes:
            self.jobs.change(key, None, self.revision)
        tablets = self.tables.map(USERS).count
        if not tablets:
            return
        table = self.tables
        self.history.append(
            Seen(
                self.view.version,
                self.view.fence,
                tuple(table.sets(USERS, tablet) for tablet in range(tablets)),
                tuple(table.holders(USERS, tablet) for tablet in range(tablets)),
                tuple(self._arriving(tablet) for tablet in range(tablets)),
            )
        )

    def _arriving(self, tablet: int) -> tuple[str, tuple[int, ...]]:
        current = self.tables.transition(USERS, tablet)
        if current is None or current.stage not in ADJUSTABLE or current.locked:
            return "", ()
        return current.session, current.arriving(self.tables.maps[USERS].replicas(tablet))

    def apply(self, write: Write) -> bool:
        now = rebased(write, self.view)
        if now is None:
            return False
        assert set(now.puts) | set(now.deletes) <= set(now.expect), "what is changed was looked at"
        assert not set(now.puts) & set(now.deletes)
        assert len(now.puts) + len(now.deletes) < MAX_OPERATIONS - 64 and len(now.expect) < MAX_CONDITIONS - 64
        before = {tablet: self.current(tablet) for tablet in self.acknowledged}
        self.put(now.puts, now.deletes)
        self.events += now.sentences
        for tablet, was in before.items():
            self._judge_change(tablet, was, self.current(tablet))
        return True

    def _judge_change(self, tablet: int, was: TabletTransition | None, now: TabletTransition | None) -> None:
        if now is None or (was is not None and was.stage is now.stage and was.session == now.session):
            return
        self.stages.setdefault(tablet, []).append(now.stage)
        assert now.version == self.view.version, "a stage is announced by its write"
        if now.stage is Stage.STREAMING or (now.stage is Stage.WRITE_BOTH_READ_OLD and not now.locked):
            assert now.session in self.loads.sessions
        else:
            assert now.session not in self.loads.sessions
        assert now.locked == (
            now.stage not in {*ADJUSTABLE, *UNDOING} or bool(was and was.locked and was.session == now.session)
        )

    # Looking

    def current(self, tablet: int = 0) -> TabletTransition | None:
        return self.tables.transition(USERS, tablet)

    def stable(self, tablet: int = 0) -> tuple[int, ...]:
        return self.tables.maps[USERS].replicas(tablet)

    def rebalance(self) -> RebalanceRecord:
        return self.tables.rebalances[USERS]

    def up(self, raft_id: int) -> bool:
        return raft_id not in self.silent

    def marked(self, raft_id: int) -> bool:
        return self.view.instances[raft_id].grades.current.grade is Grade.OFFLINE

    def state(self) -> ClusterState:
        return replace(
            super().state(),
            jobs=self.jobs,
            proposals=tuple(self.proposals),
            rebalance=self.settings,
            moves=MoveFacts(
                prepared=self.facts[move_protocol.PREPARE],
                adopted=self.facts[move_protocol.ADOPT],
                cleaned=self.facts[move_protocol.CLEAN],
                troubles=self.troubles,
                put_off=frozenset(self.put_off),
                serial=self.serial,
                memory=self.memory,
            ),
            revision=self.revision,
        )

    # What happens

    def propose(
        self, tablet: int, *target: int, cause: Cause = Cause.OPERATOR, why: str = "a test", size: int = 0
    ) -> None:
        self.proposals.append(Proposal(USERS, tablet, target, cause, why, self.revision, size, self.stable(tablet)))

    def took_office(self) -> None:
        """Another leader: what the old one knew and was at is lost."""
        self.facts = {method: {} for method in (move_protocol.PREPARE, move_protocol.ADOPT, move_protocol.CLEAN)}
        self.troubles = {}
        self.put_off = set()
        self.serial += 1
        self.in_flight.clear()
        self.resting.clear()
        self.term += 1

    def kill(self, raft_id: int) -> None:
        self.silent.add(raft_id)

    def mark(self, raft_id: int) -> None:
        """Failure detection finds it."""
        assert raft_id in self.silent
        version = self.view.version + 1
        self.grade(raft_id, Grade.OFFLINE)
        record = msgspec.structs.replace(self.view.instances[raft_id], since_version=version)
        self.put({instance_key(raft_id): encode(record), VERSION_KEY: b"%d" % version})

    def start(self, raft_id: int) -> None:
        """Up again, and caught up: it has what a quorum of each of its tablets has."""
        self.silent.discard(raft_id)
        self.grade(raft_id, Grade.ONLINE)
        self.learn(raft_id)

    def learn(self, raft_id: int) -> None:
        """It applies everything there is, and does what follows from that by itself."""
        self.knows[raft_id] = len(self.history) - 1
        seen = self.history[-1]
        for (owner, tablet), replica in list(self.replicas.items()):
            if owner != raft_id:
                continue
            session, arriving = seen.arriving[tablet]
            if owner not in seen.holders[tablet] or (owner in arriving and replica.session != session):
                del self.replicas[owner, tablet]

    def seen(self, raft_id: int) -> Seen:
        return self.history[self.knows[raft_id]]

    def write(self, tablet: int, router: int, reached: float = 1.0) -> bool:  # type: ignore[override]
        """A write at QUORUM through a router; whether it was acknowledged."""
        number, seen = self.next_write, self.seen(router)
        self.next_write += 1
        sets = seen.sets[tablet]
        wanted = goal(Level.QUORUM, sets.writes, self.dcs, "", for_write=True)
        took = []
        for raft_id in sets.writers:
            if not self.up(raft_id) or self.random.random() >= reached:
                continue
            if self.knows[raft_id] < self.knows[router]:
                # It waits until it knows as much as the router.
                self.knows[raft_id] = self.knows[router]
                self.learn_at_least(raft_id)
            there = self.seen(raft_id)
            replica = self.replicas.get((raft_id, tablet))
            if there.fence > seen.version or replica is None or raft_id not in there.holders[tablet]:
                continue
            replica.rows.add(number)
            took.append(raft_id)
        if not wanted.reached(took):
            return False
        self.acknowledged[tablet].add(number)
        return True

    def learn_at_least(self, raft_id: int) -> None:
        seen = self.seen(raft_id)
        for (owner, tablet), _ in list(self.replicas.items()):
            if owner == raft_id and owner not in seen.holders[tablet]:
                del self.replicas[owner, tablet]

    # Steps

    def carry_out(self, step: Step) -> bool:
        """Whether it came about."""
        if isinstance(step, AskMoves):
            return self._ask(step)
        if isinstance(step, CrossMoves):
            return self._cross(step)
        assert isinstance(step, CommitMoves)
        return self.apply(step.write)

    def _cross(self, step: CrossMoves) -> bool:
        if not self.pass_barrier(step):
            return False
        found = crossed(self.state(), step.version)
        return found is not None and self.apply(replace(found.write, expect=absent(self.view) | found.write.expect))

    def pass_barrier(self, step: CrossMoves) -> bool:
        nodes = {*step.nodes, *barrier_nodes(self.view)}
        if any(not self.up(raft_id) and not self.marked(raft_id) for raft_id in nodes):
            self.resting.add(step.key)
            return False
        skipped = unfenced(self.view) or any(not self.up(raft_id) for raft_id in self.view.instances)
        if skipped and self.view.fence < step.version:
            self.put({FENCE_KEY: b"%d" % step.version})
        for raft_id in nodes:
            if self.up(raft_id):
                self.learn(raft_id)
        return True

    def _ask(self, step: AskMoves) -> bool:
        if not self.up(step.node):
            self.resting.add(step.key)
            return False
        self.learn(step.node)
        self.serial += 1
        done = self.facts[step.method]
        for asked in step.tablets:
            attempt = (asked.table, asked.tablet, asked.session)
            if self._does(step.method, step.node, asked.tablet, asked.session):
                done[attempt] = done.get(attempt, frozenset()) | {step.node}
            else:
                job = step.jobs[step.tablets.index(asked)]
                others = (each for each in self.troubles.get(attempt, ()) if each.raft_id != step.node)
                self.troubles[attempt] = (*others, Trouble(step.node, "no_copy", "no copy is there", job))
        return True

    def _does(self, method: str, raft_id: int, tablet: int, session: str) -> bool:
        current, place = self.current(tablet), (raft_id, tablet)
        if current is None or current.session != session:
            return False
        if method == move_protocol.CLEAN:
            if raft_id in holders(self.stable(tablet), current):
                return False
            self.replicas.pop(place, None)
            return True
        replica = self.replicas.get(place)
        if method == move_protocol.PREPARE:
            if replica is None or replica.session != session:
                self.replicas[place] = Replica(session, adopted=False)
            return True
        copied = self.staged.get((raft_id, tablet, session))
        if replica is None or replica.session != session or session not in self.loads.sessions:
            return False
        if not replica.adopted:
            if copied is None:
                return False
            replica.rows |= copied
            replica.adopted = True
        return True

    # Jobs

    def open_jobs(self) -> list[JobRecord]:
        return self.jobs.open_jobs()

    def run_job(self, job: JobRecord) -> None:
        """All of it, by what there is now; what can't be copied is in its result."""
        if job.wanted == "cancel":
            self._end_job(job, JobState.CANCELLED)
            return
        failed = []
        if job.command.kind is JobKind.STREAM:
            for copy in job.command.parameters["copies"]:
                if why := self._copy(copy):
                    failed.append([copy["tablet"], copy["target"], "gone", why])
        else:
            for tablet in job.command.parameters["tablets"]:
                if why := self._repair(tablet):
                    failed.append([tablet, why])
        self._end_job(job, JobState.SUCCEEDED, failed=failed)

    def _copy(self, copy: dict[str, object]) -> str:
        target, tablet, session = copy["target"], copy["tablet"], copy["session"]
        sources = copy["sources"]
        assert isinstance(target, int) and isinstance(tablet, int) and isinstance(session, str)
        assert isinstance(sources, list)
        rows: set[int] = set()
        for raft_id in sources:
            replica = self.replicas.get((raft_id, tablet))
            if not self.up(raft_id) or replica is None or not replica.adopted:
                return f"{raft_id} gives no snapshot"
            rows |= replica.rows
        if not self.up(target) or session not in self.loads.sessions:
            return f"{target} takes no files"
        self.staged[target, tablet, session] = rows
        return ""

    def _repair(self, tablet: int) -> str:
        current = self.current(tablet)
        if current is None:
            return "it does not move"
        stable = self.stable(tablet)
        up = [raft_id for raft_id in stable if self.up(raft_id)]
        for dc in {self.dcs[raft_id] for raft_id in stable}:
            members = [raft_id for raft_id in stable if self.dcs[raft_id] == dc]
            if sum(raft_id in up for raft_id in members) < len(members) - quorum_of(len(members)) + 1:
                return f"too few are up in {dc}"
        if any(raft_id not in up for raft_id in current.pending):
            return "one of the new set is down"
        rows = set().union(*(self.replicas[raft_id, tablet].rows for raft_id in up))
        for raft_id in current.pending:
            self.replicas[raft_id, tablet].rows |= rows
        return ""

    def _end_job(self, job: JobRecord, state: JobState, **result: object) -> None:
        ended = msgspec.structs.replace(job, state=state, result=result, ended_ms=self.now_ms, error="it was told to")
        self.put({job_key(job.number): job_records.encode(ended)})

    # Running

    def run(self, until: Stage | None = None, *, jobs: bool = True, steps: int = 400) -> None:
        """All there is to do, jobs included; or until tablet 0 has come to a stage. Time passes when nothing is."""
        idle = 0
        for _ in range(steps):
            self.check()
            if until is not None and (now := self.current()) is not None and now.stage is until:
                return
            step = self.next_step()
            if step is not None:
                idle = 0
                self.carry_out(step)
            elif jobs and self.open_jobs():
                self.run_job(self.open_jobs()[0])
            elif idle < 20:
                idle += 1
                self.now_ms += 1_000
                self.resting.clear()
            else:
                assert until is None, f"it never came to {until}: {self.events[-5:]}"
                return
        raise AssertionError(f"no end of steps: {self.events[-10:]}")

    # What must hold

    def check(self) -> None:
        for tablet, acknowledged in self.acknowledged.items():
            current = self.current(tablet)
            for raft_id in self.view.instances:
                if self.up(raft_id) and self.view.fence <= self.seen(raft_id).version:
                    self._check_readable(
                        tablet, self.seen(raft_id).sets[tablet].reads, acknowledged, f"router {raft_id}"
                    )
            if current is not None and current.stage not in UNDOING and current.locked:
                self._check_on_quorum(tablet, current.pending, acknowledged, str(current))
            elif current is None or current.stage in UNDOING or current.stage in ADJUSTABLE:
                self._check_readable(tablet, self.stable(tablet), acknowledged, "the stable set")

    def _rows(self, raft_id: int, tablet: int) -> set[int]:
        replica = self.replicas.get((raft_id, tablet))
        return replica.rows if replica is not None and replica.adopted else set()

    def _check_readable(self, tablet: int, replicas: tuple[int, ...], acknowledged: set[int], who: str) -> None:
        quorum = quorum_of(len(replicas))
        for write in acknowledged:
            have = sum(write in self._rows(raft_id, tablet) for raft_id in replicas)
            assert have + quorum > len(replicas), f"write {write} of tablet {tablet}: {who} may miss it at {replicas}"

    def _check_on_quorum(self, tablet: int, replicas: tuple[int, ...], acknowledged: set[int], who: str) -> None:
        for write in acknowledged:
            have = sum(write in self._rows(raft_id, tablet) for raft_id in replicas)
            assert have >= quorum_of(len(replicas)), (
                f"write {write} of tablet {tablet} is on {have} of {replicas}: {who}"
            )
