"""How the governor speaks of instances and times: the same words in every sentence that operators read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trimtab.topology.view import View

MAX_NAMED = 6


def name(view: View, raft_id: int) -> str:
    """The instance id; the raft id where there is no record."""
    record = view.instances.get(raft_id)
    return record.instance_id if record is not None else f"member {raft_id}"


def names(view: View, raft_ids: Iterable[int]) -> str:
    """`i1, i2 and i3`; of many only the first, and how many more."""
    return listed([name(view, raft_id) for raft_id in sorted(raft_ids)])


def listed(words: Sequence[str]) -> str:
    if len(words) > MAX_NAMED:
        words = [*words[: MAX_NAMED - 1], f"{len(words) - MAX_NAMED + 1} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s"


def are(count: Iterable[object]) -> str:
    return "is" if len(list(count)) == 1 else "are"
