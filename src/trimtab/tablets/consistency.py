"""Consistency levels: how many replicas must answer, and where.

`Level` is shared by every door. What a level needs of one replica set is a `Requirement`. While a tablet moves, several
sets take its writes, and the level has to be reached in each of them: that is a `Goal`. A replica that is in two sets
counts in both.

The rules are CQL's. A quorum is more than half of the replicas: of all data centres together (QUORUM), of the
coordinator's own (LOCAL_QUORUM), or of each (EACH_QUORUM). ANY is for writes alone, and a stored hint
reaches it too.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


class Level(enum.IntEnum):
    """Numbered as in CQL's protocol."""

    ANY = 0
    ONE = 1
    TWO = 2
    THREE = 3
    QUORUM = 4
    ALL = 5
    LOCAL_QUORUM = 6
    EACH_QUORUM = 7
    LOCAL_ONE = 10


ANYWHERE = ""
_COUNTS = {Level.ANY: 1, Level.ONE: 1, Level.TWO: 2, Level.THREE: 3}


def quorum_of(replicas: int) -> int:
    """More than half."""
    return replicas // 2 + 1


def parse_level(text: str) -> Level:
    """By its name, in any case; ValueError names all there are."""
    try:
        return Level[text.strip().upper()]
    except KeyError:
        known = ", ".join(level.name for level in Level)
        raise ValueError(f"'{text[:40]}' is no consistency level; there are {known}") from None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a level needs of one set: so many answers per data centre, or ANYWHERE. `replicas` is the set, by dc."""

    level: Level
    needs: tuple[tuple[str, int], ...]
    replicas: Mapping[str, int]

    @property
    def needed(self) -> int:
        """All answers together."""
        return sum(number for _, number in self.needs)

    def satisfied(self, acks: Mapping[str, int], *, hinted: bool = False) -> bool:
        """Whether answers of so many replicas, by data centre, are enough. `hinted`: a hint is stored for another."""
        if hinted and self.level is Level.ANY:
            return True
        return all(_in(acks, dc) >= number for dc, number in self.needs)

    def possible(self, alive: Mapping[str, int]) -> bool:
        """Whether so many live replicas, by data centre, could satisfy it."""
        return self.level is Level.ANY or self.satisfied(alive)

    def counted(self, acks: Mapping[str, int]) -> int:
        """How many of these answers bring it nearer: those beyond the need of a data centre don't."""
        return sum(min(_in(acks, dc), number) for dc, number in self.needs)

    def describe(self, got: Mapping[str, int], verb: str) -> str:
        """The numbers in words, such as: QUORUM needs 2 of 3 replicas, 1 answered."""
        parts = []
        for dc, number in self.needs:
            where = "" if dc == ANYWHERE else f" in data centre {dc}"
            of = _in(self.replicas, dc)
            parts.append(f"{number} of {of} replica{'s' if of != 1 else ''}{where}, {_in(got, dc)} {verb}")
        return f"{self.level.name} needs {'; '.join(parts)}"


def needed(level: Level, replicas: Mapping[str, int], local_dc: str, *, for_write: bool) -> Requirement:
    """What a level needs of a set with so many replicas per data centre; ValueError for a read at ANY."""
    if level is Level.ANY and not for_write:
        raise ValueError("ANY is for writes only, because a hint can't answer a read; read at ONE or higher")
    total = sum(replicas.values())
    if level in _COUNTS:
        needs: tuple[tuple[str, int], ...] = ((ANYWHERE, _COUNTS[level]),)
    elif level is Level.QUORUM:
        needs = ((ANYWHERE, quorum_of(total)),)
    elif level is Level.ALL:
        needs = ((ANYWHERE, total),)
    elif level is Level.LOCAL_ONE:
        needs = ((local_dc, 1),)
    elif level is Level.LOCAL_QUORUM:
        needs = ((local_dc, quorum_of(replicas.get(local_dc, 0))),)
    else:
        needs = tuple((dc, quorum_of(number)) for dc, number in sorted(replicas.items()) if number)
    return Requirement(level, needs, replicas)


def _in(counts: Mapping[str, int], dc: str) -> int:
    return sum(counts.values()) if dc == ANYWHERE else counts.get(dc, 0)


@dataclass(frozen=True, slots=True)
class Goal:
    """A level for a request: reached in every one of the replica sets that it goes to."""

    sets: tuple[tuple[Requirement, frozenset[int]], ...]
    dc_of: Mapping[int, str]

    @property
    def needed(self) -> int:
        """Answers of the set that needs the most: the number that is told."""
        return max(requirement.needed for requirement, _ in self.sets)

    def reached(self, acks: Collection[int], *, hinted: bool = False) -> bool:
        """Whether answers of these replicas are enough in each set."""
        for requirement, replicas in self.sets:
            if not requirement.satisfied(self._by_dc(acks, replicas), hinted=hinted):
                return False
        return True

    def possible(self, alive: Collection[int]) -> bool:
        """Whether these replicas could be enough."""
        return all(requirement.possible(self._by_dc(alive, replicas)) for requirement, replicas in self.sets)

    def got(self, acks: Collection[int]) -> int:
        """How many answers count in the set that is furthest from its need."""
        requirement, replicas = self._furthest(acks)
        return requirement.counted(self._by_dc(acks, replicas))

    def describe(self, acks: Collection[int], verb: str = "answered") -> str:
        """The numbers of the set that is furthest from its need, in words."""
        requirement, replicas = self._furthest(acks)
        return requirement.describe(self._by_dc(acks, replicas), verb)

    def _furthest(self, acks: Collection[int]) -> tuple[Requirement, frozenset[int]]:
        return max(self.sets, key=lambda each: each[0].needed - each[0].counted(self._by_dc(acks, each[1])))

    def _by_dc(self, acks: Collection[int], replicas: frozenset[int]) -> dict[str, int]:
        return count_by_dc((raft_id for raft_id in acks if raft_id in replicas), self.dc_of)


def goal(
    level: Level, sets: Sequence[Sequence[int]], dc_of: Mapping[int, str], local_dc: str, *, for_write: bool
) -> Goal:
    """What the level needs of these replica sets (raft ids), where `dc_of` knows everybody's data centre."""
    return Goal(
        tuple(
            (needed(level, count_by_dc(replicas, dc_of), local_dc, for_write=for_write), frozenset(replicas))
            for replicas in sets
        ),
        dc_of,
    )


def count_by_dc(replicas: Iterable[int], dc_of: Mapping[int, str]) -> dict[str, int]:
    """How many of these there are in each data centre; one that nobody knows any more is in none."""
    counts: dict[str, int] = {}
    for raft_id in replicas:
        dc = dc_of.get(raft_id, ANYWHERE)
        counts[dc] = counts.get(dc, 0) + 1
    return counts
