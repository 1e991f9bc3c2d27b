"""Random schedules of drivers that crash, are cut off and come back, leaders that change, messages late and twice.

Whatever happens: one driver at a time believes in its lease; nothing counts that another one says; a job runs only when
all it waits for succeeded, and never in two places; what has ended stays so; and in the end every job has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from tests.unit.jobs.queues import GOVERNOR, Queue

from trimtab.governor.steps import Commit, Write
from trimtab.jobs import rules
from trimtab.jobs.protocol import EndRequest, EnterRequest, NoteRequest
from trimtab.jobs.records import DRIVER_KEY, Command, JobKind, JobRecord, JobState, encode
from trimtab.topology.records import job_key

LEASE_MS = 4_000
STEPS = 400
UNDO = (Command(JobKind.COUNT), Command(JobKind.COUNT))
Message = Callable[[], None]


@dataclass
class Driver:
    """What a driver believes. Its messages may be late, doubled or lost; its clock is the world's."""

    name: str
    term: int = 0
    until_ms: int = 0
    running: dict[int, int] = field(default_factory=dict)  # job -> attempt
    alive: bool = True
    cut_off: bool = False

    def believes(self, now_ms: int) -> bool:
        return self.alive and self.term > 0 and now_ms < self.until_ms


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.queue = Queue()
        self.names = count(1)
        self.drivers: list[Driver] = []
        self.late: list[Message] = []
        self.planned: list[Commit] = []
        self.done: dict[int, set[int]] = {}  # job -> attempts that were written down as succeeded

    # Happenings

    def step(self) -> None:
        happening = self.rng.choice(
            (
                *(self.create, self.steer, self.new_driver, self.enter, self.beat, self.beat, self.beat),
                *(self.take, self.take, self.note, self.end, self.end, self.time_passes, self.time_passes),
                *(self.plan, self.plan, self.carry_out, self.carry_out, self.deliver_late, self.crash, self.cut),
                self.new_leader,
            )
        )
        before = dict(self.queue.jobs.jobs)
        happening()
        self.check(before)

    def create(self) -> None:
        jobs = self.queue.jobs.jobs
        if len(self.queue.jobs.open) < 12:
            waits_for = tuple(self.rng.sample(sorted(jobs), min(len(jobs), self.rng.randrange(3))))
            undo = UNDO if self.rng.random() < 0.3 else ()
            self.queue.create(waits_for=waits_for, undo=undo, max_attempts=self.rng.randrange(1, 5))

    def steer(self) -> None:
        if jobs := sorted(self.queue.jobs.open):
            order = self.rng.choice(rules.ORDERS)
            self.refusable(lambda: self.queue.steer(self.rng.choice(jobs), order))

    def new_driver(self) -> None:
        if sum(driver.alive for driver in self.drivers) < 3:
            self.drivers.append(Driver(f"d{next(self.names)}"))

    def enter(self) -> None:
        if (driver := self.one(lambda each: each.alive and not each.cut_off and not each.term)) is None:
            return
        sent_ms = self.queue.now_ms
        request = EnterRequest(driver.name, LEASE_MS)

        def deliver() -> None:
            record = rules.enter(self.queue.jobs, request, self.queue.now_ms)
            write = Write({DRIVER_KEY: self.queue.jobs.revision(DRIVER_KEY)}, {DRIVER_KEY: encode(record)})
            assert self.queue.write(write)
            self.queue.heard_ms = self.queue.now_ms
            driver.term, driver.until_ms = record.term, max(driver.until_ms, sent_ms + LEASE_MS)

        self.send(deliver)

    def beat(self) -> None:
        if (driver := self.one(lambda each: each.alive and each.term > 0)) is None:
            return
        if not driver.believes(self.queue.now_ms):
            # It has lost its lease: everything stops, and it begins anew under another name.
            driver.alive = False
            return
        if driver.cut_off:
            return
        sent_ms, term = self.queue.now_ms, driver.term

        def deliver() -> None:
            record = self.queue.jobs.driver
            if record is not None and (record.driver_id, record.term) == (driver.name, term) and not record.gone:
                self.queue.heard_ms = self.queue.now_ms
                driver.until_ms = max(driver.until_ms, sent_ms + LEASE_MS)
                for job in self.queue.jobs.running(term):
                    if job.wanted and job.number in driver.running:
                        self.tell_end(driver, job.number, JobState.PAUSED)
            else:
                driver.until_ms = 0

        self.send(deliver)

    def take(self) -> None:
        driver = self.one(lambda each: each.believes(self.queue.now_ms) and not each.cut_off)
        ready = rules.ready(self.queue.jobs, self.queue.now_ms)
        if driver is None or not ready:
            return
        number = self.rng.choice(ready).number

        def deliver() -> None:
            job = self.queue.take(number, driver.term)
            if driver.believes(self.queue.now_ms):
                driver.running[number] = job.attempts

        self.send(deliver)

    def note(self) -> None:
        if (driver := self.one(lambda each: bool(each.running) and each.believes(self.queue.now_ms))) is None:
            return
        number, attempt = self.rng.choice(sorted(driver.running.items()))
        request = NoteRequest(driver.term, number, {"n": self.rng.randrange(100)}, attempt=attempt)
        self.send(lambda: self._write(rules.note(self.queue.jobs, request)))

    def end(self) -> None:
        if (driver := self.one(lambda each: bool(each.running) and each.believes(self.queue.now_ms))) is not None:
            states = (JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.QUEUED)
            self.tell_end(driver, self.rng.choice(sorted(driver.running)), self.rng.choice(states))

    def tell_end(self, driver: Driver, number: int, state: JobState) -> None:
        attempt = driver.running.pop(number)
        again = self.rng.random() < 0.7
        request = EndRequest(driver.term, number, state, "it did not work", again=again, attempt=attempt)
        self.send(lambda: self._write(rules.end(self.queue.jobs, request, self.queue.now_ms)))

    def _write(self, job: JobRecord) -> None:
        self.queue.put(job, by_driver=True)

    def time_passes(self) -> None:
        self.queue.now_ms += self.rng.choice((100, 500, 1_500, 5_000))

    def plan(self) -> None:
        """The governor decides; others may come in between before it writes."""
        step = next((step for rule in self.shuffled() if (step := rule(self.queue.state())) is not None), None)
        if step is not None:
            self.planned.append(step)

    def shuffled(self) -> list[Callable[..., Commit | None]]:
        return self.rng.sample(GOVERNOR, len(GOVERNOR))

    def carry_out(self) -> None:
        if self.planned:
            self.queue.write(self.planned.pop(self.rng.randrange(len(self.planned))).write)

    def deliver_late(self) -> None:
        if self.late:
            self.refusable(self.late.pop(self.rng.randrange(len(self.late))))

    def crash(self) -> None:
        if self.rng.random() < 0.3 and (driver := self.one(lambda each: each.alive)) is not None:
            driver.alive = False

    def cut(self) -> None:
        if (driver := self.one(lambda each: each.alive)) is not None:
            driver.cut_off = not driver.cut_off

    def new_leader(self) -> None:
        """It has heard nobody, grants the driver a full lease, and carries out nothing of the one before."""
        self.queue.heard_ms = self.queue.now_ms
        self.planned.clear()

    # Parts

    def one(self, fits: Callable[[Driver], bool]) -> Driver | None:
        fitting = [driver for driver in self.drivers if fits(driver)]
        return self.rng.choice(fitting) if fitting else None

    def send(self, message: Message) -> None:
        """Now, late, or twice. A beat that comes late counts from when it was sent."""
        luck = self.rng.random()
        if luck > 0.2:
            self.refusable(message)
        if luck < 0.35 and len(self.late) < 20:
            self.late.append(message)

    def refusable(self, deed: Callable[[], object]) -> None:
        try:
            deed()
        except rules.JobRefused:
            return

    # What holds always

    def check(self, before: dict[int, JobRecord]) -> None:
        jobs, now_ms = self.queue.jobs.jobs, self.queue.now_ms
        believers = [driver for driver in self.drivers if driver.believes(now_ms)]
        assert len({driver.term for driver in believers}) == len(believers) <= 1
        for number, job in jobs.items():
            was = before.get(number)
            if was is None or was == job:
                continue
            if was.state.final:
                assert rules.changed(job, undone_by=()) == rules.changed(was, undone_by=())
            assert job.attempts - was.attempts in (0, 1)
            assert job.attempts - job.excused <= job.max_attempts
            if job.attempts > was.attempts:
                assert was.state is JobState.QUEUED
                assert job.state is JobState.RUNNING
                assert all(jobs[other].state is JobState.SUCCEEDED for other in job.waits_for)
                newest = self.queue.jobs.driver
                assert newest is not None
                assert job.owner_term == newest.term
        assert not before.keys() - jobs.keys(), "jobs were lost"

    def settle(self) -> None:
        """Everybody from before is gone; a driver that works brings every job to its end."""
        for driver in self.drivers:
            driver.alive = False
        self.late.clear()
        self.planned.clear()
        for round_ in range(200):
            self.queue.pass_ms(61_000)
            if self.queue.jobs.living_driver is None:
                self.queue.enter(f"last{round_}", LEASE_MS)
            driver = self.queue.jobs.living_driver
            assert driver is not None
            for job in rules.ready(self.queue.jobs, self.queue.now_ms):
                self.queue.take(job.number, driver.term)
                self.queue.end(job.number, JobState.SUCCEEDED, driver.term)
            for job in self.queue.jobs.open_jobs():
                if job.state is JobState.PAUSED:
                    self.queue.steer(job.number, "resume")
            self.queue.govern()
            if not self.queue.jobs.open:
                break
        assert not self.queue.jobs.open, f"these never ended: {self.queue.states()}"
        for number, job in self.queue.jobs.jobs.items():
            undoing = [each.number for each in self.queue.jobs.jobs.values() if each.undoes == number]
            began = job.attempts > 0 and job.state is not JobState.SUCCEEDED
            assert len(undoing) == (len(job.undo) if began else 0)
            if job.state is JobState.SUCCEEDED:
                others = [self.queue.jobs.jobs[other].state for other in job.waits_for]
                assert set(others) <= {JobState.SUCCEEDED}
            assert self.queue.jobs.revision(job_key(number))


@pytest.mark.parametrize("block", range(10))
def test_whatever_happens_to_drivers_and_leaders_jobs_are_run_once_and_in_order(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
