"""What people and scripts are shown of jobs: the same fields as any other task has, and a few of their own.

The command line and the HTTP door print these and nothing else. Fields may be added, not renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.jobs.protocol import JobsReply, Progress
from trimtab.jobs.records import JobRecord, JobState
from trimtab.topology.shapes import moment

Shape = dict[str, Any]
NOBODY_DRIVES = "no driver runs; the leader's supervisor starts one, or `trimtab pipeline` does"


def tasks(reply: JobsReply) -> list[Shape]:
    """All jobs of an answer, by number."""
    progress = {each.number: each for each in reply.progress}
    shown = [task(job, progress.get(job.number)) for job in sorted(reply.jobs, key=lambda job: job.number)]
    if reply.driver is None or reply.driver.gone:
        for each in shown:
            if each["state"] == JobState.QUEUED.value and each["reason"] is None:
                each["reason"] = NOBODY_DRIVES
    return shown


def together(requests: Iterable[Shape], jobs: Iterable[Shape], moves: Iterable[Shape] = ()) -> list[Shape]:
    """Requests and jobs in the order of asking: they count together. Tablets under way have names, and follow."""
    return sorted((*requests, *jobs), key=lambda task: task["id"]) + list(moves)


def task(job: JobRecord, progress: Progress | None = None) -> Shape:
    """One job; `progress` is what its driver told last, where it runs and the leader was asked."""
    running = job.state is JobState.RUNNING
    told = progress if running else None
    failed = job.state in (JobState.FAILED, JobState.CANCELLED)
    return {
        "id": job.number,
        "kind": job.command.kind.value,
        "state": job.state.value,
        "why": job.why or _why(job),
        "progress_bytes": told.progress_bytes if told else job.progress_bytes,
        "total_bytes": told.total_bytes if told else job.total_bytes,
        "rate_bytes_s": told.rate_bytes_s if told else None,
        "eta_s": told.eta_s if told and told.eta_s >= 0 else None,
        "started": moment(job.started_ms),
        "error": (job.error or job.state.value) if failed else None,
        "instance_id": None,
        "raft_id": None,
        "asked": moment(job.asked_ms),
        "ended": moment(job.ended_ms),
        "deadline": None,
        "cancelling": (job.error or "an operator cancels it") if running and job.wanted == "cancel" else None,
        "reason": _reason(job) or None,
        "progress_rows": told.progress_rows if told else job.progress_rows,
        "total_rows": told.total_rows if told else job.total_rows,
        "phase": (told.phase or None) if told else None,
        "attempts": job.attempts,
        "waits_for": list(job.waits_for),
        "pausing": running and job.wanted == "pause",
        "parameters": dict(job.command.parameters),
        "result": dict(job.result) or None,
        "undoes": job.undoes or None,
        "undone_by": list(job.undone_by),
        "driver_term": job.owner_term or None,
        "progress_tablets": 0,
        "total_tablets": 0,
        "move": None,
    }


def _reason(job: JobRecord) -> str:
    """Why it is as it is; of one that is being tried again, what it failed of before."""
    tried_again = job.state is JobState.RUNNING and job.error and job.wanted != "cancel"
    return f"the attempt before failed: {job.error}" if tried_again else job.error


def _why(job: JobRecord) -> str:
    """What a job is for that nobody gave a reason for."""
    table: Mapping[str, Any] | Any = job.command.parameters.get("table")
    return f"{job.command.kind.value} of {table}" if isinstance(table, str) else job.command.kind.value
