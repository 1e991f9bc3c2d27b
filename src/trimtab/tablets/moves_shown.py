"""What whoever looks is told of tablets under way: the records, and how far each is.

    method       from -> to                body         answer
    moves.show   anyone -> any -> leader   ShowMoves    MovesShown

How far a copy is comes from the job that makes it, and only the leader hears that; a member that is asked for what it
knows itself (`local`) tells the stages alone. A job copies many tablets of one table together: each of them is shown as
far as the whole job is. Before its copy begins a tablet has moved nothing, and all from the lock on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import Replicas, Stage
from trimtab.tablets.transitions import Proposal, RebalanceRecord, TabletTransition, goes_back
from trimtab.tablets.view import TableView

SHOW = "moves.show"
MAX_SHOWN = 5_000
UNKNOWN_S = -1.0
_NOT_YET = frozenset((Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD))


class ShowMoves(msgspec.Struct, array_like=True, frozen=True):
    """Of one table, or of all (0). `local`: as whoever is asked knows them, without the leader.

    `tablet`: only this one of the table, and where it is (`replicas` of the answer); negative: all.
    """

    table: int = 0
    local: bool = False
    forwarded: bool = False
    tablet: int = -1


class JobShown(NamedTuple):
    """How far the job is that copies. `state` as the queue has it; `eta_s` < 0: not known."""

    state: str = ""
    pausing: bool = False
    progress_bytes: int = 0
    total_bytes: int = 0
    rate_bytes_s: float = 0.0
    eta_s: float = UNKNOWN_S

    @property
    def share(self) -> float:
        return min(self.progress_bytes / self.total_bytes, 1.0) if self.total_bytes else 0.0


NO_JOB = JobShown()
JobOf = Callable[[int], JobShown | None]


class ShownMove(msgspec.Struct, array_like=True, frozen=True):
    """One tablet under way. `replicas` is its stable set. Bytes are those that its arriving replicas get."""

    table: int
    tablet: int
    replicas: Replicas
    transition: TabletTransition
    progress_bytes: int = 0
    total_bytes: int = 0
    eta_s: float = UNKNOWN_S
    job_state: str = ""
    pausing: bool = False

    @property
    def arriving(self) -> Replicas:
        return self.transition.arriving(self.replicas)

    @property
    def leaving(self) -> Replicas:
        return self.transition.leaving(self.replicas)

    @property
    def undoing(self) -> bool:
        return goes_back(self.transition)


class Upcoming(msgspec.Struct, array_like=True, frozen=True):
    """Tablets of one table that the leader means to give other replicas next."""

    table: int
    tablets: int = 0
    bytes: int = 0


class MovesShown(msgspec.Struct, array_like=True, frozen=True):
    """`names` are those of all tables that are mentioned. `left_out`: more are under way than an answer has room for.

    `rates`: bytes a second of the jobs under way, by table. `told`: the leader answered, so that progress is known.
    """

    moves: list[ShownMove] = []
    rebalances: dict[int, RebalanceRecord] = {}
    upcoming: list[Upcoming] = []
    names: dict[int, str] = {}
    rates: dict[int, float] = {}
    left_out: int = 0
    settings: RebalanceSettings = RebalanceSettings()
    still: str = ""
    problems: list[str] = []
    told: bool = False
    replicas: Replicas = ()


def shown(
    tables: TableView,
    *,
    table: int = 0,
    only: int = -1,
    proposals: Iterable[Proposal] = (),
    job_of: JobOf = lambda _number: None,
    size_of: Callable[[int, int], int] = lambda _table, _tablet: 0,
) -> MovesShown:
    """All that is under way, or that of one table, or of only one of its tablets; and what is proposed besides."""
    moves: list[ShownMove] = []
    jobs: dict[int, JobShown] = {}
    rates: dict[int, float] = {}
    left_out = 0
    for each, under_way in sorted(tables.transitions.items()):
        if table not in (0, each) or each not in tables.maps:
            continue
        for tablet, current in sorted(under_way.items()):
            if tablet >= tables.maps[each].count or only not in (-1, tablet):
                continue
            if len(moves) == MAX_SHOWN:
                left_out += 1
                continue
            if current.job and current.job not in jobs:
                found = jobs[current.job] = job_of(current.job) or NO_JOB
                rates[each] = rates.get(each, 0.0) + found.rate_bytes_s
            job = jobs.get(current.job, NO_JOB)
            moves.append(_move(tables, each, tablet, current, job, size_of))
    coming = _upcoming(tables, table, proposals)
    rebalances = {each: record for each, record in tables.rebalances.items() if table in (0, each)}
    mentioned = {move.table for move in moves} | {each.table for each in coming} | rebalances.keys()
    names = {each: tables.name_of(each) for each in sorted(mentioned)}
    at = tables.map(table).replicas(only) if 0 <= only < tables.map(table).count else ()
    return MovesShown(moves, rebalances, coming, names, {k: v for k, v in rates.items() if v}, left_out, replicas=at)


def _move(
    tables: TableView,
    table: int,
    tablet: int,
    current: TabletTransition,
    job: JobShown,
    size_of: Callable[[int, int], int],
) -> ShownMove:
    stable = tables.maps[table].replicas(tablet)
    size = current.size_bytes or max(size_of(table, tablet), 0)
    total = size * max(len(current.arriving(stable)), 1)
    if goes_back(current) or current.stage in _NOT_YET:
        done = 0
    elif current.stage is Stage.STREAMING:
        done = int(total * job.share)
    else:
        done = total
    streams = current.stage is Stage.STREAMING
    return ShownMove(
        table,
        tablet,
        stable,
        current,
        done,
        total,
        job.eta_s if streams else UNKNOWN_S,
        job.state if streams else "",
        streams and job.pausing,
    )


def _upcoming(tables: TableView, only: int, proposals: Iterable[Proposal]) -> list[Upcoming]:
    counts: dict[int, tuple[int, int]] = {}
    for each in proposals:
        if only in (0, each.table) and tables.transition(each.table, each.tablet) is None:
            number, size = counts.get(each.table, (0, 0))
            counts[each.table] = number + 1, size + each.size_bytes
    return [Upcoming(table, number, size) for table, (number, size) in sorted(counts.items())]


def by_place(reply: MovesShown) -> Mapping[tuple[int, int], ShownMove]:
    return {(move.table, move.tablet): move for move in reply.moves}


encode: Any = msgspec.msgpack.Encoder().encode
decode_show = msgspec.msgpack.Decoder(ShowMoves).decode
decode_shown = msgspec.msgpack.Decoder(MovesShown).decode
