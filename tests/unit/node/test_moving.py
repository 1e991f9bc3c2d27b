"""The leader's memory of moves: what instances say they have done, and what of it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.governor.steps import AskMoves, StepKind, Write
from trimtab.net.errors import NotConnected
from trimtab.node.answering import Refused
from trimtab.node.executor import StepFailed
from trimtab.node.moving import Moving
from trimtab.tablets import move_protocol
from trimtab.tablets.move_protocol import MovesReply, MovingTablet, NotMoved
from trimtab.tablets.selectors import Stage
from trimtab.tablets.stages import MAX_TRIES
from trimtab.tablets.transitions import TabletTransition, TransitionKind, encode, transition_key
from trimtab.tablets.view import TableView

ONE, TWO = MovingTablet(7, 0, "s"), MovingTablet(7, 1, "t")


class Memory:
    def __init__(self) -> None:
        self.tables = TableView()
        for tablet in (ONE, TWO):
            record = TabletTransition((1, 2, 4), TransitionKind.MIGRATION, session=tablet.session)
            self.tables.change(transition_key(7, tablet.tablet), encode(record), 1)
        self.answer: Any = MovesReply()
        self.bodies: list[Any] = []
        self.woken: list[float] = []
        nothing: Any = None
        calls: Any = self
        self.moving = Moving(calls, self.tables, look=nothing, wake_later=self.woken.append)

    async def ask(self, raft_id: int, method: str, body: bytes, _timeout_s: float) -> bytes:
        self.bodies.append((raft_id, method, move_protocol.decode_call(body)))
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, bytes):
            return self.answer
        encoded: bytes = move_protocol.encode(self.answer)
        return encoded

    async def adopt(self, job: int = 5) -> None:
        step = AskMoves(
            StepKind.MOVE_ADOPT,
            "adopt",
            (4,),
            method=move_protocol.ADOPT,
            tablets=(ONE, TWO),
            jobs=(job, job),
            index=42,
        )
        await self.moving.ask(step, 3)


def play(story: Callable[[Memory], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Memory())

    asyncio.run(main())


def test_what_an_instance_has_done_is_remembered_until_the_office_ends() -> None:
    async def story(memory: Memory) -> None:
        memory.answer = MovesReply([ONE], [NotMoved(TWO, "no_copy", "no manifest is there")])
        await memory.adopt()
        ((raft_id, method, call),) = memory.bodies
        assert (raft_id, method, call.term, call.index, call.tablets) == (4, "moves.adopt", 3, 42, [ONE, TWO])
        facts = memory.moving.facts()
        assert facts.adopted == {(7, 0, "s"): {4}} and not facts.prepared and not facts.cleaned
        (trouble,) = facts.troubles[7, 1, "t"]
        assert (trouble.raft_id, trouble.code, trouble.job) == (4, "no_copy", 5)
        assert facts.resting == {((7, 1, "t"), 4)} and memory.woken == [1.0]
        memory.answer = MovesReply([ONE, TWO])
        await memory.adopt(6)
        assert not memory.moving.facts().troubles and not memory.moving.facts().resting
        memory.moving.took_office()
        assert not memory.moving.facts().adopted

    play(story)


def test_who_is_still_at_it_is_no_trouble() -> None:
    async def story(memory: Memory) -> None:
        memory.answer = MovesReply([], [NotMoved(ONE, "under_way", "12 of 20 files")])
        await memory.adopt()
        facts = memory.moving.facts()
        assert not facts.troubles and facts.resting == {((7, 0, "s"), 4)}

    play(story)


def test_what_was_not_asked_for_is_not_believed() -> None:
    async def story(memory: Memory) -> None:
        other = MovingTablet(7, 0, "another session")
        memory.answer = MovesReply([other], [NotMoved(other, "no_copy", "")])
        await memory.adopt()
        assert not memory.moving.facts().adopted and not memory.moving.facts().troubles

    play(story)


@pytest.mark.parametrize("answer", [NotConnected("gone"), Refused("stale_term", "who are you?"), b"\xc1"])
def test_a_call_that_fails_is_a_step_that_failed(answer: object) -> None:
    async def story(memory: Memory) -> None:
        memory.answer = answer
        with pytest.raises(StepFailed, match="member 4"):
            await memory.adopt()

    play(story)


def test_attempts_that_are_over_are_forgotten() -> None:
    async def story(memory: Memory) -> None:
        memory.answer = MovesReply([ONE, TWO])
        await memory.adopt()
        memory.tables.change(transition_key(7, 0), None, 2)
        await memory.adopt()
        memory.answer = MovesReply()
        await memory.adopt()
        assert set(memory.moving.facts().adopted) == {(7, 1, "t")}

    play(story)


def test_a_tablet_whose_move_failed_is_put_off_and_longer_each_time() -> None:
    async def story(memory: Memory) -> None:
        undone = TabletTransition((1, 2, 4), TransitionKind.MIGRATION, Stage.CLEANUP_TARGET, error="it went down")
        write = Write({}, {transition_key(7, 0): encode(undone)})
        memory.moving.written(write)
        memory.moving.written(write)
        assert memory.woken == [2.0, 4.0] and memory.moving.facts().put_off == {(7, 0)}
        well = TabletTransition((1, 2, 4), TransitionKind.MIGRATION, Stage.WRITE_BOTH_READ_NEW)
        memory.moving.written(Write({}, {transition_key(7, 0): encode(well)}))
        assert not memory.moving.facts().put_off

    play(story)


def test_a_move_that_nobody_wants_any_more_is_not_put_off() -> None:
    async def story(memory: Memory) -> None:
        undone = TabletTransition((1, 2, 4), TransitionKind.MIGRATION, Stage.CLEANUP_TARGET)
        memory.moving.written(Write({}, {transition_key(7, 0): encode(undone)}))
        assert not memory.moving.facts().put_off

    play(story)


UNDONE = TabletTransition((1, 2, 4), TransitionKind.MIGRATION, Stage.CLEANUP_TARGET, "s", error="4: its disk is ill")


@pytest.mark.parametrize(("code", "times"), [("failed", MAX_TRIES), ("disk_full", 1)])
def test_who_could_not_do_its_part_is_avoided_when_the_move_is_undone(code: str, times: int) -> None:
    async def story(memory: Memory) -> None:
        memory.answer = MovesReply([], [NotMoved(ONE, code, "its disk is ill")])
        for number in range(times):
            assert not memory.moving.avoided()
            await memory.adopt()
            (trouble,) = memory.moving.facts().troubles[7, 0, "s"]
            assert trouble.times == number + 1
        write = Write({}, {transition_key(7, 0): encode(UNDONE)})
        memory.woken.clear()
        memory.moving.written(write)
        assert memory.moving.avoided() == {4} and memory.woken == [2.0, 20.0]
        # What they are to do next is another thing, and not put off.
        assert not memory.moving.facts().troubles and not memory.moving.facts().resting
        await memory.adopt()
        memory.woken.clear()
        memory.moving.written(write)
        assert memory.woken == [4.0], "many tablets that were undone together are one failure"
        memory.moving.took_office()
        assert not memory.moving.avoided()

    play(story)


@pytest.mark.parametrize("code", ["failed", "lost"])
def test_whose_move_was_undone_for_another_reason_is_not_avoided(code: str) -> None:
    async def story(memory: Memory) -> None:
        memory.answer = MovesReply([], [NotMoved(ONE, code, "not now")])
        await memory.adopt()
        memory.moving.written(Write({}, {transition_key(7, 0): encode(UNDONE)}))
        assert not memory.moving.avoided()

    play(story)


def test_what_another_job_brought_is_counted_anew() -> None:
    async def story(memory: Memory) -> None:
        memory.answer = MovesReply([], [NotMoved(ONE, "damaged", "a byte is another")])
        for job in (5, 5, 6):
            await memory.adopt(job)
        (trouble,) = memory.moving.facts().troubles[7, 0, "s"]
        assert (trouble.job, trouble.times) == (6, 1)

    play(story)


def test_what_an_operator_undid_is_left_alone_by_balancing_for_ten_minutes() -> None:
    async def story(memory: Memory) -> None:
        memory.moving.spare([(7, 0)])
        facts = memory.moving.facts()
        assert facts.spared == {(7, 0)} and not facts.put_off and memory.woken == [600.0]
        memory.moving.took_office()
        assert not memory.moving.facts().spared

    play(story)
