"""How a job ends when it does not succeed: what its code raises, and what is made of what it raises.

A job that was told to stop ends by `Stopped`, wherever it looks (`JobContext.check`). `JobFailed` is for what the job's
code knows to be wrong: the text goes to the operator as it is, and `again` says whether another attempt may help.
Everything else is judged here: requests that make no sense are not repeated, trouble of network and processes is. Of
a load that came to nothing its error knows (`LoadFailed.again`).
"""

from __future__ import annotations

from trimtab.client.errors import Error, InvalidRequest, NotFound, SchemaError
from trimtab.spark.load_plan import LoadFailed

MAX_REASON_CHARACTERS = 800
# Mistakes of the request or of the code: the same again would be the same.
_FINAL = (InvalidRequest, NotFound, SchemaError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError)
# By name, because Spark is imported by those alone who use it.
_FINAL_NAMES = frozenset(
    ("AnalysisException", "ParseException", "IllegalArgumentException", "UnsupportedOperationException")
)


class Stopped(Exception):
    """The job was told to stop, and did."""


class Cancelled(Stopped):
    """An operator cancelled it: what it has begun is to be taken back."""


class Paused(Stopped):
    """An operator paused it: it goes on later, from its checkpoint."""


class PutBack(Stopped):
    """Its driver ends: the job goes back to the queue, and goes on from its checkpoint."""


class LeaseLost(Stopped):
    """Its driver has lost its lease: another may run the job already, and nothing that this one says counts."""


class JobFailed(Exception):
    """It can't be done; the text says why, and what to do. `again`: another attempt may succeed."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


def reason_of(error: BaseException) -> str:
    """Why, in one line for an operator."""
    if isinstance(error, JobFailed | Error):
        return _short(str(error) or type(error).__name__)
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Traceback (most recent call last)" in text:
        # Of a task: what it raised is the last line of its trace, not the first of the driver's.
        lines = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "Driver stacktrace"))]
        raised = [line for line in lines if line.split(":", 1)[0].replace(".", "").isidentifier() and ":" in line]
        return _short(f"a task failed: {raised[-1] if raised else lines[0]}")
    return _short(f"{type(error).__name__}: {lines[0]}")


def again(error: BaseException) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, JobFailed | LoadFailed):
        return error.again
    return not isinstance(error, _FINAL) and type(error).__name__ not in _FINAL_NAMES


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= MAX_REASON_CHARACTERS else one_line[: MAX_REASON_CHARACTERS - 1] + "…"
