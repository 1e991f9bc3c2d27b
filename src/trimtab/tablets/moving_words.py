"""Tablets under way, in sentences: what an operator reads in `trimtab status`, and while a command waits.

    3 tablets are being moved to i4: 1.2 of 3.4 GiB, about 20 s left
    i2 is being drained: 12 of 40 tablets left
    healing: 8 tablets have lost a replica, 3 of them are being copied
    2 tablets go back to where they were

Pure: what is shown goes in. Tablets are told together that go to the same instances for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trimtab.tablets.moves_shown import MovesShown, ShownMove
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.transitions import Cause, Proposal, RebalanceState
from trimtab.topology.protocol import MovingView
from trimtab.topology.records import RequestKind, RequestState
from trimtab.topology.view import View

MAX_SENTENCES = 20
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_GOING = (RequestKind.LEAVE, RequestKind.REMOVE)
_MAX_NAMED = 3

NameOf = Callable[[int], str]


def moving_view(
    reply: MovesShown, view: View, held: Callable[[int], int], proposals: Sequence[Proposal] = ()
) -> MovingView:
    """The moves at a glance. `held` says how many replicas an instance has now."""
    moves = [move for move in reply.moves if not move.undoing]
    total = sum(move.total_bytes for move in moves)
    done = sum(move.progress_bytes for move in moves)
    rate = sum(reply.rates.values())
    coming, coming_bytes = sum(each.tablets for each in reply.upcoming), sum(each.bytes for each in reply.upcoming)
    stages: dict[str, int] = {}
    for move in reply.moves:
        stages[move.transition.stage.value] = stages.get(move.transition.stage.value, 0) + 1

    def name_of(raft_id: int) -> str:
        record = view.instances.get(raft_id)
        return record.instance_id if record is not None else f"member {raft_id}"

    sentences = (
        *_drains(view, held, name_of),
        *_healing(moves, proposals),
        *_moves(moves, rate, name_of),
        *_undone(reply.moves),
        *(f"{what} will be moved next" for what in _coming(coming, coming_bytes) if not reply.still),
    )
    still = "".join(f"{reply.still}; {what} should move" for what in _coming(coming, coming_bytes) if reply.still)
    return MovingView(
        tablets=len(reply.moves) + reply.left_out,
        progress_bytes=done,
        total_bytes=total,
        rate_bytes_s=round(rate, 1),
        eta_s=round((total - done) / rate, 1) if rate > 0 else -1.0,
        upcoming_tablets=coming,
        upcoming_bytes=coming_bytes,
        stages=stages,
        sentences=list(sentences)[:MAX_SENTENCES],
        problems=[*reply.problems, *_failed(reply)][:MAX_SENTENCES],
        still=still or reply.still,
    )


def _failed(reply: MovesShown) -> Iterable[str]:
    """Tables whose newest rebalance failed, while something of them should still move; and nothing else says why."""
    wanted = {each.table for each in reply.upcoming}
    for table, record in sorted(reply.rebalances.items()):
        told = any(record.reason in problem or problem in record.reason for problem in reply.problems)
        if record.state is RebalanceState.FAILED and record.reason and table in wanted and not told:
            yield f"balancing {reply.names.get(table, f'table {table}')} failed: {record.reason}"


def _drains(view: View, held: Callable[[int], int], name_of: NameOf) -> Iterable[str]:
    for _number, request in sorted(view.requests.items()):
        if request.kind not in _GOING or request.state.final or request.cancel:
            continue
        left = held(request.raft_id)
        if not left:
            continue
        of = f" of {request.tablets}" if request.tablets >= left else ""
        doing = "drained" if request.kind is RequestKind.LEAVE else "removed: its replicas are made anew elsewhere"
        waits = " (it waits)" if request.state is RequestState.PENDING and not request.tablets else ""
        sign = ": " if doing == "drained" else ", "
        yield f"{name_of(request.raft_id)} is being {doing}{sign}{left}{of} {_tablets(left, of)} left{waits}"


def _healing(moves: Iterable[ShownMove], proposals: Iterable[Proposal]) -> Iterable[str]:
    healed = [move for move in moves if move.transition.cause is Cause.HEAL]
    under_way = {(move.table, move.tablet) for move in healed}
    waiting = {(each.table, each.tablet) for each in proposals if each.cause is Cause.HEAL} - under_way
    number = len(healed) + len(waiting)
    if number:
        verb = "has" if number == 1 else "have"
        copied = f", {len(healed)} of them {_be(len(healed))} being copied" if healed and waiting else ""
        copied = ", and is being copied" if not waiting and number == 1 else copied
        copied = ", and are being copied" if not waiting and number > 1 else copied
        yield f"healing: {number} {_tablets(number)} {verb} lost a replica{copied}{_bytes_of(healed)}"


def _moves(moves: Iterable[ShownMove], rate: float, name_of: NameOf) -> Iterable[str]:
    """All but healing, by where they go; the time left is that of all together, as they share the limit."""
    groups: dict[tuple[Replicas, str], list[ShownMove]] = {}
    repaired: list[ShownMove] = []
    for move in moves:
        if move.transition.cause is Cause.HEAL:
            continue
        if not move.arriving:
            repaired.append(move)
            continue
        groups.setdefault((tuple(sorted(move.arriving)), _ways(move.transition.cause)), []).append(move)
    for (arriving, ways), group in sorted(groups.items(), key=lambda each: -len(each[1])):
        number = len(group)
        left = sum(move.total_bytes - move.progress_bytes for move in group)
        time = f", about {duration(left / rate)} left" if rate > 0 and left else ""
        paused = " (paused)" if all(move.job_state == "paused" for move in group) else ""
        what = ways.format(_named(arriving, name_of))
        yield f"{number} {_tablets(number)} {_be(number)} being {what}{_bytes_of(group)}{time}{paused}"
    if repaired:
        number = len(repaired)
        yield f"{number} {_tablets(number)} {_be(number)} repaired before a replica goes{_bytes_of(repaired)}"


def _undone(moves: Iterable[ShownMove]) -> Iterable[str]:
    undone = [move for move in moves if move.undoing]
    if undone:
        number = len(undone)
        goes = "goes back to where it was" if number == 1 else "go back to where they were"
        why = next((move.transition.error for move in undone if move.transition.error), "")
        yield f"{number} {_tablets(number)} {goes}{f': {why}' if why else ''}"


def _coming(tablets: int, size: int) -> Iterable[str]:
    if tablets:
        yield f"{tablets} {_tablets(tablets)}{f' ({in_bytes(size)})' if size else ''}"


def _ways(cause: Cause) -> str:
    """What happens to a tablet. Balance and drains are not told apart: a drain has a line of its own."""
    return {
        Cause.OPERATOR: "moved to {} for an operator",
        Cause.REPLICATION: "copied to {} for the replication",
        Cause.REBUILD: "rebuilt on {}",
    }.get(cause, "moved to {}")


def _bytes_of(moves: Iterable[ShownMove]) -> str:
    chosen = list(moves)
    total = sum(move.total_bytes for move in chosen)
    return f": {part_of(sum(move.progress_bytes for move in chosen), total)}" if total else ""


def _named(raft_ids: Replicas, name_of: NameOf) -> str:
    names = [name_of(raft_id) for raft_id in raft_ids]
    if len(names) > _MAX_NAMED:
        names[_MAX_NAMED - 1 :] = [f"{len(names) - _MAX_NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _tablets(number: int, of: str = "") -> str:
    return "tablet" if number == 1 and not of else "tablets"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


# Numbers


def _scaled(count: float) -> int:
    """How often it is divided by 1024 to be short."""
    steps = 0
    while count >= 1000 and steps < len(_UNITS) - 1:
        count, steps = count / 1024, steps + 1
    return steps


def in_bytes(count: float) -> str:
    """A number of bytes, short."""
    steps = _scaled(count)
    size = count / 1024**steps
    return f"{size:.0f} {_UNITS[steps]}" if not steps or size >= 100 else f"{size:.1f} {_UNITS[steps]}"


def part_of(done: float, total: float) -> str:
    """`1.2 of 3.4 GiB`: both in the unit of the whole."""
    steps = _scaled(total)
    decimals = 0 if not steps or total / 1024**steps >= 100 else 1
    return f"{min(done, total) / 1024**steps:.{decimals}f} of {in_bytes(total)}"


def duration(seconds: float) -> str:
    """How long, in the unit that says it best."""
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
