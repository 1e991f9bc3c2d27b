"""How moves begin: which proposals may go now, and what takes the place of a move that has ended.

A proposal begins if

- it was computed on the stable set that there is, and not before the newest target of its tablet
- who arrives has its place in the cluster, is Online, is not to leave, and is on a host of its own
- enough replicas are up to copy from
- the limits allow it: so many tablets under way, so many bytes to and from each instance, also where several are read
  to be merged. One always may go. Moves for balance count against others for balance only: those may be paused, and
  nothing urgent waits for them
- balancing is not to keep still, and no operator has just undone what it wanted of the tablet; all else is not asked

Balancing never changes the target of a tablet that is under way: that one counts as arrived when moves are planned, and
would begin anew each time that somebody thinks of a better place. Everybody else may.

Where a set shrinks while others arrive, it goes there in two moves (`stages.at_once`): the old set and the newcomers
are pending, and the set that is wanted is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

import msgspec

from trimtab.governor.move_scenes import Decided, gone_for_good, known, readable, up_now
from trimtab.governor.move_writes import MoveDraft
from trimtab.governor.state import ClusterState
from trimtab.governor.wording import names
from trimtab.tablets import quorums
from trimtab.tablets.departures import going
from trimtab.tablets.domains import domain_of, is_online, may_hold
from trimtab.tablets.move_rules import goes_to
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.stages import Scene, at_once, copies_of, kind_of, malformed, nobody_else, widened
from trimtab.tablets.transitions import (
    ADJUSTABLE,
    Cause,
    Outcome,
    Proposal,
    TabletTransition,
    TransitionKind,
    next_proposal,
    propose,
    same,
)

MAX_LOOKED_AT = 10_000  # proposals of one turn
_URGENCY = {cause: place for place, cause in enumerate(Cause)}
_TOLD = {
    Outcome.PENDING: "the move begins",
    Outcome.ADJUSTED: "the move begins anew, to others",
    Outcome.UNDONE: "the move is undone",
    Outcome.PLANNED: "another move is planned",
    Outcome.UNPLANNED: "what was planned is given up",
}


class Beginnings:
    """Of one state: what is under way is counted once, and what begins with it."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._going = going(state.view)
        self._up = up_now(state)
        self._still = state.rebalance.keeps_still(state.now_ms)
        self._under_way = 0
        self._for_balance = 0  # of these
        self._bytes: dict[int, int] = {}  # to and from each instance
        self._taken: set[tuple[int, int]] = set()
        for table, under_way in state.tables.transitions.items():
            if table in state.tables.maps:
                for tablet, current in under_way.items():
                    self._under_way += 1
                    self._for_balance += current.cause is Cause.BALANCE
                    if current.stage in ADJUSTABLE and tablet < state.tables.maps[table].count:
                        self._count(tablet, state.tables.maps[table].replicas(tablet), current)

    @property
    def pointless(self) -> bool:
        """Whether nothing can begin, whatever it is: balancing keeps still, or enough is under way."""
        idle = bool(self._still) or self._is_full(Cause.BALANCE)
        return idle and all(each.cause is Cause.BALANCE for each in self._state.proposals)

    def in_order(self) -> Iterator[Proposal]:
        """The most urgent first; among those, as they were proposed."""
        looked_at = list(islice(self._state.proposals, MAX_LOOKED_AT))
        yield from sorted(looked_at, key=lambda proposal: _URGENCY[proposal.cause])

    def take(self, draft: MoveDraft, proposal: Proposal) -> None:
        """Into the write with it, if it may go."""
        state, place = self._state, (proposal.table, proposal.tablet)
        if self._passed_over(proposal):
            return
        stable, current = state.tables.maps[proposal.table].replicas(proposal.tablet), state.tables.transition(*place)
        if current is None and self._is_full(proposal.cause):
            return
        if not same(proposal.target, stable) and why_not(state, stable, proposal.target, self._up, self._going):
            return
        outcome, after = _proposed(state, stable, current, proposal, self._up)
        if after is None or outcome in (Outcome.STALE, Outcome.NOTHING):
            return
        begins = outcome in (Outcome.PENDING, Outcome.ADJUSTED)
        if begins and not self._has_room(proposal.tablet, stable, after):
            return
        if outcome is Outcome.UNDONE:
            # Nothing went wrong: it is not wanted any more.
            after = msgspec.structs.replace(after, error="")
        self._taken.add(place)
        if begins:
            self._count(proposal.tablet, stable, after)
            self._under_way += current is None
            self._for_balance += current is None and after.cause is Cause.BALANCE
        draft.change(*place, after, announced=begins or outcome is Outcome.UNDONE)
        if current is not None and current.session and outcome in (Outcome.ADJUSTED, Outcome.UNDONE):
            draft.close_session(current.session)
        draft.rebalance(proposal.table, trigger=proposal.trigger)
        about = {*after.pending, *stable} - {*after.pending}.intersection(stable)
        draft.tell(proposal.table, _TOLD[outcome], proposal.tablet, proposal.why, about)

    def _passed_over(self, proposal: Proposal) -> bool:
        """Whether there is nothing to be done about it, or not now."""
        state, place = self._state, (proposal.table, proposal.tablet)
        if place in self._taken or (proposal.cause is Cause.BALANCE and self._still):
            return True
        if place in state.moves.put_off and proposal.cause is not Cause.OPERATOR:
            return True
        if place in state.moves.spared and proposal.cause is Cause.BALANCE:
            return True
        if not known(state, proposal.table) or not readable(state, *place):
            return True
        tablets = state.tables.maps[proposal.table]
        if proposal.tablet >= tablets.count:
            return True
        stable, current = tablets.replicas(proposal.tablet), state.tables.transition(*place)
        if same(goes_to(stable, current), proposal.target):
            return True
        before = state.tables.rebalances.get(proposal.table)
        if current is None:
            # Computed before the newest target of the table was: somebody has thought about it again since.
            return before is not None and proposal.trigger < before.trigger
        return proposal.cause is Cause.BALANCE

    def _is_full(self, cause: Cause) -> bool:
        counted = self._under_way - (self._for_balance if cause is not Cause.BALANCE else 0)
        return counted >= self._state.rebalance.moving

    def _has_room(self, tablet: int, stable: Replicas, after: TabletTransition) -> bool:
        limit = self._state.rebalance.moving_bytes
        for raft_id, copies in self._busy_with(tablet, stable, after).items():
            used = self._bytes.get(raft_id, 0)
            if used and used + copies * after.size_bytes > limit:
                return False
        return True

    def _count(self, tablet: int, stable: Replicas, current: TabletTransition) -> None:
        for raft_id, copies in self._busy_with(tablet, stable, current).items():
            self._bytes[raft_id] = self._bytes.get(raft_id, 0) + copies * max(current.size_bytes, 1)

    def _busy_with(self, tablet: int, stable: Replicas, current: TabletTransition) -> Counter[int]:
        """Whose bytes count, and how often: those who get a copy, and those it is made of."""
        gone = gone_for_good(self._state, stable)
        scene = Scene(tablet, stable, current, self._state.dc_of, up=self._up, gone=gone)
        if malformed(scene):
            return Counter()
        return Counter(raft_id for target, sources in copies_of(scene) for raft_id in (target, *sources))


