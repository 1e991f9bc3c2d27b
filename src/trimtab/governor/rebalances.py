"""How the rebalance of each table goes, where nothing moves: triggers that are skipped, and what can't be done.

    idle ──▶ running ──▶ completed        a table's tablets move, and have moved: `moves` writes that
      │         └──────▶ failed           nothing moves, although something should: it says why, until that is mended
      └──▶ skipped is set                 balancing is off or outside its window: the trigger is kept for later

Records belong to the leader's term that wrote them. Nothing here begins or ends a move; so it may be written late, and
a new leader finds the same by planning anew.
"""

from __future__ import annotations

from msgspec.structs import replace

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import MAX_WRITE_BYTES, Commit, StepKind, Told, Write
from trimtab.tablets.transitions import Cause, RebalanceRecord, RebalanceState, encode, rebalance_key

MAX_TABLES = 100  # in one write
_MAX_REASON = 500


def note_rebalances(state: ClusterState) -> Commit | None:
    """Rule: what was skipped, what failed, and what is well again is written down, for many tables at once."""
    if not state.planned:
        return None
    still = state.rebalance.keeps_still(state.now_ms)
    wanted: dict[int, int] = {}  # for balance only: the newest trigger
    urgent: set[int] = set()
    for proposal in state.proposals:
        if proposal.cause is Cause.BALANCE:
            wanted[proposal.table] = max(proposal.trigger, wanted.get(proposal.table, 0))
        else:
            urgent.add(proposal.table)
    problems: dict[int, str] = {}
    for problem in state.problems:
        problems.setdefault(problem.table, problem.text[:_MAX_REASON])
    expect: dict[bytes, int] = {}
    puts: dict[bytes, bytes] = {}
    events: list[Told] = []
    size = 0
    for table in sorted({*wanted, *problems, *state.tables.rebalances} & state.tables.maps.keys()):
        if table in urgent or table in state.tables.transitions or rebalance_key(table) in state.tables.unreadable:
            continue
        before = state.tables.rebalances.get(table)
        after = _noted(state, before, wanted.get(table, 0), still, problems.get(table, ""))
        if after is None or after == before:
            continue
        key = rebalance_key(table)
        expect[key] = state.view.revisions.get(key, 0)
        puts[key] = encode(after)
        events += _told(state.tables.name_of(table), before, after)
        size += len(puts[key]) + sum(len(told.text) for told in events[-1:])
        if len(puts) == MAX_TABLES or size > MAX_WRITE_BYTES // 2:
            break
    if not puts:
        return None
    why = "; ".join(told.text for told in events[:3]) or "how tables are rebalanced is noted"
    return Commit(StepKind.REBALANCE, why, (0,), write=Write(expect, puts, events=tuple(events)))


def _noted(
    state: ClusterState, before: RebalanceRecord | None, wanted: int, still: str, problem: str
) -> RebalanceRecord | None:
    """A table's record from now on, where nothing of it moves or is about to, but for balance; None: there is none."""
    now = before or RebalanceRecord(RebalanceState.IDLE)
    if now.state is RebalanceState.RUNNING and (wanted or not problem):
        return before  # it goes on, or it has just ended
    if problem:
        if now.state is RebalanceState.FAILED and now.reason == problem:
            return before
        now = replace(now, term=state.term, state=RebalanceState.FAILED, reason=problem, ended_ms=state.now_ms)
    elif now.state is RebalanceState.FAILED and not wanted and not now.failed:
        # Whatever kept it is over.
        now = replace(now, term=state.term, state=RebalanceState.IDLE, reason="", ended_ms=state.now_ms)
    if wanted and still:
        if not now.skipped:
            reason = now.reason if now.state is RebalanceState.FAILED else still
            now = replace(now, term=state.term, skipped=wanted, reason=reason)
    elif now.skipped and not wanted:
        # Somebody or something else has made it even meanwhile.
        now = replace(now, term=state.term, skipped=0, reason=now.reason if now.state is RebalanceState.FAILED else "")
    return now if now is not before and (before is not None or now != RebalanceRecord(RebalanceState.IDLE)) else before


def _told(name: str, before: RebalanceRecord | None, after: RebalanceRecord) -> list[Told]:
    was = before or RebalanceRecord(RebalanceState.IDLE)
    if after.state is RebalanceState.FAILED and (was.state is not after.state or was.reason != after.reason):
        return [Told(f"tablets of {name} can't be where they should be: {after.reason}")]
    if was.state is RebalanceState.FAILED and after.state is not was.state:
        return [Told(f"nothing keeps tablets of {name} from where they should be any more")]
    if after.skipped and not was.skipped:
        return [Told(f"tablets of {name} should be balanced, but: {after.reason}")]
    return []
