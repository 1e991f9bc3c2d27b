"""What is said about jobs: by operators and programs, and by the driver that runs them. All of it reaches the leader.

    method         from -> to                body             answer
    job.create     anyone -> any -> leader   CreateJob        JobReply
    job.show       anyone -> any             ShowJobs         JobsReply       the leader knows the progress
    job.steer      operator -> any -> leader SteerJob         JobReply        pause, resume, cancel
    repair.schedule  operator -> any -> leader ScheduleRequest ScheduleReply  how often tables are repaired
    driver.enter   driver -> any -> leader   EnterRequest     EnterReply      its term; `taken`: another one lives
    driver.beat    driver -> any -> leader   BeatRequest      BeatReply       every second: progress out, orders in;
                                                                               answered at once when there is news
    driver.take    driver -> any -> leader   TakeRequest      JobReply        a job becomes its own
    driver.note    driver -> any -> leader   NoteRequest      JobReply        checkpoint of a running job
    driver.end     driver -> any -> leader   EndRequest       JobReply        succeeded, failed, paused, cancelled
    driver.leave   driver -> any -> leader   LeaveRequest     b""

Arrays on the wire; fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab.jobs.records import Command, DriverRecord, JobRecord, JobState

CREATE = "job.create"
SHOW = "job.show"
STEER = "job.steer"
SCHEDULE = "repair.schedule"
ENTER = "driver.enter"
BEAT = "driver.beat"
TAKE = "driver.take"
NOTE = "driver.note"
END = "driver.end"
LEAVE = "driver.leave"


class CreateJob(msgspec.Struct, array_like=True, frozen=True):
    command: Command
    request_id: str
    why: str = ""
    waits_for: tuple[int, ...] = ()
    undo: tuple[Command, ...] = ()
    max_attempts: int = 0
    forwarded: bool = False


class JobReply(msgspec.Struct, array_like=True, frozen=True):
    job: JobRecord


class ShowJobs(msgspec.Struct, array_like=True, frozen=True):
    """`numbers` empty: all of them, `limit` newest. `local`: as whoever is asked knows them, without the leader."""

    numbers: tuple[int, ...] = ()
    limit: int = 100
    forwarded: bool = False
    local: bool = False


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """Of a running job, as its driver told it last. Soft: it is lost with the leader. `eta_s` < 0: not known."""

    number: int
    progress_bytes: int = 0
    total_bytes: int = 0
    progress_rows: int = 0
    total_rows: int = 0
    rate_bytes_s: float = 0.0
    eta_s: float = -1.0
    phase: str = ""


class JobsReply(msgspec.Struct, array_like=True, frozen=True):
    jobs: list[JobRecord]
    progress: list[Progress] = []
    driver: DriverRecord | None = None
    left_out: int = 0  # older ones that had no room in the answer


class SteerJob(msgspec.Struct, array_like=True, frozen=True):
    """`order`: pause, resume or cancel."""

    number: int
    order: str
    reason: str = ""
    forwarded: bool = False


class ScheduleRequest(msgspec.Struct, array_like=True, frozen=True):
    """Seconds between repairs of a table; 0: never by itself; negative: only tell."""

    interval_s: int = -1
    forwarded: bool = False


class ScheduleReply(msgspec.Struct, array_like=True, frozen=True):
    """`since_ms` by table id: when a repair was last asked for, or the table was first noticed."""

    interval_s: int
    since_ms: dict[int, int] = {}


class EnterRequest(msgspec.Struct, array_like=True, frozen=True):
    driver_id: str
    lease_ms: int = 10_000
    address: str = ""
    master: str = ""
    forwarded: bool = False


class EnterReply(msgspec.Struct, array_like=True, frozen=True):
    driver: DriverRecord


class BeatRequest(msgspec.Struct, array_like=True, frozen=True):
    """`wait_ms`: answer when the queue is another than at the revision `since`, at the latest after so long."""

    driver_id: str
    term: int
    progress: list[Progress] = []
    forwarded: bool = False
    wait_ms: int = 0
    since: int = 0


class BeatReply(msgspec.Struct, array_like=True, frozen=True):
    """Jobs that may be taken now, and what is wanted of those it runs ((number, order)). `valid` False: it is out.

    `running`: the jobs that are its own; one that it does not know of it has taken without hearing the answer.
    `revision`: that of the newest change of the queue; 0: not known.
    """

    valid: bool
    ready: list[JobRecord] = []
    wanted: list[tuple[int, str]] = []
    running: list[int] = []
    revision: int = 0


class TakeRequest(msgspec.Struct, array_like=True, frozen=True):
    term: int
    number: int
    forwarded: bool = False


class NoteRequest(msgspec.Struct, array_like=True, frozen=True):
    term: int
    number: int
    checkpoint: dict[str, Any] = {}
    forwarded: bool = False
    attempt: int = 0


class EndRequest(msgspec.Struct, array_like=True, frozen=True):
    """`state`: SUCCEEDED, FAILED (`again`: it may be tried again), PAUSED, CANCELLED, QUEUED (the driver puts it back).

    `attempt` is the one that ended: what is said late about an earlier one changes nothing.
    """

    term: int
    number: int
    state: JobState
    error: str = ""
    again: bool = False
    result: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {}
    progress: Progress | None = None
    forwarded: bool = False
    attempt: int = 0


class LeaveRequest(msgspec.Struct, array_like=True, frozen=True):
    driver_id: str
    term: int
    forwarded: bool = False


encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[Any]) -> Any:
    return msgspec.msgpack.Decoder(kind).decode


decode_create = decoder(CreateJob)
decode_job_reply = decoder(JobReply)
decode_show = decoder(ShowJobs)
decode_jobs_reply = decoder(JobsReply)
decode_steer = decoder(SteerJob)
decode_schedule = decoder(ScheduleRequest)
decode_schedule_reply = decoder(ScheduleReply)
decode_enter = decoder(EnterRequest)
decode_enter_reply = decoder(EnterReply)
decode_beat = decoder(BeatRequest)
decode_beat_reply = decoder(BeatReply)
decode_take = decoder(TakeRequest)
decode_note = decoder(NoteRequest)
decode_end = decoder(EndRequest)
decode_leave = decoder(LeaveRequest)
