"""Tablets that are given another set of replicas: what the metastore keeps of it, and how targets are proposed.

    transitions/<table id>/<tablet>    TabletTransition, only while a tablet is under way
    rebalance/<table id>               RebalanceRecord: how the newest rebalance of a table went

Document 000's assignments: *stable* is what `tablets/<table>/<chunk>` says, *pending* is where the tablet goes,
*planned* is where it goes next. *Trigger* is the metastore's revision at which the newest target was computed; a target
that was computed earlier is stale, whoever proposes it and however late. *Locked*: the copy is verified, so the target
can't change any more, and another one becomes planned.

    proposed target     nothing under way         under way, not locked              locked, or being undone
    = stable            nothing                   undone                             planned (removed: undone)
    = pending           -                         planned removed                    planned removed (kept: undone)
    another             pending                   pending, from the first stage on   planned

Where the target changes before the lock, the copy begins anew under another session; whoever was the target is a
*leftover*: it keeps its replica until everybody has stopped writing to it, and drops it then.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import msgspec

from trimtab.tablets.ring import MAX_TABLETS
from trimtab.tablets.selectors import Replicas, Stage
from trimtab.topology.records import REBALANCE, TRANSITIONS

_MAX_TABLE = (1 << 63) - 1
# Before the lock: the target may still change.
ADJUSTABLE = frozenset((Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING))
UNDOING = frozenset((Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION))
# From here on the leaving replicas drop what they have; the same for the targets of what is undone.
LEAVING_CLEANS = frozenset((Stage.CLEANUP, Stage.END_MIGRATION))


class TransitionKind(enum.Enum):
    """What is copied: the leaving replica, the merge of a read quorum of the old set, or nothing (all stay)."""

    MIGRATION = "migration"
    REBUILD = "rebuild"
    REPAIR = "repair"


class Cause(enum.Enum):
    """Who wants it; in the order of urgency."""

    HEAL = "heal"
    DRAIN = "drain"
    REPLICATION = "replication"
    OPERATOR = "operator"
    REBUILD = "rebuild"
    BALANCE = "balance"


class TabletTransition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tablet under way. All replicas are raft ids.

    `session` names this attempt at copying: target replicas are made for it, files are staged under it, and the session
    record of that name is there from write_both_read_old until streaming is left. `version` is the topology version
    that announced the stage. `job` copies or repairs, while streaming. `error`: why the newest attempt failed.
    """

    pending: Replicas
    kind: TransitionKind
    stage: Stage = Stage.ALLOW_WRITE_BOTH_READ_OLD
    session: str = ""
    planned: Replicas = ()
    planned_why: str = ""
    planned_cause: Cause = Cause.BALANCE
    trigger: int = 0
    locked: bool = False
    leftovers: Replicas = ()
    version: int = 0
    job: int = 0
    attempts: int = 0
    error: str = ""
    cause: Cause = Cause.BALANCE
    why: str = ""
    size_bytes: int = 0
    began_ms: int = 0
    stage_ms: int = 0

    def arriving(self, stable: Replicas) -> Replicas:
        """Who gets a replica by it."""
        return tuple(raft_id for raft_id in self.pending if raft_id not in stable)

    def leaving(self, stable: Replicas) -> Replicas:
        """Who loses its replica by it."""
        return tuple(raft_id for raft_id in stable if raft_id not in self.pending)


