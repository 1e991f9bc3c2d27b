"""One instance of Trimtab, put together: disk, log, groups, links, and the doors that members and clients knock at.

Nothing here knows whether it is real. Time and network come from the running event loop, the disk, the randomness and
the wall clock from whoever makes the instance; the simulator makes the same one.

Files: `instance.json` (who this is; written once), `peers.json` (whom it has met), `log/` (all groups' Raft logs),
`metastore/` (the cluster group's data).

A member that was removed serves nothing any more, but goes on answering Raft: others may not have heard of its removal
yet and still count on its vote. It learns of it by applying the change, or by the word of the others: one says so when
it refuses the hello, and none of those it knows as voters accepts it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from trimtab.metastore import commands, requests
from trimtab.net.hello import Hello
from trimtab.net.limits import Limits as NetLimits
from trimtab.net.server import Request, Server
from trimtab.net.tls import client_context, server_context
from trimtab.node.acquaintances import Acquaintances, LostData, lost_data, was_removed
from trimtab.node.admission import Admission
from trimtab.node.compaction import Compaction
from trimtab.node.complaints import Complaints
from trimtab.node.errors import Removed
from trimtab.node.group import Group
from trimtab.node.history import HistoryKeeping
from trimtab.node.host import Host
from trimtab.node.links import decode_parcel
from trimtab.node.members import INSTANCES, Members, parse_instance
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.node.metastore_service import MetastoreService
from trimtab.node.reports import Reports
from trimtab.node.settings import Settings, SettingsError, split_address
from trimtab.node.snapshots import Snapshots
from trimtab.raft.messages import ConfState
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Corrupt, Disk, StorageError

CLUSTER_GROUP = 0
# Founders begin after an agreed entry 1 of term 1 that holds the founding configuration.
_BOOTSTRAP_INDEX = 1
_IDENTITY_FILE = "instance.json"
_decode_quiesce = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


class Identity(msgspec.Struct, frozen=True):
    """What `instance.json` holds: whose data this directory is."""

    format: int
    cluster_id: str
    instance_id: str
    raft_id: int
    genesis: str
    data_id: str


class Instance:
    """A member of the cluster group, from `start` to `stop` or to the first thing that must not be survived."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk,
        rng: random.Random,
        wall_ms: Callable[[], int],
        story: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.settings = settings
        self.raft_id = settings.member_id
        self.failure: BaseException | None = None
        self.removed = ""
        self._disk = disk
        self._rng = rng
        self.wall_ms = wall_ms
        self.story = story
        self._stopped = False

    async def start(self) -> None:
        """Open what is on disk, take up the cluster group, and listen."""
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        settings = self.settings
        self.data_id = self._check_identity()
        self.log = NodeLog.open(self._disk, "log", report=self.story)
        self.host = Host(
            self.raft_id,
            self.log,
            self._rng,
            settings.timing,
            settings.limits,
            fatal=self.fail,
            story=self.story,
        )
        complaints = Complaints(self.story, loop.time)
        self.snapshots = Snapshots(self.host, settings.limits, complaints.add)
        self.host.on_snapshot_message = self.snapshots.receive
        self.host.on_installed = self.snapshots.replaced
        self.host.on_leader = self._leader_changed
        self.host.on_membership = self._membership_changed
        group_log = self.log.group(CLUSTER_GROUP)
        if settings.founder and not group_log.exists:
            founders = ConfState(voters=tuple(range(1, len(settings.peers) + 1)))
            group_log.bootstrap(founders, index=_BOOTSTRAP_INDEX, term=1)
            self.log.write()
        # An earlier life may have left what only the page cache holds. Nothing of it may be applied, or promised to
        # others, before it is durable: the machine's data could survive a power failure that the log's does not.
        await self._synced()
        self.machine = MetastoreMachine(self._disk, "metastore", settings.limits, loop.call_soon)
        self.machine.recover(group_log.snapshot_metadata, _BOOTSTRAP_INDEX)
        self.cluster = self.host.add_group(
            CLUSTER_GROUP, self.machine, quiesces=False, snapshot=self.snapshots.source(CLUSTER_GROUP)
        )
        self.acquaintances = Acquaintances(self._disk)
        self.admission = Admission(settings, self.data_id, self.acquaintances, self._configuration)
        self._members_before = frozenset(self._configuration())
        self.hello = Hello(
            cluster_id=settings.cluster_id,
            instance_id=settings.instance_id,
            raft_id=self.raft_id,
            genesis=settings.genesis,
            incarnation=self._rng.getrandbits(63),
            address=settings.address,
            data_id=self.data_id,
        )
        net_limits = NetLimits(
            max_frame_bytes=settings.limits.frame_bytes,
            keepalive_s=settings.timing.keepalive_ms / 1000,
            dead_after_s=settings.timing.dead_peer_ms / 1000,
        )
        tls = settings.tls
        self.members = Members(
            self.raft_id,
            self.hello,
            self._rng,
            net_limits,
            tls=client_context(tls.authority, tls.certificate, tls.key) if tls else None,
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
        self.server = Server(
            {
                "raft": self._receive_raft,
                "quiesce": self._receive_quiesce,
                "snapshot.chunk": self.snapshots.serve_chunk,
                "snapshot.failed": self.snapshots.serve_failed,
                requests.REPORT: self.reports.receive,
                **self.service.handlers(),
            },
            self.hello,
            net_limits,
            ssl=server_context(tls.authority, tls.certificate, tls.key) if tls else None,
            check_hello=self._check_hello,
            on_error=lambda text, _error: complaints.add(text),
        )
        host, port = split_address(settings.listen)
        self.port = await self.server.start(host, port)
        for place, address in enumerate(settings.peers):
            # A newcomer may stand at the address of a founder it replaces.
            if (settings.founder or address != settings.address) and not self.admission.removed(place + 1):
                self.members.update([(place + 1, address)])
        self._learn_addresses()
        if self.admission.removed(self.raft_id):
            self._serve_no_more("its own data says so")
        self.host.start()
        self._housekeeping = loop.call_later(settings.timing.housekeeping_ms / 1000, self._keep_house)

    async def stop(self) -> None:
        """End in an orderly way. What was acknowledged is durable already; nothing is flushed for its sake."""
        if self._stopped:
            return
        self._stopped = True
        self._housekeeping.cancel()
        self.host.stop()
        self.snapshots.close()
        self.server.close()
        self.members.close()
        await self.server.wait_closed()
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
        self.host.stop()
        self._housekeeping.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        self.server.close(f"this member stopped: {error}")
        self.members.close()
        self.story(f"stopping: {error}")

    # Identity

    def _check_identity(self) -> str:
        """Make sure that the data directory is this instance's; its data id."""
        settings = self.settings
        mine = Identity(1, settings.cluster_id, settings.instance_id, self.raft_id, settings.genesis, "")
        stored = self._disk.read_file(_IDENTITY_FILE)
        if stored is None:
            if self._disk.exists("log"):
                raise Corrupt("instance.json", "it is missing, but there is a log: it is unknown whose data this is")
            mine = msgspec.structs.replace(mine, data_id=f"{self._rng.getrandbits(128):032x}")
            self._disk.write_file(_IDENTITY_FILE, msgspec.json.encode(mine))
            return mine.data_id
        try:
            found = msgspec.json.decode(stored, type=Identity)
        except msgspec.DecodeError as error:
            raise Corrupt("instance.json", f"it is not readable: {error}") from error
        for field in ("format", "cluster_id", "instance_id", "raft_id", "genesis"):
            if getattr(found, field) != getattr(mine, field):
                raise SettingsError(
                    f"the data directory belongs to another instance: its {field} is {getattr(found, field)!r}, "
                    f"this one was started with {getattr(mine, field)!r}; use the data directory of this instance, "
                    "or start it with the settings it was founded with"
                )
        return found.data_id

    def _check_hello(self, hello: Hello) -> str | None:
        refusal = self.admission.refusal(hello)
        if refusal is None and hello.raft_id not in (0, self.raft_id):
            try:
                self.members.answer_at(hello.raft_id, hello.address)
            except ValueError as error:
                refusal = f"member {hello.raft_id} could not be answered: {error}"
        return refusal

    async def _synced(self) -> None:
        done = asyncio.get_running_loop().create_future()

        def synced(error: BaseException | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.log.sync(synced)
        await done

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

    def _leader_changed(self, group: Group) -> None:
        raft = group.raw.raft
        if group.id == CLUSTER_GROUP and raft.lead:
            whom = "this member leads" if raft.lead == self.raft_id else f"following member {raft.lead}"
            self.story(f"{whom} in term {raft.term}")

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
                self.story(f"member {raft_id} was removed from the cluster")
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
        self.story(f"this member was removed from the cluster ({why}) and serves nothing any more; stop it")
        refuse = partial(_refuse, self.removed)
        self.server.handlers.update({method: refuse for method in self.service.handlers() if method != requests.STATUS})
        self.server.end_streams("removed", self.removed)
        self.cluster.lose_leadership(0)
        self.cluster.reads.fail(Removed(self.removed))

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
        """An instance record changed in the metastore."""
        if value is None:
            return
        try:
            raft_id, record = parse_instance(key, value)
            if record.removed and raft_id not in self._configuration():
                # It came and went while this member was away. The mark is set while the id is in the configuration.
                self.acquaintances.removed.add(raft_id)
            if not self.admission.removed(raft_id):
                split_address(record.address)
                self.members.update([(raft_id, record.address)])
        except ValueError as error:
            self.story(f"ignored an unusable instance record: {error}")

    def _learn_addresses(self) -> None:
        for key, value in self.machine.latest(INSTANCES):
            self.learn(key, value)
        self.machine.watch_prefix(INSTANCES, self.learn)


def _refuse(text: str, request: Request) -> None:
    request.fail(Removed.code, text)
