"""The real jobs of a driver without Spark: each task is a process of its own. It starts in a second, and dies often.

TRIMTAB_JOB_MODULE names this module; importing it puts another session in the place of Spark's. Tasks are tried again
as Spark would, and copies can be held (`holds`). Real Spark runs the same jobs in tests/spark.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any

from tests.cluster import holds
from trimtab.node import failpoints
from trimtab.pipeline import process

_CORES = 2
_ATTEMPTS = 4
_PRELOADED = (
    *("trimtab.pipeline.carrying", "trimtab.pipeline.verifying", "trimtab.pipeline.repairing"),
    "pandas",  # which Arrow loads with the first rows of each process
)
_processes = multiprocessing.get_context("forkserver")


class Accumulator:
    """What tasks add stays in their processes; they say it in their results, too."""

    value = 0

    def add(self, more: int) -> None:
        self.value += more


@dataclass
class Tasks:
    """What Spark calls an RDD."""

    tasks: Sequence[Any]
    cancelled: Event
    work: Callable[[Any], Any] = lambda task: task

    def map(self, work: Callable[[Any], Any]) -> Tasks:
        return Tasks(self.tasks, self.cancelled, work)

    def collect(self) -> list[Any]:
        with ThreadPoolExecutor(_CORES) as threads:
            return list(threads.map(self._tried, self.tasks))

    def _tried(self, task: Any) -> Any:
        why = ""
        for _ in range(_ATTEMPTS):
            if self.cancelled.is_set():
                raise RuntimeError("the group was cancelled")
            good, result = _in_a_process(self.work, task, self.cancelled)
            if good:
                return result
            why = result
        raise RuntimeError(f"a task failed {_ATTEMPTS} times: {why}")


def _in_a_process(work: Callable[[Any], Any], task: Any, cancelled: Event) -> tuple[bool, Any]:
    ours, its = _processes.Pipe(duplex=False)
    child = _processes.Process(target=_task, args=(its, work, task), daemon=True)
    child.start()
    its.close()
    try:
        while not ours.poll(0.05):
            if cancelled.is_set():
                child.kill()
                raise RuntimeError("the group was cancelled")
        answer: tuple[bool, Any] = ours.recv()
        return answer
    except EOFError:
        return False, "its process has died"
    finally:
        ours.close()
        child.join()


def _task(answer: Any, work: Callable[[Any], Any], task: Any) -> None:
    failpoints.arm_from_environment()
    holds.arm()
    try:
        answer.send((True, work(task)))
    except Exception as error:
        answer.send((False, repr(error)))


class Context:
    """What Spark calls a context, as the thread of one job has it."""

    defaultParallelism = _CORES

    def __init__(self, cancelled: Event) -> None:
        self._cancelled = cancelled

    def accumulator(self, _zero: int) -> Accumulator:
        return Accumulator()

    def getConf(self) -> dict[str, str]:
        return {}

    def parallelize(self, tasks: Sequence[Any], _parts: int) -> Tasks:
        return Tasks(list(tasks), self._cancelled)


@dataclass
class Session:
    sparkContext: Context


class Sessions:
    """In the place of Spark's."""

    made = False

    def __init__(self, _peers: Sequence[str], _master: str = "", **_conf: str) -> None:
        self._groups: dict[str, Event] = {}
        self._lock = Lock()
        _processes.set_forkserver_preload(list(_PRELOADED))

    def join(self, group: str, _why: str) -> Any:
        return Session(Context(self._group(group)))

    def cancel(self, group: str) -> None:
        self._group(group).set()

    def close(self) -> None:
        pass

    def _group(self, name: str) -> Event:
        with self._lock:
            return self._groups.setdefault(name, Event())


_module: Any = process
_module.Sessions = Sessions
JOBS: dict[Any, Any] = {}
