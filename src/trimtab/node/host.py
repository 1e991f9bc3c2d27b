r"""All Raft groups of one instance, driven together: step, write, sync, send, apply.

One turn of the pump takes every group with something to do, gathers what they want written into one batch of the node
log, sends what needs no durability at once, and asks for one sync for all of it. What depends on durability (votes,
append acknowledgements, the leader's own included) leaves when that sync is done. Applying happens on the loop, from
entries that are durable here.

    messages, proposals, ticks -> groups -> log.write -> log.sync -> acknowledgements
                                        \-> appends, heartbeats (at once)
                                        \-> machine.apply -> answers

Groups that have nothing to do are quiescent: they are not ticked at all. They wake by a message, a proposal, or when
the link to their leader breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import msgspec

from trimtab.node.awakening import Awakening
from trimtab.node.errors import GroupError, NoSpace, NotLeader, ProposalRefused, Stalled, Stopped, TooBusy
from trimtab.node.group import Group, GroupStorage, ProposalDone
from trimtab.node.links import Link, Parcel
from trimtab.node.machine import StateMachine
from trimtab.node.reads import ReadDone
from trimtab.node.settings import Limits, Timing
from trimtab.raft.config import Config
from trimtab.raft.core import StateType
from trimtab.raft.errors import ProposalDropped, StepRefused
from trimtab.raft.messages import (
    LOCAL_APPEND,
    LOCAL_APPLY,
    ConfChangeV2,
    HardState,
    Message,
    MessageType,
    Snapshot,
    SnapshotMetadata,
)
from trimtab.raft.node import RawNode
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import DiskFull

Responses = list[tuple[Group, Message]]
_encoder = msgspec.msgpack.Encoder()
_LEADER = StateType.LEADER
_MAX_TURNS_PER_GROUP = 1_000


class Host:
    """Every group of this instance, on one log and one event loop."""

    def __init__(
        self,
        raft_id: int,
        log: NodeLog,
        rng: random.Random,
        timing: Timing,
        limits: Limits,
        *,
        fatal: Callable[[BaseException], None],
        story: Callable[[str], None],
    ) -> None:
        self.raft_id = raft_id
        self.log = log
        self.groups: dict[int, Group] = {}
        self.links: dict[int, Link] = {}
        self.stalled: DiskFull | None = None
        self.refused_messages = 0
        self.last_refused = ""
        self.short_of_space = False
        self.on_leader: Callable[[Group], None] = lambda _group: None
        self.on_membership: Callable[[Group], None] = lambda _group: None
        self.on_installed: Callable[[Group], None] = lambda _group: None
        self.on_snapshot_message: Callable[[Group, Message], None] = lambda _group, _message: None
        self._rng = rng
        self._timing = timing
        self._limits = limits
        self._fatal = fatal
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._active: dict[int, Group] = {}
        self._dirty: dict[int, Group] = {}
        self._flushing: dict[int, Link] = {}
        self._after_sync: Responses = []
        self._installs: list[tuple[Group, SnapshotMetadata]] = []
        self._proposed: dict[int, list[tuple[bytes, ProposalDone]]] = {}
        self._pump_scheduled = False
        self._stopped = False
        self._tick_timer: asyncio.TimerHandle | None = None
        self._down: set[int] = set()
        self._awakening = Awakening(raft_id, timing, campaign=self._campaign, wake=self._rouse)

    # Life

    def add_group(
        self, group_id: int, machine: StateMachine, *, quiesces: bool, snapshot: Callable[[], Snapshot] | None = None
    ) -> Group:
        """Take up a group whose log is in the node log (bootstrapped before, or empty for a newcomer)."""
        log = self.log.group(group_id)
        log.snapshot_source = snapshot
        storage = GroupStorage(log, machine)
        raw = RawNode(
            Config(
                id=self.raft_id,
                election_tick=self._timing.election_ticks,
                heartbeat_tick=self._timing.heartbeat_ticks,
                storage=storage,
                applied=machine.applied_index,
                async_storage_writes=True,
                max_size_per_msg=self._limits.append_bytes,
                max_committed_size_per_ready=self._limits.apply_bytes,
                max_uncommitted_entries_size=self._limits.uncommitted_bytes,
                max_inflight_msgs=self._limits.inflight_messages,
                max_inflight_bytes=self._limits.inflight_bytes,
                check_quorum=True,
                pre_vote=True,
                step_down_on_removal=True,
                random=self._rng.randrange,
            )
        )
        # Read rounds of an earlier life must not be taken for rounds of this one.
        group = Group(group_id, raw, log, machine, quiesces=quiesces, first_read=self._rng.getrandbits(48) << 8)
        self.groups[group_id] = group
        if quiesces:
            # Asleep until it is used, or until it is this member's turn to lead it.
            self._awakening.elect(
                group, 0, self._loop.time(), after_ms=self._timing.tick_ms, step_ms=self._timing.first_election_step_ms
            )
        else:
            self._active[group_id] = group
        return group

    def start(self) -> None:
        """Begin to tick. The first tick comes at a random part of an interval, so that members don't tick in step."""
        self._tick_timer = self._loop.call_later(self._timing.tick_ms / 1000 * self._rng.random(), self._tick)

    def stop(self) -> None:
        """Do nothing any more; everything that waits is told so."""
        self._stopped = True
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        error = Stopped("this instance is stopping; ask another member")
        proposed, self._proposed = self._proposed, {}
        for batch in proposed.values():
            for _, done in batch:
                done(None, error)
        for group in self.groups.values():
            group.fail(error)

    # Doors

    def propose(self, group: Group, data: bytes, done: ProposalDone) -> None:
        """Log a command; `done(result, None)` when it is applied here, or `done(None, error)`."""
        refusal = self._refusal(group)
        if refusal is not None:
            done(None, refusal)
            return
        batch = self._proposed.get(group.id)
        if batch is None:
            batch = self._proposed[group.id] = []
        if len(batch) + len(group.proposals) >= self._limits.waiting_proposals:
            done(None, TooBusy(f"{self._limits.waiting_proposals} proposals wait already; slow down and try again"))
            return
        batch.append((data, done))
        self._touch(group)

    def propose_conf_change(self, group: Group, change: ConfChangeV2, done: ProposalDone) -> None:
        """Change the group's members. One change at a time: a second one is refused while the first is under way."""
        refusal = self._refusal(group)
        if refusal is not None:
            done(None, refusal)
            return
        raft = group.raw.raft
        before = raft.log.last_index()
        if raft.conf_change_refusal(change) is not None:
            done(None, ProposalRefused(str(raft.conf_change_refusal(change))))
            return
        try:
            group.raw.propose_conf_change(change)
        except ProposalDropped as dropped:
            done(None, ProposalRefused(str(dropped)))
            return
        group.expect(before + 1, raft.term, done)
        self._touch(group)

    def read(self, group: Group, done: ReadDone) -> None:
        """`done(None)` once this member has applied everything that was committed when the read arrived."""
        if self._stopped:
            done(Stopped("this instance is stopping; ask another member"))
        elif len(group.reads) >= self._limits.waiting_reads:
            done(TooBusy(f"{self._limits.waiting_reads} reads wait already; slow down and try again"))
        else:
            group.reads.add(done)
            self._touch(group)

    def transfer(self, group: Group, to: int) -> None:
        """Ask the leader (this member or another) to hand leadership to `to`."""
        group.raw.transfer_leader(to)
        self._touch(group)

    def campaign(self, group: Group) -> None:
        """Stand for election now, without waiting for the leader's silence: for a member that votes alone."""
        self._campaign(group)

    def receive(self, sender: int, parcel: Parcel) -> None:
        """Messages from another member."""
        if self._stopped or self.stalled is not None:
            return
        for group_id, message in parcel:
            group = self.groups.get(group_id)
            if group is None or message.from_ != sender or message.to != self.raft_id:
                continue
            if message.type == MessageType.SNAP:
                self.on_snapshot_message(group, message)
                continue
            if message.type == MessageType.APP and message.entries and not self.log.has_space():
                # Not stepping an append is the same as losing it: the leader probes again, and this member
                # keeps voting and answering heartbeats until there is space.
                self._note_full()
                continue
            self._step(group, message)

    def step_snapshot(self, group: Group, message: Message) -> None:
        """A snapshot message whose data has arrived."""
        self._step(group, message)

    def receive_quiesce(self, sender: int, groups: Sequence[tuple[int, int, int]]) -> None:
        """A leader tells which of its groups (id, term, commit) it stops ticking."""
        for group_id, term, commit in groups:
            group = self.groups.get(group_id)
            if group is not None and group.raw.accept_quiesce(sender, term, commit):
                self._active.pop(group_id, None)
                self._touch(group)

    def peer_down(self, peer: int, *, gone: bool) -> None:
        """The link to a member broke. `gone`: nothing listens there, or another process does; what it led is
        leaderless.

        A broken link alone proves nothing, so its groups get the time of an election before they doubt their leader.
        """
        now = self._loop.time()
        self._down.add(peer)
        for group in self.groups.values():
            raft = group.raw.raft
            if raft.lead != peer:
                continue
            if gone:
                group.raw.forget_leader()
                self._awakening.elect(
                    group, peer, now, after_ms=self._timing.takeover_ms, step_ms=self._timing.takeover_step_ms
                )
            elif group.raw.quiescent:
                self._rouse(group)
        self._awakening.run(now)

    def peer_up(self, peer: int) -> None:
        """The link to a member works again: groups that went quiet without it let it catch up."""
        self._down.discard(peer)
        self._awakening.catch_up(
            group
            for group in self.groups.values()
            if group.raw.quiescent
            and group.raw.raft.state is _LEADER
            and (progress := group.raw.raft.tracker.progress.get(peer)) is not None
            and progress.match < group.raw.raft.log.last_index()
        )

    def nudge(self, group: Group) -> None:
        """Something about the group changed outside of it (a report about a peer, say)."""
        self._touch(group)

    # The pump

    def _refusal(self, group: Group) -> GroupError | None:
        if self._stopped:
            return Stopped("this instance is stopping; ask another member")
        if group.raw.raft.state is not _LEADER:
            return NotLeader(group.raw.raft.lead)
        if not self.log.has_space():
            self._note_full()
            return NoSpace("the disk of the leading member is full; free some space there, writes then go on")
        return None

    def _step(self, group: Group, message: Message) -> None:
        try:
            group.raw.step(message)
        except (StepRefused, ProposalDropped) as refused:
            # An answer of a member that was just removed, or a proposal passed on to a leader that is none any more.
            self.refused_messages += 1
            self.last_refused = str(refused)
            return
        except Exception as error:
            # Raft's own rules are broken: going on could break what others rely on.
            self._fatal(error)
            return
        self._touch(group)

    def _touch(self, group: Group) -> None:
        if not group.raw.quiescent:
            self._active[group.id] = group
        self._dirty[group.id] = group
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(self._timing.tick_ms / 1000, self._tick)
        if self.stalled is not None:
            # Raft would only pile up what can't be written; to the others this member is silent, as if paused.
            return
        self._awakening.tick(self._loop.time())
        quiet: dict[int, list[tuple[int, int, int]]] = {}
        for group in list(self._active.values()):
            raw = group.raw
            # Before the tick: after it a leader always has heartbeats to send.
            if group.quiesces and self._goes_quiet(group, quiet):
                continue
            raw.tick()
            if raw.has_ready() or group.reads.asked_at is not None:
                self._touch(group)
        for peer, groups in quiet.items():
            if peer in self.links:
                self.links[peer].channel.send("quiesce", _encoder.encode(groups))

    def _goes_quiet(self, group: Group, quiet: dict[int, list[tuple[int, int, int]]]) -> bool:
        raft = group.raw.raft
        if raft.state is not _LEADER or group.proposals or len(group.reads) or not group.raw.may_quiesce(self._down):
            group.idle_ticks = 0
            return False
        group.idle_ticks += 1
        if group.idle_ticks < self._limits.idle_ticks_before_quiescence:
            return False
        group.idle_ticks = 0
        group.raw.quiesce(self._down)
        self._active.pop(group.id, None)
        for peer in raft.tracker.progress:
            if peer != self.raft_id:
                quiet.setdefault(peer, []).append((group.id, raft.term, raft.log.committed))
        return True

    def _rouse(self, group: Group) -> None:
        group.raw.wake()
        self._touch(group)

    def _campaign(self, group: Group) -> None:
        group.raw.campaign()
        self._touch(group)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._stopped or self.stalled is not None:
            return
        dirty, self._dirty = self._dirty, {}
        try:
            for group in dirty.values():
                self._take_proposals(group)
                self._ask_reads(group)
                self._drain(group)
            self._write()
        except Exception as error:
            # Damaged data, a broken invariant, a defect of ours: a member in an unknown state must not go on.
            self._fatal(error)
            return
        flushing, self._flushing = self._flushing, {}
        for link in flushing.values():
            link.flush(self._append_dropped)
        if self._awakening.busy:
            self._awakening.run(self._loop.time())

    def _take_proposals(self, group: Group) -> None:
        batch = self._proposed.pop(group.id, None)
        if not batch:
            return
        raft = group.raw.raft
        if raft.state is not _LEADER:
            for _, done in batch:
                done(None, NotLeader(raft.lead))
            return
        before = raft.log.last_index()
        try:
            group.raw.propose_many([data for data, _ in batch])
        except ProposalDropped as dropped:
            for _, done in batch:
                done(None, ProposalRefused(str(dropped)))
            return
        for position, (_, done) in enumerate(batch):
            group.expect(before + 1 + position, raft.term, done)

    def _ask_reads(self, group: Group) -> None:
        if context := group.reads.next_round(self._loop.time(), self._timing.read_retry_ms / 1000):
            group.raw.read_index(context)

    def _drain(self, group: Group) -> None:
        raw = group.raw
        for _ in range(_MAX_TURNS_PER_GROUP):
            if not raw.has_ready():
                return
            ready = raw.ready()
            for state in ready.read_states:
                group.reads.confirm(state.context, state.index)
            for message in ready.messages:
                if message.to == LOCAL_APPEND:
                    self._stage(group, message)
                elif message.to == LOCAL_APPLY:
                    before = raw.raft.tracker.config
                    group.apply(message.entries)
                    if raw.raft.tracker.config is not before:
                        self.on_membership(group)
                    for response in message.responses:
                        raw.step(response)
                elif message.type == MessageType.VOTE:
                    # A candidate's term must be durable before anyone votes in it. Else: the others elect it while its
                    # own sync is slow, it appends, crashes, forgets the term, asks again in that same term, gets the
                    # same votes, and appends other entries under the same index and term.
                    self._after_sync.append((group, message))
                else:
                    link = self.links.get(message.to)
                    if link is not None and link.put(group.id, message):
                        self._flushing[message.to] = link
            if ready.soft_state is not None:
                self._leadership(group)
            if ready.read_states:
                group.reads.release(group.machine.applied_index)
                self._ask_reads(group)
        self._touch(group)

    def _stage(self, group: Group, message: Message) -> None:
        hard_state = None
        if message.term:
            hard_state = HardState(term=message.term, vote=message.vote, commit=message.commit)
        metadata = message.snapshot.metadata if message.snapshot is not None else None
        self.log.stage(group.id, entries=message.entries, hard_state=hard_state, snapshot=metadata)
        if metadata is not None:
            self._installs.append((group, metadata))
        for response in message.responses:
            self._after_sync.append((group, response))

    def _write(self) -> None:
        try:
            self.log.write()
        except DiskFull as error:
            self._stall(error)
            return
        if self._after_sync:
            responses, self._after_sync = self._after_sync, []
            installs, self._installs = self._installs, []
            self.log.sync(lambda error: self._synced(responses, installs, error))

    def _synced(
        self, responses: Responses, installs: list[tuple[Group, SnapshotMetadata]], error: BaseException | None
    ) -> None:
        if self._stopped:
            return
        if error is not None:
            self._fatal(error)
            return
        try:
            for group, metadata in installs:
                group.machine.install(metadata)
                group.flushed_index = metadata.index
                # A flush of the old data will not be heard of again.
                group.flushing = False
                self.on_installed(group)
                group.advanced()
                self.on_membership(group)
        except Exception as failure:
            self._fatal(failure)
            return
        for group, response in responses:
            if response.to == self.raft_id:
                self._step(group, response)
            else:
                link = self.links.get(response.to)
                if link is not None and link.put(group.id, response):
                    self._flushing[response.to] = link
        self._pump()

    def _leadership(self, group: Group) -> None:
        raft = group.raw.raft
        leads = raft.state is _LEADER
        if group.was_leader and not leads:
            group.lose_leadership(raft.lead)
        group.was_leader = leads
        if raft.lead:
            self._awakening.settled(group)
            group.reads.ask_again()
            self._ask_reads(group)
        self.on_leader(group)

    def _append_dropped(self, group_id: int, peer: int) -> None:
        group = self.groups[group_id]
        group.raw.report_unreachable(peer)
        self._touch(group)

    # A full disk

    def full(self) -> str:
        """Why this member takes no writes for want of space, or nothing."""
        if self.stalled is not None:
            return str(self.stalled)
        return "" if self.log.has_space() else "disk full: less space is free than the reserve"

    def _note_full(self) -> None:
        if not self.short_of_space:
            self.short_of_space = True
            self._story(f"{self.full()}; this member takes no writes until there is space again")

    def check_space(self) -> None:
        """Now and then: take note that space is short, or back.

        A sync may meet the end of the disk when nothing is left to be written. Then no write would ever open the log
        again, because appends are refused meanwhile; so it is tried here.
        """
        with contextlib.suppress(DiskFull):
            self.log.reopen()
        if not self.log.has_space():
            self._note_full()
        elif self.short_of_space and self.stalled is None:
            self.short_of_space = False
            self._story("the disk has space again; this member takes writes")

    def _stall(self, error: DiskFull) -> None:
        """The log has no space. Nothing is acknowledged, and Raft stands still, until what is staged is written."""
        self.stalled = error
        self._note_full()
        for group in self.groups.values():
            group.fail(Stalled(f"{error}; what was under way may still be committed"))
        self._loop.call_later(self._timing.disk_retry_ms / 1000, self._retry_write)

    def _retry_write(self) -> None:
        if self._stopped:
            return
        try:
            self.log.reopen()
            self.log.write()
        except DiskFull as error:
            self.stalled = error
            self._loop.call_later(self._timing.disk_retry_ms / 1000, self._retry_write)
        except Exception as error:
            self._fatal(error)
        else:
            self.stalled = None
            self._write()
            self._pump()
