"""Copies of replicas by a real driver of jobs, between three real processes: held, paused, killed, and gone on with.

Tasks wait at gates (`stream.task.…` of the failpoints), so that whoever is to die is in the middle of a copy. One
driver runs all jobs; the test that kills it comes last.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.cluster.watching import run
from tests.files import bytes_below
from tests.spark.everywhere import Everywhere
from tests.spark.trio import WAIT_S, Trio, until
from trimtab.jobs.protocol import Progress
from trimtab.jobs.records import JobKind, JobRecord, JobState
from trimtab.loads.protocol import BeginRequest
from trimtab.node.failpoints import VARIABLE
from trimtab.pipeline.parameters import StreamCopy, StreamParameters, plain
from trimtab.spark.sessions import PRIORITY_VARIABLE
from trimtab.storage.file_sums import sum_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPACE = "streams"
PLACES = ("before", "half", "after")


@dataclass
class Stage(Trio):
    """Three instances, a driver, and copies between them."""

    driver: Popen[bytes] | None = None
    _sessions: list[tuple[int, str]] = field(default_factory=list)

    def drive(self) -> None:
        """Start a driver, unless one runs."""
        if self.driver is not None and self.driver.poll() is None:
            return
        gates = ",".join(f"stream.task.{place}=gate:{self.folder / place}" for place in PLACES)
        command = [sys.executable, "-m", "trimtab", "pipeline", "--spark-master", "local[2,4]"]
        # Enough for a busy machine. Not more: whoever takes over must come before the sources' snapshots are gone.
        command += ["--driver-lease-ms", "20000"]
        for address in self.peers:
            command += ["--peer", address]
        env = {**os.environ, VARIABLE: gates, PRIORITY_VARIABLE: "normal", "SPARK_LOCAL_DIRS": str(self.folder)}
        self.driver = self.processes.start(command, output=self.folder / "driver.log", env=env)

    def said(self) -> str:
        return (self.folder / "driver.log").read_text()

    # Gates

    def shut(self, place: str) -> None:
        (self.folder / place).touch()
        (self.folder / f"{place}.here").unlink(missing_ok=True)

    def open(self, place: str) -> None:
        (self.folder / place).unlink(missing_ok=True)

    def await_held(self, place: str) -> int:
        """Wait until a task has come to a gate; its process."""
        here = self.folder / f"{place}.here"
        until(here.exists, lambda: f"a task is at {place}\n{self.said()}")
        pid = int(here.read_text().split()[-1])
        here.unlink()
        return pid

    # Tables and sessions

    def table(self, name: str, tablets: int, rows: int, width: int = 20, replication: int = 2) -> str:
        keyspace = f"{SPACE}{replication}"
        self.db.create_keyspace(keyspace, replication=replication, if_not_exists=True)
        full = f"{keyspace}.{name}"
        self.db.create_table(full, {"id": "bigint", "value": "blob"}, primary_key=["id"], tablets=tablets)
        rng = random.Random(1)
        Everywhere(self.db, full).put_many({"id": id, "value": rng.randbytes(width)} for id in range(rows))
        self.loads.refresh()
        return full

    def session(self, table: str, name: str) -> str:
        found = self.loads.catalog.find(table)
        assert found is not None
        self.loads.begin(BeginRequest(name, found.id, found.version, lease_ms=600_000))
        self._sessions.append((found.id, name))
        return name

    def close(self, name: str) -> None:
        ((table, _),) = [each for each in self._sessions if each[1] == name]
        self.loads.abort(table, name, "the test is over")
        self._sessions.remove((table, name))

    def replicas(self, table: str, tablet: int) -> tuple[list[int], list[int]]:
        """Who has a replica of a tablet, and who has none."""
        found = self.loads.catalog.find(table)
        assert found is not None
        holders = list(self.loads.tablets(found.id).replicas(tablet))
        return holders, [raft_id for raft_id in sorted(self.loads.instances) if raft_id not in holders]

    def copy(self, table: str, tablet: int, session: str) -> StreamCopy:
        holders, others = self.replicas(table, tablet)
        return StreamCopy(tablet, others[0], [holders[0]], session)

    # Jobs

    def ask(self, table: str, *copies: StreamCopy) -> int:
        self.drive()
        return self.jobs.create(JobKind.STREAM, plain(StreamParameters(table=table, copies=list(copies)))).number

    def held_copy(self, name: str) -> tuple[StreamCopy, int, int]:
        """A copy of a new table, a few megabytes, that waits half way: it, its job, and the process of the task."""
        table = self.table(name, tablets=1, rows=3000, width=2000)
        copy = self.copy(table, 0, self.session(table, f"{name}-0"))
        self.shut("half")
        number = self.ask(table, copy)
        return copy, number, self.await_held("half")

    def job(self, number: int) -> JobRecord:
        return self.jobs.get(number)[0]

    def progress(self, number: int) -> Progress | None:
        return self.jobs.get(number)[1]

    def await_state(self, number: int, *states: JobState, timeout_s: float = WAIT_S) -> JobRecord:
        until(
            lambda: self.job(number).state in states,
            lambda: f"job {number} is {states}: {self.job(number)}\n{self.said()}",
            timeout_s,
        )
        return self.job(number)

    def done(self, number: int) -> dict[str, Any]:
        job = self.await_state(number, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
        assert job.state is JobState.SUCCEEDED, f"{job.error}\n{self.said()}"
        return job.result

    # What lies there

    def number_of(self, raft_id: int) -> int:
        """Which of the three it is."""
        return int(self.loads.instances[raft_id].instance_id.removeprefix("i"))

    def staging(self, copy: StreamCopy) -> Path:
        data_dir = self.instances.data_dir(self.number_of(copy.target))
        return data_dir / "staging" / copy.session / str(copy.tablet)

    def check(self, copy: StreamCopy) -> dict[str, Any]:
        """The manifest of a copy, all files of which are there as it says."""
        folder = self.staging(copy)
        (path,) = folder.glob("*.manifest.json")
        manifest: dict[str, Any] = json.loads(path.read_text())
        for file in manifest["files"]:
            data = (folder / file["name"]).read_bytes()
            assert (len(data), sum_of(data)) == (file["bytes"], file["checksum"])
        assert not list(folder.glob(".*.part")), "nothing is half done"
        assert (manifest["tablet"], manifest["sources"]) == (copy.tablet, sorted(copy.sources))
        return manifest

    def staged_bytes(self, copy: StreamCopy) -> int:
        return bytes_below(self.staging(copy))


def await_end(worker: int) -> None:
    until(lambda: not Path(f"/proc/{worker}").exists(), f"the worker {worker} has ended")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage.running(tmp_path_factory.mktemp("streams")) as made:
        # Nothing but what a test asks for is copied.
        made.db.rebalance(False)
        made.drive()
        yield made


@pytest.fixture(autouse=True)
def _open_gates(stage: Stage) -> Iterator[None]:
    yield
    for place in PLACES:
        stage.open(place)


def test_many_sessions_are_copied_in_one_job_and_what_can_not_be_fails_by_itself(stage: Stage) -> None:
    table = stage.table("many", tablets=8, rows=400)
    sessions = [stage.session(table, f"many-{tablet}") for tablet in range(8)]
    good = [stage.copy(table, tablet, sessions[tablet]) for tablet in range(5)]
    holders, others = stage.replicas(table, 4)
    merged = StreamCopy(5, stage.replicas(table, 5)[1][0], stage.replicas(table, 5)[0], sessions[5])
    stage.close("many-6")
    closed = stage.copy(table, 6, "many-6")
    empty_source = stage.replicas(table, 7)
    gone = StreamCopy(7, empty_source[0][0], [empty_source[1][0]], sessions[7])
    unknown = StreamCopy(4, 99, [holders[0]], sessions[4])
    found = stage.done(stage.ask(table, *good, merged, closed, gone, unknown))
    failed = {(tablet, target): code for tablet, target, code, _ in found["failed"]}
    assert failed == {(6, closed.target): "no_session", (7, gone.target): "source_gone", (4, 99): "target_gone"}
    assert found["copies"] == 6 and others
    for copy in (*good, merged):
        manifest = stage.check(copy)
        assert (manifest["kind"], manifest["generation"], manifest["epoch"]) == ("merge", 1, 0)
        assert {"repaired_through_ms", "forgot_us"} <= manifest.keys()
    for session in (*sessions[:6], sessions[7]):
        stage.close(session)


def test_bytes_stand_still_while_a_copy_is_paused_and_nothing_is_sent_twice(stage: Stage) -> None:
    copy, number, worker = stage.held_copy("paused")
    stage.jobs.steer(number, "pause")
    stage.await_state(number, JobState.PAUSED)
    await_end(worker)
    stage.open("half")
    # The server, which gives way to everybody, takes in what had come, and nobody else sends.
    looks = [stage.staged_bytes(copy)]

    def still() -> bool:
        time.sleep(1.5)
        looks.append(stage.staged_bytes(copy))
        return looks[-1] == looks[-2]

    until(still, lambda: f"its bytes stand still: {looks}")
    assert looks[-1] > 0
    stage.jobs.steer(number, "resume")
    found = stage.done(number)
    assert found["failed"] == [] and found["bytes"] > 6_000_000
    assert 0.1 < found["sent_bytes"] / found["bytes"] < 0.7, "half of it was there, and no more"
    assert stage.check(copy)["kind"] == "copy"
    stage.close(copy.session)


def test_progress_is_told_every_second_and_a_limit_is_kept(stage: Stage) -> None:
    table = stage.table("slow", tablets=1, rows=3000, width=2000)

    def copied(session: str) -> tuple[float, int, list[Progress]]:
        """The seconds that a copy takes, its bytes, and what is told of it meanwhile."""
        copy = stage.copy(table, 0, stage.session(table, session))
        begun_s = time.monotonic()
        number = stage.ask(table, copy)
        seen: list[Progress] = []

        def look() -> bool:
            progress = stage.progress(number)
            if progress is not None and (not seen or progress != seen[-1]):
                seen.append(progress)
            return stage.job(number).state.final

        until(look, lambda: f"{seen}")
        took_s = time.monotonic() - begun_s
        stage.close(session)
        return took_s, stage.done(number)["bytes"], seen

    def told(seen: list[Progress], total: int) -> bool:
        middle = any(0 < each.progress_bytes < total for each in seen if each.total_bytes)
        return middle and any(0 < each.eta_s < 60 for each in seen)

    stage.limit(3 * 500_000)  # a third of it for each instance
    try:
        # It holds a second later. What is copied within that second may be as fast as the machine.
        for attempt in range(6):
            took_s, total, seen = copied(f"slow-{attempt}")
            # One that only waited for a processor takes long, too, and may be done between two looks.
            if took_s > 3.0 and told(seen, total):
                break
        assert took_s > 3.0, f"{total} bytes took {took_s} s"
        # It was told of in the middle; on a machine with no time to spare not every second.
        assert total > 6_000_000 and any(0 < each.progress_bytes < total for each in seen if each.total_bytes), seen
        assert any(0 < each.eta_s < 60 for each in seen), seen
    finally:
        stage.limit(0)


def test_a_killed_worker_and_a_killed_bulk_server_cost_no_copy(stage: Stage) -> None:
    copy, number, worker = stage.held_copy("killed")
    target = stage.number_of(copy.target)
    child = stage.instances.kill_bulk_child(target)
    os.kill(worker, signal.SIGKILL)
    assert stage.await_held("half") != worker, "another one takes its task"
    stage.open("half")
    found = stage.done(number)
    assert found["failed"] == [] and found["sent_bytes"] < found["bytes"]
    assert stage.check(copy)["kind"] == "copy" and stage.instances.bulk_child(target) != child
    stage.close(copy.session)


def test_a_source_that_dies_in_the_middle_has_left_its_snapshot(stage: Stage) -> None:
    copy, number, _ = stage.held_copy("source")
    stage.instances.kill_node(stage.number_of(copy.sources[0]))
    stage.open("half")
    assert stage.done(number)["failed"] == []
    stage.check(copy)
    run(stage.instances.online())
    stage.close(copy.session)


def test_a_copy_whose_session_is_closed_in_the_middle_fails_alone(stage: Stage) -> None:
    copy, number, _ = stage.held_copy("closed")
    stage.close(copy.session)
    until(lambda: not stage.staging(copy).exists(), "the node drops what was staged")
    stage.open("half")
    ((tablet, target, code, _),) = stage.done(number)["failed"]
    assert (tablet, target, code) == (0, copy.target, "no_session")


def test_a_cancelled_copy_stops_at_once(stage: Stage) -> None:
    copy, number, worker = stage.held_copy("cancelled")
    stage.jobs.steer(number, "cancel")
    stage.await_state(number, JobState.CANCELLED)
    await_end(worker)
    stage.open("half")
    stage.close(copy.session)


def test_a_job_begins_and_ends_without_waiting_for_a_beat(stage: Stage) -> None:
    table = stage.table("quick", tablets=2, rows=20)
    took: list[int] = []

    def most_begin_at_once() -> bool:
        session = stage.session(table, f"quick-{len(took)}")
        number = stage.ask(table, stage.copy(table, 0, session), stage.copy(table, 1, session))
        stage.done(number)
        job = stage.job(number)
        took.append(job.started_ms - job.asked_ms)
        stage.close(session)
        # Beats are a second apart: most jobs would have waited for a good part of it.
        return len(took) >= 6 and sorted(took[-6:])[2] < 700

    # As many as it takes until the machine has nothing else to do for a moment.
    until(most_begin_at_once, lambda: f"most jobs begin at once: {took}")


def test_another_driver_goes_on_with_what_a_killed_one_left(stage: Stage) -> None:
    table = stage.table("taken", tablets=4, rows=6000, width=2000)
    sessions = [stage.session(table, f"taken-{tablet}") for tablet in range(4)]
    copies = [stage.copy(table, tablet, sessions[tablet]) for tablet in range(4)]
    stage.shut("half")
    number = stage.ask(table, *copies)
    stage.await_held("half")
    assert stage.driver is not None
    os.killpg(stage.driver.pid, signal.SIGKILL)
    stage.processes.kill(stage.driver)
    stage.open("half")
    stage.drive()
    found = stage.done(number)
    assert found["failed"] == [] and found["copies"] == 4 and stage.job(number).attempts > 1
    assert found["sent_bytes"] < found["bytes"]
    for copy in copies:
        stage.check(copy)
    for session in sessions:
        stage.close(session)
