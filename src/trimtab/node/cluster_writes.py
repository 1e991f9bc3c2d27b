"""The leader's decisions become writes: conditional on what they were decided on, together with their events.

One command per decision. It holds if nothing it was based on has changed; otherwise nothing of it happens, and whoever
decided looks again (`Outdated`). That the topology's version or fence was raised by others is no such change: the write
takes the next number and is tried again. Events get the next free numbers in the same command, and push out the oldest
ones beyond MAX_EVENTS. Numbers grow with time; one is missing only where a write was overtaken while others were on
their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from trimtab.governor.rebasing import rebased
from trimtab.governor.steps import Write
from trimtab.metastore import commands
from trimtab.metastore.conditions import And, Compare, Condition, Revision
from trimtab.metastore.results import InvokeResult
from trimtab.node.errors import NotLeader, ProposalRefused
from trimtab.raft.roles import StateType
from trimtab.topology.records import MAX_EVENTS, EventRecord, encode, event_key

if TYPE_CHECKING:
    from trimtab.node.group import Group
    from trimtab.node.host import Host
    from trimtab.topology.view import View

# Events that go at once when there are too many: more than one write adds, so that the number comes down.
_TRIM = 32
# Of one write that others overtake, each time by nothing but a number.
_MAX_TRIES = 16


class Outdated(Exception):
    """What the decision was based on has changed meanwhile; nothing was written."""


class ClusterWrites:
    """Writes of this instance while it leads."""

    def __init__(self, host: Host, group: Group, view: View, wall_ms: Callable[[], int]) -> None:
        self._host = host
        self._group = group
        self._view = view
        self._wall_ms = wall_ms
        self._next_event = 1

    @property
    def term(self) -> int:
        return self._group.raw.raft.term

    def event(self, kind: str, text: str, instances: Sequence[str] = ()) -> EventRecord:
        """Something that happens now, under this leader."""
        return EventRecord(self._wall_ms(), kind, text, self.term, list(instances))

    async def write(self, write: Write, events: Sequence[EventRecord], *, term: int = 0) -> None:
        """Done when it is applied here. Outdated: not written. GroupError: see `outcome_known`.

        With a `term`, only a leader of that term writes.
        """
        for key in write.puts.keys() & self._view.unreadable.keys():
            # Perhaps a newer release wrote it; what this one would put there forgets what it can't read.
            raise ProposalRefused(
                f"{key.decode(errors='replace')} can't be read here ({self._view.unreadable[key]}), so it is not "
                "changed; let an instance of the newest release lead"
            )
        for _ in range(_MAX_TRIES):
            now = rebased(write, self._view)
            if now is None:
                break
            if await self._try(now, events, term):
                return
        raise Outdated("what this was decided on has changed meanwhile")

    async def _try(self, write: Write, events: Sequence[EventRecord], term: int) -> bool:
        """Whether it was written; False: something that it expects has changed."""
        raft = self._group.raw.raft
        if raft.state is not StateType.LEADER or (term and raft.term != term):
            raise NotLeader(raft.lead)
        # Writes that are on their way have numbers already which the view does not show yet.
        first = self._next_event = max(self._next_event, self._view.next_event())
        command = msgspec.structs.replace(self._command(write, events), now_ms=self._wall_ms())
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def proposed(result: object, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._host.propose(self._group, commands.encode(command), proposed)
        result = await done
        if not isinstance(result, InvokeResult):
            raise ProposalRefused(f"the metastore refused a write of the cluster's own: {result}")
        if result.yields is not True and self._next_event == first + len(events):
            # Nobody has taken a number after these, so they are free again.
            self._next_event = first
        return result.yields is True

    def _command(self, write: Write, events: Sequence[EventRecord]) -> commands.Command:
        unchanged: list[Condition] = [
            Revision(key, Compare.EQ, revision) for key, revision in sorted(write.expect.items())
        ]
        operations: list[commands.Operation] = [commands.Put(key, value) for key, value in sorted(write.puts.items())]
        operations += [commands.Delete(key) for key in write.deletes]
        for event in events:
            key = event_key(self._next_event)
            self._next_event += 1
            unchanged.append(Revision(key, Compare.EQ, 0))
            operations.append(commands.Put(key, encode(event)))
        surplus = len(self._view.events) + len(events) - MAX_EVENTS
        if events and surplus > 0:
            operations += [commands.Delete(event_key(number)) for number in islice(self._view.events, _TRIM)]
        return commands.invoke(And(tuple(unchanged)), operations)
