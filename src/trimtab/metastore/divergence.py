"""Has this member's state left the others'? A pure decision over reported checksums.

State is a function of the log, so members that reached a revision must have the same checksum there, for ever. If a
majority of the voters agree on another checksum than ours at one revision, it is this member that is wrong: it has to
stop before it serves or votes with that state, and is replaced by a new member. If somebody differs and no majority has
spoken, nothing is proven yet: ask the others for their checksum *at that revision*. A majority that agrees with us is
an answer too: then it is the other one that has to stop, and will find out by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec import Struct


class Verdict(enum.Enum):
    OK = "ok"
    SUSPECT = "suspect"
    DIVERGED = "diverged"


class Report(NamedTuple):
    """What a member says: its checksum at a revision."""

    revision: int
    checksum: bytes


class Judgement(Struct, frozen=True):
    verdict: Verdict
    why: str
    revision: int | None = None  # where the difference is
    differing: tuple[int, ...] = ()  # members that differ from this one there


def judge(
    member: int,
    own_checksum: Callable[[int], bytes | None],
    reports: Mapping[int, Report],
    voters: Collection[int],
    voters_outgoing: Collection[int] = (),
) -> Judgement:
    """Judge this member's state. `own_checksum` answers None for a revision it can't tell: compacted, or not reached.

    While the configuration is joint a majority of either half is enough to convict: both halves hold the same log, and
    a member that goes on with a wrong state does more harm than one that stops without need.
    """
    by_revision: dict[int, dict[bytes, set[int]]] = {}
    for other, report in reports.items():
        if other != member:
            by_revision.setdefault(report.revision, {}).setdefault(report.checksum, set()).add(other)

    suspicion: Judgement | None = None
    outvoted: Judgement | None = None
    for revision in sorted(by_revision):
        own = own_checksum(revision)
        if own is None:
            continue
        camps = by_revision[revision]
        others = {checksum: camp for checksum, camp in camps.items() if checksum != own}
        if not others:
            continue
        differing = tuple(sorted(set().union(*others.values())))
        for checksum, camp in sorted(others.items()):
            if _majority(camp, voters) or _majority(camp, voters_outgoing):
                return Judgement(
                    Verdict.DIVERGED,
                    f"at revision {revision} members {_list(camp)}, a majority of the voters, have checksum "
                    f"{checksum.hex()} and this member has {own.hex()}: its state is wrong; remove it from the "
                    "cluster, empty its data directory, and start and add it under a new raft id",
                    revision,
                    differing,
                )
        supporters = camps.get(own, set()) | {member}
        if _majority(supporters, voters) or _majority(supporters, voters_outgoing):
            outvoted = outvoted or Judgement(
                Verdict.OK,
                f"at revision {revision} members {_list(differing)} differ from a majority that agrees with this "
                "member: they have to stop, not this one",
                revision,
                differing,
            )
        else:
            suspicion = suspicion or Judgement(
                Verdict.SUSPECT,
                f"at revision {revision} members {_list(differing)} have another checksum than this member's "
                f"{own.hex()}, and no majority is known: ask every voter for its checksum at revision {revision}",
                revision,
                differing,
            )
    return suspicion or outvoted or Judgement(Verdict.OK, "no report differs from this member's checksums")


def _majority(camp: Collection[int], voters: Collection[int]) -> bool:
    distinct = set(voters)
    return bool(distinct) and len(distinct.intersection(camp)) > len(distinct) // 2


def _list(members: Collection[int]) -> str:
    return ", ".join(str(member) for member in sorted(members))
