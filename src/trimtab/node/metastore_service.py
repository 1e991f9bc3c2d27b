"""The metastore's door: requests of clients and members, answered by the cluster group.

Whoever gets a write sends it to the leader, once; the leader stamps it with its clock and proposes it. A linearizable
read is answered here, by any member, after a read-index round. Watches are fed from this member's own state, as it
applies.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trimtab.metastore import commands, requests
from trimtab.metastore.errors import Compacted, FutureRevision, InvalidCommand, MetastoreError
from trimtab.metastore.requests import LeaderHint, MembersChange
from trimtab.metastore.results import encode_result
from trimtab.net.errors import ConnectionLost, NetError, RpcError
from trimtab.net.server import Handler, Request
from trimtab.node.errors import GroupError, NotLeader
from trimtab.node.members import InstanceRecord, instance_key
from trimtab.node.settings import SettingsError, split_address
from trimtab.raft.messages import ConfChangeSingle, ConfChangeType, ConfChangeV2
from trimtab.raft.progress import ProgressState

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

_FORWARD_S = 5.0


class MetastoreService:
    """Answers for one instance."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._host = instance.host
        self._group = instance.cluster
        self._machine = instance.machine
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> dict[str, Handler]:
        """Method names and who answers them."""
        return {
            requests.INVOKE: self._guarded(self._invoke),
            requests.PROPOSE: self._guarded(self._propose),
            requests.GET: self._guarded(self._get),
            requests.RANGE: self._guarded(self._range),
            requests.WATCH: self._guarded(self._watch),
            requests.STATUS: self._guarded(self._status),
            requests.MEMBERS: self._guarded(self._members),
        }

    def _guarded(self, handler: Handler) -> Handler:
        def guarded(request: Request) -> None:
            try:
                handler(request)
            except msgspec.DecodeError as error:
                request.fail("invalid", f"the body of {request.method} can't be read: {error}")
            except Compacted as error:
                request.fail("compacted", str(error))
            except FutureRevision as error:
                request.fail("future_revision", str(error))
            except (InvalidCommand, MetastoreError, SettingsError) as error:
                request.fail("invalid", str(error))

        return guarded

    # Writes

    def _invoke(self, request: Request) -> None:
        raft = self._group.raw.raft
        if raft.lead == self._host.raft_id:
            self._propose(request)
            return
        link = self._host.links.get(raft.lead)
        if link is None:
            self._fail(request, NotLeader(0))
            return
        timeout_s = _FORWARD_S if request.deadline is None else max(request.deadline - self._loop.time(), 0.001)
        try:
            answer = link.channel.call(requests.PROPOSE, request.body, timeout_s)
        except NetError as error:
            request.fail("not_leader", f"the leader, member {raft.lead}, can't be reached from here: {error}")
            return
        answer.add_done_callback(partial(_relay, request))

    def _propose(self, request: Request) -> None:
        # Taken apart here so that a bad command is refused before it costs a place in the log.
        body = bytes(request.body)
        commands.decode(body)
        stamped = commands.stamp(body, self._instance.wall_ms())
        self._host.propose(self._group, stamped, partial(self._proposed, request))

    def _proposed(self, request: Request, result: object, error: Exception | None) -> None:
        if error is not None:
            self._fail(request, error)
        else:
            request.reply(encode_result(result))

    # Reads

    def _get(self, request: Request) -> None:
        asked = requests.decode_get(request.body)
        if not asked.linearizable:
            self._answer_get(request, asked)
            return
        self._host.read(self._group, partial(self._read_get, request, asked))

    def _read_get(self, request: Request, asked: requests.GetRequest, error: Exception | None) -> None:
        if error is not None:
            self._fail(request, error)
        else:
            self._guarded(lambda request: self._answer_get(request, asked))(request)

    def _answer_get(self, request: Request, asked: requests.GetRequest) -> None:
        metastore = self._machine.metastore
        entry = metastore.get(asked.key, asked.revision or None)
        request.reply(requests.encode(requests.GetReply(metastore.revision, entry)))

    def _range(self, request: Request) -> None:
        asked = requests.decode_range(request.body)
        if not asked.linearizable:
            self._answer_range(request, asked)
            return

        def confirmed(error: Exception | None) -> None:
            if error is not None:
                self._fail(request, error)
            else:
                self._guarded(lambda request: self._answer_range(request, asked))(request)

        self._host.read(self._group, confirmed)

    def _answer_range(self, request: Request, asked: requests.RangeRequest) -> None:
        metastore = self._machine.metastore
        page = metastore.range(
            asked.low,
            asked.high,
            asked.revision or None,
            asked.limit,
            # The entry that reaches the bound is still in the page, so half a message is left for it.
            max_bytes=self._instance.settings.limits.frame_bytes // 2,
            keys_only=asked.keys_only,
        )
        request.reply(requests.encode(requests.RangeReply(page.revision, list(page.entries), page.next_key)))

    # Watches

    def _watch(self, request: Request) -> None:
        asked = requests.decode_watch(request.body)
        self._machine.serve_watch(request, asked)

    # State

    def _status(self, request: Request) -> None:
        instance, raft = self._instance, self._group.raw.raft
        metastore = self._machine.metastore
        addresses = instance.members.addresses
        config = raft.tracker.config
        voters = config.voters.ids()
        learners = {*config.learners, *config.learners_next}
        members = []
        for raft_id in sorted({*voters, *learners}):
            progress = raft.tracker.progress.get(raft_id) if raft.lead == self._host.raft_id else None
            members.append(
                requests.MemberStatus(
                    raft_id,
                    addresses.get(raft_id, ""),
                    raft_id in voters,
                    raft_id in learners,
                    progress.match if progress is not None else None,
                )
            )
        request.reply(
            requests.encode(
                requests.StatusReply(
                    cluster_id=instance.settings.cluster_id,
                    instance_id=instance.settings.instance_id,
                    raft_id=self._host.raft_id,
                    leader=raft.lead,
                    leader_address=addresses.get(raft.lead, ""),
                    term=raft.term,
                    committed=raft.log.committed,
                    applied=self._machine.applied_index,
                    first_index=self._group.log.first_index(),
                    last_index=raft.log.last_index(),
                    revision=metastore.revision,
                    compacted_revision=metastore.compacted_revision,
                    checksum=metastore.checksum,
                    disk_full=self._host.full(),
                    members=members,
                )
            )
        )

    # Membership

    def _members(self, request: Request) -> None:
        asked = requests.decode_members(request.body)
        raft = self._group.raw.raft
        if raft.lead != self._host.raft_id:
            self._forward_members(request, asked, raft.lead)
            return
        if [change for change, _ in asked.changes] == [MembersChange.TRANSFER]:
            self._host.transfer(self._group, asked.changes[0][1])
            self._reply_members(request)
            return
        change = self._checked_change(asked)
        added = [raft_id for what, raft_id in asked.changes if what is MembersChange.ADD_LEARNER]
        if not added:
            self._host.propose_conf_change(self._group, change, partial(self._members_changed, request))
            return
        split_address(asked.address)
        record = msgspec.json.encode(InstanceRecord(asked.instance_id or f"i{added[0]}", asked.address))
        write = commands.encode(
            msgspec.structs.replace(commands.put(instance_key(added[0]), record), now_ms=self._instance.wall_ms())
        )

        def written(_result: object, error: Exception | None) -> None:
            if error is not None:
                self._fail(request, error)
            else:
                self._host.propose_conf_change(self._group, change, partial(self._members_changed, request))

        self._host.propose(self._group, write, written)

    def _forward_members(self, request: Request, asked: requests.MembersRequest, leader: int) -> None:
        link = self._host.links.get(leader)
        if link is None or asked.forwarded:
            self._fail(request, NotLeader(leader if link is not None else 0))
            return
        body = requests.encode(msgspec.structs.replace(asked, forwarded=True))
        try:
            answer = link.channel.call(requests.MEMBERS, body, _FORWARD_S)
        except NetError as error:
            request.fail("not_leader", f"the leader, member {leader}, can't be reached from here: {error}")
            return
        answer.add_done_callback(partial(_relay, request))

    def _checked_change(self, asked: requests.MembersRequest) -> ConfChangeV2:
        raft = self._group.raw.raft
        tracker = raft.tracker
        voters = tracker.config.voters.ids()
        singles: list[ConfChangeSingle] = []
        if not asked.changes or len({raft_id for _, raft_id in asked.changes}) != len(asked.changes):
            raise SettingsError("name at least one change, and each member once")
        for what, raft_id in asked.changes:
            progress = tracker.progress.get(raft_id)
            if what is MembersChange.ADD_LEARNER:
                if progress is not None:
                    raise SettingsError(f"member {raft_id} is in the cluster already")
                if raft_id <= 0 or self._machine.metastore.get(instance_key(raft_id)) is not None:
                    raise SettingsError(f"raft id {raft_id} was used before; ids are never used again, take a new one")
                if raft_id <= len(self._instance.settings.peers):
                    raise SettingsError(f"raft id {raft_id} belongs to a founding member; take a higher one")
                singles.append(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, raft_id))
                continue
            if what is MembersChange.TRANSFER:
                raise SettingsError("leadership can't be handed over together with other changes")
            if progress is None:
                raise SettingsError(f"member {raft_id} is not in the cluster (members: {sorted(tracker.progress)})")
            if what is MembersChange.PROMOTE:
                lag = raft.log.last_index() - progress.match
                if progress.state is ProgressState.SNAPSHOT or lag > self._instance.settings.limits.promote_lag_entries:
                    raise SettingsError(
                        f"member {raft_id} is {lag} entries behind; it may vote when it is within "
                        f"{self._instance.settings.limits.promote_lag_entries}: try again shortly"
                    )
                singles.append(ConfChangeSingle(ConfChangeType.ADD_NODE, raft_id))
            elif what is MembersChange.DEMOTE:
                singles.append(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, raft_id))
            else:
                singles.append(ConfChangeSingle(ConfChangeType.REMOVE_NODE, raft_id))
        gone = {raft_id for what, raft_id in asked.changes if what in (MembersChange.REMOVE, MembersChange.DEMOTE)}
        promoted = {raft_id for what, raft_id in asked.changes if what is MembersChange.PROMOTE}
        if not (set(voters) - gone) | promoted:
            raise SettingsError("the last voter can't be removed: nobody would be left to decide anything")
        return ConfChangeV2(changes=tuple(singles))

    def _members_changed(self, request: Request, _result: object, error: Exception | None) -> None:
        if error is not None:
            self._fail(request, error)
        else:
            self._reply_members(request)

    def _reply_members(self, request: Request) -> None:
        config = self._group.raw.raft.tracker.config
        voters = sorted(config.voters.ids())
        learners = sorted({*config.learners, *config.learners_next})
        request.reply(requests.encode(requests.MembersReply(voters, learners)))

    # Errors

    def _fail(self, request: Request, error: Exception) -> None:
        if isinstance(error, NotLeader):
            address = self._instance.members.addresses.get(error.leader, "")
            request.fail(error.code, str(error), requests.encode(LeaderHint(error.leader, address)))
        elif isinstance(error, GroupError):
            request.fail(error.code, str(error))
        else:
            request.fail("failed", str(error))


def _relay(request: Request, answer: asyncio.Future[bytes]) -> None:
    """What the leader said, to whoever asked."""
    if answer.cancelled():
        return
    error = answer.exception()
    if error is None:
        request.reply(answer.result())
    elif isinstance(error, RpcError):
        request.fail(error.code, error.text, error.details)
    elif isinstance(error, ConnectionLost):
        request.fail("no_answer", f"the leader was lost before it answered: {error}; the outcome is unknown")
    else:
        request.fail("no_answer", f"the leader did not answer: {error}; the outcome is unknown")