def why_not(
    state: ClusterState,
    stable: Replicas,
    target: Replicas,
    up: frozenset[int],
    leaving: Collection[int],
    *,
    forced: bool = False,
) -> str:
    """What keeps a tablet from being given these replicas now; empty: nothing. `forced`: two may share a host."""
    view = state.view
    if not target:
        return "nobody would have it any more"
    arriving = [raft_id for raft_id in target if raft_id not in stable]
    for raft_id in arriving:
        record = view.instances.get(raft_id)
        who = names(view, [raft_id])
        if record is None or raft_id in state.left_alone:
            return f"nothing is known of {who}"
        if not may_hold(record) or raft_id in leaving:
            return f"{who} gets no replicas: it comes or goes"
        if not is_online(record) or not state.alive(raft_id):
            return f"{who} is not Online"
        if forced:
            continue
        host = domain_of(record).host
        sharing = [other for other in target if other != raft_id and _host(state, other) == host]
        if sharing:
            return f"{who} and {names(view, sharing)} are on the same host"
    return _lacks(state, stable, target, up)


def _lacks(state: ClusterState, stable: Replicas, target: Replicas, up: frozenset[int]) -> str:
    """Why nothing could be copied."""
    kind = kind_of(stable, target, state.dc_of, lost=set(stable) - up)
    if kind is TransitionKind.MIGRATION:
        return ""
    intact = kind is TransitionKind.REPAIR
    gone = gone_for_good(state, stable)
    if nobody_else(stable, target, gone):
        return ""
    gone = frozenset() if intact else gone
    for raft_id in target:
        if intact and raft_id not in up:
            return f"{names(state.view, [raft_id])} can't be repaired now"
        if not intact and raft_id in stable:
            continue
        if why := quorums.missing(raft_id, stable, up, state.dc_of, intact=intact, gone=gone):
            return f"a replica for {names(state.view, [raft_id])} {why.replace('compared', 'ready')}"
    return ""


