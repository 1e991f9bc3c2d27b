"""What the leader sees when it governs: the replicated views, and everything that only it knows at this moment.

All of it is put together here into the value that the rules look at (`trimtab.governor.state`), for each turn anew; and
what the rules wait for into sentences for operators. A member that does not lead sees nobody, and waits for nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trimtab.governor.move_waits import failing_moves, kept_moves
from trimtab.governor.state import ClusterState, Heard, Patience
from trimtab.governor.steps import StepKey, Write
from trimtab.governor.waiting import waiting
from trimtab.node import conf_changes
from trimtab.node.cluster_writes import Outdated
from trimtab.node.errors import GroupError
from trimtab.node.leader_watch import name_in
from trimtab.tablets.departures import bound_text, going, lost, stays_because
from trimtab.topology.common_time import wording
from trimtab.topology.records import EventRecord, RequestKind

if TYPE_CHECKING:
    from trimtab.node.control import ClusterControl
    from trimtab.node.instance import Instance


class Outlook:
    """Of one instance, while it leads. `control` has the parts; they are looked at when they are needed."""

    def __init__(self, instance: Instance, control: ClusterControl, patience: Patience) -> None:
        self._instance = instance
        self._control = control
        self._group = instance.cluster
        self._view = instance.watching.view
        self._loop = asyncio.get_running_loop()
        self._events_on_the_way: dict[asyncio.Task[None], None] = {}
        self.patience = patience

    def stop(self) -> None:
        for task in list(self._events_on_the_way):
            task.cancel()

    def state(
        self, in_flight: frozenset[StepKey], resting: frozenset[StepKey], backing_off: frozenset[int]
    ) -> ClusterState:
        """The input of the governor's rules, now."""
        raft, control, watching = self._group.raw.raft, self._control, self._instance.watching
        config = raft.tracker.config
        return ClusterState(
            view=self._view,
            leader=self._instance.raft_id,
            term=raft.term,
            commit=raft.log.committed,
            voters=config.voters.ids(),
            learners=config.learners | config.learners_next - config.voters.ids(),
            joint=conf_changes.under_way(raft),
            genesis=self._instance.identity.genesis,
            cluster_id=self._instance.settings.cluster_id,
            now_ms=self._instance.wall_ms(),
            in_office_ms=control.office.in_office_ms,
            heard=control.desk.heard(),
            in_flight=in_flight,
            backing_off=backing_off,
            patience=self.patience,
            resting=resting,
            jobs=watching.jobs,
            driver_silent_ms=control.jobs.driver_silent_ms(),
            tables=watching.tables,
            loads=watching.loads,
            renewed_ms=control.loads.renewed_ms(),
            rebalance=watching.rebalance.settings,
            proposals=control.balancing.proposals,
            problems=control.balancing.problems,
            planned=control.balancing.current,
            moves=control.move_memory.facts(),
            revision=watching.revision,
        )

    def waiting(self) -> tuple[str, ...]:
        """What the governor waits for; nothing where this instance does not govern."""
        none: frozenset[Any] = frozenset()
        control = self._control
        if not control.office.leads:
            return ()
        late = (f"{name_in(self._view, who)} catches up: {why}" for who, why in control.deeds.catching_up.items())
        off = (self._clock_text(who, off_ms) for who, off_ms in sorted(control.desk.clocks_off().items()))
        return (*waiting(self.state(none, none, none)), *late, *off)

    def problems(self) -> tuple[str, ...]:
        """What the planner can't do, and tablets that don't get where they should because somebody can't do its part.

        Without what nobody serves: every member knows that, and tells it as soon as it is so.
        """
        none: frozenset[Any] = frozenset()
        planned = tuple(each.text for each in self._control.balancing.problems if not each.unserved)
        facts = self._control.move_memory.facts()
        if not self._control.office.leads or not (facts.troubles or facts.put_off):
            return planned
        return (*planned, *failing_moves(self.state(none, none, none)))

    def kept_moves(self) -> tuple[str, ...]:
        """Why tablets don't begin to move, or don't go on; as `waiting` tells it, but for copies that are made."""
        none: frozenset[Any] = frozenset()
        return tuple(kept_moves(self.state(none, none, none))) if self._control.office.leads else ()

    def holds(self, raft_id: int) -> str:
        """What is bound to an instance, in words."""
        return bound_text(self._instance.watching.tables, raft_id)

    def keeps(self, raft_id: int, kind: RequestKind) -> str | None:
        """Why the replicas of an instance can't be anywhere else; None: they can."""
        gone = {*self.lost(), *going(self._view)}
        return stays_because(self._view, self._instance.watching.tables, raft_id, kind, gone)

    def lost(self) -> frozenset[int]:
        """Those whose replicas are made anew elsewhere, because nobody waits for them any more."""
        return lost(
            self._view,
            self._instance.wall_ms(),
            self._instance.watching.rebalance.settings.heal_after_ms,
            in_office_ms=self._control.office.in_office_ms,
            alive=self.alive,
        )

    def heard(self) -> dict[int, Heard] | None:
        """Who was heard from; None: this instance does not govern."""
        return self._control.desk.heard() if self._control.office.leads else None

    def alive(self, raft_id: int) -> bool:
        """Whether an instance has been heard from lately; this one always."""
        if raft_id == self._instance.raft_id:
            return True
        heard = self._control.desk.heard().get(raft_id)
        return heard is not None and heard.age_ms < self.patience.offline_after_ms

    def clock_off(self, raft_id: int, off_ms: int) -> None:
        """A member's clock is found to be wrong: that becomes an event, once."""
        writes = self._control.writes
        event = writes.event("clock", self._clock_text(raft_id, off_ms), [name_in(self._view, raft_id)])
        task = self._loop.create_task(self._write_event(event, self._control.office.term))
        self._events_on_the_way[task] = None
        task.add_done_callback(self._events_on_the_way.pop)

    def _clock_text(self, raft_id: int, off_ms: int) -> str:
        how = wording(off_ms, self._instance.settings.timing.max_skew_ms)
        return f"the clock of {name_in(self._view, raft_id)} is {how}: it takes no writes until it is right"

    async def _write_event(self, event: EventRecord, term: int) -> None:
        try:
            await self._control.writes.write(Write({}), [event], term=term)
        except (GroupError, Outdated) as error:
            self._instance.complaints.add(f"an event could not be written down ({error}): {event.text}")
