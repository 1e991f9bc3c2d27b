"""Instances that come and go, their tablets that move, a driver of jobs, and clients that use a table all the while.

What is checked in the end is always the same (`check`): nothing is under way, every acknowledged row is there, all
replicas of a tablet hold the same, and no instance has a file that it should not have.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

import trimtab
from tests.cluster.holds import HOLDS
from tests.cluster.instances import STEADY, Instances, loopback, number_of
from tests.cluster.patience import patiently, scanned
from tests.cluster.rows_load import FACTS, REGISTERS, History, Load
from tests.cluster.watching import everything, run
from tests.conftest import ROOT, Processes
from tests.files import bytes_below, names_in
from trimtab.client.cluster import ClusterClient
from trimtab.client.errors import Error
from trimtab.jobs.records import JobKind, JobRecord, JobState
from trimtab.pipeline.registry import VARIABLE as JOB_MODULE
from trimtab.tablets.records import Chunk, chunk_key
from trimtab.tablets.transitions import TabletTransition, decode_transition, holders, place_of
from trimtab.topology.grades import Grade
from trimtab.topology.records import TRANSITIONS, RequestKind, RequestRecord

WAIT_S = 300.0
GONE_S = 90.0  # within which files that are not needed any more are removed
STAGED_GONE_S = 30.0  # and what was staged for a session that has ended (docs/spark.md)
SETTLE_S = 12.0  # in which a replica that stood still takes what a quorum has acknowledged, as a write or as a hint
LEASE_MS = 15_000  # no driver loses it because the machine is busy
_PAUSE_S = 0.1
_QUIET_S = 0.7  # a plan may come in several parts
_LOOK_S = 0.5
_SILENT_S = 6.0  # a client gives up who is silent for 5 s
_STARVED_S = 3.0  # so much of that waiting for a processor, and running for less than that
_RAN_S = 1.0
Place = tuple[int, int]  # table, tablet
T = TypeVar("T")


class Elastic:
    """Instances 1 to `count`, none of which runs yet. `jobs`: the module of the driver's jobs; empty: real Spark."""

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        count: int,
        *,
        env: Mapping[str, str] | None = None,
        jobs: str = "tests.cluster.jobs_without_spark",
        options: Sequence[str] = (),
    ) -> None:
        self.processes = processes
        self.folder = folder
        (folder / "holds").mkdir()
        addresses = loopback(2 * count)
        self.instances = Instances(
            processes,
            folder,
            addresses[:count],
            bulk=addresses[count:],
            env=env,
            options=(*STEADY, "--no-pipeline", *options),
        )
        self._jobs = jobs
        self._env = dict(env or {})
        self._drivers = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._loads = 0
        self._unknown: set[int] = set()  # rows that were written without an answer

    # Processes

    def start(self, *numbers: int, **options: Any) -> None:
        """Start instances, and wait until they are Online. Whom one replaces has to be known to be dead before."""
        for word, name in itertools.pairwise(options.get("options", ())):
            if word == "--replace":
                self.until(lambda name=name: self._is_offline(name), f"{name} is marked Offline")  # type: ignore[misc]
        self.instances.start(*numbers, **options)
        run(self.instances.online(*numbers))

    def start_driver(self, *, lease_ms: int = LEASE_MS, **env: str) -> None:
        """`lease_ms`: for so long others wait when it is killed."""
        self._drivers += 1
        command = [sys.executable, "-m", "trimtab", "pipeline", "--driver-lease-ms", str(lease_ms)]
        for address in self.instances.listen.values():
            command += ["--peer", address]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        module = {"PYTHONPATH": path, HOLDS: str(self.folder / "holds")}
        if self._jobs:
            module[JOB_MODULE] = self._jobs
        self._driver = self.processes.start(
            command,
            output=self.folder / f"driver{self._drivers}.log",
            cwd=ROOT,
            env={**os.environ, **self._env, **module, **env},
        )

    def kill_driver(self) -> None:
        assert self._driver is not None
        self.processes.kill(self._driver)

    def said(self) -> str:
        drivers = [self.folder / f"driver{each + 1}.log" for each in range(self._drivers)]
        logs = [f"--- {path.name}\n{path.read_text()}" for path in drivers if path.exists()]
        return "\n".join([*logs, self.instances.said()])[-20_000:]

    # Clients

    @property
    def peer(self) -> str:
        return ",".join(self.instances.listen[number] for number in self.instances.running)

    @contextlib.contextmanager
    def connect(self) -> Iterator[trimtab.Database]:
        with trimtab.connect(self.peer, timeout=30.0) as db:
            yield db

    def ask(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """Something of the cluster, by any instance that runs."""

        async def asked() -> T:
            async with self.instances.client() as client:
                return await work(client)

        return run(asked())

    @contextlib.contextmanager
    def load(self, pause_s: float = 0.1, *, planned: bool = True) -> Iterator[Load]:
        """A client that reads and writes at QUORUM inside of the block; after it, that nothing it did is lost.

        `planned`: nothing happens that a client may notice, so no request may have failed; but for those whose
        coordinator had no processor for so long that the client gave it up, which no move brings about.
        """
        self._loads += 1
        addresses = [self.instances.listen[number] for number in self.instances.running]
        folder = self.folder / f"load{self._loads}"
        made = Load(self.processes, folder, addresses, 1, first=self._loads, pause_s=pause_s)
        starvation = Starvation(self.instances)
        with starvation.watched():
            made.await_more(50)
            yield made
            made.await_more(50)
            history = made.stop()
        self.nothing_is_lost(history)
        errors = [each for each in made.errors() if not starvation.explains(each)]
        assert not (planned and errors), f"{history.errors}\n{errors[:20]}\n{self.said()}"

    # Asking for things

    def move(self, table: str, tablet: int, source: int, to: int, *, force: bool = False) -> str:
        """An operator's move of a replica from one instance to another; what became of the wish."""
        ids, table_id = self.raft_ids(), self.table_id(table)
        return self.ask(lambda client: client.moves.ask(table_id, tablet, ids[source], ids[to], force=force)).outcome

    def give_up(self, table: str, tablet: int) -> str:
        """Undo the move that is under way."""
        table_id = self.table_id(table)
        return self.ask(lambda client: client.moves.undo(table_id, tablet)).outcome

    def settings(self, **changes: Any) -> None:
        async def change(client: ClusterClient) -> None:
            before = (await client.moves.settings()).settings
            await client.moves.settings(msgspec.structs.replace(before, **changes))

        self.ask(change)

    def limit(self, rate_bytes_s: int) -> None:
        """It holds when this returns: a second later, as is promised; nobody tells when a bulk child has heard."""
        self.ask(lambda client: client.limit(rate_bytes_s))
        if rate_bytes_s:
            time.sleep(1)

    def request(self, kind: RequestKind, number: int, **options: Any) -> int:
        """Ask for a change of the topology; the request's number."""
        return self.ask(lambda client: client.create(kind, f"i{number}", **options)).number

    def ended(self, request: int, timeout_s: float = WAIT_S) -> RequestRecord:
        """Wait until a request has ended."""
        found: list[RequestRecord] = []

        def it_has() -> bool:
            found[:] = [self.requests()[request]]
            return found[0].state.final

        self.until(it_has, lambda: f"request {request} has ended: {found}", timeout_s)
        return found[0]

    def requests(self) -> dict[int, RequestRecord]:
        return dict(self.ask(lambda client: client.view()).requests)

    def job(self, kind: JobKind, timeout_s: float = WAIT_S, **parameters: Any) -> dict[str, Any]:
        """Have a job done; its result."""
        job = self.job_ended(self.ask(lambda client: client.jobs.create(kind, parameters)).number, timeout_s)
        assert job.state is JobState.SUCCEEDED, f"{job}\n{self.said()}"
        return dict(job.result)

    def job_ended(self, number: int, timeout_s: float = WAIT_S) -> JobRecord:
        """Wait until a job has ended."""
        self.until(
            lambda: self.ask(lambda client: client.jobs.get(number))[0].state.final, f"job {number} ends", timeout_s
        )
        return self.ask(lambda client: client.jobs.get(number))[0]

    @contextlib.contextmanager
    def held_copy(self, table: str, tablet: int) -> Iterator[Held]:
        """The next copy of a tablet waits half-way, until the end of the block."""
        held = Held(self.folder / "holds", f"{table}-{tablet}")
        try:
            yield held
        finally:
            held.let_go()

    # Looking

    def raft_ids(self) -> dict[int, int]:
        """Of the instances that are members, by number."""
        view = self.ask(lambda client: client.view())
        return {number_of(each): each.raft_id for each in view.instances if not each.record.left}

    def _is_offline(self, name: str) -> bool:
        return run(self.instances.is_now(_number(name), Grade.OFFLINE))

    def leader(self) -> int:
        return run(self.instances.leader())

    def table_id(self, table: str) -> int:
        with self.connect() as db:
            return patiently(lambda: db.tables()[table].id)

    def streams(self) -> list[int]:
        """The jobs that copy replicas now."""
        jobs = self.ask(lambda client: client.jobs.show(limit=20)).jobs
        running = [job for job in jobs if job.state is JobState.RUNNING]
        return [job.number for job in running if job.command.kind is JobKind.STREAM]

    def staged_bytes(self, number: int) -> int:
        """What has arrived for sessions, at an instance."""
        return bytes_below(self.instances.data_dir(number) / "staging")

    def under_way(self) -> dict[Place, TabletTransition]:
        found = self.ask(lambda client: everything(client.metastore, TRANSITIONS))
        return {place_of(key): decode_transition(value) for key, (value, _) in found.items()}

    def replicas(self, table: str) -> dict[int, set[int]]:
        """Numbers of the instances that hold each tablet; negative ones have left.

        Of the metastore, and not by way of some instance, which may lag behind what else a test has seen.
        """
        key, numbers = chunk_key(self.table_id(table), 0), {id: number for number, id in self.raft_ids().items()}
        entry = self.ask(lambda client: client.metastore.get(key))
        assert entry is not None, f"nothing is known of the tablets of {table}"
        held = enumerate(Chunk(entry.value))
        return {tablet: {numbers.get(raft_id, -raft_id) for raft_id in replicas} for tablet, replicas in held}

    def counts(self, table: str) -> dict[int, int]:
        """How many replicas of a table each instance holds."""
        found: dict[int, int] = {}
        for holders_of in self.replicas(table).values():
            for number in holders_of:
                found[number] = found.get(number, 0) + 1
        return found

    def until(self, happened: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = WAIT_S) -> None:
        """Wait until something holds; errors of a cluster that is between leaders count as not yet."""
        deadline = time.monotonic() + timeout_s
        while True:
            why = ""
            try:
                if happened():
                    return
            except Error as error:
                why = f" ({error})"
            if time.monotonic() > deadline:
                said = what if isinstance(what, str) else what()
                raise AssertionError(f"not within {timeout_s:g} s: {said}{why}\n{self.said()}")
            time.sleep(_PAUSE_S)

    def still(self, timeout_s: float = WAIT_S) -> None:
        """Wait until no tablet is under way, and none begins for a moment."""
        quiet_since = time.monotonic()

        def is_still() -> bool:
            nonlocal quiet_since
            if self.under_way():
                quiet_since = time.monotonic()
            return time.monotonic() - quiet_since > _QUIET_S

        self.until(is_still, lambda: f"nothing is under way: {self.under_way()}", timeout_s)

    def balanced(self, table: str, *numbers: int) -> None:
        """Wait until these, and only these, hold the table, each as many replicas as any other, or one more."""

        def they_do() -> bool:
            counts = self.counts(table)
            return set(counts) == set(numbers) and max(counts.values()) - min(counts.values()) <= 1

        self.until(they_do, lambda: f"{table} is balanced over {numbers}: {self.counts(table)}, {self.under_way()}")
        self.still()

    # Checking

    def check(self, *tables: str) -> None:
        """All that must hold when nothing is under way."""
        self.still()
        for table in tables or (FACTS, REGISTERS):
            self.replicas_are_equal(table)
        self.no_file_is_left()

    def nothing_is_lost(self, history: History) -> None:
        """No acknowledged write is lost, and nobody read what can't be."""
        print(f"\n{history}")
        history.check()
        self._unknown |= history.unknown()
        with self.connect() as db:
            facts = {row["id"]: row["value"] for row in scanned(db.table(FACTS, consistency="QUORUM"))}
            registers = {row["id"]: row["n"] for row in scanned(db.table(REGISTERS, consistency="QUORUM"))}
        assert not history.lost(facts, registers)

    def replicas_are_equal(self, table: str) -> None:
        """A write of which nobody knows whether it happened may be on some replicas only, until they are repaired."""
        found = self._verified(table)
        if not found["equal"] and self._unknown and not found["more"]:
            differing = {each["key"]["id"] for each in found["listed"]}
            assert differing <= self._unknown, f"{table}: {found}\n{self.said()}"
            self.job(JobKind.REPAIR, table=table)
            found = self._verified(table)
        assert found["equal"], f"{table}: {found}\n{self.said()}"

    def _verified(self, table: str) -> dict[str, Any]:
        """What verify finds; once more where a tablet moved all the time, as balancing may have it in a while."""
        for _ in range(3):
            found = self.job(JobKind.VERIFY, table=table, settle_s=SETTLE_S)
            if not found["unclear"]:
                break
            self.still()
        return found

    def no_file_is_left(self) -> None:
        self.until(lambda: not self._staged(), lambda: f"nothing is staged: {self._staged()}", STAGED_GONE_S)
        wrong: list[str] = []

        def none_is() -> bool:
            wrong[:] = self.wrong_files()
            return not wrong

        self.until(none_is, lambda: f"no file is left behind: {wrong}", GONE_S)

    def _staged(self) -> list[str]:
        """Sessions for which there are files."""
        return [
            f"i{number}: {name}"
            for number in self.instances.running
            for name in names_in(self.instances.data_dir(number) / "staging")
        ]

    def wrong_files(self) -> list[str]:
        """What instances that run have and should not have, or have not and should."""
        ids, moves = self.raft_ids(), self.under_way()
        wanted: dict[int, set[Place]] = {raft_id: set() for raft_id in ids.values()}
        with self.connect() as db:
            tables = db.tables()
            for tablet in db.tablets():
                place = (tables[f"{tablet['keyspace']}.{tablet['table']}"].id, tablet["tablet"])
                # Who answers may not have heard yet that somebody has left.
                stable = tuple(ids.get(_number(name), 0) for name in tablet["replicas"])
                for raft_id in holders(stable, moves.get(place)):
                    wanted.setdefault(raft_id, set()).add(place)
        found = [f"{place} is on somebody who is no member" for place in sorted(wanted.get(0, ()))]
        for number in self.instances.running:
            folder = self.instances.data_dir(number)
            here = replica_directories(folder)
            should = wanted.get(ids.get(number, 0), set())
            found += [f"i{number} has {place}" for place in sorted(here.keys() - should)]
            found += [f"i{number} lacks {place}" for place in sorted(should - here.keys())]
            found += [f"i{number} has {place} twice: {names}" for place, names in here.items() if len(names) > 1]
            for name in ("staging", "arriving", "snapshots"):
                found += [f"i{number}: {name}/{each}" for each in names_in(folder / name)]
        return found


def _number(name: str) -> int:
    """Of an instance; one that has left is called by its raft id."""
    return int(name.removeprefix("i")) if name.startswith("i") else -int(name.rpartition(" ")[2])


class Starvation:
    """Which instances had hardly any processor for seconds, while it is `watched`.

    Of the system, as `loop_watch` has it. Logs do not tell for certain: of complaints that only differ in their numbers
    one a minute is told, so a long wait is withheld after a short one.
    """

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._looks: dict[int, deque[_Look]] = {}  # by the process id of the node
        self._addresses: set[str] = set()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_S):
                self._look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._look()

    def explains(self, error: str) -> bool:
        """Whether a client was told this because an instance stood still that had no processor."""
        return any(f"nothing heard from {address} " in error for address in self._addresses)

    def _look(self) -> None:
        for number in list(self._instances.running):
            # It may just be ending, or this system tells nothing of it.
            with contextlib.suppress(OSError, KeyError, ValueError):
                pid = self._instances.node(number)
                # Of its first thread, which is the one with the loop.
                ran, waited, *_ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
                looks = self._looks.setdefault(pid, deque())
                looks.append(_Look(time.monotonic(), ran / 1e9, waited / 1e9))
                while len(looks) > 2 and looks[-1].at_s - looks[1].at_s >= _SILENT_S:
                    looks.popleft()
                # One that was busy itself would have run for a good part of it.
                if looks[-1].waited_s - looks[0].waited_s >= _STARVED_S and looks[-1].ran_s - looks[0].ran_s < _RAN_S:
                    self._addresses.add(self._instances.listen[number])


class _Look(NamedTuple):
    """How long a process has run, and could have run and had no processor, so far."""

    at_s: float
    ran_s: float
    waited_s: float


class Held:
    """A copy that waits half-way; see `holds`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._wanted, self._there = folder / f"hold-{name}", folder / f"held-{name}"
        self.again()

    def again(self) -> None:
        """Hold the next one, too."""
        self._there.unlink(missing_ok=True)
        self._wanted.touch()

    @property
    def is_there(self) -> bool:
        return self._there.exists()

    def let_go(self) -> None:
        self._wanted.unlink(missing_ok=True)
        self._there.unlink(missing_ok=True)


def replica_directories(folder: Path) -> dict[Place, list[str]]:
    """Directories of replicas in a data directory, by table and tablet."""
    found: dict[Place, list[str]] = {}
    for table in names_in(folder / "tablets"):
        for name in names_in(folder / "tablets" / table):
            tablet, dot, _ = name.partition(".")
            if dot:
                found.setdefault((int(table), int(tablet)), []).append(name)
    return found
