"""The governor's policy, from top to bottom: `plan(state)` gives the next thing the leader should do.

The first applicable rule wins, and rules are listed in order of urgency. Waiting is not a step: what is in flight or
rests is not applicable, neither is a kind of step that has no free slot; the rules below get their turn then. So a
stuck request or a flapping instance never starves the rest.

Every step is idempotent, and its write is conditional on the records it was decided on. So a leader may die anywhere in
a step, and the next one goes on from what is written.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.governor.answers import answer
from trimtab.governor.climbing import go_online, replicate, shard, sync
from trimtab.governor.detection import find_silent
from trimtab.governor.down import fence_off, mark_down
from trimtab.governor.drains import begin_drains
from trimtab.governor.endings import end_early, give_up, prune
from trimtab.governor.jobs import admit_jobs, find_driver_gone, prune_jobs, release_jobs, undo_jobs
from trimtab.governor.joins import admit
from trimtab.governor.leadership import hand_over
from trimtab.governor.learners import change_learners
from trimtab.governor.loads import end_loads, publish_loads, tidy_loads
from trimtab.governor.moves import advance_moves, ask_moves, begin_moves, cross_moves
from trimtab.governor.rebalances import note_rebalances
from trimtab.governor.rebuilds import begin_rebuilds, end_rebuilds, go_on_rebuilding, next_global
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import SLOTS, Step
from trimtab.governor.transitions import begin, go_on
from trimtab.governor.voters import change_voters

Rule = Callable[[ClusterState], Step | None]

RULES: tuple[Rule, ...] = (
    hand_over,
    # Voters and learners
    change_voters,
    change_learners,
    # Instances that go down
    find_silent,
    mark_down,
    fence_off,
    # Requests
    end_early,
    go_on,
    admit,
    begin,
    begin_drains,
    end_rebuilds,
    go_on_rebuilding,
    begin_rebuilds,
    give_up,
    next_global,
    answer,
    # Grades upward
    sync,
    replicate,
    shard,
    go_online,
    # Tablet transitions
    ask_moves,
    advance_moves,
    cross_moves,
    # Balancing
    begin_moves,
    # Loads
    publish_loads,
    end_loads,
    # Jobs
    find_driver_gone,
    release_jobs,
    admit_jobs,
    undo_jobs,
    # Tablets
    note_rebalances,
    # Tidying up
    prune,
    prune_jobs,
    tidy_loads,
)


def plan(state: ClusterState) -> Step | None:
    """The next step, or None while there is nothing to begin."""
    for rule in RULES:
        step = rule(state)
        if step is not None and applicable(state, step):
            return step
    return None


def applicable(state: ClusterState, step: Step) -> bool:
    """Whether the step may begin now: it does not rest, a slot is free, and nothing it is about is under way."""
    taken = sum(key.kind is step.kind for key in state.in_flight)
    rests = step.key in state.resting
    return not rests and taken < SLOTS[step.kind] and not state.busy(step.kind).intersection(step.subjects)
