"""What is made of what the code of a job raises."""

from __future__ import annotations

import pytest

from trimtab.client.errors import InvalidRequest, NotFound, Timeout, Unavailable
from trimtab.pipeline.failures import MAX_REASON_CHARACTERS, JobFailed, again, reason_of
from trimtab.spark.load_plan import LoadFailed, NotNow, OutOfReach

TASK = """An error occurred while calling o55.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 1, in main
trimtab.client.errors.InvalidRequest: row 7 has no key
\tat org.apache.spark.api.python.BasePythonRunner
Driver stacktrace:"""


class AnalysisException(Exception):
    """As Spark calls it."""


@pytest.mark.parametrize(
    ("error", "may_be_tried"),
    [
        (JobFailed("no"), False),
        (JobFailed("not now", again=True), True),
        (InvalidRequest("no such column"), False),
        (NotFound("no such table"), False),
        (Unavailable("nobody answers"), True),
        (Timeout("no answer"), True),
        (LoadFailed("a key has different rows in the load"), False),
        (NotNow("the load was aborted: its lease ended"), True),
        (OutOfReach("too few replicas can be reached"), True),
        (ValueError("what"), False),
        (AnalysisException("no such path"), False),
        (ConnectionError("reset"), True),
        (RuntimeError("Java has died"), True),
    ],
)
def test_mistakes_are_not_repeated_and_trouble_is_tried_again(error: Exception, may_be_tried: bool) -> None:
    assert again(error) is may_be_tried


def test_reasons_are_one_line_and_say_what_a_task_raised() -> None:
    assert reason_of(JobFailed("there is no table shop.x")) == "there is no table shop.x"
    assert reason_of(RuntimeError(TASK)) == "a task failed: trimtab.client.errors.InvalidRequest: row 7 has no key"
    assert reason_of(OSError("no\nspace")) == "OSError: no"
    assert reason_of(KeyError()) == "KeyError"
    assert len(reason_of(JobFailed("x" * 10_000))) == MAX_REASON_CHARACTERS
