"""The pump: all tablets under way, stage by stage, with one write and one barrier for as many as are ready for it.

    ask_moves       instances do their part: they prepare a replica, adopt a copy, clean up what is left
    advance_moves   stages that need no barrier, moves that have to be undone, copies that have to be made again; and
                    what is left of moves goes: records of dropped tables, sessions and jobs that nobody waits for
    cross_moves     one barrier at the version of now. What is written after it is decided then (`crossed`): every
                    tablet whose stage was announced up to that version, as it is by then
    begin_moves     what the planner proposes becomes pending, or planned; within the limits

What instances have done is known to the leader alone, and asked for again by the next one. Everything else is in the
records, and every write is bound to those it was decided on. So a leader may die anywhere.
"""

from __future__ import annotations

import msgspec

from trimtab.governor.crossing import barrier_nodes
from trimtab.governor.move_begins import Beginnings, next_of
from trimtab.governor.move_scenes import Decided, decided, known
from trimtab.governor.move_writes import MOVES_OF_JOB, MoveDraft
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import AskMoves, CommitMoves, CrossMoves, StepKey, StepKind
from trimtab.governor.wording import listed, name
from trimtab.jobs import rules as job_rules
from trimtab.jobs.protocol import SteerJob
from trimtab.jobs.records import JobKind
from trimtab.loads.records import SessionKind
from trimtab.tablets import move_protocol
from trimtab.tablets.move_protocol import MAX_PLACES, MovingTablet
from trimtab.tablets.selectors import Stage
from trimtab.tablets.stages import Advance, Ask, Copy, Finish, Work, copies_of
from trimtab.tablets.transitions import Cause, RebalanceState, rebalance_key, same, transition_key

MOVE_SESSION = "move-"  # with which the names of the pump's sessions begin
_ASKS = {
    Work.PREPARE: (StepKind.MOVE_PREPARE, move_protocol.PREPARE),
    Work.ADOPT: (StepKind.MOVE_ADOPT, move_protocol.ADOPT),
    Work.CLEAN: (StepKind.MOVE_CLEAN, move_protocol.CLEAN),
}
_DOES = {Work.PREPARE: "makes replicas ready", Work.ADOPT: "adopts copies", Work.CLEAN: "drops replicas"}
_MAX_TIDIED = 100


# Asking


def ask_moves(state: ClusterState) -> AskMoves | None:
    """Rule: whoever has a part in a move is asked to do it; one call to an instance, for all of its tablets."""
    wanted: dict[tuple[Work, int], list[Decided]] = {}
    for each in decided(state):
        if isinstance(each.decision, Ask):
            for raft_id in each.decision.of:
                if (each.attempt, raft_id) not in state.moves.resting:
                    wanted.setdefault((each.decision.work, raft_id), []).append(each)
    for (work, raft_id), tablets in sorted(wanted.items(), key=lambda item: (list(Work).index(item[0][0]), item[0][1])):
        kind, method = _ASKS[work]
        if raft_id in state.busy(kind) or StepKey(kind, (raft_id,)) in state.resting:
            continue
        if raft_id in state.backing_off or not state.alive(raft_id):
            continue
        asked = tablets[:MAX_PLACES]
        why = f"{name(state.view, raft_id)} {_DOES[work]} of {_places(state, asked)}"
        return AskMoves(
            kind,
            why,
            (raft_id,),
            method=method,
            tablets=tuple(MovingTablet(*each.attempt) for each in asked),
            jobs=tuple(each.current.job for each in asked),
            index=state.commit,
        )
    return None


# Advancing


def advance_moves(state: ClusterState) -> CommitMoves | None:
    """Rule: one write for everything that needs no barrier."""
    if state.busy(StepKind.MOVE):
        return None
    draft = MoveDraft(state)
    for each in decided(state):
        if draft.full:
            break
        match each.decision:
            case Advance(barrier=False):
                _advance(draft, each, each.decision)
            case Copy():
                _copy_again(draft, each, each.decision)
            case _:
                _note_trouble(state, draft, each)
    _tidy(state, draft)
    return draft.commit(StepKind.MOVE)


def cross_moves(state: ClusterState) -> CrossMoves | None:
    """Rule: one barrier for all that wait for one."""
    waiting = [each for each in decided(state) if _crosses(each)]
    if not waiting or state.busy(StepKind.MOVE_CROSS):
        return None
    why = f"a barrier at version {state.view.version}, for {_places(state, waiting)}"
    nodes = barrier_nodes(state.view)
    return CrossMoves(StepKind.MOVE_CROSS, why, (0,), version=state.view.version, nodes=nodes)


