"""Jobs that need no Spark, for tests of the queue and its driver: what they do is written down in files.

steps     so many steps, each with a line in the journal and a checkpoint; holds while the file `hold` exists
fail      always fails; `again` says whether it may be tried
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trimtab.jobs.records import JobKind
from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.running import JobContext

_POLL_S = 0.01


def steps(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    """Steps that must each be done once: a takeover goes on after the last that was noted."""
    journal, hold = Path(parameters["journal"]), Path(parameters.get("hold", os.devnull + "/none"))
    count = int(parameters["steps"])
    done = int(context.noted.get("done", 0))
    context.on_stop(lambda: _write(journal, "fenced"))
    for step in range(done, count):
        if step == parameters.get("holds_at", 0):
            while hold.exists():
                context.stopped.wait(_POLL_S)
                context.check()
        context.check()
        _write(journal, f"step {step}")
        context.progress(bytes=(step + 1) * 100, total_bytes=count * 100, rows=step + 1, total_rows=count)
        context.checkpoint({"done": step + 1})
    return {"steps": count, "pid": os.getpid()}


def fail(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    _write(Path(parameters["journal"]), f"attempt {context.attempt}")
    raise JobFailed("it was made to fail", again=bool(parameters.get("again", False)))


def _write(journal: Path, line: str) -> None:
    with journal.open("a") as file:
        file.write(f"{line}\n")


JOBS = {JobKind.COUNT: steps, JobKind.VERIFY: fail}
