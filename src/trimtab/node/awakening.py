"""Which sleeping groups to wake, and when: all of a dead process's groups at once would drown the living.

A process that dies leaves thousands of groups without a leader. Their other members forget it, and take over in an
order that differs from group to group, so that leaders spread and rarely run against each other; a later one only
acts if the earlier one did not succeed. How many elections may be under way at a time is bounded, so that those get
through. Pre-vote makes a mistaken attempt harmless.

A process that returns has missed what its groups did meanwhile. Leaders that went quiet without it wake up, some at a
time, and let it catch up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable

from trimtab.node.group import Group
from trimtab.node.settings import Timing
from trimtab.raft.roles import StateType

ELECTIONS_UNDER_WAY = 256
WAKES_A_TICK = 200


def takeover_rank(voters: Iterable[int], dead: int, member: int, group_id: int) -> int | None:
    """This member's turn among the voters that may take the group over; None if it may not."""
    candidates = sorted(voter for voter in voters if voter != dead)
    if member not in candidates:
        return None
    return (candidates.index(member) + group_id) % len(candidates)


class Awakening:
    """The queues of groups that need an election or a wake-up call."""

    def __init__(
        self,
        raft_id: int,
        timing: Timing,
        *,
        campaign: Callable[[Group], None],
        wake: Callable[[Group], None],
    ) -> None:
        self._raft_id = raft_id
        self._timing = timing
        self._campaign = campaign
        self._wake = wake
        self._due: list[tuple[float, int, Group]] = []
        self._entered = 0
        self._electing: dict[int, float] = {}
        self._sleepers: deque[Group] = deque()

    @property
    def busy(self) -> bool:
        """Whether anything waits to be woken."""
        return bool(self._due or self._sleepers)

    def elect(self, group: Group, dead: int, now: float, *, after_ms: int, step_ms: int) -> None:
        """Take the group over when this member's turn comes, if nobody has by then."""
        rank = takeover_rank(group.raw.raft.tracker.config.voters.ids(), dead, self._raft_id, group.id)
        if rank is not None:
            self._entered += 1
            heapq.heappush(self._due, (now + (after_ms + rank * step_ms) / 1000, self._entered, group))

    def catch_up(self, groups: Iterable[Group]) -> None:
        """Wake leaders whose returning member has something to catch up with."""
        self._sleepers.extend(groups)

    def settled(self, group: Group) -> None:
        """The group has a leader: another election may begin."""
        self._electing.pop(group.id, None)

    def run(self, now: float) -> None:
        """Begin what is due, within the bound."""
        patience_s = self._timing.election_ticks * self._timing.tick_ms / 1000
        if len(self._electing) >= ELECTIONS_UNDER_WAY:
            # An election that takes this long has lost its quorum; it must not hold up the others.
            self._electing = {group: since for group, since in self._electing.items() if now - since < patience_s}
        while self._due and self._due[0][0] <= now and len(self._electing) < ELECTIONS_UNDER_WAY:
            group = heapq.heappop(self._due)[2]
            raft = group.raw.raft
            if raft.lead == 0 and raft.state is StateType.FOLLOWER:
                self._electing[group.id] = now
                self._campaign(group)

    def tick(self, now: float) -> None:
        """Once a tick: elections, and the next few sleepers."""
        self.run(now)
        for _ in range(min(WAKES_A_TICK, len(self._sleepers))):
            self._wake(self._sleepers.popleft())
