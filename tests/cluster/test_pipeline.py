"""The queue and its driver as real processes: killed, paused, taken over. The jobs need no Spark (`fake_jobs`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.instances import Instances
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.client.cluster import ClusterClient
from trimtab.client.jobs import BlockingJobs
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.pipeline.registry import VARIABLE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FAKE = {VARIABLE: "tests.cluster.fake_jobs"}
LEASE_MS = 30_000  # nobody loses it because the machine is busy
SHORT_MS = 8_000  # of a driver whose end is waited for


class Drivers:
    """Drivers of the three instances' jobs."""

    def __init__(self, processes: Processes, three: Instances, folder: Path) -> None:
        self._processes = processes
        self._three = three
        self._folder = folder
        self._count = 0

    def start(self, lease_ms: int = LEASE_MS) -> subprocess.Popen[bytes]:
        self._count += 1
        command = [sys.executable, "-m", "trimtab", "pipeline", "--driver-lease-ms", str(lease_ms)]
        for address in self._three.listen.values():
            command += ["--peer", address]
        return self._processes.start(command, output=self.log(self._count), env={**os.environ, **FAKE})

    def log(self, number: int) -> Path:
        return self._folder / f"driver{number}.log"

    def said(self) -> str:
        return "\n".join(self.log(each + 1).read_text() for each in range(self._count))

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        self._processes.kill(driver)

    def stop(self, driver: subprocess.Popen[bytes]) -> int:
        return self._processes.stop(driver)


@pytest.fixture
def drivers(processes: Processes, three: Instances, tmp_path: Path) -> Drivers:
    return Drivers(processes, three, tmp_path)


@asynccontextmanager
async def cluster(three: Instances, env: dict[str, str] | None = None, *options: str) -> AsyncIterator[ClusterClient]:
    three.start(1, 2, 3, env=env, options=options or ("--no-pipeline",))
    await three.online()
    async with three.client() as client:
        yield client


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


async def reaches(three: Instances, client: ClusterClient, number: int, *states: JobState) -> JobRecord:
    """Wait until the job is in one of these states."""
    found: list[JobRecord] = []

    async def it_is() -> bool:
        found[:] = [(await client.jobs.get(number))[0]]
        return found[0].state in states

    await three.wait_for(it_is, f"job {number} is {[each.value for each in states]}", timeout_s=120)
    return found[0]


def held(folder: Path, count: int = 5, at: int = 2) -> dict[str, Any]:
    """Parameters of a job that stops in the middle until its file is removed."""
    (folder / "hold").touch()
    return {"journal": str(folder / "journal"), "hold": str(folder / "hold"), "steps": count, "holds_at": at}


def test_a_driver_killed_in_the_middle_is_replaced_and_no_step_is_done_twice(
    three: Instances, drivers: Drivers, tmp_path: Path
) -> None:
    async def tell() -> None:
        async with cluster(three) as client:
            first = drivers.start(SHORT_MS)
            job = await client.jobs.create(JobKind.COUNT, held(tmp_path), why="five steps")
            await three.wait_for(lambda: noted(client, job.number, 2), "two steps are noted")
            second = drivers.start()
            three.until(lambda: "standing by" in drivers.log(2).read_text(), "the second driver stands by")
            drivers.kill(first)
            (tmp_path / "hold").unlink()
            ended = await client.jobs.wait(job.number)
            assert ended.state is JobState.SUCCEEDED
            assert (ended.attempts, ended.owner_term, ended.result["pid"]) == (2, 2, second.pid)
            assert lines(tmp_path / "journal") == [f"step {each}" for each in range(5)]
            assert any("is gone" in event for event in await three.events())
            assert drivers.stop(second) == 0
            # Where its farewell is not heard, because nobody leads just then, its lease ends it.
            await three.wait_for(lambda: is_gone(client), "the driver is known to be gone")

    run(tell())


async def is_gone(client: ClusterClient) -> bool:
    driver = (await client.jobs.show()).driver
    return driver is not None and driver.gone


async def noted(client: ClusterClient, number: int, done: int) -> bool:
    job, _ = await client.jobs.get(number)
    return job.checkpoint.get("done") == done


