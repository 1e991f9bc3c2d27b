"""The planner's turns on the leader: when to plan, and what is known of the newest plan.

A turn begins when something changed that a plan depends on: instances, requests, maps, targets of tablets under way,
the schema, settings; sizes, or the room that disks have, by more than a little; and, because that depends on time
alone, who is lost. It runs beside the loop (in the simulator at once), one at a time, and rests longer the longer it
took, unless instances, requests or the schema are others. When nothing changed it costs nothing: an idle, balanced
cluster plans nothing and moves nothing.

A new leader knows no sizes. What must not wait (healing, draining, replication) it plans at once; for balance it waits
until everybody who is Online has told, or has had time enough to tell.

All of it is soft: a new leader plans anew. What is begun is in the metastore, with the revision that it was planned at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from trimtab.catalog.keys import CATALOG
from trimtab.node.background import defect_of
from trimtab.node.replicas.waiting import off_loop
from trimtab.node.size_reports import SizeReports
from trimtab.tablets.departures import Problem, going
from trimtab.tablets.domains import is_online
from trimtab.tablets.rebalance_settings import SETTINGS_KEY
from trimtab.tablets.replanning import Outline, Planned, Planner, by_balancer, outline, planned
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.sizes import SizeLedger
from trimtab.tablets.transitions import UNDOING, Cause, Proposal, place_of
from trimtab.tablets.view import Place
from trimtab.topology.records import INSTANCES, REQUESTS, TABLETS, TRANSITIONS, RequestKind

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

EVERY_S = 0.2  # at most so often
REST_FACTOR = 20  # and after a turn for so many times what it took: the leader has other things to do
MAX_REST_S = 30.0
SIZES_EVERY_S = 5.0
SHIFT = 0.05  # of what an instance holds
SHIFT_BYTES = 16 << 20  # less than that is no shift
TELL_S = 15.0  # so long a new leader waits for sizes at most
_REASONS = (INSTANCES, REQUESTS, CATALOG)  # where proposals come from
_MATTERS = (*_REASONS, TABLETS, SETTINGS_KEY)
_Target = tuple[Replicas, Replicas, bool]  # pending, planned, being undone


class Balancing:
    """Of one instance; it plans only while that leads.

    `lost` says whom nobody waits for any more; `avoided` who gets nothing now if others can take it.
    """

    def __init__(
        self,
        instance: Instance,
        sizes: SizeReports,
        *,
        lost: Callable[[], frozenset[int]],
        avoided: Callable[[], frozenset[int]] = frozenset,
        wake: Callable[[], None],
        planner: Planner = by_balancer,
    ) -> None:
        self._instance = instance
        self._watching = instance.watching
        self._sizes = sizes
        self._lost = lost
        self._avoided = avoided
        self._wake = wake
        self._planner = planner
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._term = 0
        self._changes = 0  # how often something changed that a plan depends on
        self._targets: dict[Place, _Target] = {}
        self._sized_s = 0.0
        self._sized: Mapping[int, int] = {}  # the totals that the newest plan saw
        self._room: Mapping[int, int] = {}  # and what the disks had left
        self._shifts = 0
        self._told = False
        self._seen: object = None  # what the newest plan, or the one under way, was made of
        self._not_before_s = 0.0
        self._set_aside: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self._hurried = False
        self._since_s = 0.0
        self.newest = Planned()
        self.current = False  # whether the newest plan knows everything that is written
        self.turns = 0

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return self.newest.proposals

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self.newest.problems

    def stop(self) -> None:
        self._end()

    def changed(self, keys: frozenset[bytes]) -> None:
        """These keys have other values; none of them: everything began anew."""
        if not self._term:
            return
        targets = [key for key in keys if key.startswith(TRANSITIONS)]
        if not keys or any(key.startswith(_MATTERS) for key in keys) or self._other_targets(targets):
            self._changes += 1
            self.current = False
        if not keys or any(key.startswith(_REASONS) for key in keys):
            # Whoever was drained may stay now, or a replication be another: what was wanted for that begins no more.
            self.newest = Planned(problems=self.newest.problems)
            self._hurry()

    def look(self, term: int) -> None:
        """Called in every turn of the governor: plan, if there is reason to. `term` 0: this instance does not lead."""
        if term != self._term:
            self._end()
            self._term = term
            self._since_s = self._loop.time()
        if not term:
            return
        lost, avoided = self._lost(), self._avoided()
        if (lost, avoided) != self._set_aside:
            self._set_aside = lost, avoided
            self._hurry()
        now_s = self._loop.time()
        self._look_at_sizes(now_s)
        seen = (self._changes, lost, avoided, self._shifts, self._told)
        if seen == self._seen or self._task is not None:
            return
        self.current = False
        if now_s < self._not_before_s:
            self._look_later(self._not_before_s - now_s)
            return
        self._seen = seen
        self._hurried = False
        if not self._watching.tables.maps:
            self.newest, self.current = Planned(), True
            return
        self._task = self._loop.create_task(self._turn(self._outline(lost, avoided), seen), name="balancing")
        self._task.add_done_callback(partial(self._ended, seen))

    def _hurry(self) -> None:
        """What is new now does not wait until the planner has rested."""
        self._hurried = True
        self._not_before_s = min(self._not_before_s, self._loop.time() + EVERY_S)

    def _look_later(self, after_s: float) -> None:
        if self._later is None:
            self._later = self._loop.call_later(after_s, self._look_now)

    def _look_now(self) -> None:
        self._later = None
        self._wake()

    def _end(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._term = 0
        self._seen = None
        self._told = False
        self._sized, self._room = {}, {}
        self._sized_s = 0.0
        self._targets.clear()
        self.newest, self.current = Planned(), False

    # What changed

    def _other_targets(self, keys: list[bytes]) -> bool:
        """Whether a tablet goes elsewhere than before; most changes are of stages, which no plan depends on."""
        other = False
        for key in keys:
            try:
                place = place_of(key)
            except ValueError:
                continue
            current = self._watching.tables.transition(*place)
            target = None if current is None else (current.pending, current.planned, current.stage in UNDOING)
            if target != self._targets.pop(place, None):
                other = True
            if target is not None:
                self._targets[place] = target
        return other

    def _look_at_sizes(self, now_s: float) -> None:
        ledger = self._sizes.ledger()
        if not self._told:
            self._told = now_s - self._since_s >= TELL_S or self._everybody_told(ledger)
        if now_s - self._sized_s >= SIZES_EVERY_S:
            self._sized_s = now_s
            if _shifted(self._sized, ledger.totals()) or _shifted(self._room, ledger.free_of_all()):
                self._shifts += 1

    def _everybody_told(self, ledger: SizeLedger) -> bool:
        held = self._watching.tables.loads()
        return all(
            ledger.told(raft_id) >= held.get(raft_id, 0)
            for raft_id, record in self._watching.view.members().items()
            if is_online(record)
        )

    # Planning

    def _outline(self, lost: frozenset[int], avoided: frozenset[int]) -> Outline:
        watching, ledger = self._watching, self._sizes.ledger()
        self._sized, self._room = ledger.totals(), ledger.free_of_all()
        leaving = frozenset(i for i, kind in going(watching.view).items() if kind is RequestKind.LEAVE)
        return outline(
            watching.view,
            watching.tables,
            ledger,
            lost=lost,
            draining=leaving - lost,
            trigger=watching.revision,
            avoided=avoided,
        )

    async def _turn(self, seen: Outline, about: object) -> None:
        began_s = self._instance.boot_s()
        made = await off_loop(self._instance.disk, partial(planned, seen, self._planner))
        took_s = self._instance.boot_s() - began_s
        rest_s = 0.0 if self._hurried else min(REST_FACTOR * took_s, MAX_REST_S)
        self._not_before_s = self._loop.time() + max(EVERY_S, rest_s)
        if not self._told:
            wanted = tuple(each for each in made.proposals if each.cause is not Cause.BALANCE)
            made = Planned(wanted, made.problems)
        self.turns += 1
        self.newest = made
        now = (self._changes, seen.lost, seen.avoided, self._shifts, self._told)
        self.current = about == now and self._told

    def _ended(self, about: object, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            # Of a term that is over.
            if not task.cancelled():
                task.exception()
            return
        self._task = None
        if (error := defect_of(task)) is not None:
            self._instance.complaints.add(f"the planner of tablets met a defect: {error!r}")
            self._not_before_s = self._loop.time() + TELL_S
            self._seen = None
        self._wake()


def _shifted(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Whether an instance holds, or has left, more or less than before by a share that counts."""
    if before.keys() != now.keys():
        return True
    return any(abs(now[i] - before[i]) > max(SHIFT_BYTES, SHIFT * max(now[i], before[i])) for i in now)
