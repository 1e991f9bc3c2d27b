"""A cluster that nodes join and leave while it is measured, and its pipeline, which is a process of its own.

Instances are started as `trimtab local` does it, with their defaults; the pipeline as an operator would start it, at
the lowest priority.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from trimtab.client.cluster import ClusterClient
from trimtab.client.database import Database, connect
from trimtab.client.errors import Error
from trimtab.jobs.records import JobKind, JobState
from trimtab.metastore.layout import prefix_end
from trimtab.playground.background import Background
from trimtab.playground.forming import NotOnline, await_online
from trimtab.playground.local import LocalCluster
from trimtab.playground.moving import Moves, follow
from trimtab.playground.ports import free_base
from trimtab.tablets.domains import is_online, may_hold
from trimtab.topology.records import INSTANCES, RequestKind, RequestState, parse_instance

MOST = 12  # instances, one after another
_ONLINE_S = 120.0
_CALL_S = 60.0
_WAIT_S = 900.0
_POLL_S = 0.02
_QUIET_S = 1.0  # a plan may come in several parts
T = TypeVar("T")


class ElasticCluster:
    """`with ElasticCluster(folder, 3) as cluster:`. `moves` knows of every tablet that was ever under way.

    `online_since`: when the record of each instance that was added first said that it is Online.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self._nodes = nodes
        self._local = LocalCluster(folder / "cluster", attached=True)
        self._background = Background()
        self._pipeline: subprocess.Popen[str] | None = None
        self.moves = Moves()
        self.online_since: dict[str, float] = {}

    def __enter__(self) -> ElasticCluster:
        try:
            with self._local.coming_up():
                self._local.create(self._nodes, free_base(MOST))
                started = self._local.start_all()
            self._online(list(started))
            peers = self.peers
            self.client = self.call(ClusterClient.connect(peers))
            self.database = self.call(_opened(peers))
            self._background.start(follow(self.client, self.moves))
            self._background.start(self._follow_instances())
            command = [sys.executable, "-m", "trimtab", "pipeline"]
            command += [argument for peer in peers for argument in ("--peer", peer)]
            self._pipeline = processes.start(command, self.folder / "pipeline.log")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipeline is not None:
            processes.stop(self._pipeline, 30)
        self._background.close()
        if self._local.exists:
            self._local.kill(list(self._local.running()))

    # Asking

    @property
    def peers(self) -> list[str]:
        return list(self._local.addresses().values())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._background.call(work, _CALL_S)
        except (Error, TimeoutError) as error:
            raise BenchmarkFailed(f"{error} (logs in {self.folder})") from error

    def job(self, kind: JobKind, **parameters: Any) -> dict[str, Any]:
        """Have a job done; its result."""
        number = self.call(self.client.jobs.create(kind, parameters, why="bench")).number
        self.until(lambda: self.call(self.client.jobs.get(number))[0].state.final, f"the job {kind.value} ends")
        job, _ = self.call(self.client.jobs.get(number))
        if job.state is not JobState.SUCCEEDED:
            raise BenchmarkFailed(f"the job {kind.value} is {job.state.value}: {job.error}")
        return dict(job.result)

    def until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not happened():
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{what}: not within {_WAIT_S:.0f} s (logs in {self.folder})")
            if self._pipeline is not None and self._pipeline.poll() is not None:
                raise BenchmarkFailed(f"the pipeline has ended (see {self.folder}/pipeline.log)")
            time.sleep(_POLL_S)

    # Nodes come and go

    def add(self) -> str:
        """Start another instance, and wait until it is Online; its id."""
        (added,) = self._local.add()
        self._online([added])
        self.until(lambda: added in self.online_since, f"{added} is heard to be Online")
        return added

    def drain(self, instance_id: str) -> None:
        """Let an instance leave in good order: returns when it has given everything away."""
        number = self.call(self.client.create(RequestKind.LEAVE, instance_id)).number

        def over() -> bool:
            record = dict(self.call(self.client.view()).requests)[number]
            if record.state.final and record.state is not RequestState.DONE:
                raise BenchmarkFailed(f"{instance_id} could not leave: {record.reason}")
            return record.state.final

        self.until(over, f"{instance_id} leaves")
        self.until(lambda: instance_id not in self._local.running(), f"{instance_id} ends")

    def still(self, over: Callable[[], bool]) -> None:
        """Wait until it is over, and nothing is under way any more."""

        def settled() -> bool:
            quiet_s = time.monotonic() - self.moves.last_ended
            return not self.moves.under_way and quiet_s > _QUIET_S and over()

        self.until(settled, "tablets stand still")

    def _online(self, instance_ids: Sequence[str]) -> None:
        waiting = await_online(
            self._local.addresses(instance_ids), timeout_s=_ONLINE_S, ended=dict, seen=lambda _standings: None
        )
        try:
            self._background.call(waiting, _ONLINE_S + 10)
        except NotOnline as error:
            raise BenchmarkFailed(f"not all instances are Online: {error}") from error

    async def _follow_instances(self) -> None:
        """Note when instances are Online, by their records and as they change, as `follow` does for moves.

        Whoever asks the instance whether it is Online finds out later, when tablets may be under way to it already.
        """
        metastore = self.client.metastore
        page = await metastore.range(INSTANCES, prefix_end(INSTANCES))
        async for item in metastore.watch(INSTANCES, from_revision=page.revision + 1):
            for change in item.changes:
                if change.new is None:
                    continue
                _, record = parse_instance(change.key, change.new.value)
                if is_online(record) and may_hold(record):
                    self.online_since.setdefault(record.instance_id, time.monotonic())

    # Looking

    def tablets(self, table: str) -> list[dict[str, Any]]:
        return self.call(self.database.tablets(table))

    def held(self, table: str) -> dict[str, int]:
        """Replicas of a table, by instance."""
        counts: dict[str, int] = dict.fromkeys(self._local.running(), 0)
        for tablet in self.tablets(table):
            for name in tablet["replicas"]:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def held_bytes(self, table: str) -> dict[str, int]:
        """Bytes of a table, by instance, once all sizes are known."""
        found: dict[str, int] = {}

        def known() -> bool:
            tablets = self.tablets(table)
            found.clear()
            found.update(dict.fromkeys(self._local.running(), 0))
            for tablet in tablets:
                for name in tablet["replicas"]:
                    found[name] = found.get(name, 0) + int(tablet["bytes"] or 0)
            return all(tablet["bytes"] is not None for tablet in tablets)

        self.until(known, "sizes are reported")
        return dict(found)

    def data_dir(self, instance_id: str) -> Path:
        return self._local.directory / instance_id / "data"


async def _opened(peers: list[str]) -> Database:
    return await connect(peers, timeout=_CALL_S)
