"""Jobs for the driver's own session of Spark: one that is quick, and one that goes on until it is cancelled."""

from __future__ import annotations

import time
from typing import Any

from trimtab.jobs.records import JobKind
from trimtab.pipeline.running import JobContext


def quick(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    spark = context.session
    gateway: Any = spark.sparkContext._gateway
    return {"rows": spark.range(1_000).count(), "java": gateway.proc.pid, "group": context.job_group}


def endless(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    def slowly(numbers: Any) -> Any:
        for number in numbers:
            time.sleep(0.05)
            yield number

    context.progress(phase="counting slowly")
    rows = context.session.sparkContext.parallelize(range(100_000), 1).mapPartitions(slowly).count()
    return {"rows": rows}


JOBS = {JobKind.COUNT: quick, JobKind.VERIFY: endless}
