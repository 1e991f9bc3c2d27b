"""Tells the operator when nobody leads, once, and when somebody leads again.

Without a leader an instance refuses nearly everything it is asked, and nothing else in its log would say why. Elections
take a moment and are no news, so it waits a little before it speaks. It has no timer of its own: it is looked at
whenever Raft has another leader, and with every heartbeat that would be due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trimtab.node.group import Group
from trimtab.node.links import Link
from trimtab.topology.view import View

NEWS_AFTER_S = 3.0


class LeaderWatch:
    """Of the cluster group, as one member sees it."""

    def __init__(
        self,
        raft_id: int,
        group: Group,
        view: View,
        links: Mapping[int, Link],
        clock_s: Callable[[], float],
        story: Callable[[str], None],
    ) -> None:
        self._raft_id = raft_id
        self._group = group
        self._view = view
        self._links = links
        self._clock_s = clock_s
        self._story = story
        self._since_s: float | None = None  # nobody leads
        self._told = False
        self.closed = False  # this instance is no member any more: who leads is nothing to it

    def look(self) -> None:
        """Tell what is news by now."""
        if self.closed:
            return
        now_s, leader = self._clock_s(), self._group.raw.raft.lead
        if leader:
            if self._told and self._since_s is not None:
                whom = "this instance" if leader == self._raft_id else name_in(self._view, leader)
                self._story(f"a leader again: {whom}, after {now_s - self._since_s:.0f} s")
            self._since_s, self._told = None, False
        elif self._since_s is None:
            self._since_s = now_s
        elif not self._told and now_s - self._since_s >= NEWS_AFTER_S:
            self._told = True
            self._story(f"no leader is known: writes are refused, reads only at ONE; {self._reached()}")

    def _reached(self) -> str:
        others = self._group.raw.raft.tracker.config.voters.ids() - {self._raft_id}
        missing = sorted(each for each in others if not self._connected(each))
        if not missing:
            return f"connected to all {len(others)} other voters"
        names = ", ".join(name_in(self._view, each) for each in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return f"connected to {len(others) - len(missing)} of {len(others)} other voters, not to {names}{more}"

    def _connected(self, raft_id: int) -> bool:
        link = self._links.get(raft_id)
        return link is not None and link.channel.connected


def name_in(view: View, raft_id: int) -> str:
    """What operators call that member; by its raft id as long as its name is not known here."""
    record = view.instances.get(raft_id)
    return record.instance_id if record is not None else f"member {raft_id}"
