"""A cluster that exists only as values: steps are carried out on a view, so whole stories fit in a test.

Writes are conditional as in the metastore, and need a majority of the voters; so do changes of the members. Instances
are a flag (up or not) and the little they do by themselves: take the answer to their join request, say that they are
Online, say it again when they were marked Offline, stop when they have left. Time passes only where a test lets it.
The invariants are checked after every write.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from trimtab.governor.crossing import absent, barrier_nodes, unfenced
from trimtab.governor.invariants import check
from trimtab.governor.plan import plan
from trimtab.governor.rebasing import rebased
from trimtab.governor.state import ClusterState, Heard, Patience
from trimtab.governor.steps import (
    Answer,
    Barrier,
    Call,
    ChangeMembers,
    Commit,
    Step,
    StepKey,
    StepKind,
    Told,
    Transfer,
    Write,
)
from trimtab.topology.founding import founder_record, founding_records
from trimtab.topology.grades import Grade, set_target
from trimtab.topology.protocol import JoinResponse
from trimtab.topology.records import (
    FENCE_KEY,
    InstanceRecord,
    JoinTicket,
    RequestKind,
    RequestRecord,
    RequestState,
    encode,
    instance_key,
    request_key,
)
from trimtab.topology.view import View

TICK_MS = 500
MAX_STEPS = 5_000


class NoMajority(Exception):
    """Too few voters are up: nothing can be written."""


@dataclass
class Process:
    """What runs, or does not, at an address."""

    uuid: str
    instance_id: str
    up: bool = True
    wanted: bool = True  # whether somebody wants it to be Online; False: it was told to stop
    down_since_ms: int = 0
    raft_id: int = 0  # known to it from the answer
    response: JoinResponse | None = None
    announced: bool = False  # it has said Online in this life
    applied: int = 0
    stalled_ms: int = 0


@dataclass
class World:
    """One cluster. `story` has the why of every step in the order they were done."""

    seed: int = 0
    patience: Patience = field(default_factory=Patience)
    view: View = field(default_factory=View)
    revision: int = 0
    leader: int = 1
    term: int = 1
    voters: set[int] = field(default_factory=lambda: {1})
    learners: set[int] = field(default_factory=set)
    now_ms: int = 1_000_000
    took_office_ms: int = 0
    processes: dict[str, Process] = field(default_factory=dict)
    in_flight: dict[StepKey, Step] = field(default_factory=dict)
    resting: dict[StepKey, int] = field(default_factory=dict)
    backing_off: dict[int, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    writes: int = 0
    outdated: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.took_office_ms = self.now_ms - 60_000
        row = founder_record("i1", "127.0.0.1:3301", uuid="u1", failure_domain={"host": "h1"}, release="0.1.0")
        for key, value in founding_records(row, "test", "genesis", self.now_ms).items():
            self._set(key, value)
        self.processes["u1"] = Process("u1", "i1", raft_id=1)

    # The metastore

    def _set(self, key: bytes, value: bytes | None) -> None:
        self.view.change(key, value, self.revision + 1)
        self.revision = max(self.revision, self.view.revisions.get(key, 0))

    def write(self, write: Write) -> bool:
        """Whether it was written; False: something it depends on has changed."""
        self.need_majority(self.voters)
        now = rebased(write, self.view)
        if now is None:
            self.outdated += 1
            return False
        write = now
        revision = self.revision + 1
        for key, value in write.puts.items():
            self.view.change(key, value, revision)
        for key in write.deletes:
            self.view.change(key, None, revision)
        self.revision = revision
        self.writes += 1
        self.events += write.sentences
        wrong = check(self.state())
        assert not wrong, f"{wrong} after {write.sentences}"
        return True

    def put_row(self, raft_id: int, **fields: object) -> None:
        row = msgspec.structs.replace(self.view.instances[raft_id], **fields)
        assert self.write(Write({}, {instance_key(raft_id): encode(row)}))

    def put_request(self, request: RequestRecord) -> int:
        number = self.view.next_request()
        assert self.write(Write({}, {request_key(number): encode(request)}))
        return number

    def need_majority(self, voters: Iterable[int]) -> None:
        if not self.has_majority(voters):
            raise NoMajority

    def has_majority(self, voters: Iterable[int]) -> bool:
        voters = set(voters)
        return 2 * sum(self.up(raft_id) for raft_id in voters) > len(voters)

    # What a test or an operator does

    def join(self, name: str, *, replaces: str = "", domain: dict[str, str] | None = None, port: int = 0) -> int:
        """Start an instance that asks to join; the number of its request."""
        uuid = f"u-{name}-{len(self.processes)}"
        self.processes[uuid] = Process(uuid, name)
        port = port or 4000 + len(self.processes)
        ticket = JoinTicket(
            name,
            uuid,
            "nonce",
            f"127.0.0.1:{port}",
            failure_domain=domain or {"host": f"h{len(self.processes)}"},
            release="0.1.0",
            replaces=replaces,
        )
        kind = RequestKind.REPLACE if replaces else RequestKind.JOIN
        return self.put_request(RequestRecord(kind, asked_ms=self.now_ms, join=ticket))

    def ask(self, kind: RequestKind, name: str = "", timeout_ms: int = 0) -> int:
        raft_id = self.id_of(name) if name else 0
        deadline_ms = self.now_ms + timeout_ms if timeout_ms else 0
        return self.put_request(RequestRecord(kind, raft_id=raft_id, asked_ms=self.now_ms, deadline_ms=deadline_ms))

    def cancel(self, number: int, reason: str = "an operator thought again") -> None:
        request = msgspec.structs.replace(self.view.requests[number], cancel=reason)
        assert self.write(Write({}, {request_key(number): encode(request)}))

    def kill(self, name: str) -> None:
        process = self.process(name)
        if process.up:
            process.up = False
            process.down_since_ms = self.now_ms
        if process.raft_id == self.leader or (self.leader and not self.has_majority(self.voters)):
            self.elect()

    def stop(self, name: str) -> None:
        """SIGTERM: it asks to be Offline, and is still up until `kill`."""
        process = self.process(name)
        process.wanted = False
        row = self.row(name)
        self.put_row(process.raft_id, grades=set_target(row.grades, Grade.OFFLINE), reason="it shuts down")

    def start(self, name: str) -> None:
        process = self.process(name)
        process.up, process.wanted, process.announced = True, True, False
        if self.leader == 0:
            self.elect()

    def restart(self, name: str) -> None:
        """Down and up again, before anybody noticed."""
        self.process(name).announced = False

    def elect(self, to: int = 0) -> None:
        """Another leader, if there can be one: whatever the old one was doing is lost."""
        self.in_flight.clear()
        self.resting.clear()
        self.backing_off.clear()
        self.leader = 0
        able = [raft_id for raft_id in sorted(self.voters) if self.up(raft_id)]
        if 2 * len(able) > len(self.voters):
            self.leader = to if to in able else self.random.choice(able)
            self.term += 1
            self.took_office_ms = self.now_ms

    # Looking

    def process(self, name: str) -> Process:
        """The newest of that name."""
        return [process for process in self.processes.values() if process.instance_id == name][-1]

    def id_of(self, name: str) -> int:
        found = self.view.named(name)
        assert found is not None, name
        return found[0]

    def row(self, name: str) -> InstanceRecord:
        return self.view.instances[self.id_of(name)]

    def grade(self, name: str) -> Grade:
        return self.row(name).grades.current.grade

    def grade_or_none(self, name: str) -> Grade | None:
        return self.grade(name) if self.view.named(name) else None

    def up(self, raft_id: int) -> bool:
        return any(process.up and process.raft_id == raft_id for process in self.processes.values())

    def online(self) -> list[str]:
        rows = self.view.members().values()
        return sorted(row.instance_id for row in rows if row.grades.current.grade is Grade.ONLINE)

    def voting(self) -> list[str]:
        return sorted(self.view.instances[raft_id].instance_id for raft_id in self.voters)

    def state(self, **fields: object) -> ClusterState:
        in_office_ms = self.now_ms - self.took_office_ms
        heard = {}
        for process in self.processes.values():
            if process.raft_id == 0:
                continue
            age_ms = 100 if process.up else min(self.now_ms - process.down_since_ms, in_office_ms)
            applied = process.applied if process.stalled_ms else self.revision
            heard[process.raft_id] = Heard(age_ms, applied, self.view.version, process.uuid, process.stalled_ms)
        given = {
            "view": self.view,
            "leader": self.leader,
            "term": self.term,
            "commit": self.revision,
            "voters": frozenset(self.voters),
            "learners": frozenset(self.learners),
            "joint": False,
            "genesis": "genesis",
            "cluster_id": "test",
            "now_ms": self.now_ms,
            "in_office_ms": in_office_ms,
            "heard": heard,
            "in_flight": frozenset(self.in_flight),
            "backing_off": frozenset(i for i, until in self.backing_off.items() if until > self.now_ms),
            "patience": self.patience,
            "resting": frozenset(key for key, until in self.resting.items() if until > self.now_ms),
        }
        return ClusterState(**(given | fields))  # type: ignore[arg-type]

    # Doing

    def next_step(self) -> Step | None:
        return plan(self.state()) if self.leader else None

    def deed(self, step: Step) -> Write | None:
        """Everything of a step but its write, which it returns; None: there is nothing to write, or it failed."""
        match step:
            case Transfer():
                assert step.to in self.voters, "leadership goes to a voter"
                if not self.up(step.to):
                    self.backing_off[step.to] = self.now_ms + 2 * TICK_MS
                    self._rest(step)
                    return None
                self.elect(step.to)
                return None
            case ChangeMembers():
                return self._change(step)
            case Commit():
                return step.write
            case Call():
                answered = [raft_id for raft_id in step.subjects if self.up(raft_id)]
                for raft_id in set(step.subjects) - set(answered):
                    self.backing_off[raft_id] = self.now_ms + 2 * TICK_MS
                return step.writes_for(answered, max_bytes=1 << 30)[0] if answered else self._rest(step)
            case Barrier():
                return self._barrier(step)
            case Answer():
                return self._answer(step)
        raise AssertionError(f"nobody knows how to carry out {step}")

    def _rest(self, step: Step) -> None:
        self.resting[step.key] = self.now_ms + TICK_MS

    def _change(self, step: ChangeMembers) -> Write:
        voters = (self.voters | set(step.promote)) - set(step.demote) - set(step.remove)
        assert set(step.promote) <= self.learners, "only learners get a vote"
        assert self.leader in voters, "a leader never takes itself out"
        self.need_majority(self.voters)
        self.need_majority(voters)
        self.learners = (self.learners | set(step.add) | set(step.demote)) - set(step.promote) - set(step.remove)
        self.voters = voters
        return step.write or Write({}, events=(Told(step.why),))

    def _barrier(self, step: Barrier) -> Write | None:
        skipped = False
        for raft_id in sorted({*step.nodes, *barrier_nodes(self.view)}):
            if self.up(raft_id):
                continue
            row = self.view.instances[raft_id]
            if not row.left and row.grades.current.grade is not Grade.OFFLINE:
                self._rest(step)
                return None
            skipped = True
        if step.kind is not StepKind.FENCE and unfenced(self.view):
            skipped = True
        if skipped and self.view.fence < step.version:
            fence = {FENCE_KEY: self.view.revisions[FENCE_KEY]}
            assert self.write(Write(fence, {FENCE_KEY: b"%d" % step.version}))
        return replace(step.write, expect=absent(self.view) | step.write.expect)

    def _answer(self, step: Answer) -> Write | None:
        process = self.processes[step.response.uuid]
        if not process.up:
            self._rest(step)
            return None
        process.response = step.response
        if step.response.accepted:
            process.raft_id = step.response.raft_id
        return step.write

    def carry_out(self, step: Step) -> bool:
        """All of a step; whether its write was written."""
        self.story.append(step.why)
        term = self.term
        try:
            write = self.deed(step)
            return write is not None and term == self.term and self.write(write)
        except NoMajority:
            self.elect()
            return False

    def behave(self) -> None:
        """What the instances do by themselves."""
        if not self.leader:
            return
        for process in list(self.processes.values()):
            row = self.view.instances.get(process.raft_id)
            if not process.up or row is None or row.uuid != process.uuid:
                if process.up and process.response is not None and not process.response.accepted:
                    process.up = False
                continue
            if row.left:
                process.up = process.wanted = False
                if process.raft_id == self.leader:
                    self.elect()
                continue
            if process.wanted and (not process.announced or row.grades.target.grade is Grade.OFFLINE):
                process.announced = True
                self.put_row(process.raft_id, grades=set_target(row.grades, Grade.ONLINE), reason="")

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step by step, as long as there is something to do; or until something holds. No time passes."""
        for _ in range(MAX_STEPS):
            if until is not None and until():
                return
            try:
                self.behave()
            except NoMajority:
                self.elect()
            step = self.next_step()
            if step is None:
                assert until is None, f"it never came to pass; the last steps: {self.story[-5:]}"
                return
            self.carry_out(step)
        raise AssertionError(f"no end of steps: {self.story[-10:]}")

    def turn(self) -> None:
        """Everything that can begin now begins, as in the executor's turn; then all of it ends, in that order."""
        self.behave()
        while (step := self.next_step()) is not None:
            self.in_flight[step.key] = step
        while self.in_flight:
            self.carry_out(self.in_flight.pop(next(iter(self.in_flight))))

    def pass_time(self, ms: int) -> None:
        """Time passes, tick by tick, and what there is to do is done."""
        for _ in range(0, ms, TICK_MS):
            self.now_ms += TICK_MS
            if self.leader == 0:
                self.elect()
            self.run()

    def shuffle(self, steps: int, lose: float = 0.1) -> None:
        """Steps begin as planned and end in any order; now and then an end, or the leader, is lost."""
        for _ in range(steps):
            try:
                self.behave()
                while (step := self.next_step()) is not None and len(self.in_flight) < 20:
                    self.in_flight[step.key] = step
            except NoMajority:
                self.elect()
            if not self.in_flight:
                return
            key = self.random.choice(list(self.in_flight))
            step = self.in_flight.pop(key)
            luck = self.random.random()
            if luck < lose / 2:
                self._rest(step)
            elif luck < lose:
                self.half(step)
            else:
                self.carry_out(step)

    def half(self, step: Step) -> None:
        """The leader dies between a step's deed and its write."""
        self.story.append(f"(half) {step.why}")
        with suppress(NoMajority):
            self.deed(step)
        self.elect()

    # Ends

    def summary(self) -> object:
        """What counts in the end, without numbers that depend on the way."""
        rows = {
            raft_id: (row.instance_id, row.state.value, row.grades.current.grade.value, row.weight)
            for raft_id, row in sorted(self.view.instances.items())
        }
        requests = {number: request.state.value for number, request in sorted(self.view.requests.items())}
        return rows, requests, len(self.voters), sorted(self.voters | self.learners), self.view.transition

    def assert_settled(self) -> None:
        """Everybody who is up and wanted is Online, everybody else is down, and nothing is left to do."""
        assert self.leader, "nobody leads"
        assert self.view.transition is None
        for number, request in self.view.requests.items():
            assert request.state.final, f"request {number} has not ended: {request}"
        for raft_id, row in self.view.instances.items():
            expected = Grade.EXPELLED if row.left else Grade.ONLINE if self.up(raft_id) else Grade.OFFLINE
            assert row.grades.current.grade is expected, f"{row} should be {expected}; {self.story[-5:]}"
            assert (raft_id in self.voters | self.learners) == (not row.left), f"{raft_id} in {self.voters}"
            assert row.since_version <= self.view.fence, f"{row} is not fenced off"
        assert self.next_step() is None


def cluster(size: int, kind: type[World] = World, **fields: object) -> World:
    """A cluster of so many instances, i1 to iN, all Online."""
    world = kind(**fields)  # type: ignore[arg-type]
    world.run()
    for number in range(2, size + 1):
        world.join(f"i{number}")
    world.run()
    assert len(world.online()) == size, world.story
    assert all(request.state is RequestState.DONE for request in world.view.requests.values())
    world.story.clear()
    world.events.clear()
    return world
