"""What a committed write may do to tablets under way: the stages, sets, sessions and targets, written again.

Deliberately little is imported from `tablets.transitions` and `tablets.stages` but the words themselves: a mistake in a
table there must not excuse itself. Each committed command is judged as a whole, on the records before and after it.

    a set changes      only when a transition ends, and to where that went; nothing is routed before its data is there
    a stage            follows the one before it; whoever gets another target begins at the foot, under another session;
                       back from where the new set is read it goes through write_both_read_old, with its lock
    a target           each has a trigger of its own, later than all that tablet had before
    why                whoever begins says why, so that operators never see a move without a reason
    planned            only while the pending one can't be changed any more, or is but the way there: the old set and
                       whoever is new in the planned one; gone as soon as it is pending itself
    a session          is open while write_both_read_old and streaming last, and at no other time
    hosts              no two replicas of a set on one
    replicas           never more than were declared, or than there were
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.sim.checks import Violation
from trimtab.tablets.transitions import TabletTransition

Replicas = tuple[int, ...]
Place = tuple[int, int]

_FORWARD = {
    "allow_write_both_read_old": "write_both_read_old",
    "write_both_read_old": "streaming",
    "streaming": "write_both_read_new",
    "write_both_read_new": "use_new",
    "use_new": "cleanup",
    "cleanup": "end_migration",
    "cleanup_target": "revert_migration",
}
_FIRST = "allow_write_both_read_old"
_MAY_BE_UNDONE = ("allow_write_both_read_old", "write_both_read_old", "streaming")
_BACK = ("write_both_read_new", "write_both_read_old")
_MAY_CHANGE = ("allow_write_both_read_old", "write_both_read_old", "streaming")
_LAST = ("end_migration", "revert_migration")
_UNDONE = ("cleanup_target", "revert_migration")
# Before these are left, forward, a barrier at the version that announced them.
_BARRIERS = (
    "allow_write_both_read_old",
    "write_both_read_old",
    "write_both_read_new",
    "use_new",
    "end_migration",
    "revert_migration",
)
_WITH_SESSION = ("write_both_read_old", "streaming")
# Who answers reads: the old set or the new one.
_READS_NEW = ("write_both_read_new", "use_new", "cleanup", "end_migration")


@dataclass(frozen=True)
class Tablet:
    """One tablet as it is by what is committed. `now` None: nothing is under way."""

    stable: Replicas
    now: TabletTransition | None = None

    @property
    def stage(self) -> str:
        return self.now.stage.value if self.now is not None else ""

    @property
    def reads(self) -> Replicas:
        return self.now.pending if self.now is not None and self.stage in _READS_NEW else self.stable


@dataclass(frozen=True)
class Around:
    """What else the same write has left: the topology's version, hosts, declared replicas, open sessions."""

    version: int
    hosts: Mapping[int, str]
    declared: int
    sessions: frozenset[str]


def barrier_before(before: Tablet, after: Tablet) -> int:
    """The version at which a barrier must have been passed before this change; 0: none must have been."""
    if before.now is None or before.stage not in _BARRIERS:
        return 0
    forward = after.now is not None and after.now.session == before.now.session
    if forward and before.stage == "write_both_read_old" and before.now.locked and after.stage == "cleanup_target":
        return before.now.version
    if forward and after.stage != _FORWARD.get(before.stage):
        return 0  # it stays, is undone, or has another target: nobody relies on what was
    if not forward and before.stage not in _LAST:
        return 0
    return before.now.version


def judge(place: Place, before: Tablet, after: Tablet, around: Around, last_trigger: int) -> None:
    """One tablet that was there before and is there now. Raises Violation."""
    where = f"tablet {place[1]} of table {place[0]}"
    try:
        _judge_end(before, after)
        if after.now is not None:
            _judge_record(before, after, around, last_trigger)
    except Violation as violation:
        evidence = f"before: {before}\nafter:  {after}\naround: {around}"
        raise Violation(f"{where}: {violation.why}", evidence) from None


def _judge_end(before: Tablet, after: Tablet) -> None:
    """Stable sets change when a transition ends, and at no other time."""
    ended = before.now is not None and (after.now is None or after.now.session != before.now.session)
    if before.now is None or not ended:
        if set(before.stable) != set(after.stable):
            raise Violation(f"its replicas went from {before.stable} to {after.stable} without a move that ended")
        return
    if before.stage == "end_migration":
        if set(after.stable) != set(before.now.pending):
            raise Violation(f"its move to {before.now.pending} ended, but its replicas are {after.stable}")
        _judge_follower(before.now, after.now)
        return
    if set(before.stable) != set(after.stable):
        raise Violation(f"its replicas went from {before.stable} to {after.stable} in the stage {before.stage}")
    if before.stage == "revert_migration":
        _judge_follower(before.now, after.now)
    elif after.now is None:
        raise Violation(f"its move was forgotten in the stage {before.stage}")
    elif before.stage not in _MAY_CHANGE or before.now.locked:
        raise Violation(f"its target was changed in the stage {before.stage}, from {before.now.pending}")


