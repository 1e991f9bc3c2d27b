"""kill -9 of everything that takes part in a load: readers see all of its rows or none, and nothing is left behind.

Real instances with bulk children, and a driver of Spark in a process of its own. Loads wait at chosen places
(`held_loads`), so that whoever is to die is in the middle of it. One driver runs all loads; the one kill of it meets
seven loads at once, each somewhere else. TRIMTAB_TEST_ROWS makes the loads larger. An executor that is a process of its
own is killed in test_standalone, where there are some.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trimtab
from tests.cluster.replica_reads import replicas_of
from tests.cluster.watching import run
from tests.conftest import ROOT
from tests.files import files_below
from tests.spark.everywhere import Everywhere
from tests.spark.held_jobs import FOLDER
from tests.spark.held_loads import DIES, PIDS
from tests.spark.trio import NO_PIPELINE, STOP_S, WAIT_S, Trio, until
from trimtab.client.loads import BlockingLoads
from trimtab.jobs.records import JobKind, JobRecord, JobState
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.pipeline.parameters import LoadParameters, plain
from trimtab.pipeline.registry import VARIABLE
from trimtab.spark.sessions import PRIORITY_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# All of them are compared with every scan, so there is a limit to it.
ROWS = min(int(os.environ.get("TRIMTAB_TEST_ROWS", "400")), 100_000)
PAGE_ROWS = 100  # of a scan: it has several
BULK_ROWS = 2000  # of the load whose files are to be on their way for seconds
MASTER = "local[8,4]"
LEASE_S = 15  # of loads whose driver is to die; until then somebody must find the time to renew it
FIRST_LEASE_MS = 20_000  # of a driver of jobs that is to die; until then it must keep it, however busy the machine is
GONE_S = 30.0  # as is promised of staged files after the end of their session (docs/spark.md)
SPACE = "shop"
OLD = 150  # rows that are there before
Rows = Mapping[int, str]


def rows_of(start: int, stop: int, word: str, wide: int = 0) -> dict[int, str]:
    """The rows that `held_loads.write` makes."""

    def pieces(id: int) -> str:
        return "".join(hashlib.sha512(f"{id}-{each}".encode()).hexdigest() for each in range(wide))

    return {id: word + pieces(id) for id in range(start, stop)}


class Polling:
    """Scans tables again and again, in pages: every scan must give one of the states that its table may have."""

    def __init__(self, peer: str, states: Mapping[str, tuple[Rows, ...]]) -> None:
        self._peer = peer
        self._states = {table: [dict(each) for each in allowed] for table, allowed in states.items()}
        self.seen: dict[str, list[int]] = {table: [] for table in states}
        self.scans = 0
        self._wrong: list[str] = []
        self._errors: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> Polling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        assert not self._wrong, self._wrong

    def await_state(self, state: int, *tables: str) -> None:
        """Wait until a scan of each of these gave this state."""

        def seen() -> bool:
            assert not self._wrong, self._wrong
            return all(state in self.seen[table] for table in tables)

        until(seen, lambda: f"state {state} of {tables}: {self.seen}, {self._errors[-3:]}")

    def await_scans(self, count: int) -> None:
        """Wait for so many more scans."""
        wanted = self.scans + count
        until(lambda: self.scans >= wanted or bool(self._wrong), lambda: f"{count} scans; {self._errors[-3:]}")

    def _poll(self) -> None:
        try:
            self._scan()
        except Exception as error:
            # Else whoever waits for a scan would not know why there is none.
            self._wrong.append(f"there are no scans any more: {error!r}")

    def _scan(self) -> None:
        with trimtab.connect(self._peer, timeout=60.0) as db:
            while not self._over.is_set() and not self._wrong:
                for table, allowed in self._states.items():
                    try:
                        found = {row["id"]: row["value"] for row in db.table(table).scan(page_rows=PAGE_ROWS)}
                    except trimtab.Error as error:
                        # A node was killed: that a scan fails is nothing that it may see.
                        self._errors.append(f"{table}: {error}")
                        continue
                    self.scans += 1
                    if found not in allowed:
                        sums = [(len(rows), hash(frozenset(rows.items()))) for rows in (found, *allowed)]
                        self._wrong.append(f"{table}: rows and checksum {sums[0]}, and not one of {sums[1:]}")
                    elif (state := allowed.index(found)) not in self.seen[table]:
                        self.seen[table].append(state)
                self._over.wait(0.2)


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@dataclass
class Stage(Trio):
    """Three instances, and the loads of their tables."""

    spark: SparkDriver | None = None
    _tables: dict[str, int] = field(default_factory=dict)

    def driver(self) -> SparkDriver:
        """The driver of Spark; another one, where it has been killed."""
        if self.spark is None or not self.spark.lives:
            self.spark = SparkDriver(self)
        return self.spark

    def table(self, name: str, tablets: int = 2) -> tuple[str, dict[int, str]]:
        """A new table that has some rows."""
        full, rows = f"{SPACE}.{name}", rows_of(0, OLD, "old")
        self.db.create_table(full, {"id": "bigint", "value": "text"}, primary_key=["id"], tablets=tablets)
        Everywhere(self.db, full).put_many({"id": id, "value": value} for id, value in rows.items())
        return full, rows

    def loads_of(self, table: str) -> list[LoadRecord]:
        if table not in self._tables:
            self.loads.refresh()
            found = self.loads.catalog.find(table)
            assert found is not None
            self._tables[table] = found.id
        return self.loads.show(self._tables[table]).loads

    def await_load(self, table: str, *states: LoadState) -> LoadRecord:
        until(
            lambda: any(each.state in states for each in self.loads_of(table)),
            lambda: f"a load of {table} is {states}: {self.loads_of(table)}",
        )
        (load,) = self.loads_of(table)
        return load

    @contextlib.contextmanager
    def renewing(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """Keep open loads open as long as that is wanted: so their leases can be short, however slow the machine is."""
        over = threading.Event()

        def renew() -> None:
            with BlockingLoads(self.peers, timeout_s=90.0) as client:
                while wanted() and not over.wait(LEASE_S / 20):
                    for load in client.show().loads:
                        if load.state is LoadState.STAGING and wanted():
                            client.renew(load.table, load.id)

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(WAIT_S)

    def staged(self) -> list[str]:
        return [
            f"i{number}: {path.name}"
            for number in self.instances.listen
            for path in (self.instances.data_dir(number) / "staging").glob("*")
        ]

    def await_nothing_staged(self) -> None:
        until(lambda: not self.staged(), lambda: f"nothing is left in staging: {self.staged()}", GONE_S)

    def has(self, table: str) -> dict[int, str]:
        return {row["id"]: row["value"] for row in self.db.table(table).scan(page_rows=1000)}

    def on_instance(self, number: int, table: str) -> dict[int, str]:
        """What its replicas have themselves."""

        async def ask() -> dict[int, str]:
            async with replicas_of(self.instances, number) as replicas:
                return {id: row["value"] for id, row in (await replicas.rows(table)).items()}

        return run(ask())


class SparkDriver:
    """`held_loads` as a process, and what it is told through its folder."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.folder = stage.folder / f"spark-{os.urandom(3).hex()}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        self.process = stage.processes.start(
            [sys.executable, "-m", "tests.spark.held_loads", str(self.folder), MASTER],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(self.folder)},
            cwd=ROOT,
            output=self.log,
        )
        self._until((self.folder / PIDS).exists, "Spark runs")

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def load(
        self,
        name: str,
        table: str,
        rows: tuple[int, int, str],
        place: str = "",
        *,
        mode: str = "append",
        tasks: int = 1,
        wide: int = 0,
        lease_s: int = 300,
    ) -> None:
        given = {
            "table": table,
            "peer": self._stage.peer,
            "start": rows[0],
            "stop": rows[1],
            "word": rows[2],
            "wide": wide,
            "place": place,
            "mode": mode,
            "tasks": tasks,
            # When a task waits it has half of its rows, and staged half of those.
            "options": {"lease": str(lease_s), "held_rows": str(max(1, (rows[1] - rows[0]) // tasks // 4))},
        }
        aside = self.folder / f"{name}.new"
        aside.write_text(json.dumps(given))
        aside.rename(self.folder / f"{name}.json")

    def await_place(self, name: str, place: str, count: int = 1) -> list[int]:
        """Wait until so many processes have come to a place; who they are."""
        self._until(lambda: len(self.at(name, place)) >= count or self._ended(name) != "", f"{name} is at {place}")
        assert not self._ended(name), self._ended(name)
        return self.at(name, place)

    def at(self, name: str, place: str) -> list[int]:
        return [int(path.name.rpartition(".")[2]) for path in self.folder.glob(f"{name}.{place}.*")]

    def go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def result(self, name: str) -> str:
        self._until(lambda: self._ended(name) != "", f"{name} has ended")
        return self._ended(name)

    def _ended(self, name: str) -> str:
        path = self.folder / f"{name}.ended"
        return path.read_text() if path.exists() else ""

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        def checked() -> bool:
            done = happened()
            assert done or self.lives, f"the driver of Spark has ended: {self.log.read_text()}"
            return done

        until(checked, lambda: f"{what}\n{self.log.read_text()}")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage.running(tmp_path_factory.mktemp("killed")) as made:
        made.db.create_keyspace(SPACE, replication=3)
        yield made


def test_a_task_whose_worker_is_killed_is_tried_again(stage: Stage) -> None:
    table, old = stage.table("worker")
    after = {**old, **rows_of(100, 100 + ROWS, "new")}
    driver = stage.driver()
    with Polling(stage.peer, {table: (old, after)}) as polling:
        driver.load("worker", table, (100, 100 + ROWS, "new"), "staging", tasks=2)
        workers = driver.await_place("worker", "staging", 2)
        until(lambda: len(stage.staged()) == 3, "something is staged on all three")
        polling.await_state(0, table)
        os.kill(workers[0], signal.SIGKILL)
        driver.await_place("worker", "staging", 3)
        driver.go("worker")
        assert driver.result("worker") == "ok"
        polling.await_state(1, table)
    assert polling.seen[table] == [0, 1]
    assert stage.await_load(table, LoadState.PUBLISHED).rows == ROWS
    stage.await_nothing_staged()


def test_a_bulk_child_killed_while_it_takes_a_file_goes_on_with_it(stage: Stage) -> None:
    table, old = stage.table("bulk")
    after = {**old, **rows_of(100, 100 + BULK_ROWS, "new", 4)}
    driver = stage.driver()
    with Polling(stage.peer, {table: (old, after)}) as polling:
        # So slowly that a file is on its way for seconds; everybody knows of it before a load has begun.
        stage.limit(BULK_ROWS * 50)
        driver.load("bulk", table, (100, 100 + BULK_ROWS, "new"), "staging", wide=4)
        driver.await_place("bulk", "staging")
        (load,) = stage.loads_of(table)

        def coming() -> list[Path]:
            """Files that are on their way, by whom they are taken."""
            return [
                path
                for number in (1, 2, 3)
                for path in files_below(stage.instances.data_dir(number) / "staging" / load.id)
                if path.suffix == ".part"
            ]

        until(lambda: bool(coming()), "a file is on its way")
        polling.await_state(0, table)
        for number in (1, 2, 3):
            stage.instances.kill_bulk_child(number)
        stage.limit(0)
        driver.go("bulk")
        assert driver.result("bulk") == "ok"
        polling.await_state(1, table)
    assert polling.seen[table] == [0, 1]
    load = stage.await_load(table, LoadState.PUBLISHED)
    assert (load.rows, len(load.sealed)) == (BULK_ROWS, 3)
    stage.await_nothing_staged()


def test_a_node_killed_in_the_middle_is_done_without_and_has_every_row_when_it_is_back(stage: Stage) -> None:
    """The one that leads, at that."""
    table, old = stage.table("node")
    after = {**old, **rows_of(100, 100 + ROWS, "new")}
    driver = stage.driver()
    with Polling(stage.peer, {table: (old, after)}) as polling:
        driver.load("node", table, (100, 100 + ROWS, "new"), "staging")
        driver.await_place("node", "staging")
        polling.await_state(0, table)
        dead = run(stage.instances.leader())
        stage.instances.kill(dead)
        driver.go("node")
        assert driver.result("node") == "ok"
        polling.await_state(1, table)
        load = stage.await_load(table, LoadState.PUBLISHED)
        assert (load.rows, len(load.sealed), len(load.missed)) == (ROWS, 2, 1)
        stage.instances.start(dead, options=NO_PIPELINE)
        run(stage.instances.online())
        assert stage.on_instance(dead, table) == after
    assert polling.seen[table] == [0, 1]
    stage.await_nothing_staged()


# Where seven loads are when their driver is killed: the place, the mode, and whether they count.
PLACES = (
    ("staging", "append", False),
    ("sealing", "append", False),
    ("sealing", "overwrite", False),
    ("committing", "append", False),
    ("committing", "overwrite", False),
    ("committed", "append", True),
    (DIES, "overwrite", True),
)


def test_a_killed_driver_leaves_all_rows_of_a_load_or_none_wherever_it_was(stage: Stage) -> None:
    driver = stage.driver()
    states: dict[str, tuple[Rows, ...]] = {}
    for place, mode, counts in PLACES:
        table, old = stage.table(f"{mode}_{place}")
        new = rows_of(100, 100 + ROWS, place)
        states[table] = (old, {**old, **new} if mode == "append" else new) if counts else (old,)
    with Polling(stage.peer, states) as polling, stage.renewing(lambda: driver.lives):
        for place, mode, _ in PLACES:
            name = f"{mode}_{place}"
            if place == DIES:
                # The last one: it ends the driver a moment after the leader has said yes.
                for other, its_mode, _ in PLACES[:-1]:
                    driver.await_place(f"{its_mode}_{other}", other)
                polling.await_state(0, *states)
            driver.load(name, f"{SPACE}.{name}", (100, 100 + ROWS, place), place, mode=mode, lease_s=LEASE_S)
        held = [pid for place, mode, _ in PLACES for pid in driver.at(f"{mode}_{place}", place)]
        until(lambda: not driver.lives, lambda: f"the driver is killed\n{driver.log.read_text()}")
        killed_s = time.monotonic()
        until(lambda: not any(lives(pid) for pid in held), "the tasks and commits of a dead driver end", 120)
        for place, mode, counts in PLACES:
            load = stage.await_load(f"{SPACE}.{mode}_{place}", LoadState.PUBLISHED, LoadState.ABORTED)
            assert load.state is (LoadState.PUBLISHED if counts else LoadState.ABORTED), load
            if not counts:
                assert load.reason == f"its driver was not heard from for {LEASE_S}.0 s"
        stage.await_nothing_staged()
        print(f"\nnothing was left {time.monotonic() - killed_s:.1f} s after the driver was killed")
        polling.await_state(1, *(table for table, allowed in states.items() if len(allowed) > 1))
        polling.await_scans(2 * len(states))
    # One that had no processor for a while may be Offline for a moment, and would refuse.
    run(stage.instances.online())
    for table, allowed in states.items():
        for number in (1, 2, 3):
            assert stage.on_instance(number, table) == allowed[-1], f"{table} on i{number}"


class PipelineDriver:
    """`trimtab pipeline` with loads that can be held."""

    def __init__(self, stage: Stage, holds: Path, name: str, lease_ms: int) -> None:
        self._stage, self.log = stage, holds / f"{name}.log"
        command = [sys.executable, "-m", "trimtab", "pipeline", "--driver-lease-ms", str(lease_ms)]
        command += ["--spark-master", "local[4,4]"]
        for address in stage.peers:
            command += ["--peer", address]
        env = {VARIABLE: "tests.spark.held_jobs", FOLDER: str(holds), PRIORITY_VARIABLE: "normal"}
        self.process: subprocess.Popen[bytes] = stage.processes.start(
            command, output=self.log, cwd=ROOT, env={**os.environ, **env, "PYTHONPATH": str(ROOT)}
        )

    def kill(self) -> None:
        self._stage.processes.kill(self.process)

    def stop(self) -> int:
        return self._stage.processes.stop(self.process, STOP_S)


def test_another_driver_of_jobs_goes_on_with_loads_and_repeats_none_that_is_committed(
    stage: Stage, tmp_path: Path
) -> None:
    places = ("staging", "committing", "committed")
    first = PipelineDriver(stage, tmp_path, "first", lease_ms=FIRST_LEASE_MS)
    states: dict[str, tuple[Rows, ...]] = {}
    numbers: dict[str, int] = {}
    new = rows_of(100, 100 + ROWS, "new")
    for part in (1, 2):
        # Two files, and two tasks: the first is done when the second is held.
        ids = range(100 + (part - 1) * ROWS // 2, 100 + part * ROWS // 2)
        pq.write_table(pa.table({"id": list(ids), "value": ["new"] * len(ids)}), tmp_path / f"{part}.parquet")
    paths = [str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")]

    def at(place: str, what: str = "") -> list[int]:
        return [int(path.name.rpartition(".")[2]) for path in tmp_path.glob(f"job_{place}.{what or place}.*")]

    for place in places:
        (tmp_path / f"job_{place}.place").write_text(place)
        table, old = stage.table(f"job_{place}")
        states[table] = (old, {**old, **new})
        parameters = LoadParameters(table=table, paths=paths, reading={"tasks": "2"})
        numbers[place] = stage.jobs.create(JobKind.LOAD, plain(parameters)).number
    with Polling(stage.peer, states) as polling:
        until(lambda: all(map(at, places)), lambda: f"all are held\n{first.log.read_text()}")
        polling.await_state(0, f"{SPACE}.job_staging", f"{SPACE}.job_committing")
        polling.await_state(1, f"{SPACE}.job_committed")
        seen = {place: at(place, "staged") for place in places}
        begun = {place: stage.loads_of(f"{SPACE}.job_{place}") for place in places}
        second = PipelineDriver(stage, tmp_path, "second", lease_ms=30_000)
        until(lambda: "standing by" in second.log.read_text(), "the second driver stands by")
        first.kill()
        for place in places:
            (tmp_path / f"job_{place}.go").touch()
        ended: dict[str, JobRecord] = {
            place: stage.jobs.wait(number, timeout_s=WAIT_S) for place, number in numbers.items()
        }
        polling.await_state(1, *states)
        polling.await_scans(6)
    for place, job in ended.items():
        assert (job.state, job.result.get("rows")) == (JobState.SUCCEEDED, ROWS) and job.attempts >= 2, job
        *given_up, load = stage.loads_of(f"{SPACE}.job_{place}")
        assert (load.state, load.rows) == (LoadState.PUBLISHED, ROWS)
        if place == "committed":
            assert load.stamp_us == begun[place][-1].stamp_us
        # On a machine so slow that the load's lease is over before the other driver is there, it begins anew.
        assert all(each.state is LoadState.ABORTED for each in given_up), given_up
        staged_again = set(at(place, "staged")) - set(seen[place])
        assert bool(staged_again) == (place != "committed"), f"{place}: {staged_again}"
    stage.await_nothing_staged()
    for table, (_, after) in states.items():
        assert stage.has(table) == after
    run(stage.instances.online())
    assert second.stop() == 0, second.log.read_text()
