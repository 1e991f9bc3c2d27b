"""The leader is killed at every activity of the governor: before it, after its deed, and after it was written down.

Whatever it was doing, the next leader finishes: nobody is left half-way up or down, no request stays open, and nobody
gets a second row.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.instances import BRISK, Instances, loopback, number_of
from tests.cluster.mines import Mines
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.jobs.records import JobKind, JobState
from trimtab.node.failpoints import STEP_KINDS, STEP_PLACES
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestState

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

# These need tables and files: test_loads_leader_killed tells of them.
OF_LOADS = {"adopt", "load", "load_end"}
# Leaders that die while tablets move: test_moves_killed.
OF_MOVES = {kind for kind in STEP_KINDS if kind.startswith("move")} | {"rebalance"}
NAMES = [f"governor.{kind}.{place}" for kind in STEP_KINDS for place in STEP_PLACES]


class Story:
    """Four instances, three of which vote, with mines at every activity; a fifth comes and goes."""

    def __init__(self, cluster: Instances, mines: Mines, place: str) -> None:
        self.cluster = cluster
        self._mines = mines
        self._place = place
        self.kinds: set[str] = set()  # of the activities at which a leader died

    def arm(self, *kinds: str) -> None:
        self.kinds.update(kinds)
        self._mines.arm(*(f"governor.{kind}.{self._place}" for kind in kinds))

    async def all_went_off(self) -> None:
        async def none_is_left() -> bool:
            return not self._mines.armed

        await self.cluster.wait_for(none_is_left, f"a leader dies at each of {self._mines.armed}", 120)

    async def all_went_off_as_it_joined(self, number: int) -> None:
        """The same; but one that asked again for its answer may have its place before a leader comes to tell it."""
        answer = f"governor.answer.{self._place}"

        async def none_is_left() -> bool:
            if self._mines.armed == [answer]:
                requests = [each for _, each in (await self.cluster.view()).requests]
                joins = [each for each in requests if each.join is not None and each.join.instance_id == f"i{number}"]
                if joins and joins[-1].state is RequestState.DONE and not joins[-1].answered:
                    self._mines.disarm(answer)
            return not self._mines.armed

        await self.cluster.wait_for(none_is_left, f"a leader dies at each of {self._mines.armed}", 120)

    # What is done to the cluster

    async def three_vote(self) -> None:
        async def they_do() -> bool:
            return sum(each.voter for each in (await self.cluster.view()).instances) == 3

        await self.cluster.wait_for(they_do, "three vote")

    async def one_that_does_not_vote_stops(self) -> int:
        view = await self.cluster.view()
        number = next(number_of(each) for each in view.instances if each.learner and not each.record.left)
        self.cluster.tell_to_stop(number)

        async def fenced_off() -> bool:
            view = await self.cluster.view(*set(self.cluster.running) - {number})
            row = next(each.record for each in view.instances if number_of(each) == number)
            return row.grades.current.grade is Grade.OFFLINE and view.fence >= row.since_version

        await self.cluster.wait_for(fenced_off, f"i{number} is Offline, and what it sent is fenced off", 120)
        assert self.cluster.ended(number) == 0
        return number

    async def all_is_well(self, *, but: int = 0) -> None:
        """Everybody who runs is Online, once, and nothing is left to do; `but` is Offline."""
        await self.cluster.online()

        async def at_rest() -> bool:
            view = await self.cluster.view()
            return view.transition is None and all(request.state.final for _, request in view.requests)

        await self.cluster.wait_for(at_rest, "nothing is under way")
        rows = [number_of(each) for each in (await self.cluster.view()).instances if not each.record.left]
        assert sorted(set(rows) - {but}) == sorted(self.cluster.running) and len(set(rows)) == len(rows)

    async def expel(self, number: int) -> None:
        await self.cluster.expel(number, *set(self.cluster.running) - {number})
        self.cluster.let_go(number)

    async def a_job_waits_for_one_that_is_cancelled(self) -> None:
        async with self.cluster.client() as client:
            first = await client.jobs.create(JobKind.COUNT, {}, request_id="first", timeout_s=30)
            waits_for = [first.number]
            second = await client.jobs.create(JobKind.COUNT, {}, request_id="second", waits_for=waits_for, timeout_s=30)

            async def cancelled() -> bool:
                # The leader that did it may be dead before it could say so.
                job, _ = await client.jobs.get(first.number)
                if not job.state.final:
                    await client.jobs.steer(first.number, "cancel", timeout_s=30)
                return job.state is JobState.CANCELLED

            await self.cluster.wait_for(cancelled, "the first job is cancelled")
            ended = await client.jobs.wait(second.number)
            assert ended.state is JobState.FAILED, ended

    async def leaders_stop(self) -> None:
        """Until one dies as it hands over: one may have lost its office just before, or all the time it takes."""
        for _ in range(5):
            number = await self._the_leader_stops()
            went_off = not self._mines.armed
            self.cluster.start(number)
            await self.all_is_well()
            if went_off:
                return
        raise AssertionError(f"nobody dies at {self._mines.armed}\n{self.cluster.said()}")

    async def _the_leader_stops(self) -> int:
        leader = await self.cluster.leader()
        self.cluster.tell_to_stop(leader)
        self.cluster.ended(leader)

        async def another_leads() -> bool:
            view = await self.cluster.view()
            row = next(each.record for each in view.instances if number_of(each) == leader)
            return row.grades.current.grade is Grade.OFFLINE

        await self.cluster.wait_for(another_leads, f"another leads, and i{leader} is Offline", 120)
        return leader


@pytest.mark.parametrize("place", STEP_PLACES)
def test_the_next_leader_finishes_what_a_killed_one_was_doing(processes: Processes, tmp_path: Path, place: str) -> None:
    mines = Mines(tmp_path / "mines", NAMES)
    cluster = Instances(processes, tmp_path, loopback(5), options=BRISK, env=mines.env)
    story = Story(cluster, mines, place)
    began = time.monotonic()

    def told(what: str) -> None:
        print(f"\n{time.monotonic() - began:5.1f} s: {what}", end="", flush=True)

    async def tell() -> None:
        cluster.start(1, 2, 3, 4)
        await cluster.online()
        # From then on the one that does not vote can't lead, and is not the one that dies.
        await story.three_vote()
        told("four are Online")
        story.arm("down", "fence")
        number = await story.one_that_does_not_vote_stops()
        await story.all_went_off()
        await story.all_is_well(but=number)
        told(f"i{number} went down")
        story.arm("sync", "replicate", "shard", "online")
        cluster.start(number)
        await story.all_went_off()
        await story.all_is_well()
        told(f"i{number} came back")
        story.arm("request", "answer", "voters")
        cluster.start(5)
        await story.all_went_off_as_it_joined(5)
        await story.all_is_well()
        # Only one that votes gives a vote back.
        await cluster.vote(1, 2, 3, 4, 5)
        told("i5 joined")
        story.arm("request", "voters")
        await story.expel(5)
        await story.all_went_off()
        await story.all_is_well()
        told("i5 was expelled")
        story.arm("job")
        await story.a_job_waits_for_one_that_is_cancelled()
        await story.all_went_off()
        await story.all_is_well()
        told("a job failed with the one that it waited for")
        story.arm("transfer")
        await story.leaders_stop()
        told("a leader stopped and came back")

    run(tell())
    assert cluster.ended(5) == 1
    assert story.kinds == set(STEP_KINDS) - OF_LOADS - OF_MOVES
