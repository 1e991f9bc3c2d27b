"""An instance's own place: announced, returned to, left, and lost. On virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.net.errors import RpcError
from trimtab.node.answering import Refused
from trimtab.node.errors import NotLeader
from trimtab.node.standing import FORGIVEN_AFTER_S, Standing
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.sim.world import World
from trimtab.topology.grades import Grade, Grades, set_current, set_target
from trimtab.topology.records import InstanceRecord
from trimtab.topology.states import NodeState
from trimtab.topology.view import View


class Life:
    """Instance 2, and a leader that does what it is asked, or fails as it is told to."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.view = View()
        self.grades = Grades()
        self.refusals: list[Exception] = []
        self.asked: list[tuple[float, Grade]] = []
        self.barriers = 0
        self.put_out: list[str] = []
        self.defects: list[BaseException] = []
        self.no_quorum = 0  # so many barriers fail
        self.stories: list[str] = []
        self.waits = Waits()
        self.standing = Standing(
            2,
            self.view,
            self.waits,
            update=self._update,
            barrier=self._barrier,
            put_out=self.put_out.append,
            defect=self.defects.append,
            story=self.stories.append,
        )
        self.show()

    def show(self, state: NodeState = NodeState.NORMAL) -> None:
        """The instance sees its row as it is now."""
        self.view.instances[2] = InstanceRecord("i2", "h:2", grades=self.grades, state=state, reason="silent")
        self.waits.look()
        self.standing.changed()

    async def _update(self, target: Grade, _reason: str, _timeout_s: float) -> int:
        self.asked.append((self.now(), target))
        if self.refusals:
            raise self.refusals.pop(0)
        self.grades = set_target(self.grades, target)
        return self.grades.target.incarnation

    async def _barrier(self, _timeout_s: float) -> None:
        self.barriers += 1
        if self.no_quorum:
            self.no_quorum -= 1
            raise WaitedTooLong("no majority answered in time")
        self.show()

    def climb(self) -> None:
        for grade in (Grade.RAFT_SYNCED, Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE):
            self.grades = set_current(self.grades, grade)
        self.show()

    def mark_offline(self) -> None:
        self.grades = set_current(set_target(self.grades, Grade.OFFLINE), Grade.OFFLINE)
        self.show()


def play(story: Callable[[Life, World], Awaitable[Any]]) -> None:
    with World(1) as world:
        process = world.process("i2", "10.0.0.2")
        process.start()

        async def main() -> None:
            await story(Life(lambda: world.now), world)

        world.run_until_done(process.spawn(main()), 10_000)


async def sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def test_it_announces_itself_until_the_leader_has_taken_note() -> None:
    async def story(life: Life, _world: World) -> None:
        life.refusals = [NotLeader(0), NotLeader(0), NotLeader(0)]
        life.standing.start()
        await sleep(5)
        assert [target for _, target in life.asked] == [Grade.ONLINE] * 4
        assert life.standing.incarnation == 1 and not life.standing.online
        life.climb()
        assert life.standing.online

    play(story)


def test_its_row_from_before_the_announcement_is_not_taken_for_a_mark() -> None:
    async def story(life: Life, _world: World) -> None:
        life.standing.start()
        await sleep(5)
        assert len(life.asked) == 1 and life.stories == []

    play(story)


def test_what_the_leader_has_taken_note_of_is_not_said_again_while_barriers_fail() -> None:
    """Each announcement is a new life, and begins the climb anew."""

    async def story(life: Life, _world: World) -> None:
        life.no_quorum = 5
        life.standing.start()
        await sleep(20)
        assert life.barriers == 6 and len(life.asked) == 1 and life.standing.incarnation == 1
        life.climb()
        await sleep(1)
        life.no_quorum = 1  # the one before the word
        life.asked.clear()
        life.mark_offline()
        await sleep(5)
        assert len(life.asked) == 1

    play(story)


def test_an_error_that_nobody_expected_ends_the_instance_and_not_just_its_standing() -> None:
    async def story(life: Life, _world: World) -> None:
        life.refusals = [KeyError("a defect")]
        life.standing.start()
        await sleep(1)
        assert [str(error) for error in life.defects] == ["'a defect'"]
        life.standing.stop()
        life.standing.start()
        await sleep(1)
        life.standing.stop()
        await sleep(1)
        assert len(life.defects) == 1, "to be stopped is no defect"

    play(story)


def test_it_comes_back_by_itself_behind_a_read_barrier_and_later_each_time() -> None:
    async def story(life: Life, _world: World) -> None:
        life.standing.start()
        await sleep(1)
        waits = []
        for _ in range(4):
            life.climb()
            await sleep(1)
            life.asked.clear()
            before, at = life.barriers, life.now()
            life.mark_offline()
            await sleep(10)
            ((when, target),) = life.asked
            assert target is Grade.ONLINE and life.barriers > before
            waits.append(round(when - at, 3))
        assert waits == [0.3, 0.6, 1.2, 2.4]

    play(story)


def test_ten_minutes_online_forgive_everything() -> None:
    async def story(life: Life, _world: World) -> None:
        life.standing.start()
        await sleep(1)
        for _ in range(3):
            life.climb()
            await sleep(1)
            life.mark_offline()
            await sleep(10)
        life.climb()
        await sleep(FORGIVEN_AFTER_S + 1)
        life.asked.clear()
        at = life.now()
        life.mark_offline()
        await sleep(10)
        assert round(life.asked[0][0] - at, 3) == 0.3

    play(story)


def test_it_does_not_come_back_once_it_takes_its_leave() -> None:
    async def story(life: Life, _world: World) -> None:
        life.standing.start()
        await sleep(1)
        life.climb()
        left: list[bool] = []

        async def leader() -> None:
            await sleep(0.2)
            life.mark_offline()

        import asyncio

        marking = asyncio.ensure_future(leader())
        why = await life.standing.leave(life.standing._loop.time() + 3, settled=lambda: True)
        left.append(why == "")
        await marking
        life.asked.clear()
        await sleep(30)
        assert left == [True] and life.asked == []

    play(story)


def test_a_leave_that_nobody_hears_of_ends_in_time_and_says_so() -> None:
    async def story(life: Life, _world: World) -> None:
        life.refusals = [NotLeader(0) for _ in range(100)]
        began = life.now()
        why = await life.standing.leave(life.standing._loop.time() + 3, settled=lambda: True)
        assert "no leader is known" in why and life.now() - began <= 3.1

    play(story)


@pytest.mark.parametrize("error", [Refused, RpcError])
def test_one_that_was_put_out_is_told_so_by_its_row_or_by_the_leader(error: type[Exception]) -> None:
    """Also by a leader that is somebody else: then the refusal comes over the network."""

    async def story(life: Life, _world: World) -> None:
        life.refusals = [error("left", "i2 has left the cluster for good")]
        life.standing.start()
        await sleep(10)
        assert life.put_out == ["i2 has left the cluster for good"]
        life.show(NodeState.LEFT)
        assert life.put_out[1:] == ["silent"]

    play(story)
