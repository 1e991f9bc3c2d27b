"""A ledger with somebody who leads it: what the leader sees, and what some of its rules want next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.unit.loads.ledger import THREE, Ledger

from trimtab.governor.plan import Rule, applicable
from trimtab.governor.state import ClusterState, Heard
from trimtab.governor.steps import Step, StepKey

SILENT_MS = 100_000


class Governed(Ledger):
    """All instances vote. `leader` 0: none of them leads, so that each may fall silent."""

    rules: ClassVar[tuple[Rule, ...]]

    def __init__(
        self, replicas: Sequence[tuple[int, ...]] = THREE, *, instances: int = 4, dcs: dict[int, str] | None = None
    ) -> None:
        super().__init__(replicas, instances=instances, dcs=dcs)
        self.leader = 0
        self.term = 1
        self.in_office_ms = 600_000
        self.in_flight: dict[StepKey, Step] = {}
        self.resting: set[StepKey] = set()

    def state(self) -> ClusterState:
        return ClusterState(
            view=self.view,
            leader=self.leader,
            term=self.term,
            commit=self.revision,
            voters=frozenset(self.view.instances),
            learners=frozenset(),
            joint=False,
            genesis="genesis",
            cluster_id="test",
            now_ms=self.now_ms,
            in_office_ms=self.in_office_ms,
            heard={raft_id: Heard(SILENT_MS if raft_id in self.silent else 10) for raft_id in self.view.instances},
            in_flight=frozenset(self.in_flight),
            resting=frozenset(self.resting),
            tables=self.tables,
            loads=self.loads,
        )

    def next_step(self) -> Step | None:
        """What the first of its rules wants that may be done now."""
        state = self.state()
        steps = (rule(state) for rule in self.rules)
        return next((step for step in steps if step is not None and applicable(state, step)), None)
