"""What becomes of what a task raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.pipeline import tasks
from trimtab.pipeline.failures import JobFailed, again
from trimtab.pipeline.leases import DriverLease, boot_s
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.tasks import Done
from trimtab.rows.errors import DoesNotFit


class _Sum:
    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, more: int) -> None:
        self.value += more


class Spark:
    """Runs tasks here, each as often as Spark does that raises."""

    def __init__(self) -> None:
        self.tried = 0

    def join(self, _group: str, _why: str) -> Any:
        conf = SimpleNamespace(get=lambda _name: None)
        return SimpleNamespace(
            sparkContext=SimpleNamespace(accumulator=_Sum, getConf=lambda: conf, parallelize=self._parallelize)
        )

    def cancel(self, _group: str) -> None: ...

    def _parallelize(self, given: list[Any], _count: int) -> Any:
        return SimpleNamespace(map=lambda body: SimpleNamespace(collect=lambda: [self._tried(body, x) for x in given]))

    def _tried(self, body: Any, task: Any) -> Any:
        for attempt in range(4):
            self.tried += 1
            try:
                return body(task)
            except Exception:
                if attempt == 3:
                    raise
        return None


def test_a_value_that_can_not_be_read_ends_the_job_at_the_first_attempt() -> None:
    """Spark tried the task four times and the cluster the job five times, for a decimal of twenty fraction digits."""
    spark = Spark()
    job = JobRecord(9, Command(JobKind.EXPORT), JobState.RUNNING, owner_term=1, attempts=1)
    context = JobContext(job, DriverLease(60_000, boot_s()), spark, note=lambda _note: None, peers=("127.0.0.1:4100",))
    why = "shop.prices: column price: a value of decimal that does not fit decimal128(38, 18)"

    def work(task: int, _done: Done) -> int:
        if task == 2:
            raise DoesNotFit(why)
        return task

    assert tasks.run(context, [1, 3], work) == [1, 3]
    with pytest.raises(JobFailed) as failed:
        tasks.run(context, [1, 2, 3], work)
    assert (str(failed.value), again(failed.value), spark.tried) == (why, False, 5)
