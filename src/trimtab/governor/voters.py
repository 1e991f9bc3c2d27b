"""Who votes: 1 of 1, 2 of 2, 3 of 3 or 4, 5 of more, spread over the failure domains.

`choose_voters` is a pure function of what the members are fit for. What it gives back

- has the leader in it, and nobody who leaves;
- has as many as the table says of those that can vote: whoever is fit to, and whoever votes already;
- keeps those who vote now unless others share strictly fewer failure domains: an idle cluster changes nothing;
- keeps a voter that is down until somebody fit can take its place, but never so many that those who are up are no
  majority: of two voters one that goes down is demoted, so that the other can decide alone;
- leaves three or more voters as they are when only one of them is up. Otherwise a cluster that is shut down instance by
  instance would end with a single voter, and be lost with that one's disk.

The change is one step, joint where more than one vote changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trimtab.governor.leadership import LEAVING
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import ChangeMembers, StepKind
from trimtab.governor.wording import are, names
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind
from trimtab.topology.states import NodeState

MAX_VOTERS = 5
# Each swap shares strictly fewer domains, and there are at most keys x pairs of voters to share.
_MAX_SWAPS = 200


@dataclass(frozen=True)
class Seat:
    """What a member is good for. `fit`: it may get a vote. `down`: it should be Offline. `leaving`: it may not vote."""

    fit: bool = False
    down: bool = False
    leaving: bool = False
    domain: Mapping[str, str] = field(default_factory=dict)


def wanted_voters(candidates: int) -> int:
    """How many of so many should vote."""
    if candidates <= 2:
        return candidates
    return 3 if candidates < MAX_VOTERS else MAX_VOTERS


def choose_voters(seats: Mapping[int, Seat], voters: frozenset[int], leader: int) -> frozenset[int]:
    """Who should vote, given who does. The same again when asked again after the change."""
    down, up, pool = _candidates(seats, voters, leader)
    size = wanted_voters(len(pool) + len(down))
    if _too_few(down, pool):
        return voters
    chosen = set(_spread(seats, pool, up, min(size, len(pool)), leader))
    room = min(size - len(chosen), len(chosen) - 1)
    return frozenset(chosen.union(down[: max(room, 0)]))


def stuck(state: ClusterState, leaving: Iterable[int], leader: int) -> bool:
    """Whether the voters would stay as they are, though these leave: only one of three or more is up."""
    goners = frozenset(leaving)
    down, _, pool = _candidates(seats(state, goners, state.voters), state.voters, leader)
    if not _too_few(down, pool):
        return False
    down, _, pool = _candidates(seats(state, goners), state.voters, leader)
    return _too_few(down, pool)


def _candidates(
    seats: Mapping[int, Seat], voters: frozenset[int], leader: int
) -> tuple[list[int], frozenset[int], frozenset[int]]:
    """Of those who stay: the voters that are down, those that are up, and everybody up who may vote."""
    down = sorted(i for i in voters - {leader} if i in seats and seats[i].down and not seats[i].leaving)
    up = frozenset(i for i in voters if i in seats and i not in down and not seats[i].leaving) | {leader}
    fit = frozenset(i for i, seat in seats.items() if seat.fit and not seat.leaving and not seat.down)
    return down, up, up | fit


def _too_few(down: list[int], pool: frozenset[int]) -> bool:
    return len(pool) == 1 and wanted_voters(len(pool) + len(down)) > 2


def change_voters(state: ClusterState) -> ChangeMembers | None:
    """Rule: votes go where they should be."""
    if state.joint:
        return None
    view = state.view
    chosen = choose_voters(seats(state), state.voters, state.leader)
    promote, drop = chosen - state.voters, state.voters - chosen
    if not promote and not drop:
        return None
    if 2 * sum(state.alive(raft_id) for raft_id in chosen) <= len(chosen):
        # Nothing could be committed with it: better the voters there are. Detection will soon say who is down.
        return None
    parts = []
    if promote:
        parts.append(f"{names(view, promote)} {'gets' if len(promote) == 1 else 'get'} a vote")
    if drop:
        reasons = sorted({_why_dropped(state, raft_id) for raft_id in drop})
        parts.append(f"{names(view, drop)} {'votes' if len(drop) == 1 else 'vote'} no more ({', '.join(reasons)})")
    why = f"{'; '.join(parts)}: {names(view, chosen)} {are(chosen)} to decide"
    # Whoever has left already goes at once, instead of becoming a learner first.
    gone = frozenset(i for i in drop if (record := view.instances.get(i)) is not None and record.left)
    return ChangeMembers(
        StepKind.VOTERS,
        why,
        tuple(sorted(promote | drop)),
        promote=tuple(sorted(promote)),
        demote=tuple(sorted(drop - gone)),
        remove=tuple(sorted(gone)),
    )


def seats(state: ClusterState, leaving: Iterable[int] = (), among: frozenset[int] | None = None) -> dict[int, Seat]:
    """What each member (or each `among` them) is good for; `leaving` are to be treated as if they left."""
    goners = frozenset(leaving) | being_replaced(state)
    found = {}
    for raft_id in state.members if among is None else among:
        record = state.view.instances.get(raft_id)
        if record is None:
            continue
        heard = state.heard.get(raft_id)
        applied = state.commit if raft_id == state.leader else heard.applied if heard is not None else 0
        found[raft_id] = Seat(
            fit=record.grades.settled
            and record.grades.current.grade is Grade.ONLINE
            and state.alive(raft_id)
            and raft_id not in state.backing_off
            and state.commit - applied <= state.patience.promote_lag_entries,
            down=record.grades.target.grade is Grade.OFFLINE,
            leaving=raft_id in goners or record.state in LEAVING or record.grades.target.grade is Grade.EXPELLED,
            domain=record.failure_domain,
        )
    return found


def being_replaced(state: ClusterState) -> frozenset[int]:
    """The instances whose replacement is under way."""
    transition = state.view.transition
    if transition is None or transition.kind is not RequestKind.REPLACE:
        return frozenset()
    return frozenset(
        record.replaces
        for record in state.view.instances.values()
        if record.state is NodeState.REPLACING and record.replaces
    )


def _why_dropped(state: ClusterState, raft_id: int) -> str:
    record = state.view.instances.get(raft_id)
    if record is None:
        return "no record"
    if raft_id in being_replaced(state):
        return "is replaced"
    if record.state in LEAVING or record.grades.target.grade is Grade.EXPELLED:
        return "leaves the cluster"
    if record.grades.target.grade is Grade.OFFLINE:
        return "goes down" if record.grades.current.grade is not Grade.OFFLINE else "Offline"
    return "others share fewer failure domains"


def _spread(
    seats: Mapping[int, Seat], pool: frozenset[int], voters: frozenset[int], size: int, leader: int
) -> frozenset[int]:
    """`size` of the pool with the leader, sharing few domains: the voters, filled up, swapped while it helps."""
    domains = {i: _domain(seats.get(i)) for i in pool}
    chosen = set(pool & voters)
    while len(chosen) > size:
        chosen.remove(min(sorted(chosen - {leader}, reverse=True), key=lambda i: _shared(domains, chosen - {i})))
    while len(chosen) < size:
        chosen.add(min(sorted(pool - chosen), key=lambda i: _shared(domains, chosen | {i})))
    for _ in range(_MAX_SWAPS):
        swap = _best_swap(domains, chosen, pool, leader)
        if swap is None:
            break
        chosen = (chosen - {swap[0]}) | {swap[1]}
    return frozenset(chosen)


def _best_swap(
    domains: Mapping[int, Mapping[str, str]], chosen: set[int], pool: frozenset[int], leader: int
) -> tuple[int, int] | None:
    """Who goes and who comes, if that shares strictly fewer domains."""
    best, swap = _shared(domains, chosen), None
    for out in sorted(chosen - {leader}):
        rest = chosen - {out}
        shared = _shared(domains, rest)
        if shared >= best:
            continue
        counts = Counter(item for raft_id in rest for item in domains[raft_id].items())
        for into in sorted(pool - chosen):
            after = shared + sum(counts[item] for item in domains[into].items())
            if after < best:
                best, swap = after, (out, into)
    return swap


def _domain(seat: Seat | None) -> dict[str, str]:
    return {} if seat is None else {key.lower(): value.lower() for key, value in seat.domain.items()}


def _shared(domains: Mapping[int, Mapping[str, str]], chosen: Iterable[int]) -> int:
    """How often two of them have a failure domain in common."""
    counts: dict[tuple[str, str], int] = {}
    shared = 0
    for raft_id in chosen:
        for item in domains[raft_id].items():
            before = counts.get(item, 0)
            shared += before
            counts[item] = before + 1
    return shared
