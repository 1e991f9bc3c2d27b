"""Tablets that move, as one can follow them from outside: what is under way, what has ended, how much and how long.

It follows the metastore's own records, every change of them, so nothing is missed and nothing is asked twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.client.cluster import ClusterClient
from trimtab.metastore.layout import prefix_end
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, decode_transition, place_of
from trimtab.topology.records import TRANSITIONS

_MAX_BEFORE = 5_000  # under way when it begins
_LAST = frozenset((Stage.USE_NEW, Stage.CLEANUP, Stage.END_MIGRATION))
Place = tuple[int, int]  # table, tablet


@dataclass
class Moves:
    """Of one tablet each; a move ends as done, or is undone or given another target, which is a move of its own."""

    under_way: dict[Place, TabletTransition] = field(default_factory=dict)
    done: list[TabletTransition] = field(default_factory=list)
    undone: list[TabletTransition] = field(default_factory=list)
    first_began: float = 0.0
    last_ended: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def count_anew(self) -> None:
        """Only what has not ended yet counts from now on."""
        self.done, self.undone = [], []
        self.first_began = self.last_ended = self.clock() if self.under_way else 0.0

    def take(self, key: bytes, value: bytes | None) -> None:
        """A record has changed; None: it is gone."""
        place = place_of(key)
        before = self.under_way.pop(place, None)
        now = decode_transition(value) if value is not None else None
        if now is not None:
            self.under_way[place] = now
        if before is not None and (now is None or now.session != before.session):
            (self.done if before.stage in _LAST else self.undone).append(before)
            self.last_ended = self.clock()
        if before is None and not self.first_began:
            self.first_began = self.last_ended = self.clock()

    @property
    def begun(self) -> int:
        return len(self.done) + len(self.undone) + len(self.under_way)

    @property
    def done_bytes(self) -> int:
        """As large as the cluster knew the tablets to be."""
        return sum(each.size_bytes for each in self.done)

    @property
    def wanted_bytes(self) -> int:
        return self.done_bytes + sum(each.size_bytes for each in self.under_way.values())

    @property
    def took_s(self) -> float:
        """From the first record to the end of the last."""
        return max(0.0, self.last_ended - self.first_began)

    @property
    def error(self) -> str:
        """Why the newest attempt at one that is under way failed; empty: none did."""
        return next((each.error for each in self.under_way.values() if each.error), "")

    def __str__(self) -> str:
        stages = sorted({each.stage.value.replace("_", " ") for each in self.under_way.values()})
        return f"{len(self.done)} of {len(self.done) + len(self.under_way)} tablets" + (
            f" ({', '.join(stages)})" if stages else ""
        )


async def follow(client: ClusterClient, moves: Moves) -> None:
    """Tell `moves` of everything from now on, until cancelled."""
    page = await client.metastore.range(TRANSITIONS, prefix_end(TRANSITIONS), limit=_MAX_BEFORE)
    for entry in page.entries:
        moves.take(entry.key, entry.value)
    async for item in client.metastore.watch(TRANSITIONS, from_revision=page.revision + 1):
        for change in item.changes:
            moves.take(change.key, None if change.new is None else change.new.value)
