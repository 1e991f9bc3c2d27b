"""How steps are carried out, with everything around them faked: what is asked, what is written, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.loads.ledger import USERS, Ledger

from trimtab.governor.steps import (
    Adopt,
    Answer,
    Barrier,
    Call,
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
from trimtab.loads.records import decode_load, epoch_key, load_key, session_key
from trimtab.loads.situation import Situation
from trimtab.loads.view import LoadView
from trimtab.net.errors import NotConnected
from trimtab.node import failpoints
from trimtab.node.answering import Refused
from trimtab.node.backoffs import Backoffs
from trimtab.node.cluster_writes import Outdated
from trimtab.node.deeds import Deeds, Patiences
from trimtab.node.errors import LeadershipLost, NotLeader, Stalled
from trimtab.node.executor import StepFailed
from trimtab.node.presence import Withheld
from trimtab.node.waits import Waits
from trimtab.tablets.view import TableView
from trimtab.topology import protocol
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import BarrierCall, JoinResponse
from trimtab.topology.records import FENCE_KEY, EventRecord, InstanceRecord, encode, instance_key
from trimtab.topology.view import View

TERM = 4


def row(raft_id: int, grade: Grade = Grade.ONLINE) -> InstanceRecord:
    grades = Grades(Standing(grade, 1), Standing(Grade.ONLINE, 1))
    return InstanceRecord(f"i{raft_id}", f"h{raft_id}:1", grades=grades)


class Writes:
    """Applies to the view at once."""

    term = TERM

    def __init__(self, view: View) -> None:
        self._view = view
        self.written: list[tuple[Write, list[str]]] = []
        self.error: Exception | None = None

    def event(self, kind: str, text: str, instances: Sequence[str] = ()) -> EventRecord:
        return EventRecord(0, kind, text, TERM, list(instances))

    async def write(self, write: Write, events: Sequence[EventRecord], *, term: int = 0) -> None:
        assert term == TERM
        if self.error is not None:
            raise self.error
        self.written.append((write, [event.text for event in events]))
        for key, value in write.puts.items():
            self._view.change(key, value, len(self.written) + 100)


class Hands:
    """Four instances Online; `answers` says how each takes a call: bytes, an exception, or a future to wait for."""

    def __init__(self) -> None:
        self.view = View(version=9)
        for raft_id in (1, 2, 3, 4):
            self.view.instances[raft_id] = row(raft_id)
        self.tables, self.loads = TableView(), LoadView()
        self.writes = Writes(self.view)
        self.waits = Waits()
        self.blamed: Backoffs[int] = Backoffs(0.1, 1)
        self.answers: dict[int, Any] = {}
        self.asked: list[tuple[int, str, bytes]] = []
        self.sent: list[tuple[str, JoinResponse]] = []
        self.leases: dict[int, int] = {}
        self.withheld: list[Withheld] = []
        self.crossed: list[CommitMoves | None] = []
        self.noted: list[Write] = []
        self.moving = SimpleNamespace(crossed=lambda _version: self.crossed.pop(0), written=self.noted.append)
        self.log = SimpleNamespace(committed=50)
        self.machine = SimpleNamespace(applied_index=50)
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=SimpleNamespace(log=self.log)), machine=self.machine)
        desk: Any = SimpleNamespace(
            lease_left_ms=lambda raft_id: self.leases.get(raft_id, 0),
            withhold=self._withhold,
            grant_again=self.withheld.remove,
        )
        self.deeds = Deeds(
            SimpleNamespace(),  # type: ignore[arg-type]
            group,
            self.view,
            self.writes,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.waits,
            name="i1",
            send_answer=self._send_answer,
            blamed=self.blamed,
            wake_later=lambda _after_s: None,
            leases=desk,
            promote_lag_entries=10,
            loads=lambda: Situation(self.view, self.tables, self.loads, 1_000),
            moving=self.moving,  # type: ignore[arg-type]
            patiences=Patiences(call_s=1, linger_s=0.05, barrier_s=1, transfer_s=1, answer_s=1),
        )

    def _withhold(self, raft_ids: list[int]) -> Withheld:
        self.withheld.append(Withheld(TERM, dict.fromkeys(raft_ids, 0)))
        return self.withheld[-1]

    async def ask(self, raft_id: int, method: str, body: bytes, _timeout_s: float) -> bytes:
        self.asked.append((raft_id, method, body))
        answer = self.answers.get(raft_id, b"")
        if isinstance(answer, asyncio.Future):
            await asyncio.shield(answer)
            return b""
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    async def _send_answer(self, address: str, response: JoinResponse, _timeout_s: float) -> None:
        self.sent.append((address, response))

    async def carry_out(self, step: Step) -> None:
        await self.deeds.carry_out(step, TERM)

    def mark_down(self, raft_id: int) -> None:
        self.view.instances[raft_id] = row(raft_id, Grade.OFFLINE)
        self.waits.look()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()


def play(story: Callable[[Hands], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Hands())

    asyncio.run(main())


def climb(*raft_ids: int) -> Call:
    writes = {}
    for raft_id in raft_ids:
        key = instance_key(raft_id)
        told = Told(f"i{raft_id} climbed", (f"i{raft_id}",))
        writes[raft_id] = Write({key: raft_id}, {key: encode(row(raft_id))}, events=(told,))
    return Call(StepKind.SYNC, "they climb", raft_ids, index=50, writes=writes)


def barrier(*nodes: int) -> Barrier:
    return Barrier(StepKind.SHARD, "all know", nodes, version=9, nodes=nodes, write=Write({}, {b"topology/x": b"1"}))


def test_those_that_answer_climb_in_one_write_and_the_others_back_off_each_by_itself() -> None:
    async def story(hands: Hands) -> None:
        hands.answers = {3: NotConnected("gone"), 4: asyncio.get_running_loop().create_future()}
        await hands.carry_out(climb(2, 3, 4))
        ((write, events),) = hands.writes.written
        assert set(write.puts) == {instance_key(2)} and events == ["i2 climbed"]
        assert hands.blamed.waiting(hands.now) == {3, 4}

    play(story)


def test_nobody_answers_so_nothing_is_written() -> None:
    async def story(hands: Hands) -> None:
        hands.answers = {2: NotConnected("gone")}
        with pytest.raises(StepFailed, match="gone"):
            await hands.carry_out(climb(2))
        assert hands.writes.written == []

    play(story)


def test_every_call_carries_the_term() -> None:
    async def story(hands: Hands) -> None:
        await hands.carry_out(climb(2))
        await hands.carry_out(barrier(2))
        assert protocol.decode_sync(hands.asked[0][2]).term == TERM
        assert protocol.decode_barrier(hands.asked[1][2]) == BarrierCall(TERM, 9, 50)

    play(story)


def test_a_barrier_that_everybody_passes_writes_and_leaves_the_fence_alone() -> None:
    async def story(hands: Hands) -> None:
        await hands.carry_out(barrier(1, 2, 3, 4))
        assert [raft_id for raft_id, _, _ in hands.asked] == [1, 2, 3, 4]
        assert [list(write.puts) for write, _ in hands.writes.written] == [[b"topology/x"]]

    play(story)


def test_a_barrier_waits_for_a_node_that_does_not_answer_as_long_as_it_is_not_marked_offline() -> None:
    async def story(hands: Hands) -> None:
        hands.answers = {3: NotConnected("gone")}
        with pytest.raises(StepFailed, match="i3 has not passed"):
            await hands.carry_out(barrier(2, 3))
        assert hands.writes.written == [] and hands.blamed.waiting(hands.now) == {3}

    play(story)


def test_a_barrier_that_skips_an_offline_node_raises_the_fence_and_asks_the_others_once_more_before_it_writes() -> None:
    async def story(hands: Hands) -> None:
        hands.answers = {3: asyncio.get_running_loop().create_future()}
        passing = asyncio.ensure_future(hands.carry_out(barrier(1, 2, 3, 4)))
        await asyncio.sleep(0.02)
        assert not passing.done() and hands.writes.written == []
        hands.asked.clear()
        hands.log.committed = hands.machine.applied_index = 60
        hands.mark_down(3)
        await passing
        assert [write.puts for write, _ in hands.writes.written] == [{FENCE_KEY: b"9"}, {b"topology/x": b"1"}]
        # The second time at an index that covers the fence.
        assert [(raft_id, protocol.decode_barrier(body).index) for raft_id, _, body in hands.asked] == [
            (1, 60),
            (2, 60),
            (4, 60),
        ]

    play(story)


def test_a_barrier_that_waited_while_an_instance_was_started_anew_raises_the_fence_and_asks_once_more() -> None:
    async def story(hands: Hands) -> None:
        answer = asyncio.get_running_loop().create_future()
        hands.answers = {3: answer}
        passing = asyncio.ensure_future(hands.carry_out(barrier(1, 2, 3, 4)))
        await asyncio.sleep(0.02)
        hands.asked.clear()
        # Its new life answers, but knows nothing of what the one before had sent.
        hands.view.instances[3] = msgspec.structs.replace(row(3), since_version=10)
        answer.set_result(None)
        await passing
        assert [write.puts for write, _ in hands.writes.written] == [{FENCE_KEY: b"9"}, {b"topology/x": b"1"}]
        assert [raft_id for raft_id, _, _ in hands.asked] == [1, 2, 3, 4]

    play(story)


def test_a_barrier_does_not_pass_before_what_a_dead_one_sent_is_fenced_off() -> None:
    async def story(hands: Hands) -> None:
        hands.view.instances[4] = msgspec.structs.replace(row(4, Grade.OFFLINE), since_version=9)
        hands.view.fence = 8
        await hands.carry_out(barrier(1, 2, 3))
        assert [write.puts for write, _ in hands.writes.written] == [{FENCE_KEY: b"9"}, {b"topology/x": b"1"}]
        assert [raft_id for raft_id, _, _ in hands.asked] == [1, 2, 3, 1, 2, 3]

    play(story)


def test_whoever_comes_in_while_a_barrier_waits_is_asked_too_and_the_write_depends_on_those_who_have_not() -> None:
    async def story(hands: Hands) -> None:
        hands.mark_down(3)
        hands.mark_down(4)
        answer = asyncio.get_running_loop().create_future()
        hands.answers = {2: answer}
        passing = asyncio.ensure_future(hands.carry_out(barrier(1, 2)))
        await asyncio.sleep(0.02)
        hands.view.instances[3] = row(3, Grade.RAFT_SYNCED)
        answer.set_result(None)
        await passing
        assert [raft_id for raft_id, _, _ in hands.asked] == [1, 2, 3]
        assert [list(write.expect) for write, _ in hands.writes.written] == [[instance_key(4)]]

    play(story)


def test_nobody_is_marked_offline_while_it_may_hold_a_lease_and_it_gets_none_meanwhile() -> None:
    async def story(hands: Hands) -> None:
        hands.leases[2] = 500
        key = instance_key(2)
        down = Write({key: 2}, {key: encode(row(2, Grade.OFFLINE))})
        marking = asyncio.ensure_future(hands.carry_out(Commit(StepKind.DOWN, "i2 is Offline", (2,), write=down)))
        await asyncio.sleep(0.1)
        assert hands.writes.written == [] and [*hands.withheld[0].revisions] == [2]
        hands.leases[2] = 0
        await marking
        assert len(hands.writes.written) == 1 and hands.withheld == []

    play(story)


@pytest.mark.parametrize(
    ("error", "in_doubt"),
    [(Outdated("changed"), False), (NotLeader(2), False), (Stalled("disk"), True), (LeadershipLost("gone"), True)],
)
def test_a_write_that_may_still_come_about_keeps_leases_from_those_it_marks(error: Exception, in_doubt: bool) -> None:
    async def story(hands: Hands) -> None:
        hands.writes.error = error
        key = instance_key(2)
        down = Write({key: 2}, {key: encode(row(2, Grade.OFFLINE))})
        with pytest.raises(type(error)):
            await hands.carry_out(Commit(StepKind.DOWN, "i2 is Offline", (2,), write=down))
        assert [each.in_doubt for each in hands.withheld] == ([True] if in_doubt else [])

    play(story)


def test_one_that_is_refused_at_once_does_not_shorten_the_time_of_the_others() -> None:
    async def story(hands: Hands) -> None:
        slow = asyncio.get_running_loop().create_future()
        hands.answers = {2: NotConnected("gone"), 3: slow}
        asyncio.get_running_loop().call_later(0.2, slow.set_result, None)
        await hands.carry_out(climb(2, 3))
        ((write, _),) = hands.writes.written
        assert set(write.puts) == {instance_key(3)}

    play(story)


def test_a_joiner_is_told_where_the_members_are_and_as_of_when() -> None:
    async def story(hands: Hands) -> None:
        hands.view.instances = {1: row(1)}
        told = JoinResponse("u", "n", True, raft_id=2)
        write = Write({}, {b"topology/x": b"1"})
        await hands.carry_out(Answer(StepKind.ANSWER, "told", (7,), address="h:9", response=told, write=write))
        ((address, response),) = hands.sent
        assert address == "h:9" and response.term == TERM
        assert [(each.raft_id, each.address, each.commit_index) for each in response.members] == [(1, "h1:1", 50)]

    play(story)


def adoption(hands: Hands) -> Adopt:
    ledger = Ledger()
    hands.tables, hands.loads = ledger.tables, ledger.loads
    ledger.begin("a")
    ledger.commit("a", 1, 2, 3)
    return Adopt(StepKind.ADOPT, "a is taken over", (USERS,), table=USERS, id="a", nodes=(1, 2, 3), index=50)


def test_a_load_that_all_have_taken_over_becomes_visible_in_one_write() -> None:
    async def story(hands: Hands) -> None:
        await hands.carry_out(adoption(hands))
        assert [raft_id for raft_id, _, _ in hands.asked] == [1, 2, 3]
        assert load_protocol.decode_adopt(hands.asked[0][2]) == AdoptCall(TERM, 50, USERS, "a")
        ((write, events),) = hands.writes.written
        assert set(write.puts) == {load_key(USERS, "a"), epoch_key(USERS)} and write.deletes == (session_key("a"),)
        assert events == ["load a of shop.users can be seen, from epoch 1 on: 10 rows"]

    play(story)


def test_who_has_taken_a_load_over_is_noted_when_others_have_not() -> None:
    async def story(hands: Hands) -> None:
        step = adoption(hands)
        hands.answers = {2: NotConnected("gone"), 3: Refused("adopting", "3 of 8 tablets are done")}
        with pytest.raises(StepFailed, match=r"not taken over by i2: gone$"):
            await hands.carry_out(step)
        ((write, _),) = hands.writes.written
        assert decode_load(write.puts[load_key(USERS, "a")]).adopted == (1,) and not write.deletes
        hands.answers = {2: Refused("adopting", "it is at it"), 3: Refused("adopting", "4 of 8")}
        await hands.carry_out(replace(step, nodes=(2, 3)))
        assert len(hands.writes.written) == 1, "they are asked again; it is nobody's fault"

    play(story)


def test_a_load_that_is_not_the_next_any_more_is_planned_anew() -> None:
    async def story(hands: Hands) -> None:
        step = adoption(hands)
        with pytest.raises(Outdated):
            await hands.carry_out(replace(step, id="b"))
        assert not hands.writes.written

    play(story)


@pytest.mark.parametrize(
    ("place", "asked", "written"),
    [("governor.adopt.before", 0, 0), ("governor.adopt.after-deed", 3, 0), ("governor.adopt.after", 3, 1)],
)
def test_failpoints_stand_around_the_taking_over_of_a_load(place: str, asked: int, written: int) -> None:
    async def story(hands: Hands) -> None:
        step = adoption(hands)
        failpoints.arm(place, failpoints._raise)
        with pytest.raises(failpoints.FailpointError):
            await hands.carry_out(step)
        assert (len(hands.asked), len(hands.writes.written)) == (asked, written)

    try:
        play(story)
    finally:
        failpoints.disarm()


@pytest.mark.parametrize(("place", "asked", "written"), [("before", 0, 0), ("after-deed", 1, 0), ("after", 1, 1)])
def test_failpoints_stand_before_the_deed_before_the_write_and_after_it(place: str, asked: int, written: int) -> None:
    def fail(_name: str, who: str) -> None:
        raise failpoints.FailpointError(who)

    async def story(hands: Hands) -> None:
        with pytest.raises(failpoints.FailpointError, match="i1"):
            await hands.carry_out(climb(2))
        assert (len(hands.asked), len(hands.writes.written)) == (asked, written)

    failpoints.arm(f"governor.sync.{place}", fail)
    try:
        play(story)
    finally:
        failpoints.disarm()


@pytest.mark.parametrize("place", failpoints.STEP_PLACES)
def test_failpoints_stand_before_and_after_leadership_is_handed_over(place: str) -> None:
    """The office ends with the deed, and the step is cancelled then: the last place must be reached all the same."""
    seen: list[str] = []

    async def story(hands: Hands) -> None:
        asked: list[int] = []
        raft = SimpleNamespace(
            id=1, lead=1, tracker=SimpleNamespace(config=SimpleNamespace(voters=SimpleNamespace(incoming={1, 2})))
        )
        hands.deeds._group = SimpleNamespace(raw=SimpleNamespace(raft=raft))  # type: ignore[assignment]
        hands.deeds._host = SimpleNamespace(transfer=lambda _group, to: asked.append(to))  # type: ignore[assignment]
        task = asyncio.ensure_future(hands.carry_out(Transfer(StepKind.TRANSFER, "it goes", (1,), to=2)))
        await asyncio.sleep(0)
        assert seen == [] if place == "after" else seen == [f"governor.transfer.{place}"]
        assert asked == [2]
        raft.lead = 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert seen == [f"governor.transfer.{place}"]

    failpoints.arm(f"governor.transfer.{place}", lambda name, _who: seen.append(name))
    try:
        play(story)
    finally:
        failpoints.disarm()


# Moves


def crossing() -> CrossMoves:
    return CrossMoves(StepKind.MOVE_CROSS, "a barrier", (0,), version=9, nodes=(1, 2, 3, 4))


def found(number: int) -> CommitMoves:
    write = Write({b"transitions/x": number}, {b"topology/x": b"1"}, events=(Told(f"{number} tablets"),))
    return CommitMoves(StepKind.MOVE_CROSS, "they go on", (0,), write=write, entered=("use_new",))


def test_what_follows_a_barrier_of_moves_is_decided_after_it() -> None:
    async def story(hands: Hands) -> None:
        hands.crossed = [found(3)]
        places: list[str] = []
        for place in ("before", "after"):
            failpoints.arm(f"moves.use_new.{place}", lambda name, who: places.append(f"{name} {who}"))
        try:
            await hands.carry_out(crossing())
        finally:
            failpoints.disarm()
        assert [raft_id for raft_id, _, _ in hands.asked] == [1, 2, 3, 4]
        ((write, told),) = hands.writes.written
        assert write.expect == {b"transitions/x": 3} and told == ["3 tablets"] and hands.noted == [write]
        assert places == ["moves.use_new.before i1", "moves.use_new.after i1"]

    play(story)


def test_a_write_that_was_overtaken_is_decided_again_without_another_barrier() -> None:
    async def story(hands: Hands) -> None:
        hands.crossed = [found(3), found(2), None]
        hands.writes.error = Outdated("somebody was faster")
        with pytest.raises(Outdated):
            await hands.carry_out(crossing())
        assert len(hands.asked) == 4 and not hands.crossed and not hands.noted

    play(story)


def test_a_barrier_that_nobody_waits_for_any_more_writes_nothing() -> None:
    async def story(hands: Hands) -> None:
        hands.crossed = [None]
        with pytest.raises(Outdated):
            await hands.carry_out(crossing())
        assert not hands.writes.written

    play(story)
