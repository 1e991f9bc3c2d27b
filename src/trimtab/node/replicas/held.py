"""A replica of this instance as those see it who repair it, rebuild it, or compare it with others.

What a repair brings is merged, so it has no older versions. A replica that was rebuilt has nothing else: it refuses
reads as of a time up to the newest that it took. One that is repaired with its data intact needs no such thing. What it
acknowledged it has in all versions, and so have others what they acknowledged; whoever reads at a level that meets the
writes' meets somebody who has them, and what was merged adds to that nothing that was not so.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.waiting import outcome
from trimtab.node.replicas.walking import Walk
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import inverted
from trimtab.rows.layout import RowLayout
from trimtab.tablets.missed import tablet_keys
from trimtab.tablets.ring import token_range


class HeldReplica:
    """Made anew whenever one is needed: what it wraps may be closed and replaced at any time.

    `needs`: it lacks loads up to this epoch (0: none). `reaches`: the epoch that was visible when this was made: who
    has been repaired since has everything up to there. `apart`: stamps of a table that are not merged with others.
    """

    def __init__(
        self,
        replica: Replica,
        layout: Callable[[int], RowLayout],
        count: int,
        title: str,
        *,
        needs: int = 0,
        reaches: int = 0,
        apart: Callable[[int], frozenset[int]] = lambda _table: frozenset(),
    ) -> None:
        self._replica = replica
        self._layout = layout
        self._reaches = reaches
        self._apart = apart
        self.needs = needs
        self.table = replica.table
        self.tablet = replica.tablet
        self.generation = replica.generation
        self.name = f"tablet {replica.tablet} of {title}"
        self.low, self.high = tablet_keys(*token_range(replica.tablet, count))

    @property
    def gone(self) -> bool:
        return self._replica.closed

    @property
    def answers(self) -> bool:
        return self._replica.readable

    @property
    def adopted(self) -> int:
        return self._replica.adopted

    @property
    def repaired_through_ms(self) -> int:
        return self._replica.repaired_through_ms

    def walk(self, forget_ms: int, *, gentle: bool) -> Walk:
        apart = frozenset(map(inverted, self._apart(self.table)))
        return Walk(self._replica.scan, self._layout(self.table), forget_ms, gentle=gentle, apart=apart)

    async def put(self, pairs: list[bytes]) -> None:
        await outcome(lambda done: self._replica.write(pairs, done, repair=True))

    async def mended(self) -> None:
        if self.needs and self._reaches > self._replica.adopted:
            await outcome(lambda done: self._replica.set_adopted(self._reaches, done))

    async def set_repaired_through(self, through_ms: int) -> None:
        if not self._replica.change_meta(repaired_through_ms=through_ms):
            raise Refused("not_ready", f"{self.name} can't write down how far it is repaired now; try again")

    async def finish(self) -> None:
        if self._replica.arriving:
            raise Refused("moving", f"{self.name} arrives by a move; it waits for its copy")
        try:
            # What it had acknowledged came back merged: as of a time before these its older versions are missing.
            forgot_us = await self.walk(0, gentle=False).newest_us(self.low, self.high)
        except BadRow as error:
            raise Refused("not_ready", f"{self.name} has rows that can't be read: {error}") from error
        if not self._replica.change_meta(state=ReplicaState.OPEN, forgot_us=forgot_us):
            raise Refused("not_ready", f"{self.name} was closed meanwhile, or its disk is full")
        # Whoever reads from it has to find it so after a crash too.
        await outcome(self._replica.flush)
