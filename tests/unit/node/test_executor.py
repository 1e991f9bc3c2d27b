"""The governor's loop: what it begins, what it leaves alone, and that it ends with its term."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Commit, Step, StepKey, StepKind
from trimtab.node.backoffs import Backoffs
from trimtab.node.cluster_writes import Outdated
from trimtab.node.executor import Executor, StepFailed
from trimtab.topology.view import View

TERM = 7


def step(kind: StepKind, *subjects: int) -> Commit:
    return Commit(kind, f"{kind.value} of {subjects}", subjects)


class Office:
    """A governor that wants what it is told to want, and hands that do what they are told to do."""

    def __init__(self, carry_out: Callable[[Step, int], Awaitable[None]]) -> None:
        self.wanted: list[Step] = []
        self.seen: list[ClusterState] = []
        self.begun: list[Step] = []
        self.reports: list[str] = []
        self.blamed: Backoffs[int] = Backoffs(0.01, 1.0)
        self.clock_s = 0.0
        self._carry_out = carry_out
        self.executor = Executor(
            self.look,
            self.plan,
            self.carry_out,
            blamed=self.blamed,
            every_s=60,
            clock_s=lambda: self.clock_s,
            report=self.reports.append,
        )

    def look(
        self, in_flight: frozenset[StepKey], resting: frozenset[StepKey], backing_off: frozenset[int]
    ) -> ClusterState:
        state = ClusterState(
            View(), 1, TERM, 0, frozenset({1}), frozenset(), False, "", "", 0, 0,
            in_flight=in_flight, resting=resting, backing_off=backing_off,
        )  # fmt: skip
        self.seen.append(state)
        return state

    def plan(self, state: ClusterState) -> Step | None:
        busy = state.in_flight | state.resting
        return next((wanted for wanted in self.wanted if wanted.key not in busy), None)

    async def carry_out(self, step: Step, term: int) -> None:
        assert term == TERM
        self.begun.append(step)
        await self._carry_out(step, term)
        self.wanted.remove(step)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_planning_goes_on_beside_a_step_that_waits() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def carry_out(step: Step, _term: int) -> None:
            if step.kind is StepKind.SHARD:
                await gate.wait()

        office = Office(carry_out)
        office.wanted = [step(StepKind.SHARD, 2), step(StepKind.SYNC, 3)]
        office.executor.begin(TERM)
        await turns()
        assert [each.kind for each in office.begun] == [StepKind.SHARD, StepKind.SYNC]
        assert office.executor.in_flight == (StepKey(StepKind.SHARD, (2,)),)
        gate.set()
        await turns()
        assert office.wanted == [] and office.executor.in_flight == ()
        office.executor.end()

    asyncio.run(story())


def test_a_step_that_fails_rests_and_is_tried_again_later_each_time() -> None:
    async def story() -> None:
        tries: list[float] = []
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        async def carry_out(_step: Step, _term: int) -> None:
            tries.append(loop.time())
            if len(tries) < 3:
                raise StepFailed("not today")
            done.set()

        office = Office(carry_out)
        office.wanted = [step(StepKind.SYNC, 2)]
        office.executor.begin(TERM)
        await asyncio.wait_for(done.wait(), 60)
        # 100 ms, and then twice as long; either lasts longer where the loop had no turn.
        assert tries[1] - tries[0] > 0.09 and tries[2] - tries[1] > 0.18
        # The same reason is told once.
        assert len(office.reports) == 1 and "not today" in office.reports[0]
        office.executor.end()

    asyncio.run(story())


def test_a_step_whose_write_was_outdated_is_planned_anew_at_once() -> None:
    async def story() -> None:
        tries = 0

        async def carry_out(_step: Step, _term: int) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise Outdated("changed")

        office = Office(carry_out)
        office.wanted = [step(StepKind.SYNC, 2)]
        office.executor.begin(TERM)
        await turns(10)
        assert tries == 2 and office.reports == []
        office.executor.end()

    asyncio.run(story())


def test_everything_in_flight_ends_with_the_term_and_nothing_begins_after_it() -> None:
    async def story() -> None:
        ended: list[Step] = []

        async def carry_out(step: Step, _term: int) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(step)

        office = Office(carry_out)
        office.wanted = [step(StepKind.SHARD, 2), step(StepKind.SYNC, 3)]
        office.executor.begin(TERM)
        await turns()
        office.executor.end()
        office.executor.wake()
        await turns()
        assert len(ended) == 2 and len(office.begun) == 2 and office.executor.in_flight == ()

    asyncio.run(story())


def test_a_governor_that_plans_what_is_under_way_is_reported_and_does_not_loop() -> None:
    async def story() -> None:
        async def carry_out(_step: Step, _term: int) -> None:
            await asyncio.sleep(60)

        office = Office(carry_out)
        stubborn = step(StepKind.SYNC, 2)
        office.plan = lambda _state: stubborn  # type: ignore[method-assign]
        office.executor._plan = office.plan
        office.executor.begin(TERM)
        await turns(10)
        assert len(office.begun) == 1 and "under way" in office.reports[0]
        office.executor.end()

    asyncio.run(story())


def test_a_defect_in_a_step_is_reported_and_the_loop_goes_on() -> None:
    async def story() -> None:
        async def carry_out(step: Step, _term: int) -> None:
            if step.kind is StepKind.SYNC:
                raise KeyError("oops")

        office = Office(carry_out)
        office.wanted = [step(StepKind.SYNC, 2), step(StepKind.ONLINE, 3)]
        office.executor.begin(TERM)
        await turns(10)
        assert "met a defect" in office.reports[0] and [each.kind for each in office.wanted] == [StepKind.SYNC]
        office.executor.end()

    asyncio.run(story())


def test_a_step_that_is_outdated_every_time_rests() -> None:
    async def story() -> None:
        tries = 0

        async def carry_out(_step: Step, _term: int) -> None:
            nonlocal tries
            tries += 1
            raise Outdated("changed")

        office = Office(carry_out)
        office.wanted = [step(StepKind.SYNC, 2)]
        office.executor.begin(TERM)
        await turns(50)
        assert tries == 3 and len(office.reports) == 1 and "changed" in office.reports[0]
        office.executor.end()

    asyncio.run(story())


def test_planning_leaves_most_of_the_time_to_others_however_often_it_is_woken() -> None:
    async def story() -> None:
        async def carry_out(_step: Step, _term: int) -> None:
            return

        office = Office(carry_out)
        looks = 0

        def plan(_state: ClusterState) -> None:
            nonlocal looks
            looks += 1
            office.clock_s += 0.01

        office.executor._plan = plan
        office.executor.begin(TERM)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + 0.3 or looks < 2:
            office.executor.wake()
            await asyncio.sleep(0.001)
        most = 1 + (loop.time() - began) / 0.05
        assert looks <= most, "each turn takes 10 ms, and is followed by a pause of 50 ms"
        office.executor.end()

    asyncio.run(story())
