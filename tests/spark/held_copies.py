"""The driver's job `stream` with real Spark, whose copies wait half-way where a test wants it: see `holds`."""

from __future__ import annotations

from typing import Any

from tests.cluster import holds
from trimtab.jobs.records import JobKind
from trimtab.pipeline import streaming
from trimtab.pipeline.carrying import CarryTask, carry
from trimtab.pipeline.copies import Carried
from trimtab.pipeline.tasks import Done


def held(task: CarryTask, done: Done) -> list[Carried]:
    """In a worker of Spark."""
    holds.arm()
    return carry(task, done)


def stream(context: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    module: Any = streaming
    module.carry = held
    return streaming.stream(context, parameters)


JOBS = {JobKind.STREAM: stream}
