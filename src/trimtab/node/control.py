"""This instance's part in governing the cluster, put together: as the leader, and as one that is governed.

As a member it announces itself, sends heartbeats, obeys orders of the leader, passes requests on, and serves only what
the gate lets through. While it leads it also keeps the desk for heartbeats and carries out what the governor plans.
Leadership comes and goes with Raft: `leader_changed`, and what is applied, tell.

Everything that waits (an order, a barrier, a farewell) waits in one place, `waits`, which is looked at when something
was applied, the view changed, or a request ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import trimtab
from trimtab.governor.plan import plan
from trimtab.governor.state import ClusterState, Patience
from trimtab.governor.steps import StepKey
from trimtab.jobs.protocol import BEAT
from trimtab.net.client import Channel
from trimtab.net.errors import NetError, RpcError
from trimtab.net.server import Handler
from trimtab.node.answering import Answering, Method
from trimtab.node.backoffs import Backoffs
from trimtab.node.balancing import Balancing
from trimtab.node.barriers import Orders
from trimtab.node.bulk_service import BulkService
from trimtab.node.calls import Calls
from trimtab.node.clock_watch import ClockWatch
from trimtab.node.cluster_service import ClusterService, Self
from trimtab.node.cluster_view import ClusterView
from trimtab.node.cluster_writes import ClusterWrites
from trimtab.node.deeds import Deeds
from trimtab.node.errors import NotLeader
from trimtab.node.executor import FIRST_BACKOFF_S, MAX_BACKOFF_S, Executor
from trimtab.node.farewell import settled
from trimtab.node.group import Group
from trimtab.node.hearing import Hearing
from trimtab.node.heartbeats import Heartbeats
from trimtab.node.job_service import JobService
from trimtab.node.leader_door import LeaderDoor
from trimtab.node.leader_watch import LeaderWatch
from trimtab.node.load_service import LoadService
from trimtab.node.move_service import MoveService
from trimtab.node.moving import Moving
from trimtab.node.office import Office
from trimtab.node.outlook import Outlook
from trimtab.node.presence import HeartbeatDesk
from trimtab.node.repair_schedule import RepairScheduling
from trimtab.node.replicas.missed_writes import MissedWrites
from trimtab.node.replicas.takeovers import Takeovers
from trimtab.node.request_service import RequestService
from trimtab.node.router.figures import figures
from trimtab.node.router.router import BATCHES_PREFIX, Router
from trimtab.node.router.schemas import Schemas
from trimtab.node.router.stamping import Stamping
from trimtab.node.schema_service import SchemaService
from trimtab.node.serving import Serving
from trimtab.node.size_reports import SizeReports
from trimtab.node.standing import Standing
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.raft.roles import StateType
from trimtab.topology import protocol
from trimtab.topology.barriers import OpenRequests
from trimtab.topology.grades import Grade
from trimtab.topology.leases import LeaseHolder
from trimtab.topology.protocol import JoinResponse, UpdateRequest
from trimtab.topology.records import RequestKind

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

GOVERN_EVERY_S = 0.5
JOIN_DEADLINE_MS = 120_000
_STOOD_STILL_S = 4 * GOVERN_EVERY_S
# What must get through however many clients ask. Heartbeats need no place to wait in.
_VITAL = frozenset((protocol.SYNC, protocol.REPLICAS, protocol.BARRIER, protocol.UPDATE, BEAT))


class ClusterControl:
    """Everything of one instance that has to do with the cluster as a whole."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        settings, timing = instance.settings, instance.settings.timing
        self._loop = asyncio.get_running_loop()
        self._host, self._group = instance.host, instance.cluster
        self.view = instance.watching.view
        self.waits = Waits()
        self.open_requests = OpenRequests()
        self.lease = LeaseHolder(instance.wall_ms())
        self._answering = Answering(instance.complaints.add, self._address_of)
        self._methods: dict[str, Method] = {}
        self.is_out = False  # the cluster has put this instance out
        self._ending = False
        self.calls = Calls(instance.hello, self._host.links, self._methods)
        self.writes = ClusterWrites(self._host, self._group, self.view, instance.wall_ms)
        self.office = Office(self._host, self._group, instance.boot_s, gap_s=_STOOD_STILL_S)
        self.desk = HeartbeatDesk(
            self._group,
            self.view,
            self.office,
            instance.boot_s,
            lease_ms=timing.lease_ms,
            election_ms=timing.election_ticks * timing.tick_ms,
            election_max_ms=timing.election_max_ms,
            offline_after_ms=timing.offline_after_ms,
            address_of=self._address_of,
            news=self._wake,
            max_skew_ms=timing.max_skew_ms,
            clock_off=lambda raft_id, off_ms: self.outlook.clock_off(raft_id, off_ms),
        )
        self.clock_watch = ClockWatch(timing.max_skew_ms, instance.wall_ms, instance.boot_s, instance.story)
        self.leader_watch = LeaderWatch(
            instance.raft_id, self._group, self.view, self._host.links, instance.boot_s, instance.story
        )
        self.heartbeats = Heartbeats(
            instance.raft_id,
            instance.data_id,
            self._group,
            self.view,
            self._host.links,
            self.lease,
            instance.boot_s,
            self.clock_watch,
            at_own_desk=self.desk.take,
            every_s=timing.lease_heartbeat_ms / 1000,
            timeout_s=timing.lease_ms / 1000,
            on_beat=self.leader_watch.look,
        )
        self._blamed: Backoffs[int] = Backoffs(FIRST_BACKOFF_S, MAX_BACKOFF_S)
        self.move_memory = Moving(
            self.calls,
            instance.watching.tables,
            look=lambda: self.outlook.state(frozenset(), frozenset(), frozenset()),
            wake_later=lambda after_s: self.executor.wake_later(after_s),
            spared_s=timing.spared_ms / 1000,
        )
        self.deeds = Deeds(
            self._host,
            self._group,
            self.view,
            self.writes,
            self.calls,
            self.waits,
            name=settings.instance_id,
            send_answer=self._send_answer,
            blamed=self._blamed,
            wake_later=lambda after_s: self.executor.wake_later(after_s),
            leases=self.desk,
            promote_lag_entries=settings.limits.promote_lag_entries,
            loads=lambda: self.loads.situation(),
            moving=self.move_memory,
        )
        self.executor = Executor(
            self._look,
            plan,
            self.deeds.carry_out,
            blamed=self._blamed,
            every_s=GOVERN_EVERY_S,
            clock_s=instance.boot_s,
            report=instance.complaints.add,
        )
        self.outlook = Outlook(
            instance,
            self,
            Patience(
                offline_after_ms=timing.offline_after_ms,
                join_deadline_ms=JOIN_DEADLINE_MS,
                stall_after_ms=timing.stall_after_ms,
                promote_lag_entries=settings.limits.promote_lag_entries,
            ),
        )
        self.standing = Standing(
            instance.raft_id,
            self.view,
            self.waits,
            update=self._update_self,
            barrier=self.read_barrier,
            put_out=self.put_out,
            defect=instance.fail,
            story=instance.story,
        )
        self.orders = Orders(
            instance.raft_id,
            self._group,
            self.view,
            self.open_requests,
            self.waits,
            incarnation=lambda: self.standing.incarnation,
            caught_up=lambda deadline: self.missed.catching_up.wait(deadline),
        )
        self.serving = Serving(
            instance.raft_id,
            self.view,
            self.open_requests,
            self.waits,
            self.calls,
            lease_left_ms=self.lease_left_ms,
            incarnation=lambda: self.standing.incarnation,
            applied=lambda: instance.machine.applied_index,
            stale_reads=settings.stale_reads,
            name=settings.instance_id,
        )
        self.shown = ClusterView(
            instance.raft_id,
            settings.cluster_id,
            instance.identity.genesis,
            self._group,
            self.view,
            instance.watching.tables,
            instance.watching.loads,
            revision=lambda: instance.machine.metastore.revision,
            barrier=self.read_barrier,
            heard=self.outlook.heard,
            lease_left_ms=self.lease_left_ms,
            wall_ms=instance.wall_ms,
            waiting=self.outlook.waiting,
            sizes=lambda: self.sizes.totals(),
            bulk_rate_bytes_s=lambda: instance.watching.bulk.rate_bytes_s,
            moving=lambda: self.moves.moving(),
            full=lambda: instance.reports.full(),
            keeps=lambda raft_id: self.outlook.keeps(raft_id, RequestKind.REMOVE) or "",
        )
        door = LeaderDoor(
            instance.raft_id,
            self._group,
            self.writes,
            self.calls,
            governs=lambda: self.office.leads,
            barrier=self.read_barrier,
        )
        self.requests = RequestService(
            self.view,
            door,
            alive=self.outlook.alive,
            holds=self.outlook.holds,
            keeps=self.outlook.keeps,
            wall_ms=instance.wall_ms,
        )
        self.schema = SchemaService(
            self.view,
            instance.watching.tables,
            door,
            self.calls,
            self.waits,
            name=settings.instance_id,
            wall_ms=instance.wall_ms,
            story=instance.story,
            opened=instance.holdings.shelf.open_of,
        )
        self.jobs = JobService(
            instance, door, self.office, barrier=self.read_barrier, waits=self.waits, spare=self.move_memory.spare
        )
        instance.samplers.append(self.jobs.figures)
        self.sizes = SizeReports(
            instance.raft_id,
            instance.data_id,
            self._group,
            self.view,
            instance.watching.tables,
            self.office,
            door,
            self.calls,
            held=instance.holdings.copied,
            free_bytes=lambda: max(instance.disk.free_bytes() - instance.disk.reserve_bytes, 0),
            defect=instance.fail,
        )
        self.balancing = Balancing(
            instance, self.sizes, lost=self.outlook.lost, avoided=self.move_memory.avoided, wake=self._wake
        )
        self.service = ClusterService(
            Self(
                instance.raft_id,
                settings.instance_id,
                settings.address,
                settings.cluster_id,
                instance.identity.genesis,
                trimtab.__version__,
                instance.data_id,
            ),
            self._group,
            self.view,
            self.writes,
            door,
            governs=lambda: self.office.leads,
            barrier=self.read_barrier,
            alive=self.outlook.alive,
            heard_of=self.desk.spoke,
            addresses=lambda: instance.members.addresses,
            wall_ms=instance.wall_ms,
            join_deadline_ms=JOIN_DEADLINE_MS,
        )
        holdings, self.schemas = instance.holdings, Schemas(instance.watching.tables)
        self.missed = MissedWrites(instance, self, holdings.shelf, holdings.log, self.schemas)
        self.takeovers = Takeovers(instance, self)
        self.router = Router(
            instance,
            self,
            holdings.shelf,
            self.missed.hints,
            holdings.log.records(BATCHES_PREFIX),
            self.schemas,
        )
        self.bulk = BulkService(instance, self, door, self.waits)
        self.loads: LoadService = LoadService(
            instance.watching,
            door,
            self.office,
            self.waits,
            Stamping(self.router.clock, instance.wall_ms, self.router.clock_memory, self.clock_watch),
            name=settings.instance_id,
            alive=self.outlook.alive,
            barrier=self.read_barrier,
            behind=Hearing(instance.raft_id, self._group, self.calls).behind,
            clock_s=instance.boot_s,
        )
        self.repair_schedule = RepairScheduling(instance, door, self.office)
        self.moves: MoveService = MoveService(
            instance.watching,
            door,
            self.office,
            name=settings.instance_id,
            rng=instance.rng,
            wall_ms=instance.wall_ms,
            alive=self.outlook.alive,
            barrier=self.read_barrier,
            job_of=self.jobs.shown,
            size_of=self.sizes.size_of,
            totals=self.sizes.totals,
            proposals=lambda: self.balancing.proposals,
            problems=lambda: self.outlook.problems(),
            waits=lambda: self.outlook.kept_moves(),
            spare=self.move_memory.spare,
        )
        instance.samplers += [
            self.loads.figures,
            lambda: figures(self.router),
            self.bulk.figures,
            self.moves.figures,
        ]
        for part in (
            self.orders,
            self.serving,
            self.shown,
            self.service,
            self.requests,
            self.schema,
            self.jobs,
            self.repair_schedule,
            self.loads,
            self.moves,
            self.sizes,
            self.bulk,
            self.missed,
            self.takeovers,
            self.router,
        ):
            self._methods.update(part.methods())

    # Life

    def handlers(self) -> dict[str, Handler]:
        """Method names and who answers them."""
        handlers = {
            name: self._answering.handler(method, vital=name in _VITAL) for name, method in self._methods.items()
        }
        handlers[protocol.RENEW] = self.desk.renew
        handlers.update(self.router.handlers())
        return handlers

    def start(self) -> None:
        """Begin: announce this instance, then send heartbeats; govern if it leads."""
        self._group.on_applied = self._applied
        self._instance.watching.on_change.append(self._view_changed)
        self.missed.start()
        self.router.start()
        self.takeovers.start()
        self.sizes.start()
        self.repair_schedule.start()
        self.standing.start()
        self.standing.changed()
        self._look_at_office()

    def stop(self) -> None:
        """End everything that is under way here. Nothing is written afterwards."""
        self._group.on_applied = None
        if self._view_changed in self._instance.watching.on_change:
            self._instance.watching.on_change.remove(self._view_changed)
        self.executor.end()
        self.balancing.stop()
        self.missed.stop()
        self.takeovers.stop()
        self.sizes.stop()
        self.repair_schedule.stop()
        self.heartbeats.stop()
        self.outlook.stop()
        self.standing.stop()
        self.router.stop()
        self._answering.close()

    async def leave(self, within_s: float) -> str:
        """Take leave of the cluster before the process ends: empty if it took note; else why it could not."""
        until = self._loop.time() + within_s
        # First of all serve nothing more, so that nobody has to wait for a lease.
        self.serving.closed = "this instance is shutting down; ask another"
        self.lease.surrender("it is shutting down")
        self.heartbeats.beat()
        return await self.standing.leave(until, settled=self._settled)

    @property
    def online(self) -> bool:
        """Whether the cluster counts this life of the instance as Online."""
        return self.standing.online

    # News

    def leader_changed(self, group: Group) -> None:
        """Raft has another leader, or none."""
        if group is not self._group:
            return
        self._look_at_office()
        self.leader_watch.look()
        self.heartbeats.beat()
        self.waits.look()

    def _applied(self) -> None:
        raft = self._group.raw.raft
        if (raft.state is StateType.LEADER) != bool(self.office.term) or self.office.term not in (0, raft.term):
            self._look_at_office()
        if len(self.waits):
            self.waits.look()

    def _view_changed(self, keys: frozenset[bytes]) -> None:
        self.waits.look()
        self.standing.changed()
        self.missed.changed()
        self.schema.changed()
        self.moves.changed(keys)
        self.balancing.changed(keys)
        self._wake()

    def _look_at_office(self) -> None:
        if not self.office.look():
            return
        if self.office.term:
            self.desk.took_office()
            self.move_memory.took_office()
            self._instance.story(f"governing in term {self.office.term}")
            self.executor.begin(self.office.term)
        else:
            self.executor.end()
            self.balancing.stop()

    def _wake(self) -> None:
        self.executor.wake()

    # The governor's turn

    def _look(
        self, in_flight: frozenset[StepKey], resting: frozenset[StepKey], backing_off: frozenset[int]
    ) -> ClusterState | None:
        if self._look_again_at_term():
            return None
        if self.office.tick():
            # It stood still, and has heard nobody because of that.
            self.desk.took_office()
        self.balancing.look(self.office.term)
        return self.outlook.state(in_flight, resting, backing_off)

    def _look_again_at_term(self) -> bool:
        """Whether the office has changed since the loop was woken; then it begins anew, or ends."""
        before = self.office.term
        self._look_at_office()
        return self.office.term != before or not self.office.term

    # Ports of the parts

    def lease_left_ms(self) -> int:
        """What is left of this instance's lease, now."""
        return self.lease.left_ms(self._instance.boot_s())

    async def read_barrier(self, timeout_s: float) -> None:
        """Returns when everything is applied here that was committed when this was asked."""
        done: asyncio.Future[None] = self._loop.create_future()

        def confirmed(error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._host.read(self._group, confirmed)
        try:
            await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            raise WaitedTooLong("no majority answered in time; is there a leader?") from None

    async def _update_self(self, target: Grade, reason: str, timeout_s: float) -> int:
        """Change the own target; the incarnation it has then."""
        settings, instance = self._instance.settings, self._instance
        request = UpdateRequest(
            instance.raft_id,
            instance.data_id,
            target,
            reason,
            settings.address,
            settings.http_address,
            trimtab.__version__,
            lease_ms=settings.timing.lease_ms,
            election_max_ms=settings.timing.election_max_ms,
            bulk_address=settings.bulk_address,
            capacity_bytes=settings.capacity_bytes,
        )
        reply = protocol.decode_update_reply(await self._tell(protocol.encode(request), timeout_s))
        if target is Grade.ONLINE:
            self.lease.heard_of(reply.term)
            self.heartbeats.start(instance.rng.random() * settings.timing.lease_heartbeat_ms / 1000)
        return reply.grades.target.incarnation

    async def _tell(self, update: bytes, timeout_s: float) -> bytes:
        """The leader's answer to an update of the own row, by way of any member.

        An instance that has moved is not found by the leader before its row says where it is, so it does not hear who
        leads. The others know, and pass it on.
        """
        until = self._loop.time() + timeout_s
        try:
            return await self.calls.ask(self._instance.raft_id, protocol.UPDATE, update, timeout_s)
        except NotLeader as unknown:
            others = [raft_id for raft_id, link in self._host.links.items() if link.channel.connected]
            for raft_id in others:
                if (left_s := until - self._loop.time()) <= 0:
                    break
                try:
                    return await self.calls.ask(raft_id, protocol.UPDATE, update, left_s)
                except RpcError as error:
                    if error.code != NotLeader.code:
                        raise
                except NetError:
                    continue
            raise unknown

    async def _send_answer(self, address: str, response: JoinResponse, timeout_s: float) -> None:
        instance = self._instance
        channel = Channel(address, instance.hello, instance.rng, ssl=instance.client_tls, limits=instance.net_limits)
        try:
            await channel.wait_connected(timeout_s)
            await channel.call(protocol.JOIN_RESPONSE, protocol.encode(response), timeout_s)
        finally:
            channel.close()

    def put_out(self, why: str) -> None:
        """The cluster has put this instance out: it serves nothing more, and ends when its vote is not needed."""
        if not self.is_out:
            self.is_out = True
            self.serving.closed = f"this instance was put out of the cluster: {why}"
            self.lease.surrender("it was put out of the cluster")
            self.leader_watch.closed = True
            self.standing.stop()
            if self._votes:
                # Otherwise it ends in a moment, and that is told with the same reason.
                self._instance.story(f"the cluster puts this instance out ({why}); it ends when its vote has gone")
        if not self._ending and not self._votes:
            self._ending = True
            farewell_s = self._instance.settings.timing.farewell_ms / 1000
            self._loop.call_later(farewell_s, self._instance.end_for_good, why)

    @property
    def _votes(self) -> bool:
        return self._instance.raft_id in self._group.raw.raft.tracker.config.voters

    def _settled(self) -> bool:
        """Whether this instance neither leads nor votes where it need not: it may go."""
        return settled(self._instance.raft_id, self._group.raw.raft, self.view)

    def _address_of(self, raft_id: int) -> str:
        address: str = self._instance.members.addresses.get(raft_id, "")
        return address