def _judge_follower(ended: TabletTransition, after: TabletTransition | None) -> None:
    """What was planned follows, or nothing: it may have become impossible meanwhile."""
    if after is not None and set(ended.planned) not in (set(after.pending), set(after.planned)):
        raise Violation(
            f"when its move ended, {after.pending} followed, though {ended.planned or 'nothing'} was planned"
        )


def _judge_record(before: Tablet, after: Tablet, around: Around, last_trigger: int) -> None:
    was, now = before.now, after.now
    assert now is not None
    stage = after.stage
    begins = was is None or was.session != now.session
    if begins:
        if stage != _FIRST or now.locked or now.job:
            raise Violation(f"a move to {now.pending} began as {now}")
        leftovers = {*was.leftovers, *was.arriving(before.stable)} - set(now.pending) if was is not None else set()
        if before.stage in _MAY_CHANGE and not leftovers <= set(now.leftovers):
            raise Violation(
                f"{sorted(leftovers)} have replicas of it that nobody remembers; leftovers: {now.leftovers}"
            )
        if not now.session:
            raise Violation("a move has no session")
        if not now.why.strip():
            raise Violation(f"a move to {now.pending} began, and nobody says why")
        if not _is_on_the_way(after):
            _judge_set("moves to", now.pending, after.stable, around)
    else:
        assert was is not None
        if set(was.pending) != set(now.pending):
            raise Violation(f"its target became {now.pending} in the stage {stage}, under the same session")
        undone = before.stage in _MAY_BE_UNDONE and stage == "cleanup_target"
        going_back = before.stage == "write_both_read_old" and was.locked
        on = (stage == _FORWARD.get(before.stage) and not going_back) or (before.stage, stage) == _BACK
        if stage != before.stage and not on and not undone:
            raise Violation(f"it went from {before.stage} to {stage}{' with its lock' if was.locked else ''}")
        if was.locked and not now.locked and stage not in _UNDONE:
            raise Violation(f"its lock was taken off in the stage {stage}")
    if (begins or stage != before.stage) and now.version != around.version:
        raise Violation(f"it says version {now.version}, but what announces {stage} is version {around.version}")
    if now.planned:
        if not (now.locked or stage in _UNDONE or _is_on_the_way(after)):
            raise Violation(f"{now.planned} is planned, though its target could still be changed in the stage {stage}")
        if stage not in _BACK and set(now.planned) == set(after.stable if stage in _UNDONE else now.pending):
            raise Violation(f"{now.planned} is planned, and is where it goes anyway")
        if was is None or set(now.planned) != set(was.planned):
            _judge_set("is planned to go to", now.planned, after.stable, around)
    if stage in _READS_NEW and not now.locked:
        raise Violation(f"it is in the stage {stage} without a lock")
    _judge_trigger(before, after, last_trigger)
    if (now.session in around.sessions) != (stage in _WITH_SESSION and not now.locked):
        said = "open" if now.session in around.sessions else "closed"
        raise Violation(f"its session {now.session} is {said} in the stage {stage}")


def _is_on_the_way(tablet: Tablet) -> bool:
    """Whether it goes to the old set and all that are new in the planned one, because not all of it can be at once."""
    now = tablet.now
    assert now is not None
    return bool(now.planned) and set(now.pending) == {*tablet.stable, *now.planned} != set(now.planned)


def _judge_trigger(before: Tablet, after: Tablet, last_trigger: int) -> None:
    """Whatever gives it a target it had not is an event of its own, and acts once."""
    was, now = before.now, after.now
    assert now is not None
    if was is not None and now.trigger < was.trigger:
        raise Violation(f"its trigger went back from {was.trigger} to {now.trigger}")
    if was is None or (was.session != now.session and before.stage not in _LAST):
        target = now.pending
    elif now.planned and set(now.planned) != set(was.planned):
        target = now.planned
    else:
        return
    if now.trigger <= last_trigger:
        raise Violation(
            f"the trigger {now.trigger} gives it the target {target}, though {last_trigger} had acted on it before"
        )


def _judge_set(what: str, replicas: Replicas, stable: Replicas, around: Around) -> None:
    if len(set(replicas)) != len(replicas) or not replicas:
        raise Violation(f"it {what} {replicas}")
    hosts = [around.hosts.get(raft_id, f"unknown {raft_id}") for raft_id in replicas]
    if len(set(hosts)) != len(hosts):
        raise Violation(f"it {what} {replicas}, on the hosts {', '.join(hosts)}")
    if len(replicas) > max(len(stable), around.declared):
        raise Violation(f"it {what} {replicas}: {len(replicas)} replicas, though {around.declared} are declared")
