"""Whom a replica has to be compared with before it has everything that was ever acknowledged.

A write acknowledged at a quorum of a data centre with RF replicas is on Q = RF // 2 + 1 of them. Whoever has looked at
RF - Q + 1 replicas there has met one of these, whichever they are. That goes for each data centre by itself
(LOCAL_QUORUM), and with it for all together: the sum over the data centres is never less than what QUORUM needs.

A replica whose data is intact counts as one of its own data centre. One that lost its data does not, and it may itself
have been among the Q that acknowledged.

Who has left the cluster never comes back, and what only it had is lost. Where those who are left are fewer than a read
quorum, nothing is gained by waiting: then all of them are looked at, and what they have is what there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trimtab.tablets.consistency import count_by_dc, quorum_of


def peers_needed(
    own: int, replicas: Sequence[int], dc_of: Mapping[int, str], *, intact: bool, gone: Collection[int] = ()
) -> dict[str, int]:
    """How many other replicas of each data centre `own` needs to look at. `gone`: of these nobody comes back."""
    left = [raft_id for raft_id in replicas if raft_id != own and raft_id not in gone]
    # Of nobody nothing can be made; but who is intact has at least what it has.
    most = count_by_dc(left, dc_of) if gone and (left or intact) else None
    needed = {}
    for dc, factor in sorted(count_by_dc(replicas, dc_of).items()):
        counts_itself = intact and own in replicas and dc_of.get(own, "") == dc
        number = factor - quorum_of(factor) + (0 if counts_itself else 1)
        if most is not None:
            number = min(number, most.get(dc, 0))
        if number:
            needed[dc] = number
    return needed


def enough(
    own: int, replicas: Sequence[int], asked: Collection[int], dc_of: Mapping[int, str], *, intact: bool
) -> bool:
    """Whether `own`, together with those it was compared with, meets every write quorum."""
    return missing(own, replicas, asked, dc_of, intact=intact) is None


def missing(
    own: int,
    replicas: Sequence[int],
    asked: Collection[int],
    dc_of: Mapping[int, str],
    *,
    intact: bool,
    gone: Collection[int] = (),
) -> str | None:
    """What is still lacking, with the numbers; None: it is enough."""
    others = [raft_id for raft_id in replicas if raft_id != own]
    got = count_by_dc((raft_id for raft_id in others if raft_id in asked), dc_of)
    there = count_by_dc(others, dc_of)
    short = [
        f"{number} of {there.get(dc, 0)} other replicas in data centre {dc}, {got.get(dc, 0)} compared"
        for dc, number in peers_needed(own, replicas, dc_of, intact=intact, gone=gone).items()
        if got.get(dc, 0) < number
    ]
    return f"needs {'; '.join(short)}" if short else None


def hopeless(own: int, replicas: Sequence[int], dc_of: Mapping[int, str], *, intact: bool) -> bool:
    """Whether even all others would not be enough: what was lost here had no other copy that is sure to have it."""
    return missing(own, replicas, replicas, dc_of, intact=intact) is not None
