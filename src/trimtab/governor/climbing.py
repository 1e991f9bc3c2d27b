"""The ladder upwards: Offline → RaftSynced → Replicated → ShardingInitialized → Online, all who can at once.

    sync        it has applied what the leader had committed      begins again from wherever it stood, weight 0
    replicate   every replica it should hold is open               whatever its state
    shard       every router knows a topology that includes it     a barrier; its state must be normal
    go_online   its weight rises                                   one write, and routing is told

Each rung takes everybody who stands below it, in one step; a call that fails holds back only the one that did not
answer. An instance that sets out again and again begins again and again, and nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.governor.crossing import barrier
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Call, CallKind, Commit, Step, StepKind, Write
from trimtab.governor.wording import are, name, names
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.topology.grades import Grade
from trimtab.topology.records import InstanceRecord
from trimtab.topology.states import NodeState

# Neither coming nor gone: routing knows them.
_PLACED = frozenset((NodeState.NORMAL, NodeState.REBUILDING, NodeState.DECOMMISSIONING))


def sync(state: ClusterState) -> Call | None:
    """Rule: whoever comes, or comes back, catches up with the metastore."""
    ids = _climbers(
        state,
        StepKind.SYNC,
        lambda record: record.grades.must_climb and record.state is not NodeState.REMOVING,
    )
    ids = [raft_id for raft_id in ids if raft_id in state.members]
    why = f"{names(state.view, ids)} {'catches' if len(ids) == 1 else 'catch'} up with the metastore"
    return _call(state, StepKind.SYNC, CallKind.SYNC, ids, Grade.RAFT_SYNCED, why)


def replicate(state: ClusterState) -> Call | None:
    """Rule: whoever is synced opens its replicas."""
    ids = _climbers(state, StepKind.REPLICATE, lambda record: _stands(record, Grade.RAFT_SYNCED))
    why = f"{names(state.view, ids)} {'opens its' if len(ids) == 1 else 'open their'} replicas"
    return _call(state, StepKind.REPLICATE, CallKind.REPLICAS, ids, Grade.REPLICATED, why)


def shard(state: ClusterState) -> Step | None:
    """Rule: every router learns of whoever is replicated."""
    ids = _climbers(
        state,
        StepKind.SHARD,
        lambda record: _stands(record, Grade.REPLICATED) and record.state in _PLACED,
    )
    if not ids:
        return None
    draft = Draft(state)
    ids = _rise(draft, ids, Grade.SHARDING_INITIALIZED)
    why = f"every router knows {names(state.view, ids)} by version {state.view.version}"
    return barrier(state, StepKind.SHARD, why, ids, draft, about=ids)


def go_online(state: ClusterState) -> Commit | None:
    """Rule: whoever is known everywhere gets its weight."""
    ids = _climbers(
        state,
        StepKind.ONLINE,
        lambda record: _stands(record, Grade.SHARDING_INITIALIZED) and record.state in _PLACED,
    )
    if not ids:
        return None
    draft = Draft(state)
    ids = _rise(draft, ids, Grade.ONLINE)
    draft.raise_version()
    why = f"{names(state.view, ids)} {are(ids)} Online"
    draft.tell(why, ids)
    return Commit(StepKind.ONLINE, why, tuple(ids), write=draft.write())


def _stands(record: InstanceRecord, grade: Grade) -> bool:
    """Whether the instance stands at a rung, on its way up, and has not been away since it got there."""
    grades = record.grades
    return grades.current.grade is grade and grades.target.grade is Grade.ONLINE and not grades.must_climb


def _climbers(state: ClusterState, kind: StepKind, stands_below: Callable[[InstanceRecord], bool]) -> list[int]:
    left_alone = state.busy(kind) | state.backing_off | state.left_alone
    return [
        raft_id
        for raft_id, record in sorted(state.view.members().items())
        if raft_id not in left_alone and state.alive(raft_id) and stands_below(record)
    ][:MAX_BATCH]


def _rise(draft: Draft, ids: list[int], grade: Grade) -> list[int]:
    """Those of them whom one write has room for climb in it."""
    for count, raft_id in enumerate(ids):
        if draft.full:
            return ids[:count]
        draft.climb(raft_id, grade)
    return ids


def _call(state: ClusterState, kind: StepKind, call: CallKind, ids: list[int], grade: Grade, why: str) -> Call | None:
    if not ids:
        return None
    return Call(
        kind,
        why,
        tuple(ids),
        call=call,
        index=state.commit,
        writes={raft_id: _climb(state, raft_id, grade) for raft_id in ids},
    )


def _climb(state: ClusterState, raft_id: int, grade: Grade) -> Write:
    draft = Draft(state)
    grades = draft.instance(raft_id).grades
    if grades.must_climb and grades.current.grade is not Grade.OFFLINE:
        # It has been away without having been found out. What its life before sent may still be on its way.
        draft.begin_anew(raft_id)
        draft.tell(f"{name(state.view, raft_id)} had been away and begins again, as {grade.value}", (raft_id,))
    else:
        draft.climb(raft_id, grade)
        draft.tell(f"{name(state.view, raft_id)} is {grade.value}", (raft_id,))
    return draft.write()