def crossed(state: ClusterState, version: int) -> CommitMoves | None:
    """What is written after a barrier at this version; None: nobody has waited for it after all."""
    draft = MoveDraft(state)
    for each in decided(state):
        if draft.full:
            break
        # A stage that was announced later has not been seen by everybody.
        if each.current.version > version:
            continue
        match each.decision:
            case Advance(barrier=True):
                _advance(draft, each, each.decision)
            case Finish(applied=applied):
                _finish(state, draft, each, applied=applied)
    return draft.commit(StepKind.MOVE_CROSS, crossed=version)


def begin_moves(state: ClusterState) -> CommitMoves | None:
    """Rule: what the planner proposes begins, as far as the limits go."""
    if not state.proposals or state.busy(StepKind.MOVE_BEGIN):
        return None
    draft = MoveDraft(state)
    beginnings = Beginnings(state)
    if beginnings.pointless:
        return None
    for proposal in beginnings.in_order():
        if draft.full:
            break
        beginnings.take(draft, proposal)
    return draft.commit(StepKind.MOVE_BEGIN)


def _crosses(each: Decided) -> bool:
    return isinstance(each.decision, Finish) or (isinstance(each.decision, Advance) and each.decision.barrier)


def _advance(draft: MoveDraft, each: Decided, decision: Advance) -> None:
    table, tablet, stable, current = each[:4]
    to, why = decision.to, decision.why
    # Why it goes back is kept to the end; what went wrong on the way forward is over with its stage.
    going_back = to is Stage.REVERT_MIGRATION or (to is Stage.CLEANUP_TARGET and current.locked)
    error = why if decision.failure else current.error if going_back else ""
    now = msgspec.structs.replace(current, stage=to, error=error)
    about = {*current.arriving(stable), *current.leaving(stable)}
    match to:
        case Stage.WRITE_BOTH_READ_OLD if current.stage is Stage.ALLOW_WRITE_BOTH_READ_OLD:
            draft.open_session(current.session, table, f"tablet {tablet} moves: {current.why}"[:200])
            # Nobody writes to them any more, so they may go.
            now = msgspec.structs.replace(now, leftovers=())
        case Stage.STREAMING:
            draft.copy(table, tablet, current, copies_of(each.scene))
        case Stage.WRITE_BOTH_READ_NEW:
            draft.close_session(current.session)
            pending = tuple(raft_id for raft_id in current.pending if raft_id not in decision.without)
            now = msgspec.structs.replace(now, locked=True, pending=pending)
        case Stage.CLEANUP_TARGET:
            draft.close_session(current.session)
            now = msgspec.structs.replace(now, job=0)
    draft.change(table, tablet, now)
    if decision.without:
        draft.tell(table, "it goes on with those who have a copy; the others are lost", tablet, about=decision.without)
    if to is Stage.CLEANUP_TARGET:
        draft.tell(table, "the move is undone", tablet, why, about)
    elif why:
        draft.tell(table, f"back to {to.value}", tablet, why, about)
    else:
        draft.tell(table, to.value, tablet)


def _copy_again(draft: MoveDraft, each: Decided, decision: Copy) -> None:
    table, tablet, current = each.table, each.tablet, each.current
    draft.change(table, tablet, msgspec.structs.replace(current, error=decision.why), announced=False)
    draft.copy(table, tablet, current, decision.copies)
    draft.tell(table, "another job is to copy it", tablet, decision.why)


def _note_trouble(state: ClusterState, draft: MoveDraft, each: Decided) -> None:
    """Why an instance does not do its part is in the record, so that it can be seen anywhere; the first time only."""
    troubles = state.moves.troubles.get(each.attempt, ())
    if not isinstance(each.decision, Ask) or not troubles or each.current.error:
        return
    text = f"{name(state.view, troubles[0].raft_id)}: {troubles[0].text}"[:300]
    draft.change(each.table, each.tablet, msgspec.structs.replace(each.current, error=text), announced=False)
    draft.tell(each.table, "it is tried again", each.tablet, text, (troubles[0].raft_id,))


def _finish(state: ClusterState, draft: MoveDraft, each: Decided, *, applied: bool) -> None:
    table, tablet, stable, current = each[:4]
    arriving = current.arriving(stable)
    about = {*arriving, *current.leaving(stable)}
    if applied:
        draft.place(table, tablet, current.pending)
        moved_bytes = current.size_bytes * len(arriving)
        draft.rebalance(table, trigger=current.trigger, moves=1, moved_bytes=moved_bytes)
        draft.tell(table, "the move is done", tablet, current.why, about)
    else:
        draft.rebalance(table, trigger=current.trigger, failed=bool(current.error), reason=current.error)
        draft.tell(table, "all is as it was", tablet, current.error or current.why, about)
    after, why_not = next_of(state, each, current.pending if applied else stable)
    if why_not:
        draft.tell(table, "what was planned is given up", tablet, f"{current.planned_why}; {why_not}")
    draft.end(table, tablet, after)


# Tidying up


def _tidy(state: ClusterState, draft: MoveDraft) -> None:
    _forget_dropped(state, draft)
    _close_orphans(state, draft)
    _cancel_jobs(state, draft)
    _end_rebalances(state, draft)


