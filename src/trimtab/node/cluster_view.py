"""`cluster.view`: the cluster as this instance sees it, for everybody who wants to look.

Linearizable after a read barrier; without one it is what this instance has applied, which may be all that is left to
look at. What only the leader knows (who was heard from, and when; what can't go on, and why) is shown by the leader
alone.

Rows of instances that have left stay for ever, and an answer has to fit into a message: of these, only the newest are
shown, unless others are asked for.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import islice

from trimtab.governor.state import Heard
from trimtab.loads.view import LoadView
from trimtab.node.answering import Asked, Method
from trimtab.node.group import Group
from trimtab.tablets.view import TableView
from trimtab.topology import protocol
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import InstanceView, MovingView, ViewReply
from trimtab.topology.records import EventRecord, InstanceRecord
from trimtab.topology.view import View

MAX_EVENTS_SHOWN = 1_000
# Requests that have ended are shown too, the newest ones.
MAX_REQUESTS_SHOWN = 500
LEFT_SHOWN = 200
MAX_LEFT_SHOWN = 1_000
MAX_WAITING_SHOWN = 100


class ClusterView:
    """Answers for one instance.

    `heard` gives what the leader knows, None where this instance does not lead; `sizes` are bytes by raft id; `full`
    are those whose disk is full; `keeps` says why one that is down could not be removed.
    """

    def __init__(
        self,
        raft_id: int,
        cluster_id: str,
        genesis: str,
        group: Group,
        view: View,
        tables: TableView,
        loads: LoadView,
        *,
        revision: Callable[[], int],
        barrier: Callable[[float], Awaitable[None]],
        heard: Callable[[], dict[int, Heard] | None],
        lease_left_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        waiting: Callable[[], Iterable[str]] = tuple,
        sizes: Callable[[], Mapping[int, int]] = dict,
        bulk_rate_bytes_s: Callable[[], int] = int,
        moving: Callable[[], MovingView] = MovingView,
        full: Callable[[], Collection[int]] = frozenset,
        keeps: Callable[[int], str] = lambda _raft_id: "",
    ) -> None:
        self._raft_id = raft_id
        self._cluster_id = cluster_id
        self._genesis = genesis
        self._group = group
        self._view = view
        self._tables = tables
        self._loads = loads
        self._revision = revision
        self._barrier = barrier
        self._heard = heard
        self._lease_left_ms = lease_left_ms
        self._wall_ms = wall_ms
        self._waiting = waiting
        self._sizes = sizes
        self._bulk_rate_bytes_s = bulk_rate_bytes_s
        self._moving = moving
        self._full = full
        self._keeps = keeps
        self._loop = asyncio.get_running_loop()

    def methods(self) -> dict[str, Method]:
        return {protocol.VIEW: self.show}

    async def show(self, asked: Asked) -> bytes:
        """The view as a reply."""
        request = protocol.decode_view(asked.body)
        if request.linearizable:
            await self._barrier(max(asked.deadline - self._loop.time(), 0.001))
        events: list[tuple[int, EventRecord]] = []
        if request.events_after >= 0:
            events = self._events(request.events_after, min(max(request.events_limit, 1), MAX_EVENTS_SHOWN))
        left_limit = min(max(request.left_limit, 0), MAX_LEFT_SHOWN)
        body: bytes = protocol.encode(self.reply(events, left_limit=left_limit, left_before=request.left_before))
        return body

    def reply(
        self, events: list[tuple[int, EventRecord]], *, left_limit: int = LEFT_SHOWN, left_before: int = 0
    ) -> ViewReply:
        """As of now, with these events, and so many of the instances that have left."""
        view, raft = self._view, self._group.raw.raft
        left = [
            raft_id
            for raft_id, record in sorted(view.instances.items())
            if record.left and (raft_id < left_before or not left_before)
        ]
        left_shown = left[max(len(left) - left_limit, 0) :]
        return ViewReply(
            cluster_id=self._cluster_id,
            genesis=self._genesis,
            asked=self._raft_id,
            leader=raft.lead,
            term=raft.term,
            revision=self._revision(),
            version=view.version,
            fence=view.fence,
            transition=view.transition,
            instances=self._instances(left_shown),
            requests=sorted(view.requests.items())[-MAX_REQUESTS_SHOWN:],
            events=events,
            last_event=view.next_event() - 1,
            lease_ms=max(self._lease_left_ms(), 0),
            unreadable=self._unreadable(),
            wall_ms=self._wall_ms(),
            left_out=len(left) - len(left_shown),
            waiting=list(islice(self._waiting(), MAX_WAITING_SHOWN)),
            bulk_rate_bytes_s=self._bulk_rate_bytes_s(),
            moving=self._moving(),
        )

    def _unreadable(self) -> list[str]:
        """What can't be read here, and whether the schema waits because of that."""
        records = {**self._view.unreadable, **self._tables.unreadable, **self._loads.unreadable}
        unread = [f"{key.decode(errors='replace')}: {why}" for key, why in sorted(records.items())]
        return [*unread, self._tables.waits_for] if self._tables.waits_for else unread

    def _instances(self, left_shown: Collection[int]) -> list[InstanceView]:
        config = self._group.raw.raft.tracker.config
        heard = self._heard()
        loads, sizes, full = self._tables.loads(), self._sizes(), self._full()
        shown = []
        shown_ids = self._view.members().keys() | set(left_shown)
        for raft_id in sorted(shown_ids):
            record = self._view.instances[raft_id]
            known = heard.get(raft_id) if heard is not None else None
            shown.append(
                InstanceView(
                    raft_id,
                    record,
                    voter=raft_id in config.voters,
                    learner=raft_id in config.learners or raft_id in config.learners_next,
                    heard_ms=known.age_ms if known is not None else None,
                    applied=known.applied if known is not None else None,
                    tablets=loads.get(raft_id, 0),
                    bytes=sizes.get(raft_id, 0),
                    disk_full=raft_id in full,
                    stays=self._keeps(raft_id) if _is_down(record) else "",
                )
            )
        return shown

    def _events(self, after: int, limit: int) -> list[tuple[int, EventRecord]]:
        numbers = sorted(self._view.events)
        first = bisect.bisect_right(numbers, after)
        return [(number, self._view.events[number]) for number in numbers[first : first + limit]]


def _is_down(record: InstanceRecord) -> bool:
    return not record.left and record.grades.current.grade is Grade.OFFLINE
