"""How sentences about replicas speak of instances and tablets."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.topology.view import View

_MAX_NAMED = 5


def names(view: View, raft_ids: Iterable[int]) -> str:
    """The first few by name, and how many more."""
    ids = sorted(raft_ids)
    shown = [
        view.instances[each].instance_id if each in view.instances else f"raft id {each}" for each in ids[:_MAX_NAMED]
    ]
    return ", ".join(shown) + (f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else "")


def count(tablets: int) -> str:
    return f"{tablets} tablet{'s' if tablets != 1 else ''}"
