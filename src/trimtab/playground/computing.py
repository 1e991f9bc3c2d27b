"""The pipeline of the demo: one session of Spark in this process, for what the story computes and for the jobs.

The driver of jobs is the same as that of `trimtab pipeline`; here it shares the session, so that a small machine starts
Java once. Everything that Spark writes goes to the folder, and everything it starts is a descendant of this process:
`kill` leaves neither.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from trimtab.pipeline.driver import Driver, DriverSettings
from trimtab.pipeline.registry import Registry
from trimtab.pipeline.sessions import Sessions
from trimtab.playground.background import Background, in_thread
from trimtab.playground.processes import descendants, lives, send
from trimtab.spark.java import LOG_VARIABLE
from trimtab.spark.sessions import environment, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_GROUP = "demo"
_END_S = 10.0
_LONG_PATH = 50
_POLL_S = 0.02


class Computing:
    """`start` begins at once and does not wait; `drive` once there is a cluster. What Spark says goes to a log."""

    def __init__(self, folder: Path, log: Path, background: Background) -> None:
        self._folder = folder
        self._log = log
        self._background = background
        self._sessions: Sessions | None = None
        self._driver: Driver | None = None
        self._driving: Future[None] | None = None
        self._done_before = 0  # tasks, when the latest work began

    def start(self, peers: Sequence[str]) -> Future[float]:
        """Start Spark and its workers; the seconds that took."""
        self._folder.mkdir(parents=True)
        settings = {
            "spark.local.dir": str(self._folder),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self._folder}",
        }
        if len(str(self._folder)) > _LONG_PATH:
            # Sockets have names there, and those can't be long.
            settings["spark.python.unix.domain.socket.enabled"] = "false"
        self._sessions = sessions = Sessions(peers, **settings)

        def warm() -> float:
            began = time.monotonic()
            # For what tasks put aside; whatever is started later is to have a folder that stays.
            variables = {"SPARK_LOCAL_DIRS": str(self._folder), LOG_VARIABLE: str(self._log)}
            with _temporary(self._folder), environment(variables):
                spark = sessions.get()
            cores = spark.sparkContext.defaultParallelism
            spark.range(0, cores, 1, cores).mapInArrow(lambda batches: batches, "id long").count()
            spark.sparkContext.parallelize(range(cores), cores).map(_worker_is_warm).count()
            return time.monotonic() - began

        return in_thread(warm)

    def drive(self, peers: Sequence[str], story: Callable[[str], None]) -> None:
        """Take jobs from the queue from now on."""
        assert self._sessions is not None
        settings = DriverSettings(peers=tuple(peers), address="demo")
        self._driver = Driver(settings, Registry(), self._sessions, story=story)
        self._driving = self._background.start(self._driver.run())

    @property
    def failed(self) -> str:
        """Why the driver has ended; empty: it has not."""
        if self._driving is None or not self._driving.done():
            return ""
        return f"the driver of jobs has ended: {self._driving.exception() or 'by itself'}"

    def work(self, deed: Callable[[SparkSession], T]) -> Future[T]:
        """Do something with Spark in a thread; how far it is, `progress` tells."""
        sessions = self._sessions
        assert sessions is not None
        self._done_before = self._tasks_done()

        def run() -> T:
            sessions.join(_GROUP, "the demo")
            return deed(session())

        return in_thread(run)

    def progress(self) -> str:
        """What is done of what `work` began. In tasks: how many there will be Spark finds out on the way."""
        return f"{self._tasks_done() - self._done_before} tasks of Spark are done"

    @staticmethod
    def _tasks_done() -> int:
        """Of all that `work` ever began."""
        from pyspark import SparkContext

        context: Any = SparkContext._active_spark_context
        if context is None:
            return 0
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(_GROUP)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        return sum(found.numCompletedTasks for stage in stages if (found := tracker.getStageInfo(stage)) is not None)

    def close(self) -> None:
        """Let the driver leave, and stop Spark."""
        if self._driver is not None and self._driving is not None:
            self._background.soon(self._driver.stop)
            self._driving.result(_END_S)
        if self._sessions is not None:
            self._sessions.close()


def _worker_is_warm(number: int) -> int:
    """In a worker of jobs: what copies replicas takes a moment to import."""
    import trimtab.pipeline.carrying

    assert trimtab.pipeline.carrying
    return number


class _MainThreadAlone(io.TextIOBase):
    """Standard error, for the main thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


@contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    """What is put aside inside of the block, here or by who is started there, goes to this folder."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        with environment({"TMPDIR": str(folder)}):
            yield
    finally:
        tempfile.tempdir = before


def kill_descendants(spared: Sequence[int] = ()) -> None:
    """SIGKILL of everything that this process has started, directly or not; `spared`: sessions that go on.

    Returns when they are gone. One that was just being started is found in another round.
    """
    if not descendants(os.getpid(), spared):
        return
    # What waits in other threads for an answer of Java would complain.
    logging.disable(logging.CRITICAL)
    sys.stderr = _MainThreadAlone(sys.stderr)
    deadline = time.monotonic() + _END_S
    while (found := descendants(os.getpid(), spared)) and time.monotonic() < deadline:
        for process in found:
            send(process, signal.SIGKILL)
        while any(map(lives, found)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