def test_where_nobody_drives_the_leaders_supervisor_starts_a_driver_and_it_ends_when_idle(
    three: Instances, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIMTAB_SPARK_PRIORITY", raising=False)

    async def tell() -> None:
        async with cluster(three, FAKE, "--pipeline-idle-s", "2") as client:
            parameters = held(tmp_path, count=3)
            job = await client.jobs.create(JobKind.COUNT, parameters)
            await three.wait_for(lambda: noted(client, job.number, 2), "two steps are noted")
            # Who led when it was started; another may lead by now.
            (leader,) = [number for number in three.running if driver_of(three, number)]
            driver = driver_of(three, leader)
            assert driver and os.getpriority(os.PRIO_PROCESS, driver) == 19
            (tmp_path / "hold").unlink()
            ended = await client.jobs.wait(job.number)
            assert (ended.state, ended.result["pid"]) == (JobState.SUCCEEDED, driver)
            three.until(lambda: driver_of(three, leader) == 0, "the driver ends when it was idle")
            assert "nothing to do: ending" in three.output(leader)

            def from_a_program() -> JobRecord:
                with BlockingJobs(list(three.listen.values())) as jobs:
                    return jobs.wait(jobs.create(JobKind.COUNT, parameters).number, timeout_s=120)

            assert (await asyncio.to_thread(from_a_program)).state is JobState.SUCCEEDED

    run(tell())


def driver_of(three: Instances, number: int) -> int:
    """The process id of the driver beside an instance's node; 0 where there is none."""
    supervisor = three.running[number].pid
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        try:
            if Path(f"/proc/{child}/comm").read_text().strip() == "trimtab-driver":
                return int(child)
        except OSError:
            continue
    return 0


def test_jobs_are_paused_resumed_and_cancelled_and_a_driver_that_is_told_to_stop_puts_them_back(
    three: Instances, drivers: Drivers, tmp_path: Path
) -> None:
    async def tell() -> None:
        async with cluster(three) as client:
            driver = drivers.start()
            journal, hold = tmp_path / "journal", tmp_path / "hold"
            job = (await client.jobs.create(JobKind.COUNT, held(tmp_path), why="five steps")).number
            await three.wait_for(lambda: noted(client, job, 2), "two steps are noted")

            # While it runs, it is seen how far it is: a moment later, with the next beat.
            await three.wait_for(lambda: progressed(client, job, 200), "its progress is told")
            shown = await tasks(three, "show", str(job))
            assert (shown["progress_bytes"], shown["total_bytes"], shown["progress_rows"]) == (200, 500, 2)
            assert (await tasks(three, "pause", str(job)))["pausing"]
            await reaches(three, client, job, JobState.PAUSED)
            # Fences have a thread of their own, and the job's code stops beside it.
            fenced = ["step 0", "step 1", "fenced"]
            three.until(lambda: lines(journal) == fenced, "what it began is fenced")

            assert (await tasks(three, "resume", str(job)))["state"] == "queued"
            await reaches(three, client, job, JobState.RUNNING)
            # SIGTERM in the middle: it goes back, and the next driver goes on from where it was.
            assert drivers.stop(driver) == 0
            # Where its farewell is not heard, its lease ends it.
            put_back = await reaches(three, client, job, JobState.QUEUED)
            assert put_back.checkpoint == {"done": 2}
            hold.unlink()
            driver = drivers.start()
            ended = await client.jobs.wait(job)
            assert (ended.state, ended.attempts, ended.excused) == (JobState.SUCCEEDED, 3, 2)
            assert [line for line in lines(journal) if line != "fenced"] == [f"step {each}" for each in range(5)]

            # Cancelled: what it began is fenced first, and nothing of it goes on.
            folder = tmp_path / "second"
            folder.mkdir()
            second = (await client.jobs.create(JobKind.COUNT, held(folder))).number
            waits = (await client.jobs.create(JobKind.COUNT, held(folder), waits_for=[second])).number
            await three.wait_for(lambda: noted(client, second, 2), "two steps are noted")
            cancelled = await tasks(three, "cancel", str(second), "--reason", "thought again")
            assert cancelled["cancelling"] == "thought again"
            await reaches(three, client, second, JobState.CANCELLED)
            failed = await reaches(three, client, waits, JobState.FAILED)
            assert failed.error == f"job {second}, which it waits for, was cancelled: thought again"
            three.until(lambda: lines(folder / "journal") == fenced, "what it began is fenced")

            # What fails is tried as often as it may be, and then is undone.
            parameters = {"journal": str(tmp_path / "attempts"), "again": True}
            undo = [Command(JobKind.COUNT, {"journal": str(tmp_path / "undone"), "steps": 1})]
            bad = await client.jobs.create(JobKind.VERIFY, parameters, max_attempts=2, undo=undo)
            ended = await client.jobs.wait(bad.number)
            assert (ended.state, ended.error) == (JobState.FAILED, "it was made to fail (tried 2 times)")
            assert lines(tmp_path / "attempts") == ["attempt 1", "attempt 2"]
            three.until(lambda: lines(tmp_path / "undone") == ["step 0"], "it is undone")
            events = await three.events()
            assert f"job: job {job} (count) succeeded" in events
            assert f"job: job {second} (count) cancelled: thought again" in events
            assert drivers.stop(driver) == 0

    run(tell())


def test_a_job_outlives_its_leaders_and_each_step_is_done_once(
    three: Instances, drivers: Drivers, tmp_path: Path
) -> None:
    async def tell() -> None:
        async with cluster(three) as client:
            driver = drivers.start()
            job = await client.jobs.create(JobKind.COUNT, held(tmp_path, count=40))
            await three.wait_for(lambda: noted(client, job.number, 2), "two steps are noted")
            first = await three.leader()
            three.kill(first)
            (tmp_path / "hold").unlink()
            ended = await client.jobs.wait(job.number)
            assert (ended.state, ended.attempts, ended.owner_term) == (JobState.SUCCEEDED, 1, 1), drivers.said()
            assert lines(tmp_path / "journal") == [f"step {each}" for each in range(40)]
            # A new leader has not heard the driver, and does not call it gone because of that.
            reply = await client.jobs.show()
            assert reply.driver is not None
            assert not reply.driver.gone
            assert drivers.stop(driver) == 0

    run(tell())


def test_a_driver_that_stood_still_beyond_its_lease_stops_everything_and_begins_anew(
    three: Instances, drivers: Drivers, tmp_path: Path
) -> None:
    async def tell() -> None:
        async with cluster(three) as client:
            first = drivers.start(SHORT_MS)
            job = await client.jobs.create(JobKind.COUNT, held(tmp_path))
            await three.wait_for(lambda: noted(client, job.number, 2), "two steps are noted")
            os.kill(first.pid, signal.SIGSTOP)
            taken = await reaches(three, client, job.number, JobState.QUEUED)
            assert taken.error == "its driver (term 1) is gone"
            second = drivers.start()
            await three.wait_for(lambda: run_by(client, job.number, 2), "the second driver runs it")
            os.kill(first.pid, signal.SIGCONT)
            three.until(lambda: "lost the lease of term 1" in drivers.log(1).read_text(), "the first has noticed")
            (tmp_path / "hold").unlink()
            ended = await client.jobs.wait(job.number)
            assert (ended.state, ended.result["pid"]) == (JobState.SUCCEEDED, second.pid)
            assert [line for line in lines(tmp_path / "journal") if line != "fenced"] == [
                f"step {each}" for each in range(5)
            ]
            three.until(lambda: "standing by" in drivers.log(1).read_text(), "the first stands by")

    run(tell())


async def progressed(client: ClusterClient, number: int, done_bytes: int) -> bool:
    _, progress = await client.jobs.get(number)
    return progress is not None and progress.progress_bytes == done_bytes


async def run_by(client: ClusterClient, number: int, term: int) -> bool:
    job, _ = await client.jobs.get(number)
    return job.state is JobState.RUNNING and job.owner_term == term


async def tasks(three: Instances, *arguments: str) -> dict[str, Any]:
    """`trimtab tasks …`, as an operator types it."""
    command = [sys.executable, "-m", "trimtab", "tasks", *arguments, "--json", "--peer", three.listen[1]]
    command += ["--timeout", "60"]  # the default is too short for a busy machine
    done = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await done.communicate()
    assert done.returncode == 0, err.decode()
    return dict(json.loads(out))
