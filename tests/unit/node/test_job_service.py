"""The doors of the queue, by themselves: whom a leader grants a lease to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.jobs import protocol
from trimtab.jobs.protocol import BeatRequest, EnterRequest, SteerJob
from trimtab.jobs.records import DRIVER_KEY, Command, DriverRecord, JobKind, JobRecord, JobState, encode
from trimtab.jobs.view import JobView
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.job_service import JobService
from trimtab.node.waits import Waits
from trimtab.tablets.transitions import Cause, TabletTransition, TransitionKind, transition_key
from trimtab.tablets.transitions import encode as encode_move
from trimtab.tablets.view import TableView
from trimtab.topology.records import job_key
from trimtab.topology.view import View

LEASE_MS = 2_000


class Door:
    """The leader's, with a metastore of one view."""

    def __init__(self, jobs: JobView) -> None:
        self.jobs = jobs
        self.writes = 0

    async def pass_on(self, _method: str, _body: bytes, _deadline: float, *, forwarded: bool) -> None:
        return None

    def left_s(self, _deadline: float) -> float:
        return 1.0

    async def decide(self, look: Any, _kind: str, _names: Any) -> None:
        if (decided := look()) is not None:
            self.writes += 1
            for key, value in decided[0].puts.items():
                self.jobs.change(key, value, self.writes)


class Leader:
    """In office since long ago, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s, self.barriers, self.leads = 100.0, 0, True
        self.jobs, self.tables = JobView(), TableView()
        self.spared: list[tuple[int, int]] = []
        self.door = Door(self.jobs)
        door: Any = self.door
        office: Any = SimpleNamespace(term=1, in_office_ms=1_000_000)
        instance: Any = SimpleNamespace(
            watching=SimpleNamespace(view=View(), jobs=self.jobs, tables=self.tables),
            settings=SimpleNamespace(instance_id="i0"),
            wall_ms=lambda: int(self.now_s * 1000),
            boot_s=lambda: self.now_s,
        )
        self.service = JobService(instance, door, office, barrier=self._barrier, spare=self.spared.extend)

    async def _barrier(self, _timeout_s: float) -> None:
        self.barriers += 1
        if not self.leads:
            raise Refused("not_leader", "another leads")

    def enter(self, id: str) -> int:
        body = protocol.encode(EnterRequest(id, LEASE_MS))
        term: int = protocol.decode_enter_reply(asyncio.run(self.service.enter(_asked(body)))).driver.term
        return term

    def beat(self, id: str, term: int) -> bool:
        body = protocol.encode(BeatRequest(id, term))
        valid: bool = protocol.decode_beat_reply(asyncio.run(self.service.beat(_asked(body)))).valid
        return valid


def _asked(body: bytes) -> Asked:
    return Asked(body, 1e9, Hello())


def test_a_driver_that_was_silent_for_a_lease_is_not_heard_though_nobody_has_written_yet_that_it_is_gone() -> None:
    leader = Leader()
    term = leader.enter("a")
    leader.now_s += 1.9
    assert leader.beat("a", term)
    leader.now_s += 2.1
    # The governor decides now that it is gone; its write takes a while, and a beat comes that was long on its way.
    assert leader.service.driver_silent_ms() > LEASE_MS
    assert not leader.beat("a", term)
    assert leader.service.driver_silent_ms() > LEASE_MS
    with pytest.raises(Refused) as refused:
        leader.enter("a")
    assert refused.value.code == "stale_term"


def test_entering_again_is_answered_only_by_one_who_certainly_leads() -> None:
    leader = Leader()
    term = leader.enter("a")
    assert (leader.enter("a"), leader.door.writes) == (term, 1)
    leader.leads = False
    for ask in (lambda: leader.enter("a"), lambda: leader.beat("a", term)):
        with pytest.raises(Refused, match="another leads"):
            ask()


def test_a_beat_waits_for_news_of_the_queue_and_not_longer() -> None:
    leader = Leader()
    term = leader.enter("a")

    async def story() -> None:
        leader.service._waits = waits = Waits()

        def beat(since: int, wait_ms: int = 5_000) -> asyncio.Future[bytes]:
            body = protocol.encode(BeatRequest("a", term, wait_ms=wait_ms, since=since))
            return asyncio.ensure_future(leader.service.beat(_asked(body)))

        first = protocol.decode_beat_reply(await beat(0))
        assert first.valid and first.revision == leader.jobs.newest > 0
        waiting = beat(first.revision)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        job = JobRecord(7, Command(JobKind.COUNT, {"table": "a.b"}), JobState.QUEUED)
        leader.jobs.change(job_key(7), encode(job), first.revision + 1)
        waits.look()
        news = protocol.decode_beat_reply(await waiting)
        assert [each.number for each in news.ready] == [7] and news.revision == first.revision + 1
        # Nothing happens: it is answered when its time is up.
        assert protocol.decode_beat_reply(await beat(news.revision, 20)).valid
        # Another driver enters meanwhile.
        waiting = beat(news.revision)
        await asyncio.sleep(0.01)
        leader.jobs.change(DRIVER_KEY, encode(DriverRecord("b", term + 1, 0)), news.revision + 1)
        waits.look()
        assert not protocol.decode_beat_reply(await waiting).valid

    asyncio.run(story())


@pytest.mark.parametrize(("order", "spared"), [("cancel", [(1, 0)]), ("pause", [])])
def test_what_a_job_copies_for_balance_is_not_begun_again_at_once_when_an_operator_cancels_it(
    order: str, spared: list[tuple[int, int]]
) -> None:
    leader = Leader()
    leader.jobs.change(job_key(7), encode(JobRecord(7, Command(JobKind.STREAM, {}), JobState.QUEUED)), 1)
    for tablet, (job, cause) in enumerate([(7, Cause.BALANCE), (7, Cause.DRAIN), (8, Cause.BALANCE)]):
        record = TabletTransition((1, 2), TransitionKind.MIGRATION, job=job, cause=cause)
        leader.tables.change(transition_key(1, tablet), encode_move(record), 1)
    asyncio.run(leader.service.steer(_asked(protocol.encode(SteerJob(7, order)))))
    assert leader.spared == spared
