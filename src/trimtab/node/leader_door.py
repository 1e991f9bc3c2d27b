"""The way from any member's door to the leader's decision, for everything that only the leader decides.

A member passes a request on to the leader, once. The leader looks at its view, decides, and writes on the condition
that nothing it looked at has changed; else it looks again. So two that ask at the same time are served one after the
other, and what was decided on is what holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from trimtab.governor.steps import Write
from trimtab.node.answering import Refused
from trimtab.node.calls import Calls
from trimtab.node.cluster_writes import ClusterWrites, Outdated
from trimtab.node.errors import NotLeader
from trimtab.node.group import Group

_MAX_LOOKS = 16
_MARGIN_S = 0.05

# A write and the texts of its events; None: there is nothing to write.
Decision = tuple[Write, Sequence[str]] | None


class LeaderDoor:
    """Of one instance. `governs`: it leads, and knows all that was decided before. `barrier` is a read barrier."""

    def __init__(
        self,
        raft_id: int,
        group: Group,
        writes: ClusterWrites,
        calls: Calls,
        *,
        governs: Callable[[], bool],
        barrier: Callable[[float], Awaitable[None]],
    ) -> None:
        self._raft_id = raft_id
        self._group = group
        self._writes = writes
        self._calls = calls
        self._governs = governs
        self._barrier = barrier
        self._loop = asyncio.get_running_loop()
        self._one_by_one = asyncio.Lock()

    async def pass_on(self, method: str, body: bytes, deadline: float, *, forwarded: bool) -> bytes | None:
        """The leader's answer; None: this member leads, and is to decide itself. `forwarded`: it was passed on before.

        NotLeader where no leader is known, or the one who was asked leads no more.
        """
        raft = self._group.raw.raft
        if raft.lead == self._raft_id:
            if not self._governs():
                # It has just been elected; what was decided before is about to be applied.
                await self._barrier(self.left_s(deadline))
                if not self._governs():
                    raise NotLeader(raft.lead if raft.lead != self._raft_id else 0)
            return None
        if forwarded or not raft.lead:
            raise NotLeader(raft.lead)
        return await self._calls.ask(raft.lead, method, body, self.left_s(deadline))

    def left_s(self, deadline: float) -> float:
        """What is left of a request's time for asking others."""
        return max(deadline - self._loop.time() - _MARGIN_S, 0.001)

    async def decide(self, look: Callable[[], Decision], kind: str, names: Sequence[str]) -> None:
        """Write what `look` makes of the view, with events of this kind about these instances."""
        # One by one: a hundred that ask at the same time would else all decide on the same state, and one would win.
        async with self._one_by_one:
            await self._decide(look, kind, names)

    async def _decide(self, look: Callable[[], Decision], kind: str, names: Sequence[str]) -> None:
        for _ in range(_MAX_LOOKS):
            decided = look()
            if decided is None:
                return
            write, texts = decided
            try:
                await self._writes.write(write, [self._writes.event(kind, text, names) for text in texts])
            except Outdated:
                continue
            return
        raise Refused("overloaded", "too many others changed the same at the same time; try again")