def _host(state: ClusterState, raft_id: int) -> str:
    record = state.view.instances.get(raft_id)
    return domain_of(record).host if record is not None else ""


def _proposed(
    state: ClusterState, stable: Replicas, current: TabletTransition | None, proposal: Proposal, up: frozenset[int]
) -> tuple[Outcome, TabletTransition | None]:
    """As `transitions.propose`; in two moves where one is not safe."""
    wanted = proposal
    in_two = not at_once(stable, proposal.target, state.dc_of)
    if in_two:
        wanted = proposal._replace(target=widened(stable, proposal.target))
        ends_anyway = current is not None and (current.locked or current.stage not in ADJUSTABLE)
        if ends_anyway:
            # It follows when that has ended; then it is looked at again.
            wanted = proposal
            in_two = False
    session = f"move-{proposal.table}-{proposal.tablet}-{state.term:x}-{state.view.version:x}"
    kind = kind_of(stable, wanted.target, state.dc_of, lost=set(stable) - up)
    outcome, after = propose(stable, current, wanted, session=session, kind=kind, now_ms=state.now_ms)
    if in_two and after is not None and outcome in (Outcome.PENDING, Outcome.ADJUSTED, Outcome.UNPLANNED):
        after = msgspec.structs.replace(
            after, planned=proposal.target, planned_why=proposal.why, planned_cause=proposal.cause
        )
        outcome = Outcome.PLANNED if outcome is Outcome.UNPLANNED else outcome
    return outcome, after


def next_of(state: ClusterState, ended: Decided, stable: Replicas) -> tuple[TabletTransition | None, str]:
    """What begins in the write that ends a move: what was planned meanwhile; or why that can't be any more.

    What an operator planned was found to be in order when it was asked for, or forced.
    """
    proposal = next_proposal(ended.table, ended.tablet, ended.current)
    if proposal is None or same(proposal.target, stable):
        return None, ""
    leaving = going(state.view)
    gone = [raft_id for raft_id in stable if raft_id not in proposal.target]
    if proposal.cause is Cause.DRAIN and not any(raft_id in leaving or _left(state, raft_id) for raft_id in gone):
        return None, f"{names(state.view, gone)} is to stay after all" if gone else ""
    up = up_now(state)
    if why := why_not(state, stable, proposal.target, up, leaving, forced=proposal.cause is Cause.OPERATOR):
        return None, why
    proposal = proposal._replace(size_bytes=ended.current.size_bytes)
    _, after = _proposed(state, stable, None, proposal, up)
    return after, ""


def _left(state: ClusterState, raft_id: int) -> bool:
    record = state.view.instances.get(raft_id)
    return record is None or record.left
