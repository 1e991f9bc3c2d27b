"""What the metastore keeps of bulk work: the queue of document 003, corrected, and who works through it.

    jobs/<number>       JobRecord, in the order of asking
    pipeline/driver     DriverRecord: the one who may run jobs now, by a term of its own

    state       next
    waiting     queued (every one it waits for succeeded), failed (one of them did not), cancelled
    queued      running, paused, cancelled
    running     succeeded, queued (the driver is gone; after a failure, with backoff), paused, failed, cancelled
    paused      queued, cancelled
    failed, cancelled, succeeded: final; `undo` commands of one that began and did not succeed become jobs of their own

Numbers are those of requests and jobs together, so that every task has its own.

A job is *run* by the driver whose term is in `owner_term`. A driver whose term is not the newest can change nothing:
all it writes is conditional on its term.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from trimtab.topology.records import PIPELINE

DRIVER_KEY = PIPELINE + b"driver"
MAX_ATTEMPTS = 5


class JobKind(enum.Enum):
    LOAD = "load"
    EXPORT = "export"
    VERIFY = "verify"
    REPAIR = "repair"
    COUNT = "count"
    ANALYZE = "analyze"
    STREAM = "stream"


class JobState(enum.Enum):
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do: parameters are plain JSON (strings, numbers, lists, maps)."""

    kind: JobKind
    parameters: dict[str, Any] = {}


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`waits_for`: the numbers of all jobs that must have succeeded before. `undo`: done if it fails for good.

    `attempts` are counted when they begin; those that ended by no fault of the job (its driver was told to stop) are
    `excused`. `undone_by` are the jobs that its undo commands became.
    `wanted`: what an operator asked of a running job ("pause", "cancel"); its driver obeys. `checkpoint` is what the
    driver noted for whoever takes over. `result` is small; large results are files or tables. `error` of one that
    has not ended: why it is cancelled, or why its last attempt failed.
    """

    number: int
    command: Command
    state: JobState
    why: str = ""
    waits_for: tuple[int, ...] = ()
    undo: tuple[Command, ...] = ()
    undoes: int = 0
    owner_term: int = 0
    attempts: int = 0
    max_attempts: int = MAX_ATTEMPTS
    not_before_ms: int = 0
    wanted: str = ""
    checkpoint: dict[str, Any] = {}
    result: dict[str, Any] = {}
    error: str = ""
    request_id: str = ""  # asking again with the same one is harmless
    asked_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    progress_bytes: int = 0
    total_bytes: int = 0
    progress_rows: int = 0
    total_rows: int = 0
    excused: int = 0
    undone_by: tuple[int, ...] = ()

    @property
    def spent(self) -> bool:
        """Whether it has been tried as often as it may be."""
        return self.attempts - self.excused >= self.max_attempts

    @property
    def to_undo(self) -> bool:
        """Whether it left something behind that its undo commands take back: it began, and did not succeed."""
        began = self.attempts > 0 and self.state in (JobState.FAILED, JobState.CANCELLED)
        return began and bool(self.undo) and not self.undone_by


class DriverRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`term` grows with every driver that takes over. `lease_ms`: it is heard from at least that often, or is gone."""

    driver_id: str
    term: int
    since_ms: int
    lease_ms: int = 10_000
    address: str = ""
    master: str = ""
    gone: bool = False


encode: Any = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(JobRecord).decode
decode_driver = msgspec.json.Decoder(DriverRecord).decode
