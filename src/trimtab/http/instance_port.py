"""The door's port over a real instance: what its own methods answer over the network, asked without one.

Nothing is decided here. Requests take the way of every other member's request, so HTTP and the command line can't
differ; figures are read from where they are anyway.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

import trimtab
from trimtab.http.port import Figures, Health, Refused, TablesShown
from trimtab.jobs import protocol as job_protocol
from trimtab.jobs.protocol import JobReply, JobsReply, ShowJobs, SteerJob
from trimtab.jobs.records import JobRecord
from trimtab.loads import protocol as load_protocol
from trimtab.loads.protocol import LimitReply, LimitRequest, LoadsReply, ShowRequest
from trimtab.metastore.errors import MetastoreError
from trimtab.net.errors import ConnectionLost, DeadlineExceeded, NetError, RpcError
from trimtab.node.answering import Refused as MethodRefused
from trimtab.node.control import ClusterControl
from trimtab.node.errors import GroupError
from trimtab.node.instance import Instance
from trimtab.node.waits import WaitedTooLong
from trimtab.raft.roles import StateType
from trimtab.storage.node_log import SYNC_BUCKETS_SECONDS
from trimtab.tablets import move_protocol, moves_shown, sizes
from trimtab.tablets.move_protocol import MoveReply, MoveRequest, SettingsReply, SettingsRequest
from trimtab.tablets.moves_shown import MovesShown, ShowMoves
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.sizes import SizesRequest
from trimtab.topology import protocol
from trimtab.topology.grades import Grades
from trimtab.topology.protocol import (
    CancelRequest,
    CreateRequest,
    ProbeReply,
    ProbeRequest,
    RequestReply,
    ViewReply,
    ViewRequest,
)
from trimtab.topology.records import EVENTS, EventRecord
from trimtab.topology.view import View

T = TypeVar("T")

# The door has a limit of its own, which is shorter.
_TIMEOUT_S = 30.0
_ALL_JOBS = 2_000  # more than are kept


class InstancePort:
    """One instance that takes part in governing."""

    def __init__(self, instance: Instance) -> None:
        if instance.control is None:
            raise ValueError("an instance that is not governed has no cluster to show")
        self._instance = instance
        self._control: ClusterControl = instance.control

    # From memory

    def health(self) -> Health:
        instance, settings = self._instance, self._instance.settings
        raft, view = instance.cluster.raw.raft, self._control.view
        own, leader = view.instances.get(instance.raft_id), view.instances.get(raft.lead)
        return Health(
            cluster_id=settings.cluster_id,
            instance_id=settings.instance_id,
            raft_id=instance.raft_id,
            release=trimtab.__version__,
            role=self._role(),
            term=raft.term,
            leader=leader.instance_id if leader is not None else "",
            grades=own.grades if own is not None else Grades(),
            lease_ms=max(self._control.lease_left_ms(), 0),
            disk_full=instance.host.full(),
            known=self._known(),
            out=self._out(),
        )

    def _known(self) -> bool:
        """Whether the own row is about this life: right after a start it is about the last one."""
        own, life = self._control.view.instances.get(self._instance.raft_id), self._control.standing.incarnation
        return own is not None and life is not None and own.grades.target.incarnation >= life

    def _role(self) -> str:
        raft = self._instance.cluster.raw.raft
        if raft.state is StateType.FOLLOWER and self._instance.raft_id not in raft.tracker.config.voters:
            return "learner"
        return "candidate" if raft.state is StateType.PRE_CANDIDATE else raft.state.name.lower()

    def _out(self) -> str:
        if self._instance.failure is not None:
            return f"it has stopped: {self._instance.failure}"
        return self._instance.removed or self._control.serving.closed

    def figures(self) -> Figures:
        instance, control = self._instance, self._control
        raft, view, log = instance.cluster.raw.raft, control.view, instance.log.metrics
        members = view.members()
        heard = control.outlook.heard() or {}
        return Figures(
            cluster_id=instance.settings.cluster_id,
            instance_id=instance.settings.instance_id,
            raft_id=instance.raft_id,
            release=trimtab.__version__,
            term=raft.term,
            committed=raft.log.committed,
            applied=instance.machine.applied_index,
            leads=raft.lead == instance.raft_id,
            leader=raft.lead,
            members=len(raft.tracker.progress),
            voters=len(raft.tracker.config.voters.ids()),
            log_syncs=log.syncs,
            log_entries=log.entries,
            log_bytes=log.bytes,
            log_sync_seconds=log.sync_seconds,
            sync_limits_s=SYNC_BUCKETS_SECONDS,
            sync_counts=tuple(log.sync_buckets),
            revision=instance.machine.metastore.revision,
            version=view.version,
            fence=view.fence,
            grades=dict(Counter(each.grades.current.grade.value for each in members.values())),
            lease_ms=max(control.lease_left_ms(), 0),
            heard_ms={
                record.instance_id: heard[raft_id].age_ms
                for raft_id, record in members.items()
                if raft_id != instance.raft_id and raft_id in heard
            },
            steps=dict(control.executor.outcomes),
            open_requests=len(control.open_requests),
            requests=dict(Counter(each.state.value for each in view.requests.values())),
            last_event=view.next_event() - 1,
            disk_full=bool(instance.host.full()),
            parts=tuple(each for sampler in instance.samplers for each in sampler()),
        )

    # By asking

    async def view(self, linearizable: bool, events_after: int, events_limit: int) -> ViewReply:
        request = ViewRequest(linearizable, events_after, max(events_limit, 1))
        return protocol.decode_view_reply(await self._ask(protocol.VIEW, protocol.encode(request)))

    async def tables(self, linearizable: bool) -> TablesShown:
        if linearizable:
            await self._guarded(self._control.read_barrier(_TIMEOUT_S))
        known, members = self._instance.watching.tables, self._control.view.members()
        names = {raft_id: record.instance_id for raft_id, record in members.items()}
        return TablesShown(known.catalog, known.maps, names)

    async def sizes(self, table: int) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        start: tuple[int, int] | None = (0, 0)
        while start is not None:
            try:
                answer = await self._ask(sizes.SIZES, sizes.encode(SizesRequest(table, start)))
            except Refused:
                # Where tablets are is known without a leader; how large they are is not.
                break
            page = sizes.decode_reply(answer)
            found |= sizes.by_place(page)
            start = page.next
        return found

    async def loads(self, table: int, local: bool) -> LoadsReply:
        body = load_protocol.encode(ShowRequest(table, local=local))
        reply: LoadsReply = load_protocol.decode_loads_reply(await self._ask(load_protocol.SHOW, body))
        return reply

    async def moves(self, table: int, local: bool) -> MovesShown:
        body = moves_shown.encode(ShowMoves(table, local=local))
        reply: MovesShown = moves_shown.decode_shown(await self._ask(moves_shown.SHOW, body))
        return reply

    async def move(self, request: MoveRequest) -> MoveReply:
        answer = await self._ask(move_protocol.ASK, move_protocol.encode(request))
        return move_protocol.decode_move_reply(answer)

    async def rebalance(self, wanted: RebalanceSettings | None) -> SettingsReply:
        answer = await self._ask(move_protocol.SETTINGS, move_protocol.encode(SettingsRequest(wanted)))
        return move_protocol.decode_settings_reply(answer)

    async def limit(self, rate_bytes_s: int | None) -> LimitReply:
        body = load_protocol.encode(LimitRequest(-1 if rate_bytes_s is None else rate_bytes_s))
        reply: LimitReply = load_protocol.decode_limit_reply(await self._ask(load_protocol.LIMIT, body))
        return reply

    async def create(self, request: CreateRequest) -> RequestReply:
        return protocol.decode_request_reply(await self._ask(protocol.CREATE, protocol.encode(request)))

    async def cancel(self, request: CancelRequest) -> RequestReply:
        return protocol.decode_request_reply(await self._ask(protocol.CANCEL, protocol.encode(request)))

    async def jobs(self, numbers: Sequence[int], local: bool) -> JobsReply:
        request = ShowJobs(tuple(numbers), _ALL_JOBS, local=local)
        reply: JobsReply = job_protocol.decode_jobs_reply(
            await self._ask(job_protocol.SHOW, job_protocol.encode(request))
        )
        return reply

    async def steer(self, order: SteerJob) -> JobRecord:
        reply: JobReply = job_protocol.decode_job_reply(await self._ask(job_protocol.STEER, job_protocol.encode(order)))
        return reply.job

    async def probe(self, request: ProbeRequest) -> ProbeReply:
        return protocol.decode_probe_reply(await self._ask(protocol.PROBE, protocol.encode(request)))

    async def watch_events(self, after: int) -> AsyncIterator[tuple[int, EventRecord]]:
        """Reads the applied events again whenever one was added. It ends with the instance."""
        instance, view = self._instance, self._control.view
        news = asyncio.Event()

        def changed(keys: frozenset[bytes]) -> None:
            # No keys: everything began anew.
            if not keys or any(key.startswith(EVENTS) for key in keys):
                news.set()

        def ended(_future: asyncio.Future[None]) -> None:
            news.set()

        instance.watching.on_change.append(changed)
        instance.ended.add_done_callback(ended)
        try:
            while not instance.ended.done():
                news.clear()
                while number := _next_event(view, after):
                    after = number
                    yield number, view.events[number]
                await news.wait()
        finally:
            instance.ended.remove_done_callback(ended)
            if changed in instance.watching.on_change:
                instance.watching.on_change.remove(changed)

    async def _ask(self, method: str, body: bytes) -> bytes:
        """What this instance answers, as it would answer anybody."""
        if why := self._out():
            raise Refused("stopped", why)
        return await self._guarded(self._control.calls.ask(self._instance.raft_id, method, body, _TIMEOUT_S))

    async def _guarded(self, asked: Awaitable[T]) -> T:
        """The answer, or why there is none in the door's words."""
        try:
            return await asked
        except (MethodRefused, RpcError) as error:
            raise Refused(error.code, error.text) from error
        except GroupError as error:
            raise Refused(error.code, str(error)) from error
        except (WaitedTooLong, ConnectionLost, DeadlineExceeded) as error:
            raise Refused("no_answer", f"{error}; the outcome is unknown") from error
        except MetastoreError as error:
            raise Refused("invalid", str(error)) from error
        except NetError as error:
            raise Refused("unavailable", str(error)) from error


def _next_event(view: View, after: int) -> int:
    """The number of the event that follows; 0: there is none yet. Usually it is the next number."""
    if after + 1 in view.events:
        return after + 1
    return min((number for number in view.events if number > after), default=0)
