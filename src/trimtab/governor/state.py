"""Everything the governor looks at: the replicated view, and what the leader alone knows at this moment.

The view is the same on every member. The rest is soft: it is lost with the leader, and a new leader gathers it anew.
So a rule may wait because of it, but nothing that was begun may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from trimtab.governor.steps import StepKey, StepKind
from trimtab.topology.lifecycle import open_requests
from trimtab.topology.records import INSTANCES, RequestRecord
from trimtab.topology.view import View


@dataclass(frozen=True)
class Patience:
    """How long the governor waits for things; from the settings."""

    offline_after_ms: int = 6_000
    join_deadline_ms: int = 120_000
    request_timeout_ms: int = 0  # of operators' requests without a deadline of their own; 0: none
    stall_after_ms: int = 30_000
    promote_lag_entries: int = 1_000


@dataclass(frozen=True)
class Heard:
    """What the leader knows of an instance from its heartbeats since it leads.

    Whatever the instance itself says counts as hearing from it, so also its `instance.update`: one that has just come
    must not be found silent before its first heartbeat.
    """

    age_ms: int  # since the last one arrived; since the leader took office where none did
    applied: int = 0
    version: int = 0
    uuid: str = ""
    stalled_ms: int = 0  # for how long `applied` has not moved although it was behind


@dataclass(frozen=True)
class ClusterState:
    """The input of `plan`. Times are the leader's own clock; `now_ms` is its wall clock, for what records say.

    `joint` is true from the moment a change of members is proposed until it is over. `resting` are steps that failed
    and are not to be tried yet; they take no slot, and what they are about may be tried in another step.
    """

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
    resting: frozenset[StepKey] = frozenset()
    holds: Callable[[int], str] = lambda _raft_id: ""  # the replicas of an instance, in words; empty: none

    @property
    def left_alone(self) -> frozenset[int]:
        """Instances that nothing is done for: their rows can't be read, so nobody knows what they are."""
        return self.view.unread(INSTANCES)

    @cached_property
    def open_requests(self) -> dict[int, RequestRecord]:
        """The requests that have not ended, by number."""
        return open_requests(self.view)

    @cached_property
    def members(self) -> frozenset[int]:
        """Everybody in the Raft configuration."""
        return self.voters | self.learners

    def busy(self, kind: StepKind) -> frozenset[int]:
        """The subjects of steps of this kind that are in flight."""
        return frozenset(subject for key in self.in_flight if key.kind is kind for subject in key.subjects)

    def silent_ms(self, raft_id: int) -> int:
        """For how long the instance has not been heard from; never longer than the leader has led."""
        heard = self.heard.get(raft_id)
        return self.in_office_ms if heard is None else heard.age_ms

    def alive(self, raft_id: int) -> bool:
        """Whether the instance has been heard from lately; the leader itself always."""
        heard = self.heard.get(raft_id)
        return raft_id == self.leader or (heard is not None and heard.age_ms < self.patience.offline_after_ms)