def _forget_dropped(state: ClusterState, draft: MoveDraft) -> None:
    """Records of tables that are gone for certain: this member knows the newest schema."""
    tables = state.tables
    if tables.waits_for:
        return
    for table, under_way in sorted(tables.transitions.items()):
        if table in tables.catalog.tables or table in tables.maps:
            continue
        for tablet, current in sorted(under_way.items()):
            if draft.full:
                return
            if transition_key(table, tablet) not in tables.unreadable:
                draft.forget(transition_key(table, tablet))
                draft.close_session(current.session)
        draft.say(f"the moves of {tables.name_of(table)} are forgotten: it was dropped")
    for table in sorted(tables.rebalances):
        gone = table not in tables.catalog.tables and table not in tables.maps
        if gone and not draft.full and rebalance_key(table) not in tables.unreadable:
            draft.forget(rebalance_key(table))


def _close_orphans(state: ClusterState, draft: MoveDraft) -> None:
    """Sessions under which no tablet moves: nothing may be staged under them."""
    orphans = [
        id
        for id, session in state.loads.sessions.items()
        if session.kind is SessionKind.STREAM and id.startswith(MOVE_SESSION)
    ]
    if not orphans:
        return
    meant = {current.session for under_way in state.tables.transitions.values() for current in under_way.values()}
    # Of a record that can't be read nobody knows under which session it is copied.
    unread = {key for key in state.tables.unreadable if key.startswith(b"transitions/")}
    closed = [id for id in sorted(orphans) if id not in meant][:_MAX_TIDIED]
    if closed and not unread and not draft.full:
        for id in closed:
            draft.close_session(id)
        draft.say(f"{len(closed)} session{'s' if len(closed) > 1 else ''} closed under which no tablet moves any more")


def _cancel_jobs(state: ClusterState, draft: MoveDraft) -> None:
    """Copies and repairs that no tablet waits for any more, because all of them go another way."""
    ours = [job for job in state.jobs.open_jobs() if job.request_id.startswith(MOVES_OF_JOB)]
    if not ours:
        return
    awaited = {current.job for under_way in state.tables.transitions.values() for current in under_way.values()}
    doomed = [
        job
        for job in ours
        if job.number not in awaited
        and job.wanted != job_rules.CANCEL
        and job.command.kind in (JobKind.STREAM, JobKind.REPAIR)
    ]
    for job in doomed[:_MAX_TIDIED]:
        if draft.full:
            break
        order = SteerJob(job.number, job_rules.CANCEL, "the tablets do not go there any more")
        draft.put_job(job_rules.steer(state.jobs, order, state.now_ms))
        draft.say(f"job {job.number} ({job.command.kind.value}) is cancelled: no tablet waits for it any more")


def _end_rebalances(state: ClusterState, draft: MoveDraft) -> None:
    """A rebalance with nothing left to do is over; one of an earlier leader's term is this leader's from now on."""
    running = {
        table: record for table, record in state.tables.rebalances.items() if record.state is RebalanceState.RUNNING
    }
    wanted = _still_wanted(state) if running.keys() - state.tables.transitions.keys() else frozenset[int]()
    for table, record in sorted(running.items()):
        if draft.full or not known(state, table):
            continue
        full_name = state.tables.name_of(table)
        if table in state.tables.transitions:
            if record.term < state.term:
                draft.set_rebalance(table, msgspec.structs.replace(record, term=state.term))
                draft.say(f"the rebalance of {full_name} is taken over from the leader of term {record.term}")
        elif state.planned and table not in wanted:
            moved = f"{record.moves} tablet{'s' if record.moves != 1 else ''} moved, {record.moved_bytes} bytes"
            undone = f", {record.failed} undone ({record.reason})" if record.failed else ""
            draft.end_rebalance(table, record)
            draft.say(f"the rebalance of {full_name} is over: {moved}{undone}")


def _still_wanted(state: ClusterState) -> frozenset[int]:
    """The tables of which tablets are to move yet."""
    still = state.rebalance.keeps_still(state.now_ms)
    found: set[int] = set()
    for proposal in state.proposals:
        spared = (proposal.table, proposal.tablet) in state.moves.spared
        if proposal.table in found or ((still or spared) and proposal.cause is Cause.BALANCE):
            continue
        tablets = state.tables.map(proposal.table)
        if proposal.tablet < tablets.count and not same(proposal.target, tablets.replicas(proposal.tablet)):
            found.add(proposal.table)
    return frozenset(found)


def _places(state: ClusterState, tablets: list[Decided]) -> str:
    counts: dict[int, int] = {}
    for each in tablets:
        counts[each.table] = counts.get(each.table, 0) + 1
    return listed(
        [
            f"{number} tablet{'s' if number > 1 else ''} of {state.tables.name_of(table)}"
            for table, number in sorted(counts.items())
        ]
    )
