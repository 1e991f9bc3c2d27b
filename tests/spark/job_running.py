"""Jobs without a driver: their code, run here on the session that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.pipeline.leases import DriverLease, boot_s
from trimtab.pipeline.parameters import Parameters, plain
from trimtab.pipeline.registry import Registry
from trimtab.pipeline.running import JobContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SharedSpark:
    """The session of the tests, as a job wants it."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def join(self, group: str, why: str) -> SparkSession:
        self.session.sparkContext.setJobGroup(group, why, interruptOnCancel=True)
        return self.session

    def cancel(self, group: str) -> None:
        self.session.sparkContext.cancelJobGroup(group)


class Jobs:
    """Runs the code of jobs; `notes` are the checkpoints of the last one."""

    def __init__(self, spark: SparkSession, peer: str) -> None:
        self._spark = SharedSpark(spark)
        self._peers = peer.split(",")
        self._number = 1000
        self.notes: list[dict[str, Any]] = []
        self.context: JobContext | None = None

    def __call__(
        self,
        kind: JobKind,
        parameters: Parameters | Mapping[str, Any],
        *,
        checkpoint: dict[str, Any] | None = None,
        number: int = 0,
        before: Callable[[JobContext], None] | None = None,
    ) -> dict[str, Any]:
        self._number += 1
        given = plain(parameters) if isinstance(parameters, Parameters) else dict(parameters)
        job = JobRecord(
            number or self._number,
            Command(kind, given),
            JobState.RUNNING,
            request_id=f"test-{number or self._number}",
            owner_term=1,
            attempts=1,
            checkpoint=checkpoint or {},
        )
        self.notes = []
        lease = DriverLease(3_600_000, boot_s())
        self.context = JobContext(job, lease, self._spark, note=self.notes.append, peers=self._peers)
        if before is not None:
            before(self.context)
        return dict(Registry().code(kind)(self.context, given) or {})
