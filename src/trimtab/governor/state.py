"""Everything the governor looks at: the replicated view, and what the leader alone knows at this moment.

The view is the same on every member. The rest is soft: it is lost with the leader, and a new leader gathers it anew.
So a rule may wait because of it, but nothing that was begun may depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trimtab.governor.steps import StepKey
from trimtab.topology.view import View


@dataclass(frozen=True)
class Patience:
    """How long the governor waits for things; from the settings."""

    offline_after_ms: int = 6_000
    join_deadline_ms: int = 120_000
    request_timeout_ms: int = 0  # of operators' requests without a deadline of their own; 0: none


@dataclass(frozen=True)
class Heard:
    """What the leader knows of an instance from its heartbeats since it leads."""

    age_ms: int  # since the last one arrived; since the leader took office where none did
    applied: int = 0
    version: int = 0
    uuid: str = ""


@dataclass(frozen=True)
class ClusterState:
    """The input of `plan`. Times are the leader's own clock; `now_ms` is its wall clock, for records only."""

    view: View
    leader: int
    term: int
    commit: int
    voters: frozenset[int]
    learners: frozenset[int]
    joint: bool  # a change of members is under way
    genesis: str
    cluster_id: str
    now_ms: int
    in_office_ms: int  # how long this leader has led
    heard: dict[int, Heard] = field(default_factory=dict)
    in_flight: frozenset[StepKey] = frozenset()
    backing_off: frozenset[int] = frozenset()  # raft ids whose last call failed, not to be called yet
    patience: Patience = Patience()

    def alive(self, raft_id: int) -> bool:
        """Whether the instance has been heard from lately; the leader itself always."""
        heard = self.heard.get(raft_id)
        return raft_id == self.leader or (heard is not None and heard.age_ms < self.patience.offline_after_ms)
