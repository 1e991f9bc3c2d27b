"""One member of the cluster, put together: disk, log, groups, links, and the doors that members and clients knock at.

Nothing here knows whether it is real. Time and network come from the running event loop, the disk, the randomness and
the clocks from whoever makes the instance; the simulator makes the same one.

It begins where founding or joining ended: with an identity that holds a raft id (see `boot`). Files: `instance.json`
(who this is), `peers.json` (whom it has met), `log/` (Raft's and mutations), `metastore/` (the cluster group's data),
`tablets/` (replicas).

A member that was removed serves nothing any more, but goes on answering Raft for a while: others may not have heard of
its removal yet and still count on its vote. It learns of it by applying the change, or by the word of the others: one
says so when it refuses the hello, and none of those it knows as voters accepts it. Then it ends, for good.

`governed` is off where somebody else decides who is a member: in simulations of the metastore alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from trimtab.metastore import commands, requests
from trimtab.net.hello import Hello
from trimtab.net.server import Request, Server
from trimtab.net.tls import client_context, server_context
from trimtab.node import identity as identities
from trimtab.node.acquaintances import Acquaintances, LostData, lost_data, was_removed
from trimtab.node.admission import TWO_CLUSTERS, Admission
from trimtab.node.compaction import Compaction
from trimtab.node.complaints import Complaints
from trimtab.node.control import ClusterControl
from trimtab.node.errors import Expelled, JoinExpired, Removed
from trimtab.node.failpoints import hit
from trimtab.node.figures import Sampler
from trimtab.node.founding import CLUSTER_GROUP, FOUNDING_INDEX, METASTORE, synced
from trimtab.node.group import Group
from trimtab.node.history import HistoryKeeping
from trimtab.node.host import Host
from trimtab.node.identity import Identity, Phase
from trimtab.node.leader_watch import name_in
from trimtab.node.links import decode_parcel
from trimtab.node.members import Members
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.node.metastore_service import MetastoreService
from trimtab.node.replicas.holdings import Holdings
from trimtab.node.reports import Reports
from trimtab.node.settings import Settings, split_address
from trimtab.node.snapshots import Snapshots
from trimtab.node.watching import Watching
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Corrupt, Disk, StorageError
from trimtab.topology import protocol
from trimtab.topology.records import INSTANCES, parse_instance
from trimtab.topology.states import NodeState

# States in which an instance has its place in the cluster, or had it.
_SETTLED = frozenset((NodeState.NORMAL, NodeState.REBUILDING, NodeState.DECOMMISSIONING, NodeState.REMOVING))
_decode_quiesce = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


class Instance:
    """A member of the cluster group, from `start` to `stop` or to the first thing that must not be survived."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        disk: Disk,
        rng: random.Random,
        wall_ms: Callable[[], int],
        boot_s: Callable[[], float],
        story: Callable[[str], None] = lambda _line: None,
        governed: bool = True,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.raft_id = identity.raft_id
        self.data_id = identity.uuid
        self.governed = governed
        self.failure: BaseException | None = None
        self.removed = ""
        self.disk = disk
        self.rng = rng
        self.wall_ms = wall_ms
        self.boot_s = boot_s
        self.story = story
        self.control: ClusterControl | None = None  # None where nobody governs
        self.samplers: list[Sampler] = []  # what metrics ask besides
        self._stopped = False
        self._housekeeping: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open what is on disk, take up the cluster group, and listen."""
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        settings = self.settings
        self._check_identity()
        self.log = NodeLog.open(self.disk, identities.LOG, report=self.story)
        self.host = Host(
            self.raft_id,
            self.log,
            self.rng,
            settings.timing,
            settings.limits,
            fatal=self.fail,
            story=self.story,
        )
        self.complaints = Complaints(self.story, loop.time)
        self.snapshots = Snapshots(self.host, settings.limits, self.complaints.add)
        self.host.on_snapshot_message = self.snapshots.receive
        self.host.on_installed = self._installed
        self.host.on_leader = self._leader_changed
        self.host.on_membership = self._membership_changed
        group_log = self.log.group(CLUSTER_GROUP)
        if not group_log.exists and (self.identity.founder or self.identity.settled):
            raise Corrupt(identities.LOG, "it is empty, but this instance has been a member: its votes are lost")
        # An earlier life may have left what only the page cache holds. Nothing of it may be applied, or promised to
        # others, before it is durable: the machine's data could survive a power failure that the log's does not.
        await synced(self.log)
        self.machine = MetastoreMachine(self.disk, METASTORE, settings.limits, loop.call_soon)
        self.machine.recover(group_log.snapshot_metadata, FOUNDING_INDEX)
        self.cluster = self.host.add_group(
            CLUSTER_GROUP, self.machine, quiesces=False, snapshot=self.snapshots.source(CLUSTER_GROUP)
        )
        self.watching = Watching(self.machine, on_record=self.learn, fatal=self.fail)
        self.holdings = Holdings(self, loop)
        self.acquaintances = Acquaintances(self.disk)
        self.admission = Admission(self.identity, self.acquaintances, self.watching.view, self._configuration)
        self._members_before = frozenset(self._configuration())
        self.hello = Hello(
            cluster_id=settings.cluster_id,
            instance_id=settings.instance_id,
            raft_id=self.raft_id,
            genesis=self.identity.genesis,
            incarnation=self.rng.getrandbits(63),
            address=settings.address,
            data_id=self.data_id,
        )
        self.net_limits = settings.net_limits
        tls = settings.tls
        self.client_tls = client_context(tls.authority, tls.certificate, tls.key) if tls else None
        self.members = Members(
            self.raft_id,
            self.hello,
            self.rng,
            self.net_limits,
            tls=self.client_tls,
            links=self.host.links,
            check=self.admission.refusal_at,
            on_down=self._peer_down,
            on_up=self.host.peer_up,
            parcel_bytes=settings.limits.frame_bytes * 3 // 4,
        )
        self.compaction = Compaction(self.host, self.snapshots, settings.limits, fatal=self.fail)
        self.service = MetastoreService(self)
        self.reports = Reports(self)
        self.history = HistoryKeeping(settings.limits.history_keep_ms)
        if self.governed:
            self.control = ClusterControl(self)
        self.server = Server(
            {
                "raft": self._receive_raft,
                "quiesce": self._receive_quiesce,
                "snapshot.chunk": self.snapshots.serve_chunk,
                "snapshot.failed": self.snapshots.serve_failed,
                requests.REPORT: self.reports.receive,
                protocol.JOIN_RESPONSE: self._joined_already,
                **self.service.handlers(),
                **(self.control.handlers() if self.control is not None else {}),
            },
            self.hello,
            self.net_limits,
            ssl=server_context(tls.authority, tls.certificate, tls.key) if tls else None,
            check_hello=self._check_hello,
            on_error=lambda text, _error: self.complaints.add(text),
        )
        self.port = await self.server.start(*split_address(settings.listen))
        # Only now, because whom this member greets comes back to it at once.
        self._learn_addresses()
        self.holdings.start()
        self.host.start()
        if self.control is not None:
            self.control.start()
        if self.admission.removed(self.raft_id):
            self._serve_no_more("its own data says so")
        if self.cluster.raw.raft.tracker.config.voters.ids() == {self.raft_id}:
            self.host.campaign(self.cluster)
        self._housekeeping = loop.call_later(settings.timing.housekeeping_ms / 1000, self._keep_house)
        if not self.identity.settled:
            hit("join.started", settings.instance_id)

    @property
    def is_out(self) -> bool:
        """Whether it knows that it is no member any more, or is about to be none."""
        return bool(self.removed) or (self.control is not None and self.control.is_out)

    async def leave(self, within_s: float) -> str:
        """Take leave of the cluster before the end: empty if it took note; else why it could not."""
        if self.control is None or self.removed or self.failure is not None:
            return ""
        return await self.control.leave(within_s)

    async def stop(self) -> None:
        """End in an orderly way. What was acknowledged is durable already; nothing is flushed for its sake."""
        if self._stopped:
            return
        self._stopped = True
        if self.control is not None and self.failure is None:
            await self.control.missed.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self.control is not None:
            self.control.stop()
        self.watching.close()
        self.holdings.halt()
        self.host.stop()
        self.snapshots.close()
        self.server.close()
        self.members.close()
        await self.server.wait_closed()
        self.holdings.close()
        self.machine.close()
        self.log.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Something that must not be survived: a failed sync, damaged data, a diverged state. Stop at once."""
        if self.failure is not None:
            return
        self.failure = error
        # First of all nothing may be acknowledged any more; telling comes last, because it may fail too.
        self.holdings.halt()
        self.host.stop()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self.control is not None:
            self.control.stop()
        self.watching.close()
        if not self.ended.done():
            self.ended.set_result(None)
        self.server.close(f"this member stopped: {error}")
        self.members.close()
        if not isinstance(error, Expelled | JoinExpired):
            # These two are no accidents; whoever runs the instance tells them, with what comes next.
            self.story(f"stopping: {error}")

    # Identity

    def _check_identity(self) -> None:
        identities.check(self.identity, self.settings)
        if self.identity.phase is not Phase.MEMBER:
            raise ValueError(f"{self.identity.instance_id} is no member yet: its phase is {self.identity.phase.value}")

    def _joined_already(self, request: Request) -> None:
        """The coordinator repeats its decision, because it never heard that it arrived."""
        response = protocol.decode_join_response(request.body)
        if response.uuid == self.data_id and response.accepted and response.raft_id == self.raft_id:
            request.reply()
        else:
            request.fail("not_asked", f"{self.identity.instance_id} is member {self.raft_id} and asked for nothing")

    def _settle(self) -> None:
        """It has its place in the cluster. From now on it does not try to join anew if it is put out."""
        settled = msgspec.structs.replace(self.identity, settled=True)
        try:
            self.identity = identities.store(self.disk, settled)
        except StorageError as error:
            self.story(f"could not write down that this instance has its place in the cluster: {error}")

    def _check_hello(self, hello: Hello) -> str | None:
        refusal = self.admission.refusal(hello)
        if refusal is None and hello.raft_id not in (0, self.raft_id):
            try:
                self.members.answer_at(hello.raft_id, hello.address)
            except ValueError as error:
                refusal = f"member {hello.raft_id} could not be answered: {error}"
        return refusal

    # Messages

    def _receive_raft(self, request: Request) -> None:
        if self.admission.speaks_for(request.peer):
            self.host.receive(request.peer.raft_id, decode_parcel(request.body))

    def _receive_quiesce(self, request: Request) -> None:
        if self.admission.speaks_for(request.peer):
            self.host.receive_quiesce(request.peer.raft_id, _decode_quiesce(request.body))

    def _peer_down(self, raft_id: int, reason: str, refused: bool) -> None:
        self.host.peer_down(raft_id, gone=refused)
        if reason.endswith(lost_data(self.raft_id)):
            self.fail(LostData(f"member {raft_id} refuses this one: {lost_data(self.raft_id)}"))
        elif reason.endswith(was_removed(self.raft_id)):
            self._told_of_removal(raft_id)
        elif TWO_CLUSTERS in reason:
            self.complaints.add(f"member {raft_id} is refused: {reason}")

    def _leader_changed(self, group: Group) -> None:
        raft = group.raw.raft
        if group.id == CLUSTER_GROUP and raft.lead:
            leads = raft.lead == self.raft_id
            whom = "this member leads" if leads else f"following {name_in(self.watching.view, raft.lead)}"
            self.story(f"{whom} in term {raft.term}")
        if self.control is not None:
            self.control.leader_changed(group)

    def _installed(self, group: Group) -> None:
        self.snapshots.replaced(group)
        if group.id == CLUSTER_GROUP:
            self.watching.load()

    # Membership

    def _configuration(self) -> Collection[int]:
        return self.cluster.raw.raft.tracker.progress

    def _membership_changed(self, group: Group) -> None:
        if group.id != CLUSTER_GROUP:
            return
        before, self._members_before = self._members_before, frozenset(self._configuration())
        gone = sorted(before - self._members_before)
        if gone:
            try:
                self.acquaintances.note_removed(gone)
            except StorageError as error:
                self.story(f"could not write down that {gone} left; a restart may forget it: {error}")
        for raft_id in sorted({*gone, *self.members.addresses}):
            if raft_id != self.raft_id and self.admission.removed(raft_id):
                self.story(f"{name_in(self.watching.view, raft_id)} was removed from the cluster")
                self.members.forget(raft_id)
                self.server.dismiss(raft_id, was_removed(raft_id))
        if self.raft_id in gone:
            self._serve_no_more("it has applied that change itself")

    def _told_of_removal(self, by: int) -> None:
        voters = self.cluster.raw.raft.tracker.config.voters
        accepted = any(link.channel.connected for peer, link in self.host.links.items() if peer in voters)
        if not self.removed and not accepted:
            self._serve_no_more(f"member {by} says so")
        if self.removed:
            # Who knows of the removal needs nothing from here any more.
            self.members.forget(by)

    def _serve_no_more(self, why: str) -> None:
        if self.removed:
            return
        self.removed = "this member was removed from the cluster; ask another"
        if self.control is None:
            self.story(f"this member was removed from the cluster ({why}) and serves nothing any more")
        refuse = partial(_refuse, self.removed)
        methods = [*self.service.handlers(), *(self.control.handlers() if self.control is not None else ())]
        self.server.handlers.update({each: refuse for each in methods if each not in (requests.STATUS, protocol.VIEW)})
        self.server.end_streams("removed", self.removed)
        self.cluster.lose_leadership(0)
        self.cluster.reads.fail(Removed(self.removed))
        if self.control is not None:
            self.control.put_out(why)
            farewell_s = self.settings.timing.farewell_ms / 1000
            asyncio.get_running_loop().call_later(farewell_s, self.end_for_good, why)

    def end_for_good(self, why: str) -> None:
        """It is no member any more, and nobody needs its vote."""
        if not self.identity.settled:
            self.fail(JoinExpired("the cluster gave up on this attempt to join before it had succeeded"))
            return
        record = self.watching.view.instances.get(self.raft_id)
        because = record.reason if record is not None and record.reason else why
        self.fail(
            Expelled(
                f"{self.identity.instance_id} was expelled from the cluster ({because}); its ids are never used again: "
                "to add this machine anew, start an instance with an empty data directory"
            )
        )

    # Upkeep

    def _keep_house(self) -> None:
        loop = asyncio.get_running_loop()
        self._housekeeping = loop.call_later(self.settings.timing.housekeeping_ms / 1000, self._keep_house)
        try:
            self.snapshots.sweep()
            self.host.check_space()
            self.compaction.run()
            self._forget_history()
            self.machine.purge()
            self.machine.tell_progress()
            self.reports.tell()
        except Exception as error:
            # Damaged data, or a defect of ours: either way this member must not go on as if nothing were.
            self.fail(error)

    def _forget_history(self) -> None:
        now, metastore = asyncio.get_running_loop().time(), self.machine.metastore
        leads = self.cluster.raw.raft.lead == self.raft_id
        old = self.history.look(now, metastore.revision, metastore.compacted_revision, leads=leads)
        if old is not None:
            command = commands.stamp(commands.encode(commands.compact(old)), self.wall_ms())
            # If it fails, it is proposed again with the next sample.
            self.host.propose(self.cluster, command, lambda _result, _error: None)

    def learn(self, key: bytes, value: bytes | None) -> None:
        """A record changed in the metastore: an instance's says where it is, and whether it left."""
        if value is None or not key.startswith(INSTANCES):
            return
        try:
            raft_id, record = parse_instance(key, value)
            if record.left and raft_id not in self._configuration():
                # It came and went while this member was away. The mark is set while the id is in the configuration.
                self.acquaintances.removed.add(raft_id)
            if raft_id == self.raft_id:
                if record.state in _SETTLED and not self.identity.settled:
                    self._settle()
            elif not self.admission.removed(raft_id):
                split_address(record.address)
                self.members.update([(raft_id, record.address)], marked=self.machine.applied_index)
        except ValueError as error:
            self.story(f"ignored an unusable instance record: {error}")

    def _learn_addresses(self) -> None:
        identity = self.identity
        self.members.update([(self.raft_id, self.settings.address)])
        for raft_id, address in identity.founders.items():
            if raft_id != self.raft_id and not self.admission.removed(raft_id):
                self.members.update([(raft_id, address)])
        for contact in identity.contacts:
            if contact.raft_id != self.raft_id and not self.admission.removed(contact.raft_id):
                self.members.update([(contact.raft_id, contact.address)], marked=contact.commit_index)
        self.watching.load()


def _refuse(text: str, request: Request) -> None:
    request.fail(Removed.code, text)
