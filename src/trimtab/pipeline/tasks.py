"""Tasks of a job in Spark: plain values in, plain values out, and how far they are meanwhile.

Bytes and rows never pass through Spark's Java: a task is a controller that reads snapshots, writes files or moves bytes
over sockets, and returns a small result. What it has done it says while it runs (`hearing`), and it hears when it is to
stop; where it can't reach the driver it is counted when it ends.

What can't succeed however often it is tried a task *returns* as a reason; what it raises Spark tries again. So it is
with a stored value that can't be read as the type that it has to be (`DoesNotFit`), here and for all jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.hearing import Done, Ear, Hearing, Saying
from trimtab.pipeline.running import JobContext
from trimtab.rows.errors import DoesNotFit

if TYPE_CHECKING:
    from trimtab.client.blocking import Database

__all__ = ["Done", "attempt_number", "connection_options", "database", "run"]
Task = TypeVar("Task")
Result = TypeVar("Result")
MAX_TASKS = 100_000
CLIENT_S = 30.0
_LOOK_S = 0.3
_JOIN_S = 2.0


@dataclass(frozen=True)
class _Unfit:
    """In place of a result."""

    why: str


@dataclass(frozen=True)
class _Body:
    """What Spark runs for each task, which comes with its number; `bytes` and `rows` are accumulators."""

    work: Callable[..., Any]
    bytes: Any
    rows: Any
    ear: Ear | None

    def __call__(self, numbered: tuple[int, Any]) -> Any:
        number, task = numbered
        done = Done()
        with Saying(self.ear, number, done):
            try:
                result = self.work(task, done)
            except DoesNotFit as error:
                result = _Unfit(str(error))
        self.bytes.add(done.bytes)
        self.rows.add(done.rows)
        return number, done.bytes, done.rows, result


def run(
    context: JobContext,
    tasks: Sequence[Task],
    work: Callable[[Task, Done], Result],
    *,
    before: Done | None = None,
    finished: Callable[[Sequence[Any]], None] = lambda _things: None,
) -> list[Result]:
    """The results of all tasks, in their order, from one Spark job. `before`: what was done by earlier ones.

    `finished` hears, from other threads, what tasks say they have finished. JobFailed: a value can't be read.
    """
    if not tasks:
        return []
    session = context.session
    spark = session.sparkContext
    done_bytes, done_rows = spark.accumulator(0), spark.accumulator(0)
    earlier = before or Done()
    over = threading.Event()
    settings = spark.getConf()
    host = settings.get("spark.driver.host") or "127.0.0.1"
    hearing = Hearing(host, finished, bind=settings.get("spark.driver.bindAddress") or host)

    def tell() -> None:
        said_bytes, said_rows = hearing.sums()
        context.progress(
            bytes=earlier.bytes + max(done_bytes.value, said_bytes), rows=earlier.rows + max(done_rows.value, said_rows)
        )

    def watch() -> None:
        while not over.wait(_LOOK_S):
            tell()

    watcher = threading.Thread(target=watch, name="trimtab-progress", daemon=True)
    watcher.start()
    forget = context.on_stop(hearing.stop)
    try:
        context.check()
        body = _Body(work, done_bytes, done_rows, hearing.ear)
        found = spark.parallelize(list(enumerate(tasks)), min(len(tasks), MAX_TASKS)).map(body).collect()
    finally:
        forget()
        over.set()
        hearing.close()
        watcher.join(_JOIN_S)
        tell()
    for number, in_bytes, in_rows, _ in found:
        hearing.take(number, in_bytes, in_rows)
    tell()
    context.check()
    if unfit := [result for _, _, _, result in found if isinstance(result, _Unfit)]:
        raise JobFailed(unfit[0].why)
    return [result for _, _, _, result in found]


def connection_options(context: JobContext) -> dict[str, str]:
    """How tasks reach the cluster, as options of the data source."""
    found = {"peer": ",".join(context.peers)}
    if context.tls_files is not None:
        found |= dict(zip(("tlsAuthority", "tlsCertificate", "tlsKey"), map(str, context.tls_files), strict=True))
    return found


def database(context: JobContext) -> Database:
    """A client of tables, for the job itself: close it, or use it in a `with`."""
    from trimtab.client.blocking import connect

    return connect(list(context.peers), tls=context.tls, timeout=CLIENT_S)


def attempt_number() -> int:
    """Of the task that runs here; 0 outside of Spark."""
    from pyspark import TaskContext

    found = TaskContext.get()
    return found.attemptNumber() if found is not None else 0
