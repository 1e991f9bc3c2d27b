"""Cutting the Raft logs, never below what would still be needed.

An entry may go when the machine has applied it *and* made that durable, a margin of newer ones is kept for followers
that are a little behind, and no snapshot on its way to a member lies below it. The machine's flush runs off the loop;
the cut follows when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trimtab.node.group import Group
from trimtab.node.host import Host
from trimtab.node.settings import Limits
from trimtab.node.snapshots import Snapshots


def cut_index(applied_durable: int, last_applied: int, keep_entries: int, pinned: int | None) -> int:
    """The last index that may be cut."""
    cut = min(applied_durable, last_applied - keep_entries)
    return cut if pinned is None else min(cut, pinned)


class Compaction:
    """Looks at every group now and then, and cuts those whose log has grown."""

    def __init__(
        self, host: Host, snapshots: Snapshots, limits: Limits, *, fatal: Callable[[BaseException], None]
    ) -> None:
        self._host = host
        self._snapshots = snapshots
        self._limits = limits
        self._fatal = fatal

    def run(self) -> None:
        """Start a flush for every group whose log is long enough to be worth it."""
        for group in self._host.groups.values():
            applied = group.machine.applied_index - group.log.first_index() + 1
            keep = self._keep_entries(group)
            too_long = applied - keep >= self._limits.log_compact_entries
            too_large = group.log.bytes >= self._limits.log_compact_bytes and applied > keep
            if (too_long or too_large) and not group.flushing:
                group.flushing = True
                group.machine.start_flush(partial(self._flushed, group))

    def _keep_entries(self, group: Group) -> int:
        """How many entries stay for members that are a little behind: bounded by number and, roughly, by bytes."""
        length = group.log.last_index() - group.log.first_index() + 1
        by_bytes = length * self._limits.log_keep_bytes // max(group.log.bytes, 1)
        return min(self._limits.log_keep_entries, by_bytes)

    def _flushed(self, group: Group, index: int, error: BaseException | None) -> None:
        group.flushing = False
        if error is not None:
            self._fatal(error)
            return
        group.flushed_index = max(group.flushed_index, index)
        pinned = self._snapshots.pinned_index(group.id)
        cut = cut_index(group.flushed_index, group.machine.applied_index, self._keep_entries(group), pinned)
        if cut >= group.log.first_index():
            self._host.log.compact(group.id, cut)
            self._host.nudge(group)
