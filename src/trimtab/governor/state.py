"""Everything the governor looks at: the replicated view, and what the leader alone knows at this moment.

The view is the same on every member. The rest is soft: it is lost with the leader, and a new leader gathers it anew.
So a rule may wait because of it, but nothing that was begun may depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trimtab.governor.steps import StepKey, StepKind
from trimtab.jobs.view import JobView
from trimtab.loads.situation import Situation
from trimtab.loads.view import LoadView
from trimtab.tablets.departures import Problem, lost
from trimtab.tablets.domains import domain_of
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.transitions import Proposal
from trimtab.tablets.view import TableView
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


Attempt = tuple[int, int, str]  # table, tablet, session: one attempt at giving a tablet other replicas


@dataclass(frozen=True)
class Trouble:
    """Why an instance has not done its part in a move, the last time it was asked. `job`: which made the copy.

    `times`: how often in a row it could not, of what it was asked for.
    """

    raft_id: int
    code: str
    text: str
    job: int = 0
    times: int = 1


@dataclass(frozen=True)
class MoveFacts:
    """What instances have told this leader of tablets that move; a new leader asks again.

    `resting`: (attempt, raft id) that are not to be asked yet. `put_off`: tablets whose last move was undone, of which
    no other is begun yet. `spared`: those whose move an operator undid, which balancing leaves alone. `serial` grows
    with everything that is heard. `memory` is for what follows from a state and need not be found out again while
    nothing has changed.
    """

    prepared: Mapping[Attempt, frozenset[int]] = field(default_factory=dict)
    adopted: Mapping[Attempt, frozenset[int]] = field(default_factory=dict)
    cleaned: Mapping[Attempt, frozenset[int]] = field(default_factory=dict)
    troubles: Mapping[Attempt, tuple[Trouble, ...]] = field(default_factory=dict)
    resting: frozenset[tuple[Attempt, int]] = frozenset()
    put_off: frozenset[tuple[int, int]] = frozenset()
    spared: frozenset[tuple[int, int]] = frozenset()
    serial: int = 0
    memory: dict[object, Any] = field(default_factory=dict)


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
    jobs: JobView = field(default_factory=JobView)
    driver_silent_ms: int = 0  # since the driver of jobs was heard; never longer than the leader has led
    tables: TableView = field(default_factory=TableView)
    loads: LoadView = field(default_factory=LoadView)
    # How long ago whoever drives a load was last heard from, by (table, id); never longer than this leader knows of it.
    renewed_ms: Mapping[tuple[int, str], int] = field(default_factory=dict)
    rebalance: RebalanceSettings = field(default_factory=RebalanceSettings)
    # What the planner wants for tablets, the most urgent first, and what keeps it from wanting more. `planned`: it has
    # looked at everything that is written, so what it does not want need not be.
    proposals: tuple[Proposal, ...] = ()
    problems: tuple[Problem, ...] = ()
    planned: bool = True
    moves: MoveFacts = field(default_factory=MoveFacts)
    revision: int = 0  # of the metastore that the views show; 0: it is not known

    @property
    def left_alone(self) -> frozenset[int]:
        """Instances that nothing is done for: their rows can't be read, so nobody knows what they are."""
        return self.view.unread(INSTANCES)

    @cached_property
    def open_requests(self) -> dict[int, RequestRecord]:
        """The requests that have not ended, by number."""
        return open_requests(self.view)

    @cached_property
    def lost(self) -> frozenset[int]:
        """Those whose replicas are made anew elsewhere, because nobody waits for them any more."""
        after_ms = self.rebalance.heal_after_ms
        return lost(self.view, self.now_ms, after_ms, in_office_ms=self.in_office_ms, alive=self.alive)

    @cached_property
    def dc_of(self) -> dict[int, str]:
        """The data centre of everybody, also of those that left."""
        return {raft_id: domain_of(record).dc for raft_id, record in self.view.instances.items()}

    @cached_property
    def members(self) -> frozenset[int]:
        """Everybody in the Raft configuration."""
        return self.voters | self.learners

    @property
    def load_situation(self) -> Situation:
        """What decisions about loads look at."""
        return Situation(self.view, self.tables, self.loads, self.now_ms, self.alive)

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
