"""A queue that exists only as values: the rules' decisions are written on a view, conditionally, as the leader does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trimtab.governor.jobs import admit_jobs, find_driver_gone, prune_jobs, release_jobs, undo_jobs
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Commit, Write
from trimtab.jobs import rules
from trimtab.jobs.protocol import CreateJob, EndRequest, EnterRequest, NoteRequest, SteerJob
from trimtab.jobs.records import DRIVER_KEY, Command, DriverRecord, JobKind, JobRecord, JobState, encode
from trimtab.jobs.view import JobView
from trimtab.topology.records import job_key
from trimtab.topology.view import View

GOVERNOR = (find_driver_gone, release_jobs, admit_jobs, undo_jobs, prune_jobs)


class Queue:
    """`now_ms` passes where a test lets it; `heard_ms` is when the driver was heard last."""

    def __init__(self) -> None:
        self.view, self.jobs = View(), JobView()
        self.revision = 0
        self.now_ms = 1_000_000
        self.heard_ms = self.now_ms
        self.told: list[str] = []

    # Writing

    def write(self, write: Write) -> bool:
        """Whether everything was as expected; then it is written."""
        if any(self.view.revisions.get(key, 0) != revision for key, revision in write.expect.items()):
            return False
        self.revision += 1
        for key, value in write.puts.items():
            self._put(key, value)
        for key in write.deletes:
            self._put(key, None)
        self.told += write.sentences
        return True

    def _put(self, key: bytes, value: bytes | None) -> None:
        self.view.change(key, value, self.revision)
        self.jobs.change(key, value, self.revision)

    def put(self, job: JobRecord, *, by_driver: bool = False) -> JobRecord:
        key = job_key(job.number)
        expect = {key: self.jobs.revision(key)}
        if by_driver:
            expect[DRIVER_KEY] = self.jobs.revision(DRIVER_KEY)
        assert self.write(Write(expect, {key: encode(job)}))
        return self.jobs.jobs[job.number]

    # What is asked

    def create(self, kind: JobKind = JobKind.COUNT, parameters: dict[str, Any] | None = None, **options: Any) -> int:
        number = self.view.next_request()
        options.setdefault("request_id", f"r{number}")
        asked = CreateJob(Command(kind, parameters or {}), **options)
        self.put(rules.create(self.jobs, asked, number, self.now_ms))
        return number

    def steer(self, number: int, order: str, reason: str = "") -> JobRecord:
        return self.put(rules.steer(self.jobs, SteerJob(number, order, reason), self.now_ms))

    def enter(self, driver_id: str = "d1", lease_ms: int = 10_000) -> DriverRecord:
        driver = rules.enter(self.jobs, EnterRequest(driver_id, lease_ms), self.now_ms)
        assert self.write(Write({DRIVER_KEY: self.jobs.revision(DRIVER_KEY)}, {DRIVER_KEY: encode(driver)}))
        self.heard_ms = self.now_ms
        return driver

    def take(self, number: int, term: int = 1) -> JobRecord:
        return self.put(rules.take(self.jobs, number, term, self.now_ms), by_driver=True)

    def note(self, number: int, note: dict[str, Any], term: int = 1, attempt: int = 0) -> JobRecord:
        return self.put(rules.note(self.jobs, NoteRequest(term, number, note, attempt=attempt)), by_driver=True)

    def end(self, number: int, state: JobState = JobState.SUCCEEDED, term: int = 1, **fields: Any) -> JobRecord:
        job = rules.end(self.jobs, EndRequest(term, number, state, **fields), self.now_ms)
        return self.put(job, by_driver=True)

    def leave(self, driver_id: str = "d1", term: int = 1) -> None:
        driver = rules.leave(self.jobs, driver_id, term)
        if driver is not None:
            assert self.write(Write({DRIVER_KEY: self.jobs.revision(DRIVER_KEY)}, {DRIVER_KEY: encode(driver)}))

    # The governor

    def state(self) -> ClusterState:
        return ClusterState(
            view=self.view,
            leader=1,
            term=1,
            commit=1,
            voters=frozenset((1,)),
            learners=frozenset(),
            joint=False,
            genesis="g",
            cluster_id="c",
            now_ms=self.now_ms,
            in_office_ms=10**9,
            jobs=self.jobs,
            driver_silent_ms=self.now_ms - self.heard_ms,
        )

    def plan(self) -> Commit | None:
        """The next step of the governor about jobs."""
        state = self.state()
        steps = (rule(state) for rule in GOVERNOR)
        return next((step for step in steps if step is not None), None)

    def govern(self) -> None:
        """Until there is nothing to do."""
        for _ in range(1_000):
            step = self.plan()
            if step is None:
                return
            assert self.write(step.write), "nobody else writes here"
        raise AssertionError("the governor does not come to an end")

    def pass_ms(self, ms: int, *, driver_lives: bool = False) -> None:
        self.now_ms += ms
        if driver_lives:
            self.heard_ms = self.now_ms
        self.govern()

    def states(self) -> dict[int, str]:
        return {number: job.state.value for number, job in sorted(self.jobs.jobs.items())}


def refusal(judge: Callable[[], object]) -> tuple[str, str]:
    """Code and text of what is refused."""
    try:
        judge()
    except rules.JobRefused as error:
        return error.code, str(error)
    raise AssertionError("it was not refused")
