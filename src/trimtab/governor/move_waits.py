"""What tablets under way wait for, and what keeps others from beginning, in sentences for operators.

Many tablets mostly wait for the same thing: each reason is told once, with how many it holds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trimtab.governor.move_begins import why_not
from trimtab.governor.move_scenes import COPIES, Decided, decided, known, readable, up_now
from trimtab.governor.state import ClusterState
from trimtab.governor.wording import are, listed, name, names
from trimtab.tablets.departures import going
from trimtab.tablets.stages import Ask, Wait, Work
from trimtab.tablets.transitions import Cause
from trimtab.topology.records import TRANSITIONS

MAX_REASONS = 20
_MAX_PROPOSALS = 1_000
_UNDONE = "its last move was undone"
_DOES = {Work.PREPARE: "make room for it", Work.ADOPT: "take its copy over", Work.CLEAN: "drop what it has of it"}


def waiting_moves(state: ClusterState) -> Iterator[str]:
    """Why tablets under way don't go on, and why others don't begin; also that they are being copied."""
    yield from _waiting(state, decided(state))


def kept_moves(state: ClusterState) -> Iterator[str]:
    """Of these all but what is as it should be: a job copies."""
    yield from _waiting(state, (each for each in decided(state) if not _is_copied(each)))


def _waiting(state: ClusterState, under_way: Iterable[Decided]) -> Iterator[str]:
    for key, why in sorted(state.tables.unreadable.items()):
        if key.startswith(TRANSITIONS):
            yield f"a tablet under way waits for a leader of a newer release: {key.decode()} can't be read ({why})"
            break
    reasons: dict[tuple[int, str], list[int]] = {}
    for each in under_way:
        if why := _waits_for(state, each):
            reasons.setdefault((each.table, why), []).append(each.tablet)
    yield from _told(state, reasons)
    yield from _told(state, _not_begun(state))


def failing_moves(state: ClusterState) -> Iterator[str]:
    """Of these only what went wrong: somebody can't do its part, or could not, and it is tried again later."""
    reasons: dict[tuple[int, str], list[int]] = {}
    for each in decided(state):
        if state.moves.troubles.get(each.attempt) and (why := _waits_for(state, each)):
            reasons.setdefault((each.table, why), []).append(each.tablet)
    yield from _told(state, reasons)
    undone = {place: why for place, why in _not_begun(state).items() if _UNDONE in place[1]}
    yield from _told(state, undone)


def _is_copied(each: Decided) -> bool:
    return isinstance(each.decision, Wait) and each.decision.why.endswith(COPIES)


def _waits_for(state: ClusterState, each: Decided) -> str:
    match each.decision:
        case Wait(why=why):
            return f"{each.current.stage.value}: {why}"
        case Ask(work=work, of=of):
            stage = each.current.stage.value
            if troubles := state.moves.troubles.get(each.attempt):
                return f"{stage}: {name(state.view, troubles[0].raft_id)} can't {_DOES[work]}: {troubles[0].text}"
            if silent := [raft_id for raft_id in of if not state.alive(raft_id)]:
                return f"{stage}: {names(state.view, silent)} {are(silent)} silent"
    return ""


def _not_begun(state: ClusterState) -> dict[tuple[int, str], list[int]]:
    reasons: dict[tuple[int, str], list[int]] = {}
    if not state.proposals:
        return reasons
    up, leaving = up_now(state), going(state.view)
    for proposal in state.proposals[:_MAX_PROPOSALS]:
        table, tablet = proposal.table, proposal.tablet
        if not known(state, table) or not readable(state, table, tablet) or tablet >= state.tables.maps[table].count:
            continue
        if state.tables.transition(table, tablet) is not None:
            continue
        why = why_not(state, state.tables.maps[table].replicas(tablet), proposal.target, up, leaving)
        if not why and (table, tablet) in state.moves.put_off:
            before = state.tables.rebalances.get(table)
            because = f" ({before.reason})" if before is not None and before.reason else ""
            why = f"{_UNDONE}{because}, and it is tried again in a while"
        if not why and (table, tablet) in state.moves.spared and proposal.cause is Cause.BALANCE:
            why = "an operator undid its move, and balancing leaves it alone for a while"
        if why:
            reasons.setdefault((table, f"can't move yet: {why}"), []).append(tablet)
    return reasons


def _told(state: ClusterState, reasons: dict[tuple[int, str], list[int]]) -> Iterator[str]:
    for (table, why), tablets in list(reasons.items())[:MAX_REASONS]:
        which = listed([str(tablet) for tablet in tablets])
        yield f"tablet{'s' if len(tablets) > 1 else ''} {which} of {state.tables.name_of(table)}: {why}"
    if len(reasons) > MAX_REASONS:
        yield f"{len(reasons) - MAX_REASONS} more reasons why tablets wait"
