"""What comes next for one tablet that is given other replicas: pure, from its record and what is known of its replicas.

    stage                        is left when                                             for
    allow_write_both_read_old    all who arrive are prepared, and a barrier               write_both_read_old
    write_both_read_old          a barrier; enough are up to copy from                    streaming, with a job
    streaming                    the job has copied it, and all who arrive have adopted   write_both_read_new, locked
    write_both_read_new          a barrier                                                use_new
    use_new                      a barrier                                                cleanup
    cleanup                      all who leave have cleaned                               end_migration
    end_migration                a barrier                                                the new set is the stable one
    cleanup_target               all who would have arrived have cleaned                  revert_migration
    revert_migration             a barrier                                                all is as it was

Before the lock it is undone (cleanup_target) when somebody who arrives goes down, when the one that a migration copies
does and whoever arrives has no copy yet, when nobody wants it any more, when whoever arrives can't make a replica, or
when the copy can't be made or taken over: those it needs may have left for good. It is not undone where nobody of the
old set serves and somebody who arrives has a copy, or where all of them left for good and somebody may have one: that
can be all there is (`_orphaned`).

After the lock only write_both_read_new can go back, and only if the new set has lost more of its members than the old
one, of which somebody serves. Not at once: whoever still reads the new set must find what is written meanwhile, so
writes go to both until everybody reads the old one again. That is write_both_read_old *with* the lock, a barrier, and
then cleanup_target. Whoever is down is not asked to clean: it finds out when it comes back.

What must hold: every acknowledged write is on a quorum of the new set before anybody reads that, in each data centre
and of all together. What arrives has everything (the merge of a read quorum), or takes the place of one that leaves
(its copy); those who stay have what they had. `at_once` says whether that adds up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from trimtab.tablets import quorums
from trimtab.tablets.consistency import ANYWHERE, count_by_dc, quorum_of
from trimtab.tablets.selectors import SELECTORS, Replicas, Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind

MAX_TRIES = 5  # of a copy, or of whatever else an instance has to do for it, before the move is undone
FIRST_REST_MS = 1_000

_FORWARD = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Stage.WRITE_BOTH_READ_OLD,
    Stage.WRITE_BOTH_READ_OLD: Stage.STREAMING,
    Stage.STREAMING: Stage.WRITE_BOTH_READ_NEW,
    Stage.WRITE_BOTH_READ_NEW: Stage.USE_NEW,
    Stage.USE_NEW: Stage.CLEANUP,
    Stage.CLEANUP: Stage.END_MIGRATION,
    Stage.CLEANUP_TARGET: Stage.REVERT_MIGRATION,
}


class Work(enum.Enum):
    """What an instance is asked to do for a move."""

    PREPARE = "prepare"
    ADOPT = "adopt"
    CLEAN = "clean"


# Decisions


@dataclass(frozen=True)
class Advance:
    """On to another stage; `barrier`: behind one. `why` is said where that is not the usual way.

    `failure`: something went wrong, and nobody asked for it. `without`: those who are not to arrive any more.
    """

    to: Stage
    barrier: bool
    why: str = ""
    failure: bool = False
    without: Replicas = ()


@dataclass(frozen=True)
class Finish:
    """The move is over, behind a barrier: `applied`, or undone."""

    applied: bool


@dataclass(frozen=True)
class Ask:
    """Those have yet to do their part."""

    work: Work
    of: Replicas


@dataclass(frozen=True)
class Copy:
    """A job is needed (again). `copies`: to whom, and from whom; none: all of the new set are repaired."""

    copies: tuple[tuple[int, Replicas], ...]
    why: str = ""


@dataclass(frozen=True)
class Wait:
    why: str


Decision = Advance | Finish | Ask | Copy | Wait


# What is looked at


class JobPart(enum.Enum):
    """How a job stands to one tablet."""

    NONE = "none"  # there is none, or nobody knows it any more
    UNDER_WAY = "under_way"
    COPIED = "copied"
    NOT_COPIED = "not_copied"  # it ended, without this tablet
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class JobSeen:
    part: JobPart = JobPart.NONE
    text: str = ""
    ended_ms: int = 0


NO_JOB = JobSeen()
_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Scene:
    """All that is known of a tablet under way.

    `down`: certainly not serving (marked Offline, or left). `gone`: those that left, for good. `up`: a copy can be had
    from them now. `prepared`, `adopted` and `cleaned` are of this session. `without_copy`: those who said that they
    have none of this job. `unable`: those who arrive, and will never have one by this session. `spoilt`: why a copy
    that was made is of no use; another is needed. `hopeless`: why no replica can be made, or no copy taken over.
    `failing`: why that failed again and again; it may come right yet. `unwanted`: why nobody wants this move any more.
    """

    tablet: int
    stable: Replicas
    current: TabletTransition
    dc_of: Mapping[int, str]
    down: Collection[int] = _NOBODY
    up: Collection[int] = _NOBODY
    prepared: Collection[int] = _NOBODY
    adopted: Collection[int] = _NOBODY
    cleaned: Collection[int] = _NOBODY
    job: JobSeen = NO_JOB
    spoilt: str = ""
    hopeless: str = ""
    failing: str = ""
    unwanted: str = ""
    gone: Collection[int] = _NOBODY
    now_ms: int = 0
    without_copy: Collection[int] = _NOBODY
    unable: Collection[int] = _NOBODY
    names: Callable[[Collection[int]], str] = field(default=lambda raft_ids: ", ".join(map(str, sorted(raft_ids))))

    @cached_property
    def arriving(self) -> Replicas:
        return _without(self.current.pending, self.stable)

    @cached_property
    def leaving(self) -> Replicas:
        return _without(self.stable, self.current.pending)

    @cached_property
    def forsaken(self) -> bool:
        """Whether all of the old set left for good."""
        return not _without(self.stable, self.gone)

    @cached_property
    def orphaned(self) -> bool:
        """Whether what those who arrive have may be all that can be had: of the old set nobody serves."""
        absent = not _without(self.stable, self.down)
        return bool(self.arriving) and (self.forsaken or (absent and bool(self.whole or self.current.locked)))

    @cached_property
    def heirs(self) -> Replicas:
        """Who arrives, and may still do so."""
        return _without(self.arriving, self.unable)

    @cached_property
    def whole(self) -> Replicas:
        """Who arrives, and has its copy."""
        return _among(self.heirs, self.adopted)


def decide(scene: Scene) -> Decision:
    """What is to be done next."""
    if wrong := malformed(scene):
        return Wait(f"its record makes no sense, and is left alone: {wrong}")
    return _RULES[scene.current.stage](scene)


def malformed(scene: Scene) -> str:
    """What is wrong with a record that no release writes; empty: nothing."""
    current = scene.current
    if not current.pending or len(set(current.pending)) < len(current.pending):
        return f"{current.pending} is no set of replicas"
    if current.kind is TransitionKind.MIGRATION and (len(scene.arriving), len(scene.leaving)) != (1, 1):
        return "a migration has one that arrives and one that leaves"
    if (current.kind is TransitionKind.REPAIR) == bool(scene.arriving):
        return f"{len(scene.arriving)} arrive by a {current.kind.value}"
    return ""


def _allow(scene: Scene) -> Decision:
    if (back := _goes_back(scene)) is not None:
        return back
    if missing := _without(scene.arriving, scene.prepared):
        # One with a bad disk must not keep the tablet waiting: another may have room for it.
        if why := scene.hopeless or scene.failing:
            return _undo(why)
        return Ask(Work.PREPARE, missing)
    return _forward(scene)


def _write_both(scene: Scene) -> Decision:
    if scene.current.locked:
        if scene.orphaned:
            # Everything was written to both, and of the old set nobody serves any more.
            why = f"{scene.names(scene.stable)} went down"
            return Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False, why=why, failure=True)
        # It was in write_both_read_new; by the barrier everybody reads the old set again.
        return Advance(Stage.CLEANUP_TARGET, barrier=True, why="everybody reads the old set again")
    if (back := _goes_back(scene)) is not None:
        return back
    if why := lacks_sources(scene):
        return Wait(why)
    return _forward(scene)


def _streaming(scene: Scene) -> Decision:
    if scene.orphaned:
        return _orphaned(scene)
    decision = _copying(scene)
    unheard = _without(scene.arriving, {*scene.adopted, *scene.without_copy, *scene.down})
    undone = isinstance(decision, Advance) and decision.failure and not scene.hopeless
    # Where of the old set nobody serves, nobody's copy is thrown away unheard.
    return Ask(Work.ADOPT, unheard) if undone and unheard and not _without(scene.stable, scene.down) else decision


def _copying(scene: Scene) -> Decision:
    job, missing = scene.job, _without(scene.arriving, scene.adopted)
    # A copy that is there needs its source no more. It may be all that is left: one replica was to move, its instance
    # dies while whoever arrives compares checksums, and what is undone now is lost for ever.
    copied = (job.part is JobPart.COPIED and not scene.spoilt) or (bool(scene.arriving) and not missing)
    unheard = _without(missing, scene.without_copy)
    if (back := _goes_back(scene, copied=copied)) is not None:
        # Copies are taken over before the leader orders it, and before their job has ended:
        #
        #   4 has verified and adopted the only replica, 3's; 3 dies while the job copies others; nobody told the leader
        #
        # So who arrives is asked first, unless it is undone whatever it has.
        if unheard and not scene.hopeless and _goes_back(scene, copied=True) is None:
            return Ask(Work.ADOPT, unheard)
        return back
    if nobody_else(scene.stable, scene.current.pending, scene.gone):
        return _forward(scene)
    if not missing and scene.arriving:
        # Whatever became of the job: they have verified and taken what it brought.
        return _forward(scene)
    match job.part:
        case JobPart.NONE:
            return _copy_again(scene, "")
        case JobPart.UNDER_WAY:
            return Wait(job.text)
        case JobPart.NOT_COPIED:
            if len(missing) > 1 and unheard:
                # Some of them may have theirs, and need no other.
                return Ask(Work.ADOPT, unheard)
            return _copy_again(scene, job.text)
        case JobPart.FAILED | JobPart.CANCELLED:
            return _undo(job.text)
        case JobPart.COPIED:
            if not missing:
                return _forward(scene)
            # What may come right yet is not given up where of the old set nobody serves: the copy may be all there is.
            serves = bool(_without(scene.stable, scene.down))
            if why := scene.hopeless or (scene.failing if serves and not scene.spoilt else ""):
                return _undo(why)
            return _copy_again(scene, scene.spoilt) if scene.spoilt else Ask(Work.ADOPT, missing)


def _orphaned(scene: Scene) -> Decision:
    """What those who arrive have may be all that can be had.

        1 had it alone, 4 and 5 were to have it too; 4 has its copy, 1 dies, 5's copy breaks off

    So it is undone only if all of the old set left for good and nobody else has a copy. The others copy from whoever
    has one. Who is down is waited for: what was acknowledged after that copy may be on 1 and 5, and not on 4. It is
    left out when neither it nor the old set can ever come back.
    """
    stable, heirs = scene.names(scene.stable), scene.heirs
    unheard = _without(heirs, {*scene.whole, *scene.without_copy})
    if not scene.whole and not unheard:
        return _undo(f"{stable} left for good, and nobody else has it")
    away, unable = _among(heirs, scene.down), _without(scene.arriving, heirs)
    if away or (unable and not scene.forsaken):
        awaited = away if scene.forsaken else (*scene.stable, *away)
        return Wait(
            f"{scene.names(awaited)} may have what nobody else has: start {'it' if len(awaited) == 1 else 'them'} again"
            f"{', or remove what is lost' if away else ''}"
        )
    if not scene.whole:
        return Ask(Work.ADOPT, unheard)
    if set(scene.whole) == set(heirs):
        return replace(_forward(scene), without=unable)
    if scene.job.part is JobPart.UNDER_WAY:
        return Wait(scene.job.text)
    # Some of them may have theirs, and need no other.
    return Ask(Work.ADOPT, unheard) if unheard else _copy_again(scene, scene.spoilt or scene.job.text)


def _read_new(scene: Scene) -> Decision:
    lost = [raft_id for raft_id in scene.current.pending if raft_id in scene.down]
    if not scene.orphaned and len(lost) > sum(raft_id in scene.down for raft_id in scene.stable):
        why = f"{scene.names(lost)} of the new set {'is' if len(lost) == 1 else 'are'} down, and fewer of the old one"
        return Advance(Stage.WRITE_BOTH_READ_OLD, barrier=False, why=why, failure=True)
    return _forward(scene)


def _use_new(scene: Scene) -> Decision:
    return _forward(scene)


def _cleanup(scene: Scene) -> Decision:
    missing = _without(scene.leaving, {*scene.cleaned, *scene.down})
    return Ask(Work.CLEAN, missing) if missing else _forward(scene)


def _cleanup_target(scene: Scene) -> Decision:
    targets = tuple(dict.fromkeys((*scene.arriving, *scene.current.leftovers)))
    missing = _without(targets, {*scene.cleaned, *scene.down, *scene.stable})
    return Ask(Work.CLEAN, missing) if missing else _forward(scene)


def _finish(scene: Scene) -> Decision:
    return Finish(applied=scene.current.stage is Stage.END_MIGRATION)


_RULES: dict[Stage, Callable[[Scene], Decision]] = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: _allow,
    Stage.WRITE_BOTH_READ_OLD: _write_both,
    Stage.STREAMING: _streaming,
    Stage.WRITE_BOTH_READ_NEW: _read_new,
    Stage.USE_NEW: _use_new,
    Stage.CLEANUP: _cleanup,
    Stage.END_MIGRATION: _finish,
    Stage.CLEANUP_TARGET: _cleanup_target,
    Stage.REVERT_MIGRATION: _finish,
}


# Parts


def _forward(scene: Scene) -> Advance:
    stage = scene.current.stage
    return Advance(_FORWARD[stage], SELECTORS[stage].barrier)


def _undo(why: str) -> Advance:
    return Advance(Stage.CLEANUP_TARGET, barrier=False, why=why, failure=True)


def _without(replicas: Replicas, others: Collection[int]) -> Replicas:
    return tuple(raft_id for raft_id in replicas if raft_id not in others)


def _among(replicas: Replicas, others: Collection[int]) -> Replicas:
    return tuple(raft_id for raft_id in replicas if raft_id in others)


def _goes_back(scene: Scene, *, copied: bool = False) -> Advance | None:
    """Whether a move that is not locked is undone. `copied`: nobody has to be there any more to copy from."""
    if scene.unwanted:
        return Advance(Stage.CLEANUP_TARGET, barrier=False, why=scene.unwanted)
    if fallen := _among(scene.arriving, scene.down):
        verb = "was" if len(fallen) == 1 else "were"
        return _undo(f"{scene.names(fallen)}, which {verb} to get a replica, went down")
    if scene.current.kind is TransitionKind.REPAIR and (gone := _among(scene.current.pending, scene.gone)):
        return _undo(f"{scene.names(gone)}, which {'was' if len(gone) == 1 else 'were'} to stay, left for good")
    if copied:
        return None
    if scene.current.kind is TransitionKind.MIGRATION and scene.leaving[0] in scene.down:
        return _undo(f"{scene.names(scene.leaving)}, whose replica was to be copied, went down")
    if not _without(scene.stable, scene.gone):
        return _undo(f"{scene.names(scene.stable)} left for good, and nobody else has it")
    return None


def _copy_again(scene: Scene, why: str) -> Decision:
    tries = scene.current.attempts
    if why and tries >= MAX_TRIES and not scene.orphaned:
        return _undo(f"it could not be copied, tried {tries} times: {why}")
    rested_ms = scene.now_ms - scene.job.ended_ms
    if why and 0 <= rested_ms < FIRST_REST_MS << min(max(tries - 1, 0), MAX_TRIES):
        return Wait(f"it is to be copied again: {why}")
    if lack := lacks_sources(scene):
        return Wait(lack)
    return Copy(copies_of(scene), why)


# What is copied


def lacks_sources(scene: Scene) -> str:
    """Why nothing can be copied now; empty: it can."""
    stable, up, kind = scene.stable, scene.up, scene.current.kind
    if nobody_else(stable, scene.current.pending, scene.gone):
        return ""
    if scene.orphaned and scene.whole:
        return "" if _among(scene.whole, up) else f"{scene.names(scene.whole)}, which has the only copy, is not ready"
    if kind is TransitionKind.MIGRATION:
        source = scene.leaving[0]
        return "" if source in up else f"{scene.names([source])}, whose replica is to be copied, is not ready"
    if kind is TransitionKind.REPAIR and (away := _without(scene.current.pending, up)):
        return f"{scene.names(away)}, which {'stays' if len(away) == 1 else 'stay'}, can't be repaired now"
    for target in scene.arriving if kind is TransitionKind.REBUILD else scene.current.pending:
        intact = kind is TransitionKind.REPAIR
        gone = _NOBODY if intact else scene.gone
        if why := quorums.missing(target, stable, up, scene.dc_of, intact=intact, gone=gone):
            return f"a replica for {scene.names([target])} {why.replace('compared', 'ready')}"
    return ""


def nobody_else(stable: Replicas, target: Replicas, gone: Collection[int]) -> bool:
    """Whether one stays, and all others left for good: there is nobody to compare it with, and never will be."""
    return len(target) == 1 and _without(stable, gone) == target


def copies_of(scene: Scene) -> tuple[tuple[int, Replicas], ...]:
    """To whom, and from whom. Enough must be up (`lacks_sources`). A repair has none."""
    kind = scene.current.kind
    if kind is TransitionKind.REPAIR:
        return ()
    if scene.orphaned:
        # Its copy is the merge of a read quorum, made while everything was written to those who arrive as well.
        giver = _among(scene.whole, scene.up)[:1]
        return tuple((target, giver) for target in _without(scene.heirs, scene.whole))
    if kind is TransitionKind.MIGRATION:
        return ((scene.arriving[0], (scene.leaving[0],)),)
    return tuple((target, _read_quorum(scene, target)) for target in _without(scene.arriving, scene.adopted))


def _read_quorum(scene: Scene, target: int) -> Replicas:
    chosen: list[int] = []
    needed = quorums.peers_needed(target, scene.stable, scene.dc_of, intact=False, gone=scene.gone)
    for dc, number in needed.items():
        able = [each for each in scene.stable if each in scene.up and scene.dc_of.get(each, ANYWHERE) == dc]
        # Another one of them is left out for every tablet, so that all of them read alike.
        first = scene.tablet % len(able) if able else 0
        chosen += (able[first:] + able[:first])[:number]
    return tuple(chosen)


# What can be done at once


def kind_of(
    stable: Replicas, target: Replicas, dc_of: Mapping[int, str], lost: Collection[int] = _NOBODY
) -> TransitionKind:
    """What it takes to get from one set to the other; `lost` are those whose data can't be had.

    Who arrives takes the place of who leaves only in the same data centre: elsewhere other writes were acknowledged.
    """
    arriving, leaving = _without(target, stable), _without(stable, target)
    if not arriving:
        return TransitionKind.REPAIR
    if len(arriving) != 1 or len(leaving) != 1 or leaving[0] in lost:
        return TransitionKind.REBUILD
    same_dc = dc_of.get(arriving[0], ANYWHERE) == dc_of.get(leaving[0], ANYWHERE)
    return TransitionKind.MIGRATION if same_dc else TransitionKind.REBUILD


def at_once(stable: Replicas, target: Replicas, dc_of: Mapping[int, str]) -> bool:
    """Whether whatever a quorum of the old set has, a quorum of the new one has too, when those who arrive have all.

    Where a set shrinks and others arrive at the same time it may not: of 1 2 3 4 5, 3 4 5 have a write, and of 1 2 6
    only the newcomer would. Then the newcomers come first (`widened`), and the rest is repaired before the others go.
    """
    arriving, leaving = _without(target, stable), _without(stable, target)
    if not arriving:
        return True
    return _adds_up(len(stable), len(arriving), len(leaving)) and all(
        _adds_up(*(count_by_dc(each, dc_of).get(dc, 0) for each in (stable, arriving, leaving)))
        for dc in count_by_dc(target, dc_of)
    )


def _adds_up(before: int, arriving: int, leaving: int) -> bool:
    after = before + arriving - leaving
    staying = max(0, quorum_of(before) - leaving) if before else 0
    return arriving + staying >= quorum_of(after)


def widened(stable: Replicas, target: Replicas) -> Replicas:
    """The old set and everybody who arrives."""
    return stable + _without(target, stable)
