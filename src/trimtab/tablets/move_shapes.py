"""What people and scripts are shown of tablets under way: the fields that any task has, and a few of their own.

Requests and jobs are tasks with numbers. A tablet under way is one with the name of its table and its number,
`shop.users:17`; it is there as long as the tablet is under way. All tablets of a table together are `shop.users`: that
task stays, and tells how the newest rebalance of the table went.

The command line and the HTTP door print these and nothing else. Fields may be added, not renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.catalog.names import split_table
from trimtab.tablets.moves_shown import MovesShown, ShownMove
from trimtab.tablets.rebalance_settings import RebalanceSettings, clock_text
from trimtab.tablets.transitions import RebalanceRecord, RebalanceState
from trimtab.topology.shapes import NOT_OF_REQUESTS, moment

Shape = dict[str, Any]
Names = Mapping[int, str]
REBALANCE = "rebalance"
RUNNING, PAUSED, UNDOING = "running", "paused", "undoing"
_MAX_DIGITS = 9


def task_id(table: str, tablet: int) -> str:
    return f"{table}:{tablet}"


def place_of(text: str) -> tuple[str, int | None]:
    """The table of a task, and the tablet (None: all of them); ValueError where it names none."""
    table, colon, tablet = text.partition(":") if ":" in text else text.partition("/")
    if colon and not (tablet.isascii() and tablet.isdigit() and len(tablet) <= _MAX_DIGITS):
        raise ValueError(
            f"'{text[:80]}' is no task; a tablet under way is KEYSPACE.TABLE:TABLET, such as shop.users:17"
        )
    split_table(table)
    return table, int(tablet) if colon else None


def named(raft_ids: Iterable[int], names: Names) -> list[str]:
    return [names.get(raft_id, f"raft id {raft_id}") for raft_id in raft_ids]


def move(shown: ShownMove, names: Names) -> Shape:
    """What there is to know of one, beside its sets and its stage."""
    current = shown.transition
    return {
        "kind": current.kind.value,
        "cause": current.cause.value,
        "why": current.why,
        "from": named(shown.leaving, names),
        "to": named(shown.arriving, names),
        "leftovers": named(current.leftovers, names),
        "locked": current.locked,
        "job": current.job or None,
        "state": _state(shown),
        "progress_bytes": shown.progress_bytes,
        "total_bytes": shown.total_bytes,
        "eta_s": shown.eta_s if shown.eta_s >= 0 else None,
        "attempts": current.attempts,
        "error": current.error or None,
        "planned_why": current.planned_why or None,
        "began": moment(current.began_ms),
        "stage_since": moment(current.stage_ms),
    }


def tasks(reply: MovesShown, names: Names) -> list[Shape]:
    """All rebalances and all tablets under way, by table."""
    shown = [
        rebalance_task(table, record, reply)
        for table, record in sorted(reply.rebalances.items())
        if record.state is not RebalanceState.IDLE and table in reply.names
    ]
    return shown + [move_task(each, reply, names) for each in reply.moves]


def move_task(shown: ShownMove, reply: MovesShown, names: Names) -> Shape:
    """One tablet under way."""
    current = shown.transition
    table = reply.names.get(shown.table, f"table {shown.table}")
    to = named(shown.arriving, names)
    return _whole(
        {
            "id": task_id(table, shown.tablet),
            "kind": current.kind.value,
            "state": _state(shown),
            "why": current.why or f"tablet {shown.tablet} of {table} goes to {', '.join(to) or 'fewer replicas'}",
            "progress_bytes": shown.progress_bytes,
            "total_bytes": shown.total_bytes,
            "rate_bytes_s": None,
            "eta_s": shown.eta_s if shown.eta_s >= 0 else None,
            "started": moment(current.began_ms),
            "error": current.error or None,
            "instance_id": to[0] if len(to) == 1 else None,
            "raft_id": shown.arriving[0] if len(to) == 1 else None,
            "asked": moment(current.began_ms),
            "ended": None,
            "deadline": None,
            "cancelling": (current.error or "it goes back to where it was") if shown.undoing else None,
            "reason": current.error or None,
            "phase": current.stage.value,
            "attempts": current.attempts,
            "pausing": shown.pausing,
            "progress_tablets": 0,
            "total_tablets": 1,
            "move": {
                "table": table,
                "tablet": shown.tablet,
                "replicas": named(shown.replicas, names),
                "pending": named(current.pending, names),
                "planned": named(current.planned, names) if current.planned else None,
                "stage": current.stage.value,
                "session": current.session or None,
                **move(shown, names),
            },
        }
    )


def rebalance_task(table: int, record: RebalanceRecord, reply: MovesShown) -> Shape:
    """All tablets of a table together: those that have moved since it began, are under way, or come next."""
    running = record.state is RebalanceState.RUNNING
    moves = [each for each in reply.moves if each.table == table and not each.undoing]
    coming = [each for each in reply.upcoming if running and each.table == table]
    done_bytes = record.moved_bytes + sum(each.progress_bytes for each in moves)
    total_bytes = record.moved_bytes + sum(each.total_bytes for each in moves) + sum(each.bytes for each in coming)
    rate = reply.rates.get(table, 0.0)
    failed = record.state is RebalanceState.FAILED
    name = reply.names[table]
    return _whole(
        {
            "id": name,
            "kind": REBALANCE,
            "state": record.state.value,
            "why": f"the tablets of {name} go to where they should be",
            "progress_bytes": done_bytes,
            "total_bytes": total_bytes,
            "rate_bytes_s": rate or None,
            "eta_s": round((total_bytes - done_bytes) / rate, 1) if running and rate > 0 else None,
            "started": moment(record.began_ms),
            "error": (record.reason or record.state.value) if failed else None,
            "instance_id": None,
            "raft_id": None,
            "asked": moment(record.began_ms),
            "ended": moment(record.ended_ms) if not running else None,
            "deadline": None,
            "cancelling": None,
            "reason": record.reason or None,
            "pausing": False,
            "progress_tablets": record.moves,
            "total_tablets": record.moves + len(moves) + sum(each.tablets for each in coming),
        }
    )


def rebalance(settings: RebalanceSettings, still: str, problems: Iterable[str]) -> Shape:
    """How balancing is set, and whether it may begin anything now."""
    window = settings.window
    return {
        "enabled": settings.enabled,
        "window": f"{clock_text(window[0])}-{clock_text(window[1])}" if window else None,
        "heal_after_s": settings.heal_after_ms / 1000,
        "moving": settings.moving,
        "moving_bytes": settings.moving_bytes,
        "set": moment(settings.set_ms),
        "active": not still,
        "still": still or None,
        "problems": list(problems),
    }


def _whole(shape: Shape) -> Shape:
    """With all fields that other tasks have."""
    return shape | {name: value for name, value in NOT_OF_REQUESTS.items() if name not in shape}


def _state(shown: ShownMove) -> str:
    if shown.undoing:
        return UNDOING
    return PAUSED if shown.job_state == PAUSED else RUNNING
