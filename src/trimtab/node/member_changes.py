"""Changes of the cluster group's members that somebody asked for, carried out by its leader.

Only where nobody governs: in a governed cluster the governor alone changes the members.

A request is looked at in this order, and nothing is written before all of it was found good:

1. It must make sense, whatever the state: each member once, an address that can be used.
2. No other change may be under way. If one is, the asker is told to try again; so what follows is decided on everything
   the log holds.
3. What is so already needs no change. So a request whose answer was lost can be asked again, and succeeds.
4. What is left must be possible.

Then the instance records are written, and after them the configuration is changed. A record says, before an id is in a
configuration, who will have it; and it is marked `left` before the id leaves. So an id without a mark that is in no
configuration was never in one, and may be added again as it was asked for; a marked one is never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trimtab.metastore import commands, requests
from trimtab.metastore.conditions import And, Compare, Condition, Revision
from trimtab.metastore.requests import MembersChange, MembersRequest
from trimtab.metastore.results import InvokeResult
from trimtab.net.server import Request
from trimtab.node.errors import ProposalRefused
from trimtab.node.settings import SettingsError, split_address
from trimtab.raft.messages import ConfChangeSingle, ConfChangeType, ConfChangeV2
from trimtab.raft.progress import ProgressState
from trimtab.topology.records import MAX_RAFT_ID, InstanceRecord, instance_key, parse_instance
from trimtab.topology.states import NodeState

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

_TRANSFER_S = 5.0
_UNDER_WAY = "another change of the members is under way; try again when it is done"

Fail = Callable[[Request, Exception], None]


class MemberChanges:
    """Carries out changes while this instance leads. SettingsError where a request can't be carried out."""

    def __init__(self, instance: Instance, fail: Fail) -> None:
        self._instance = instance
        self._host = instance.host
        self._group = instance.cluster
        self._fail = fail
        self._loop = asyncio.get_running_loop()

    def carry_out(self, request: Request, asked: MembersRequest) -> None:
        """Answers the request, now or when the change is applied."""
        _check_shape(asked)
        if asked.changes[0][0] is MembersChange.TRANSFER:
            self._transfer(request, asked.changes[0][1])
            return
        raft = self._group.raw.raft
        if raft.pending_conf_index > raft.log.applied or raft.tracker.config.is_joint:
            self._fail(request, ProposalRefused(_UNDER_WAY))
            return
        singles, records = self._plan(asked)
        if not singles:
            self._reply_if_leading(request)
            return
        change = ConfChangeV2(changes=tuple(singles))
        if refusal := raft.conf_change_refusal(change):
            raise SettingsError(refusal)
        if records:
            self._write_then_change(request, records, change)
        else:
            self._host.propose_conf_change(self._group, change, partial(self._changed, request))

    # What is to be done

    def _plan(self, asked: MembersRequest) -> tuple[list[ConfChangeSingle], dict[int, InstanceRecord]]:
        """The changes that are not so already, and the records to write before them."""
        config = self._group.raw.raft.tracker.config
        singles: list[ConfChangeSingle] = []
        records: dict[int, InstanceRecord] = {}
        voters = set(config.voters.incoming)
        for what, raft_id in asked.changes:
            if what is MembersChange.ADD_LEARNER:
                if (record := self._to_add(raft_id, asked)) is None:
                    continue
                if record != self._record(raft_id):
                    records[raft_id] = record
                singles.append(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, raft_id))
            elif what is MembersChange.PROMOTE:
                self._check_member(raft_id)
                if raft_id in config.voters:
                    continue
                self._check_caught_up(raft_id)
                voters.add(raft_id)
                singles.append(ConfChangeSingle(ConfChangeType.ADD_NODE, raft_id))
            elif what is MembersChange.DEMOTE:
                self._check_member(raft_id)
                if raft_id not in config.voters:
                    continue
                voters.discard(raft_id)
                singles.append(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, raft_id))
            else:
                known = self._record(raft_id)
                if known is not None and known.left and raft_id not in self._group.raw.raft.tracker.progress:
                    continue
                self._check_member(raft_id)
                voters.discard(raft_id)
                if known is None:
                    known = InstanceRecord(f"i{raft_id}", self._instance.members.addresses.get(raft_id, ""))
                if not known.left:
                    records[raft_id] = msgspec.structs.replace(known, state=NodeState.LEFT)
                singles.append(ConfChangeSingle(ConfChangeType.REMOVE_NODE, raft_id))
        if not voters:
            raise SettingsError("the last voter can't be removed: nobody would be left to decide anything")
        if len(config.voters.incoming) == 2 and self._host.raft_id in config.voters.incoming - voters:
            # The other one may never learn that the change was committed; with a shorter log it could not be elected
            # without the vote of the one that is gone.
            raise SettingsError("of two voters the leader can't be taken out; transfer leadership to the other first")
        return singles, records

    def _to_add(self, raft_id: int, asked: MembersRequest) -> InstanceRecord | None:
        """The record of a member to add; None if it is there already."""
        progress, addresses = self._group.raw.raft.tracker.progress, self._instance.members.addresses
        known = self._record(raft_id)
        wanted = InstanceRecord(asked.instance_id or f"i{raft_id}", asked.address)
        if raft_id in progress:
            address = known.address if known is not None else addresses.get(raft_id, "")
            if address == asked.address and (
                known is None or not asked.instance_id or asked.instance_id == known.instance_id
            ):
                return None
            raise SettingsError(f"member {raft_id} is in the cluster already, at {address or 'an unknown address'}")
        if known is not None and known.left:
            raise SettingsError(f"raft id {raft_id} was used before; ids are never used again, take a new one")
        if known is not None and known != wanted:
            raise SettingsError(
                f"raft id {raft_id} is kept for {known.instance_id} at {known.address}, which somebody began to add; "
                "add that one, or take a new id"
            )
        for other in sorted(progress):
            if addresses.get(other) == asked.address:
                raise SettingsError(f"{asked.address} is the address of member {other}; the new one needs its own")
        return wanted

    def _check_member(self, raft_id: int) -> None:
        progress = self._group.raw.raft.tracker.progress
        if raft_id not in progress:
            raise SettingsError(f"member {raft_id} is not in the cluster (members: {sorted(progress)})")

    def _check_caught_up(self, raft_id: int) -> None:
        raft, allowed = self._group.raw.raft, self._instance.settings.limits.promote_lag_entries
        progress = raft.tracker.progress[raft_id]
        lag = raft.log.last_index() - progress.match
        # A young cluster's log is shorter than the allowed lag, so the numbers alone say nothing of a member that is
        # not even there; as a voter it would only count against the majority.
        if progress.match == 0 or not progress.recent_active:
            raise SettingsError(
                f"member {raft_id} has not been heard from; start it, and promote it when it has caught up"
            )
        if progress.state is ProgressState.SNAPSHOT:
            raise SettingsError(f"member {raft_id} is still receiving a snapshot; try again shortly")
        if lag > allowed:
            raise SettingsError(
                f"member {raft_id} is {lag} entries behind; it may vote when it is within {allowed}: try again shortly"
            )

    def _record(self, raft_id: int) -> InstanceRecord | None:
        entry = self._instance.machine.metastore.get(instance_key(raft_id))
        if entry is None:
            return None
        try:
            return parse_instance(entry.key, entry.value)[1]
        except ValueError as error:
            raise SettingsError(f"the record of raft id {raft_id} is unusable, take another id: {error}") from error

    # Doing it

    def _write_then_change(self, request: Request, records: dict[int, InstanceRecord], change: ConfChangeV2) -> None:
        metastore = self._instance.machine.metastore
        unchanged: list[Condition] = []
        puts: list[commands.Operation] = []
        for raft_id, record in records.items():
            key = instance_key(raft_id)
            entry = metastore.get(key)
            unchanged.append(Revision(key, Compare.EQ, 0 if entry is None else entry.mod_revision))
            puts.append(commands.Put(key, msgspec.json.encode(record)))
        command = commands.invoke(And(tuple(unchanged)), puts)
        command = msgspec.structs.replace(command, now_ms=self._instance.wall_ms())

        def written(result: object, error: Exception | None) -> None:
            if error is not None:
                self._fail(request, error)
            elif not isinstance(result, InvokeResult) or result.yields is not True:
                # Two requests at a time about one id: whoever came first wrote it.
                self._fail(request, ProposalRefused(_UNDER_WAY))
            else:
                self._host.propose_conf_change(self._group, change, partial(self._changed, request))

        self._host.propose(self._group, commands.encode(command), written)

    def _changed(self, request: Request, _result: object, error: Exception | None) -> None:
        if error is not None:
            self._fail(request, error)
        else:
            self._reply(request)

    def _reply_if_leading(self, request: Request) -> None:
        """It is so already, as far as this member knows: which counts if it is still the one that decides."""

        def confirmed(error: Exception | None) -> None:
            if error is not None:
                self._fail(request, error)
            else:
                self._reply(request)

        self._host.read(self._group, confirmed)

    def _reply(self, request: Request) -> None:
        config = self._group.raw.raft.tracker.config
        learners = sorted({*config.learners, *config.learners_next})
        request.reply(requests.encode(requests.MembersReply(sorted(config.voters.incoming), learners)))

    # Leadership

    def _transfer(self, request: Request, to: int) -> None:
        self._check_member(to)
        if to not in self._group.raw.raft.tracker.config.voters.incoming:
            raise SettingsError(f"member {to} does not vote, so it can't lead; promote it first")
        if to == self._host.raft_id:
            self._reply_if_leading(request)
            return
        self._host.transfer(self._group, to)
        now = self._loop.time()
        # A little earlier than the asker gives up, so that it hears why.
        left_s = _TRANSFER_S if request.deadline is None else min(_TRANSFER_S, (request.deadline - now) * 0.9)
        self._await_leader(request, to, now + left_s)

    def _await_leader(self, request: Request, to: int, until: float) -> None:
        raft = self._group.raw.raft
        if request.done:
            return
        if raft.lead == to:
            self._reply(request)
        elif raft.lead not in (0, self._host.raft_id):
            self._fail(request, ProposalRefused(f"member {raft.lead} leads now, not member {to}; try again"))
        elif raft.lead == self._host.raft_id and raft.lead_transferee != to:
            self._fail(
                request,
                ProposalRefused(f"member {to} did not take over within an election timeout; is it up, and caught up?"),
            )
        elif self._loop.time() >= until:
            request.fail("no_answer", f"member {to} has not taken over yet, but still may")
        else:
            tick_s = self._instance.settings.timing.tick_ms / 1000
            self._loop.call_later(tick_s / 2, self._await_leader, request, to, until)


def _check_shape(asked: MembersRequest) -> None:
    kinds = [what for what, _ in asked.changes]
    ids = [raft_id for _, raft_id in asked.changes]
    if not ids or len(set(ids)) != len(ids):
        raise SettingsError("name at least one change, and each member once")
    for raft_id in ids:
        if not 0 < raft_id <= MAX_RAFT_ID:
            raise SettingsError(f"{raft_id} is no raft id; they are numbers from 1 on")
    if MembersChange.TRANSFER in kinds and len(kinds) > 1:
        raise SettingsError("leadership can't be handed over together with other changes")
    if kinds.count(MembersChange.ADD_LEARNER) > 1:
        raise SettingsError("one member is added at a time, because a request has one address")
    if MembersChange.ADD_LEARNER in kinds:
        split_address(asked.address)