class RebalanceState(enum.Enum):
    IDLE = "idle"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class RebalanceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one table. `term`: the leader's who wrote it; a RUNNING one of an earlier term is taken over.

    `trigger`: the newest trigger that was considered. `skipped`: a trigger that came while nothing could be done about
    it (balancing was off, say), kept for later. `moves` and `moved_bytes` count tablets since it began.
    """

    state: RebalanceState
    term: int = 0
    trigger: int = 0
    skipped: int = 0
    reason: str = ""
    began_ms: int = 0
    ended_ms: int = 0
    moves: int = 0
    moved_bytes: int = 0
    failed: int = 0


class Proposal(NamedTuple):
    """Somebody wants another set of replicas for a tablet.

    `trigger`: the revision it was computed at. `was`: the stable set it was computed on; where that has changed
    meanwhile it is stale. Empty: whatever that is.
    """

    table: int
    tablet: int
    target: Replicas
    cause: Cause
    why: str
    trigger: int
    size_bytes: int = 0
    was: Replicas = ()


class Outcome(enum.Enum):
    """What became of a proposal."""

    STALE = "stale"
    NOTHING = "nothing"
    PENDING = "pending"
    ADJUSTED = "adjusted"
    UNDONE = "undone"
    PLANNED = "planned"
    UNPLANNED = "unplanned"


def same(one: Replicas, other: Replicas) -> bool:
    """Whether two sets are of the same instances; their order does not matter."""
    return len(one) == len(other) and set(one) == set(other)


def propose(
    stable: Replicas,
    current: TabletTransition | None,
    proposal: Proposal,
    *,
    session: str,
    kind: TransitionKind,
    now_ms: int,
) -> tuple[Outcome, TabletTransition | None]:
    """Document 000's invoke, with the corrections, as a function: what is under way afterwards.

    `session` is a new name and `kind` what it takes to get from stable to the target; both are used only where a copy
    begins.
    """
    if current is not None and proposal.trigger <= current.trigger:
        return Outcome.STALE, current
    if proposal.was and not same(proposal.was, stable):
        return Outcome.STALE, current
    target = proposal.target
    if current is None:
        if same(target, stable):
            return Outcome.NOTHING, None
        return Outcome.PENDING, _begun(proposal, session, kind, now_ms)
    told = msgspec.structs.replace(current, trigger=proposal.trigger)
    if not current.locked and current.stage in ADJUSTABLE:
        if same(target, current.pending):
            return Outcome.UNPLANNED, _unplanned(told)
        if same(target, stable):
            undone = msgspec.structs.replace(_unplanned(told), stage=Stage.CLEANUP_TARGET, stage_ms=now_ms, job=0)
            return Outcome.UNDONE, undone
        leftovers = {*current.leftovers, *current.arriving(stable)} - set(target)
        adjusted = _begun(proposal, session, kind, now_ms)
        return Outcome.ADJUSTED, msgspec.structs.replace(adjusted, leftovers=tuple(sorted(leftovers)))
    ends_as = stable if goes_back(current) else current.pending
    if same(target, ends_as):
        return Outcome.UNPLANNED, _unplanned(told)
    planned = msgspec.structs.replace(told, planned=target, planned_why=proposal.why, planned_cause=proposal.cause)
    return Outcome.PLANNED, planned


def goes_back(current: TabletTransition) -> bool:
    """Whether it ends as it began: it is being undone, or still has to tell everybody to read the old set again."""
    return current.stage in UNDOING or (current.locked and current.stage is Stage.WRITE_BOTH_READ_OLD)


def next_proposal(table: int, tablet: int, ended: TabletTransition) -> Proposal | None:
    """What was planned meanwhile, when a transition has ended; it becomes pending in the same write that ends this."""
    if not ended.planned:
        return None
    return Proposal(table, tablet, ended.planned, ended.planned_cause, ended.planned_why, ended.trigger)


def holders(stable: Replicas, current: TabletTransition | None) -> Replicas:
    """Who has, or should have, a directory of the tablet now; everybody else drops what it has."""
    if current is None:
        return stable
    found = dict.fromkeys(stable)
    if current.stage in LEAVING_CLEANS:
        found = dict.fromkeys(current.pending)
    elif current.stage not in UNDOING:
        found.update(dict.fromkeys(current.pending))
        found.update(dict.fromkeys(current.leftovers))
    return tuple(found)


def _begun(proposal: Proposal, session: str, kind: TransitionKind, now_ms: int) -> TabletTransition:
    return TabletTransition(
        pending=proposal.target,
        kind=kind,
        session=session,
        trigger=proposal.trigger,
        cause=proposal.cause,
        why=proposal.why,
        size_bytes=proposal.size_bytes,
        began_ms=now_ms,
        stage_ms=now_ms,
    )


def _unplanned(current: TabletTransition) -> TabletTransition:
    return msgspec.structs.replace(current, planned=(), planned_why="", planned_cause=Cause.BALANCE)


# Keys


def transition_key(table: int, tablet: int) -> bytes:
    return TRANSITIONS + b"%020d/%09d" % (table, tablet)


def place_of(key: bytes) -> tuple[int, int]:
    """Table and tablet of the transition under this key; ValueError where it names none."""
    table, slash, tablet = key.removeprefix(TRANSITIONS).partition(b"/")
    if slash and table.isdigit() and tablet.isdigit():
        numbers = int(table), int(tablet)
        if 0 < numbers[0] <= _MAX_TABLE and numbers[1] < MAX_TABLETS and key == transition_key(*numbers):
            return numbers
    raise ValueError(f"the metastore key {key!r} names no tablet of a table")


def rebalance_key(table: int) -> bytes:
    return REBALANCE + b"%020d" % table


def table_of(key: bytes) -> int:
    """The table of a rebalance record; ValueError where the key names none."""
    digits = key.removeprefix(REBALANCE)
    if digits.isdigit() and 0 < int(digits) <= _MAX_TABLE:
        return int(digits)
    raise ValueError(f"the metastore key {key!r} names no table")


encode: Any = msgspec.json.Encoder().encode
decode_transition = msgspec.json.Decoder(TabletTransition).decode
decode_rebalance = msgspec.json.Decoder(RebalanceRecord).decode
