"""The metastore's door: requests of clients and members, answered by the cluster group.

Whoever gets a write sends it to the leader, once; the leader stamps it with its clock and proposes it. A linearizable
read is answered here, by any member, after a read-index round. Watches are fed from this member's own state, as it
applies.

Keys that members share among themselves (`secrets/`) are not to be had here, by whatever door: they can't be read,
are left out of ranges and watches, and no condition may ask about them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trimtab.metastore import commands, requests
from trimtab.metastore.errors import Compacted, FutureRevision, InvalidCommand, MetastoreError
from trimtab.metastore.requests import LeaderHint
from trimtab.metastore.results import encode_result
from trimtab.net.errors import ConnectionLost, NetError, RpcError
from trimtab.net.server import Handler, Request
from trimtab.node.errors import GroupError, NotLeader
from trimtab.node.member_changes import MemberChanges
from trimtab.node.settings import SettingsError
from trimtab.topology.records import SECRETS, SYSTEM_PREFIXES

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
        self._changes = MemberChanges(instance, self._fail)
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
        if self._group.raw.raft.lead == self._host.raft_id:
            self._propose(request)
        else:
            self._forward(request, requests.PROPOSE, request.body)

    def _forward(self, request: Request, method: str, body: bytes) -> None:
        """Ask the leader, and answer what it answers."""
        leader = self._group.raw.raft.lead
        link = self._host.links.get(leader)
        if link is None:
            self._fail(request, NotLeader(0))
            return
        timeout_s = _FORWARD_S if request.deadline is None else max(request.deadline - self._loop.time(), 0.001)
        try:
            answer = link.channel.call(method, body, timeout_s)
        except NetError as error:
            request.fail("not_leader", f"the leader, member {leader}, can't be reached from here: {error}")
            return
        answer.add_done_callback(partial(_relay, request))

    def _propose(self, request: Request) -> None:
        # Taken apart here so that a bad command is refused before it costs a place in the log.
        body = bytes(request.body)
        command = commands.decode(body).body
        for key in commands.examined_keys(command):
            _refuse_secret(key)
        for key in commands.changed_keys(command):
            if key.startswith(SYSTEM_PREFIXES):
                prefix = key[: key.index(b"/") + 1].decode()
                raise InvalidCommand(
                    f"the key {key[:64]!r} is the system's, which alone changes what is under '{prefix}'",
                    what_to_do="read and watch it as you like; keep your own data under another prefix",
                )
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
        _refuse_secret(asked.key)
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
        entries = [entry for entry in page.entries if not entry.key.startswith(SECRETS)]
        request.reply(requests.encode(requests.RangeReply(page.revision, entries, page.next_key)))

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
                    removed=instance.removed,
                    last_term=raft.log.term(raft.log.last_index()),
                    genesis=instance.identity.genesis,
                )
            )
        )

    # Membership

    def _members(self, request: Request) -> None:
        if self._instance.governed:
            request.fail("invalid", "the governor decides who votes here; use `expel`, `remove` or `decommission`")
            return
        asked = requests.decode_members(request.body)
        leader = self._group.raw.raft.lead
        if leader == self._host.raft_id:
            self._changes.carry_out(request, asked)
        elif asked.forwarded:
            self._fail(request, NotLeader(leader))
        else:
            self._forward(request, requests.MEMBERS, requests.encode(msgspec.structs.replace(asked, forwarded=True)))

    # Errors

    def _fail(self, request: Request, error: Exception) -> None:
        if isinstance(error, NotLeader):
            address = self._instance.members.addresses.get(error.leader, "")
            request.fail(error.code, str(error), requests.encode(LeaderHint(error.leader, address)))
        elif isinstance(error, GroupError):
            request.fail(error.code, str(error))
        else:
            request.fail("failed", str(error))


def _refuse_secret(key: bytes) -> None:
    if key.startswith(SECRETS):
        raise InvalidCommand(
            f"the key {key[:64]!r} is under 'secrets/', which only members read",
            what_to_do="ask for what you need it for: `bulk.ticket`, say",
        )


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
