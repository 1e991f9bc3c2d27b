"""How ready an instance is: a current and a target grade, each with an incarnation.

The target is what somebody wants (the instance itself, an operator, failure detection); the current grade is what the
leader has made of it. Whoever differs from its target is the governor's work.

Incarnations count how often an instance set out to become Online:

- a target that becomes Online gets the next incarnation;
- every other change of a grade copies the incarnation of the opposite grade.

So `current.incarnation < target.incarnation` says that an instance which still stands at some grade has been away, and
must climb from the foot of the ladder again.
"""

from __future__ import annotations

import enum

import msgspec


class Grade(enum.Enum):
    """The rungs of the ladder, and the way out. The values are what operators and scripts read."""

    OFFLINE = "Offline"
    RAFT_SYNCED = "RaftSynced"
    REPLICATED = "Replicated"
    SHARDING_INITIALIZED = "ShardingInitialized"
    ONLINE = "Online"
    EXPELLED = "Expelled"


LADDER = (Grade.OFFLINE, Grade.RAFT_SYNCED, Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE)
TARGETS = frozenset((Grade.OFFLINE, Grade.ONLINE, Grade.EXPELLED))
# current grade -> the grades it may become. Down and out from everywhere, upwards rung by rung.
CHANGES: dict[Grade, frozenset[Grade]] = {
    Grade.OFFLINE: frozenset((Grade.RAFT_SYNCED, Grade.OFFLINE, Grade.EXPELLED)),
    Grade.RAFT_SYNCED: frozenset((Grade.RAFT_SYNCED, Grade.REPLICATED, Grade.OFFLINE, Grade.EXPELLED)),
    Grade.REPLICATED: frozenset((Grade.RAFT_SYNCED, Grade.SHARDING_INITIALIZED, Grade.OFFLINE, Grade.EXPELLED)),
    Grade.SHARDING_INITIALIZED: frozenset((Grade.RAFT_SYNCED, Grade.ONLINE, Grade.OFFLINE, Grade.EXPELLED)),
    Grade.ONLINE: frozenset((Grade.RAFT_SYNCED, Grade.OFFLINE, Grade.EXPELLED)),
    Grade.EXPELLED: frozenset(),
}


class GradeRefused(ValueError):
    """A change of grade that the rules do not allow; the text says which and why."""


class Standing(msgspec.Struct, frozen=True):
    """A grade and the incarnation it belongs to."""

    grade: Grade = Grade.OFFLINE
    incarnation: int = 0


class Grades(msgspec.Struct, frozen=True):
    """Where an instance stands and where it should be."""

    current: Standing = Standing()
    target: Standing = Standing()

    @property
    def must_climb(self) -> bool:
        """Whether it has to begin at the foot of the ladder: it is down, or has been away since it last stood here."""
        if self.target.grade is not Grade.ONLINE:
            return False
        return self.current.grade is Grade.OFFLINE or self.current.incarnation < self.target.incarnation

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.current == self.target


def set_target(grades: Grades, grade: Grade) -> Grades:
    """The grades after somebody asked for another target. GradeRefused: not a target, or it was expelled for good."""
    if grade not in TARGETS:
        raise GradeRefused(f"{grade.value} is no target; an instance is told to be Online, Offline or Expelled")
    if grades.target.grade is Grade.EXPELLED and grade is not Grade.EXPELLED:
        raise GradeRefused(f"it was expelled for good, so it can't become {grade.value}; add a new instance instead")
    if grade is Grade.ONLINE:
        target = Standing(grade, grades.target.incarnation + 1)
    else:
        target = Standing(grade, grades.current.incarnation)
    return Grades(grades.current, target)


def set_current(grades: Grades, grade: Grade) -> Grades:
    """The grades after the leader brought the instance to `grade`. GradeRefused where the ladder has no such step."""
    if grade not in CHANGES[grades.current.grade]:
        raise GradeRefused(f"no step leads from {grades.current.grade.value} to {grade.value}")
    return Grades(Standing(grade, grades.target.incarnation), grades.target)
