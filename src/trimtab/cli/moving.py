"""How commands tell of tablets under way: one in a few words, many in a line, and how one is waited for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.moves import Ended, MoveClient
    from trimtab.tablets.moves_shown import MovesShown

# So long a leader gets to answer; without one, whoever was asked says what it knows.
LEADER_S = 2.5
_FROM_COPY_ON = frozenset(("streaming", "write_both_read_new", "use_new", "cleanup", "end_migration"))


async def known_moves(client: MoveClient) -> MovesShown:
    """What is under way; nothing, of a release that knows no moves."""
    from trimtab.client.errors import InvalidRequest
    from trimtab.tablets.moves_shown import MovesShown

    try:
        return await client.known(timeout_s=LEADER_S)
    except InvalidRequest:
        return MovesShown()


def move_text(move: Mapping[str, Any], stage: str) -> str:
    """`i1 -> i4 streaming 42 %`: who loses a replica, who gets one, the stage, and how far the copy is."""
    gone, new = ", ".join(move["from"]), ", ".join(move["to"])
    way = f"{gone} -> {new}" if gone and new else f"+ {new}" if new else f"- {gone}" if gone else "repair"
    parts = [way, stage]
    if stage == "streaming" and move["total_bytes"]:
        parts.append(f"{100 * move['progress_bytes'] // move['total_bytes']} %")
    if move["state"] == "paused":
        parts.append("(paused)")
    return " ".join(parts)


def far_text(task: Mapping[str, Any]) -> str:
    """How far a tablet under way is, or a table's rebalance, in a few words."""
    from trimtab.tablets.moving_words import duration, part_of

    parts = [str(task["state"])]
    if task["phase"]:
        parts.append(str(task["phase"]))
    if task["pausing"]:
        parts.append("about to pause")
    if task["move"] is None and task["total_tablets"]:
        parts.append(f"{task['progress_tablets']} of {task['total_tablets']} tablets")
    if task["total_bytes"] and (task["phase"] is None or task["phase"] in _FROM_COPY_ON):
        parts.append(part_of(task["progress_bytes"], task["total_bytes"]))
    if task["rate_bytes_s"]:
        from trimtab.cli.drawing import in_bytes

        parts.append(f"{in_bytes(int(task['rate_bytes_s']))}/s")
    if task["eta_s"] is not None and task["state"] == "running":
        parts.append(f"{duration(task['eta_s'])} left")
    return ", ".join(parts)


def tablets_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nobody"


async def await_move(
    client: MoveClient, table: str, table_id: int, tablet: int, names: Mapping[int, str]
) -> tuple[Ended, str]:
    """Wait until a tablet is not under way any more, showing how far it is; and why it went back, if that was seen."""
    from trimtab.cli.progress import Progress
    from trimtab.tablets import move_shapes

    task, why = move_shapes.task_id(table, tablet), ""
    with Progress() as progress:

        def seen(reply: MovesShown) -> None:
            nonlocal why
            for each in reply.moves:
                why = each.transition.error or why
                shape = move_shapes.move_task(each, reply, names)
                way = move_text(shape["move"], "").strip()
                progress.show({task: f"{way}: {far_text(shape)}"})

        return await client.wait(table_id, tablet, seen), why


def tell_leaving(task: str) -> None:
    """After Ctrl-C."""
    print(
        f"trimtab: no longer waiting; {task} goes on. `trimtab tasks wait {task}` waits for it, "
        f"`trimtab tasks cancel {task}` undoes it.",
        file=sys.stderr,
    )


def told_end(task: str, ended: Ended, why: str, names: Mapping[int, str], began_s: float, as_json: bool) -> int:
    """Say how it ended; CommandFailed where the tablet is not where it was to go."""
    at = [names.get(raft_id, f"raft id {raft_id}") for raft_id in ended.replicas]
    arrived = ended.arrived or ended.last is None
    if as_json:
        state = "done" if arrived else "undone"
        print(json.dumps({"id": task, "state": state, "replicas": at, "error": None if arrived else why or state}))
    if not arrived:
        because = f": {why.rstrip('.')}" if why else "; `trimtab events` tells why"
        raise CommandFailed(f"{task} is on {tablets_text(at)}, not where it was to go{because}.")
    if not as_json:
        print(f"{task} is on {tablets_text(at)} ({time.monotonic() - began_s:.1f} s).")
    return 0
