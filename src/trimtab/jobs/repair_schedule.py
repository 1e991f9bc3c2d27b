"""When tables are repaired by themselves: an interval that operators set, and when each table had its turn last.

    settings/repair_interval   RepairInterval: so often each table is repaired; 0: only when somebody asks
    pipeline/repairs           RepairTimes: when a repair of each table was last asked for, or the table first noticed

One table at a time: while a repair is open, whoever asked for it, no other is begun. A table's time begins when it is
noticed, so a new one is not repaired at once. Only tables with several replicas have anything to compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.jobs.view import JobView
from trimtab.topology.records import PIPELINE, SETTINGS

INTERVAL_KEY = SETTINGS + b"repair_interval"
TIMES_KEY = PIPELINE + b"repairs"
DAY_S = 86_400
DEFAULT_INTERVAL_S = 3 * DAY_S
MIN_INTERVAL_S = 60
MAX_INTERVAL_S = 365 * DAY_S
WHY = "it is scheduled"


class RepairInterval(msgspec.Struct, frozen=True, omit_defaults=True):
    interval_s: int
    set_ms: int = 0


class RepairTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """By table id."""

    tables: dict[int, int] = {}


encode: Any = msgspec.json.Encoder().encode
_decode_interval = msgspec.json.Decoder(RepairInterval).decode
_decode_times = msgspec.json.Decoder(RepairTimes).decode


@dataclass
class RepairSchedule:
    """As applied here. What can't be read counts as not set."""

    interval_s: int = DEFAULT_INTERVAL_S
    times: RepairTimes = field(default_factory=RepairTimes)
    revisions: dict[bytes, int] = field(default_factory=dict)

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value; other keys are ignored."""
        if key not in (INTERVAL_KEY, TIMES_KEY):
            return
        if value is None:
            self.revisions.pop(key, None)
        else:
            self.revisions[key] = revision
        if key == INTERVAL_KEY:
            self.interval_s = _interval(value)
        else:
            self.times = _times(value)

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = RepairSchedule()
        for key, value, revision in entries:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)


@dataclass(frozen=True)
class Turn:
    """What is to be written: the times, and a repair where one is due."""

    times: RepairTimes
    job: JobRecord | None = None


def next_turn(
    schedule: RepairSchedule, jobs: JobView, tables: Mapping[int, str], number: int, now_ms: int
) -> Turn | None:
    """What to do now; None: nothing. `tables`: names of those with several replicas; `number` is the next job's."""
    before = schedule.times.tables
    # A time to come is of a clock that was wrong: it counts from now on.
    times = {table: min(before.get(table, now_ms), now_ms) for table in tables}
    due = [
        (since_ms, table)
        for table, since_ms in times.items()
        if schedule.interval_s and now_ms - since_ms >= schedule.interval_s * 1000
    ]
    if due and not any(job.command.kind is JobKind.REPAIR for job in jobs.open_jobs()):
        _since_ms, table = min(due)
        times[table] = now_ms
        command = Command(JobKind.REPAIR, {"table": tables[table]})
        job = JobRecord(
            number,
            command,
            JobState.QUEUED,
            why=f"repair of {tables[table]}: {WHY}",
            request_id=f"repair-{table}-{now_ms}",
            asked_ms=now_ms,
        )
        return Turn(RepairTimes(times), job)
    return Turn(RepairTimes(times)) if times != before else None


def wrong_interval(interval_s: int) -> str:
    """Why this can't be the interval; empty if it can."""
    if interval_s == 0 or MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        return ""
    return f"tables are repaired every {MIN_INTERVAL_S} to {MAX_INTERVAL_S} s, or never (0), not every {interval_s} s"


def _interval(value: bytes | None) -> int:
    try:
        return max(_decode_interval(value).interval_s, 0) if value is not None else DEFAULT_INTERVAL_S
    except ValueError:
        return DEFAULT_INTERVAL_S


def _times(value: bytes | None) -> RepairTimes:
    try:
        return _decode_times(value) if value is not None else RepairTimes()
    except ValueError:
        return RepairTimes()
