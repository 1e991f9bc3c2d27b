"""How commands ask for jobs and wait for them: one that is asked for goes on by itself, whoever leaves.

`run_job` is what every command does that is a job: ask, show how far it is, say how it ended. Exit code 1 when it did
not succeed. Ctrl-C stops waiting, not the job.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trimtab.cli.asking import ask
from trimtab.cli.contact import Contact
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.cluster import ClusterClient
    from trimtab.jobs.protocol import Progress as Told
    from trimtab.jobs.records import JobKind, JobRecord

Describe = Callable[[dict[str, Any]], str]


def run_job(
    contact: Contact,
    kind: JobKind,
    parameters: Mapping[str, Any],
    *,
    why: str,
    no_wait: bool = False,
    as_json: bool = False,
    describe: Describe | None = None,
) -> int:
    """Ask for a job and wait for its end, or only ask; the exit code. `describe` makes a sentence of its result."""

    async def create(client: ClusterClient) -> JobRecord:
        return await client.jobs.create(kind, parameters, why=why)

    job = ask(contact, create)
    if not no_wait:
        return await_job(contact, job.number, as_json, describe)
    if as_json:
        from trimtab.jobs import shapes

        print(json.dumps(shapes.task(job)))
    else:
        print(f"Job {job.number} ({why}) is {job.state.value}. {how(job.number)}")
    return 0


def await_job(contact: Contact, number: int, as_json: bool, describe: Describe | None = None) -> int:
    """Wait for a job's end, showing how far it is; the exit code, and CommandFailed with why it did not succeed."""
    from trimtab.cli.progress import Progress
    from trimtab.jobs import shapes
    from trimtab.jobs.records import JobState

    began = time.monotonic()
    progress = Progress()

    def seen(job: JobRecord, told: Told | None) -> None:
        progress.show({f"job {number}": progress_text(shapes.task(job, told))})

    async def wait(client: ClusterClient) -> JobRecord:
        return await client.jobs.wait(number, seen)

    try:
        with progress:
            job = ask(contact, wait)
    except KeyboardInterrupt:
        print(f"trimtab: no longer waiting; job {number} goes on. {how(number)}", file=sys.stderr)
        raise
    shape = shapes.task(job)
    if as_json:
        print(json.dumps(shape))
    if job.state is not JobState.SUCCEEDED:
        raise CommandFailed(f"job {number} ({shape['why']}) {job.state.value}: {job.error.rstrip('.')}.")
    if not as_json:
        said = (
            describe(job.result) if describe is not None and job.result else f"Job {number} ({shape['why']}) succeeded"
        )
        print(f"{said.rstrip('.')} ({time.monotonic() - began:.1f} s).")
    return 0


def how(number: int) -> str:
    return f"`trimtab tasks wait {number}` waits for it, `trimtab tasks cancel {number}` cancels it."


def progress_text(task: Mapping[str, Any]) -> str:
    """How far a task is, in a few words; just its state where nothing is known."""
    from trimtab.cli.drawing import in_bytes

    parts = [str(task["state"])]
    if task.get("phase"):
        parts.append(str(task["phase"]))
    if task["total_bytes"]:
        share = min(task["progress_bytes"] / task["total_bytes"], 1.0)
        parts.append(f"{share:.0%} of {in_bytes(task['total_bytes'])}")
    elif task["progress_bytes"]:
        parts.append(in_bytes(task["progress_bytes"]))
    if task.get("total_rows") and not task["total_bytes"]:
        parts.append(f"{task['progress_rows']:,} of {task['total_rows']:,} rows")
    elif task.get("progress_rows"):
        parts.append(f"{task['progress_rows']:,} rows")
    if task.get("rate_bytes_s"):
        parts.append(f"{in_bytes(int(task['rate_bytes_s']))}/s")
    if task.get("eta_s") is not None:
        parts.append(f"{task['eta_s']:.0f} s left")
    return ", ".join(parts)
