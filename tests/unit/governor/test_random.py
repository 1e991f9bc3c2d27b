"""Anything may happen in any order: the invariants hold after every write, and when it is over the cluster settles."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.governor.driver import World, cluster

from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind
from trimtab.topology.states import NodeState

MAX_INSTANCES = 9
NAMES = st.integers(0, 30)


class AnyCluster(RuleBasedStateMachine):
    world: World

    @initialize(size=st.integers(1, 5), seed=st.integers(0, 1_000))
    def form(self, size: int, seed: int) -> None:
        self.world = cluster(size, seed=seed)
        self.started = size

    def pick(self, number: int, *, up: bool) -> str | None:
        """A member that is up, or down."""
        rows = self.world.view.members().items()
        able = [row.instance_id for raft_id, row in rows if self.world.up(raft_id) == up]
        return able[number % len(able)] if able else None

    def leads(self) -> bool:
        return self.world.leader != 0

    @precondition(lambda self: self.leads() and len(self.world.view.members()) < MAX_INSTANCES)
    @rule(rack=st.sampled_from(["a", "b", "c"]))
    def join(self, rack: str) -> None:
        self.started += 1
        self.world.join(f"i{self.started}", domain={"host": f"h{self.started}", "rack": rack})

    @precondition(leads)
    @rule(number=NAMES)
    def replace(self, number: int) -> None:
        name = self.pick(number, up=False)
        if name is not None and len(self.world.view.members()) < MAX_INSTANCES:
            self.started += 1
            self.world.join(f"i{self.started}", replaces=name)

    @rule(number=NAMES)
    def kill(self, number: int) -> None:
        name = self.pick(number, up=True)
        if name is not None:
            self.world.kill(name)

    @rule(number=NAMES)
    def start(self, number: int) -> None:
        name = self.pick(number, up=False)
        if name is not None and not self.world.row(name).left:
            self.world.start(name)

    @precondition(leads)
    @rule(number=NAMES)
    def stop(self, number: int) -> None:
        name = self.pick(number, up=True)
        if name is not None and self.world.row(name).grades.target.grade is Grade.ONLINE:
            self.world.stop(name)

    @precondition(leads)
    @rule(number=NAMES)
    def flap(self, number: int) -> None:
        name = self.pick(number, up=True)
        if name is not None and self.world.process(name).wanted:
            self.world.restart(name)

    @precondition(leads)
    @rule(number=NAMES, up=st.booleans())
    def expel(self, number: int, up: bool) -> None:
        name = self.pick(number, up=up)
        if name is None or self.world.row(name).state is not NodeState.NORMAL:
            return
        self.world.ask(RequestKind.LEAVE if up else RequestKind.REMOVE, name)

    @precondition(leads)
    @rule(number=NAMES)
    def rebuild(self, number: int) -> None:
        name = self.pick(number, up=True)
        if name is not None and self.world.row(name).state is NodeState.NORMAL:
            self.world.ask(RequestKind.REBUILD, name)

    @precondition(leads)
    @rule(number=NAMES)
    def cancel(self, number: int) -> None:
        pending = [n for n, r in self.world.view.requests.items() if not r.state.final]
        if pending:
            self.world.cancel(pending[number % len(pending)])

    @rule(steps=st.integers(1, 15), lose=st.sampled_from([0.0, 0.1, 0.4]))
    def go_on(self, steps: int, lose: float) -> None:
        self.world.shuffle(steps, lose)

    @rule(ms=st.sampled_from([500, 2_000, 7_000]))
    def wait(self, ms: int) -> None:
        self.world.in_flight.clear()
        self.world.pass_time(ms)

    @rule()
    def lose_the_leader(self) -> None:
        self.world.elect()

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        # Everything that can come back does, and nobody disturbs it any more.
        for process in world.processes.values():
            if not process.raft_id or (row := world.view.instances.get(process.raft_id)) is None or row.left:
                process.up = False
            elif row.uuid == process.uuid:
                process.up = process.wanted = True
                process.announced = False
        world.in_flight.clear()
        world.elect()
        assert world.leader, "with everybody up there is a majority"
        world.pass_time(130_000)
        world.assert_settled()
        ids = list(world.view.instances)
        assert ids == sorted(set(ids))


TestAnyCluster = AnyCluster.TestCase
TestAnyCluster.settings = settings(
    max_examples=int(os.environ.get("TRIMTAB_GOVERNOR_EXAMPLES", "40")), stateful_step_count=30, deadline=None
)
