"""A replica of this instance as those see it who repair it, rebuild it, or compare it with others."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.waiting import outcome
from trimtab.node.replicas.walking import Walk
from trimtab.rows.layout import RowLayout
from trimtab.tablets.missed import tablet_keys
from trimtab.tablets.ring import token_range


class HeldReplica:
    """Made anew whenever one is needed: what it wraps may be closed and replaced at any time."""

    def __init__(self, replica: Replica, layout: Callable[[int], RowLayout], count: int, title: str) -> None:
        self._replica = replica
        self._layout = layout
        self.table = replica.table
        self.tablet = replica.tablet
        self.name = f"tablet {replica.tablet} of {title}"
        self.low, self.high = tablet_keys(*token_range(replica.tablet, count))

    @property
    def gone(self) -> bool:
        return self._replica.closed

    @property
    def answers(self) -> bool:
        return self._replica.readable

    @property
    def repaired_through_ms(self) -> int:
        return self._replica.repaired_through_ms

    def walk(self, forget_ms: int, *, gentle: bool) -> Walk:
        return Walk(self._replica.scan, self._layout(self.table), forget_ms, gentle=gentle)

    async def put(self, pairs: list[bytes]) -> None:
        await outcome(lambda done: self._replica.write(pairs, done, repair=True))

    async def set_repaired_through(self, through_ms: int) -> None:
        if not self._replica.change_meta(repaired_through_ms=through_ms):
            raise Refused("not_ready", f"{self.name} can't write down how far it is repaired now; try again")

    async def finish(self) -> None:
        if not self._replica.change_meta(state=ReplicaState.OPEN):
            raise Refused("not_ready", f"{self.name} was closed meanwhile, or its disk is full")
        # Whoever reads from it has to find it so after a crash too.
        await outcome(self._replica.flush)
