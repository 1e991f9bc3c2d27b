"""How each step of the governor is carried out: the deed first, then one write with its events.

Every call carries the term and a timeout. A step that can't be carried out raises, and is planned again from the state
as it then is; whatever it did before is harmless to do twice. Failpoints stand before the deed, between deed and write,
and after the write.

The barrier, in the order that makes it safe: ask every node until it has acknowledged or was marked Offline, which
means that its lease has ended and it serves nothing. If one was skipped, or went down or was started anew, requests
that it sent before may still be on their way: raise the fence, so that replicas refuse them, and ask once more, until
everybody knows the fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace

import msgspec

from trimtab.governor.crossing import absent, barrier_nodes, unfenced
from trimtab.governor.loads import write_of
from trimtab.governor.steps import (
    Adopt,
    Answer,
    AskMoves,
    Barrier,
    Call,
    ChangeMembers,
    Commit,
    CommitMoves,
    CrossMoves,
    Step,
    StepKind,
    Told,
    Transfer,
    Write,
)
from trimtab.loads import protocol as load_protocol
from trimtab.loads.protocol import AdoptCall
from trimtab.loads.publishing import adopted, next_load
from trimtab.loads.situation import Situation
from trimtab.net.errors import NetError
from trimtab.node import conf_changes, failpoints
from trimtab.node.answering import Refused
from trimtab.node.backoffs import Backoffs
from trimtab.node.calls import Calls
from trimtab.node.cluster_writes import ClusterWrites, Outdated
from trimtab.node.errors import GroupError
from trimtab.node.executor import StepFailed
from trimtab.node.group import Group
from trimtab.node.host import Host
from trimtab.node.moving import Moving
from trimtab.node.presence import HeartbeatDesk
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.raft.messages import ConfChangeV2
from trimtab.topology import protocol
from trimtab.topology.barriers import Round, RoundState
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import Address, BarrierCall, JoinResponse, SyncCall
from trimtab.topology.records import FENCE_KEY, EventRecord, decode_instance, instance_key
from trimtab.topology.view import View

_ASK_AGAIN_S = 0.2
_LEASE_LOOK_S = 0.05
_MAX_LEASE_LOOKS = 400
_MAX_WRITES = 5  # of what follows a barrier
_DOWN = (Grade.OFFLINE, Grade.EXPELLED)
# What a member refuses the order with whose replicas have not caught up yet.
CATCHING_UP = "catching_up"
# What a member answers that is still taking a load over when the time of the call is up.
ADOPTING = "adopting"


@dataclass(frozen=True)
class Patiences:
    """How long a deed may take before its step is planned anew."""

    call_s: float = 3.0
    # After the first has answered: what comes within this is still part of the same write.
    linger_s: float = 0.5
    barrier_s: float = 10.0
    transfer_s: float = 2.0
    answer_s: float = 3.0
    # What is not done by then is asked for again; whoever takes a load over goes on meanwhile.
    adopt_s: float = 5.0


DEFAULT_PATIENCES = Patiences()

# Sends JOIN_NODE_RESPONSE to an address; returns when it was acknowledged.
SendAnswer = Callable[[str, JoinResponse, float], Awaitable[None]]


class Deeds:
    """The hands of the governor on this instance, while it leads."""

    def __init__(
        self,
        host: Host,
        group: Group,
        view: View,
        writes: ClusterWrites,
        calls: Calls,
        waits: Waits,
        *,
        name: str,
        send_answer: SendAnswer,
        blamed: Backoffs[int],
        wake_later: Callable[[float], None],
        leases: HeartbeatDesk,
        promote_lag_entries: int,
        loads: Callable[[], Situation],
        moving: Moving,
        patiences: Patiences = DEFAULT_PATIENCES,
    ) -> None:
        self._host = host
        self._group = group
        self._view = view
        self._writes = writes
        self._calls = calls
        self._waits = waits
        self._name = name
        self._send_answer = send_answer
        self._blamed = blamed
        self._wake_later = wake_later
        self._leases = leases
        self._promote_lag_entries = promote_lag_entries
        self._loads = loads
        self._moving = moving
        self._patiences = patiences
        self._loop = asyncio.get_running_loop()
        self._blames: dict[int, str] = {}  # why a member was last left alone
        self.catching_up: dict[int, str] = {}  # members that say that their replicas are; and what they are at

    async def carry_out(self, step: Step, term: int) -> None:
        """Done when it returns. StepFailed, GroupError, NetError, Outdated: it was not, and is planned anew."""
        self._hit(step, "before")
        match step:
            case Transfer():
                await self._transfer(step, term)
            case ChangeMembers():
                await self._change_members(step)
                self._hit(step, "after-deed")
                await self._write(step, step.write or Write({}), term, even_if_empty=True)
            case CommitMoves():
                self._hit(step, "after-deed")
                await self._write_moves(step, step.write, term)
            case Commit():
                self._hit(step, "after-deed")
                await self._write(step, step.write, term)
            case Call():
                await self._call(step, term)
            case CrossMoves():
                await self._cross_moves(step, term)
            case Barrier():
                gone = await self._barrier(step, term)
                self._hit(step, "after-deed")
                await self._write(step, replace(step.write, expect=gone | step.write.expect), term)
            case Answer():
                await self._answer(step, term)
                self._hit(step, "after-deed")
                await self._write(step, step.write, term)
            case Adopt():
                await self._adopt(step, term)
            case AskMoves():
                await self._moving.ask(step, term)
                self._hit(step, "after-deed")
            case _:
                raise StepFailed(f"nobody knows how to carry out {step}")
        self._hit(step, "after")

    def _hit(self, step: Step, place: str) -> None:
        failpoints.hit(f"governor.{step.kind.value}.{place}", self._name)

    # Writing

    async def _write(self, step: Step, write: Write, term: int, *, even_if_empty: bool = False) -> None:
        if write.empty and not even_if_empty:
            return
        going = self._going_down(write)
        withheld = self._leases.withhold(going)
        try:
            await self._leases_end(going)
            await self._writes.write(write, self._events(step, write), term=term)
        except (Outdated, StepFailed):
            self._leases.grant_again(withheld)
            raise
        except BaseException as error:
            if isinstance(error, GroupError) and error.outcome_known:
                self._leases.grant_again(withheld)
            else:
                # It may still be written, and whoever it marks must hold no lease then.
                withheld.in_doubt = True
            raise
        self._leases.grant_again(withheld)

    def _going_down(self, write: Write) -> list[int]:
        """Whom this write marks Offline or Expelled."""
        return [
            raft_id
            for raft_id, record in self._view.instances.items()
            if record.grades.current.grade not in _DOWN
            and (value := write.puts.get(instance_key(raft_id))) is not None
            and decode_instance(value).grades.current.grade in _DOWN
        ]

    async def _leases_end(self, going: list[int]) -> None:
        """Wait until none of them can hold a lease.

        It holds for every write, whatever rule it comes from: barriers skip whoever is marked, because it can't be
        serving.
        """
        for _ in range(_MAX_LEASE_LOOKS):
            left_s = max((self._leases.lease_left_ms(raft_id) for raft_id in going), default=0) / 1000
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, _LEASE_LOOK_S))
        raise StepFailed(f"{', '.join(self._name_of(raft_id) for raft_id in going)} may still hold a lease")

    def _events(self, step: Step, write: Write) -> list[EventRecord]:
        # A step without a write of its own is about members.
        told = write.events or (Told(step.why, tuple(self._name_of(raft_id) for raft_id in step.subjects)),)
        return [self._writes.event(step.kind.value, each.text, each.instances) for each in told]

    # Leadership and members

    async def _transfer(self, step: Transfer, term: int) -> None:
        raft = self._group.raw.raft
        if step.to not in raft.tracker.config.voters.incoming:
            raise StepFailed(f"member {step.to} does not vote, so it can't lead")
        if not self._told_of(step):
            # Before, because afterwards this member has no say any more.
            await self._write(step, Write({}), term, even_if_empty=True)
        self._host.transfer(self._group, step.to)
        self._hit(step, "after-deed")
        until = self._loop.time() + self._patiences.transfer_s
        try:
            await self._waits.until(lambda: raft.lead not in (0, raft.id), until, f"member {step.to} to take over")
        except WaitedTooLong as error:
            raise StepFailed(f"member {step.to} did not take over; is it up, and caught up?") from error
        except asyncio.CancelledError:
            # The office ended, and its steps with it: mostly because this one has succeeded.
            if raft.lead != raft.id:
                self._hit(step, "after")
            raise

    def _told_of(self, step: Transfer) -> bool:
        """Whether the last event tells of this very step: a transfer that is tried again is no news."""
        if not self._view.events:
            return False
        last = self._view.events[next(reversed(self._view.events))]
        return last.kind == step.kind.value and last.text == step.why

    async def _change_members(self, step: ChangeMembers) -> None:
        raft = self._group.raw.raft
        if conf_changes.under_way(raft):
            raise StepFailed("another change of the members is under way")
        change = conf_changes.change_for(raft, step)
        if change is None:
            return
        if why := conf_changes.refusal(raft, change, self._promote_lag_entries):
            raise StepFailed(why)
        await self._propose_change(change)

    async def _propose_change(self, change: ConfChangeV2) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def changed(_result: object, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._host.propose_conf_change(self._group, change, changed)
        await done

    # Calls

    async def _call(self, step: Call, term: int) -> None:
        body = protocol.encode(SyncCall(term, step.index))
        answered = await self._ask_all(step.subjects, step.call.value, body)
        self._hit(step, "after-deed")
        if not answered:
            if self.catching_up.keys() >= set(step.subjects):
                return  # each of them is at it; asked again, it goes on
            raise StepFailed("none of them answered; " + self._why_blamed(step.subjects))
        for write in step.writes_for(answered):
            await self._write(step, write, term)

    async def _ask_all(self, raft_ids: Collection[int], method: str, body: bytes) -> list[int]:
        """Who answered in time. The others are left alone for a while, each by itself."""
        tasks = {
            raft_id: self._loop.create_task(self._calls.ask(raft_id, method, body, self._patiences.call_s))
            for raft_id in raft_ids
        }
        pending = set(tasks.values())
        answered_one = False
        try:
            # Each call has a timeout of its own, so this ends. Who is refused at once hurries nobody else.
            while pending and not answered_one:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                answered_one = any(task.exception() is None for task in done)
            if pending:
                await asyncio.wait(pending, timeout=self._patiences.linger_s)
        finally:
            for task in tasks.values():
                task.cancel()
        answered = []
        for raft_id, task in tasks.items():
            error = task.exception() if task.done() and not task.cancelled() else None
            self.catching_up.pop(raft_id, None)
            if task.done() and not task.cancelled() and error is None:
                self._blamed.succeeded(raft_id)
                answered.append(raft_id)
            elif getattr(error, "code", "") == CATCHING_UP:
                # Not its fault, so it is asked again soon, however often.
                self._blamed.succeeded(raft_id)
                self._blame(raft_id, str(error))
                self.catching_up[raft_id] = str(error)
            else:
                self._blame(raft_id, "no answer in time" if not task.done() else str(task.exception()))
        return answered

    def _blame(self, raft_id: int, why: str) -> None:
        self._blames[raft_id] = why
        self._wake_later(self._blamed.failed(raft_id, self._loop.time()))

    def _why_blamed(self, raft_ids: Iterable[int]) -> str:
        return "; ".join(f"member {raft_id}: {self._blames.get(raft_id, 'silent')}" for raft_id in raft_ids)

    # Loads

    async def _adopt(self, step: Adopt, term: int) -> None:
        body = load_protocol.encode(AdoptCall(term, step.index, step.table, step.id))
        calls = [self._calls.ask(raft_id, load_protocol.ADOPT, body, self._patiences.adopt_s) for raft_id in step.nodes]
        answers = dict(zip(step.nodes, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        self._hit(step, "after-deed")
        answered = [raft_id for raft_id, answer in answers.items() if not isinstance(answer, BaseException)]
        situation = self._loads()
        load = next_load(situation.loads, step.table)
        if load is None or load.id != step.id:
            raise Outdated(f"load {step.id} is not the next of its table any more")
        if set(answered) - set(load.adopted):
            # What it tells is about the load, whichever step it came with.
            told = replace(step, kind=StepKind.LOAD)
            await self._write(told, write_of(adopted(situation, load, answered)), term)
        late = [
            f"{self._name_of(raft_id)}: {answer!s}"
            for raft_id, answer in answers.items()
            # Whoever is at it is asked again at once, and answers when it is done.
            if isinstance(answer, BaseException) and getattr(answer, "code", "") != ADOPTING
        ]
        if late:
            raise StepFailed(f"load {step.id} is not taken over by {'; '.join(late)}")

    # Moves

    async def _cross_moves(self, step: CrossMoves, term: int) -> None:
        gone = await self._barrier(step, term)
        self._hit(step, "after-deed")
        for _ in range(_MAX_WRITES):
            # What waited for the barrier may have changed meanwhile, and others may have come to wait for the same one.
            found = self._moving.crossed(step.version)
            if found is None or absent(self._view) != gone:
                break
            try:
                await self._write_moves(found, replace(found.write, expect=gone | found.write.expect), term)
            except Outdated:
                # Somebody else has changed something of the same table; the barrier has passed all the same.
                continue
            return
        raise Outdated("what waited for this barrier has changed meanwhile")

    async def _write_moves(self, step: CommitMoves, write: Write, term: int) -> None:
        for stage in step.entered:
            failpoints.hit(f"moves.{stage}.before", self._name)
        await self._write(step, write, term)
        self._moving.written(write)
        for stage in step.entered:
            failpoints.hit(f"moves.{stage}.after", self._name)

    # The barrier

    async def _barrier(self, step: Barrier, term: int) -> dict[bytes, int]:
        """Passed when it returns, as long as those rows are at those revisions: nobody else has come in."""
        until = self._loop.time() + self._patiences.barrier_s
        around = Round(step.version, step.nodes)
        while True:
            if around.state is RoundState.RAISE_FENCE:
                await self._raise_fence(step.version, sorted(around.unanswered_for), term)
                around.fence_raised()
            await self._ask_around(around, term, until)
            # Whoever began anew says so in its row before it answers; what it has applied is committed here.
            await self._applied(self._group.raw.raft.log.committed, until)
            if step.kind is not StepKind.FENCE:
                # (What that one is for comes after its barrier.)
                for raft_id in unfenced(self._view):
                    around.began_anew(raft_id)
            for raft_id in barrier_nodes(self._view):
                around.came_in(raft_id)
            if around.state is RoundState.PASSED:
                return absent(self._view)

    async def _applied(self, index: int, until: float) -> None:
        machine = self._group.machine
        try:
            await self._waits.until(lambda: machine.applied_index >= index, until, f"index {index} to be applied")
        except WaitedTooLong as error:
            raise StepFailed(str(error)) from error

    async def _raise_fence(self, version: int, gone: list[int], term: int) -> None:
        if self._view.fence >= version:
            return
        names = ", ".join(self._name_of(raft_id) for raft_id in gone)
        text = f"fence raised to version {version}, because {names} went down, and the barrier goes on"
        fence = Write({FENCE_KEY: self._view.revisions.get(FENCE_KEY, 0)}, {FENCE_KEY: b"%d" % version})
        await self._writes.write(fence, [self._writes.event("fence", text)], term=term)

    async def _ask_around(self, around: Round, term: int, until: float) -> None:
        """One pass: ask everybody until each has acknowledged or was marked Offline. StepFailed after `until`."""
        # The commit index covers the fence, where it was raised: it is applied here already.
        body = protocol.encode(BarrierCall(term, around.version, self._group.raw.raft.log.committed))
        nodes = sorted(around.to_ask)
        tasks = [self._loop.create_task(self._ask_barrier(raft_id, body, until)) for raft_id in nodes]
        try:
            passed = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        for raft_id, acknowledged in zip(nodes, passed, strict=True):
            if acknowledged:
                around.answered(raft_id)
            else:
                around.dead(raft_id)

    async def _ask_barrier(self, raft_id: int, body: bytes, until: float) -> bool:
        """Whether it acknowledged; False: it is Offline, so nobody waits for it."""
        asking: asyncio.Task[bool] = self._loop.create_task(self._repeat_barrier(raft_id, body, until))
        gone = self._loop.create_task(
            self._waits.until(lambda: self._is_down(raft_id), until + _ASK_AGAIN_S, "nothing")
        )
        try:
            await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
            if self._is_down(raft_id) and not (asking.done() and asking.exception() is None):
                return False
            return await asking
        finally:
            asking.cancel()
            gone.cancel()

    async def _repeat_barrier(self, raft_id: int, body: bytes, until: float) -> bool:
        why = "silent"
        while (left_s := until - self._loop.time()) > 0:
            try:
                await self._calls.ask(raft_id, protocol.BARRIER, body, min(left_s, self._patiences.call_s))
            except (Refused, NetError, GroupError, WaitedTooLong) as error:
                why = str(error)
            else:
                self._blamed.succeeded(raft_id)
                return True
            await asyncio.sleep(min(_ASK_AGAIN_S, max(until - self._loop.time(), 0.0)))
        self._blame(raft_id, why)
        raise StepFailed(f"{self._name_of(raft_id)} has not passed the barrier: {why}")

    def _is_down(self, raft_id: int) -> bool:
        record = self._view.instances.get(raft_id)
        return record is None or record.left or record.grades.current.grade in _DOWN

    def _name_of(self, raft_id: int) -> str:
        record = self._view.instances.get(raft_id)
        return record.instance_id if record is not None else f"member {raft_id}"

    # Joining

    async def _answer(self, step: Answer, term: int) -> None:
        response = msgspec.structs.replace(step.response, term=term)
        if response.accepted:
            # What the view says holds at least up to what this member has applied.
            index = self._group.machine.applied_index
            members = [Address(raft_id, row.address, index) for raft_id, row in self._view.members().items()]
            response = msgspec.structs.replace(response, members=members)
        failpoints.hit("join.answered", self._name)
        await self._send_answer(step.address, response, self._patiences.answer_s)
