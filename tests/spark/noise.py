"""What Spark says on its own, and nobody can keep it from saying."""

from __future__ import annotations

import re

# The processes in which Spark runs Python, those that look for sources among them, complain, now and then, when Spark
# hangs up on them or dies: while they start, while they greet, or when they have done their work. All of the stack is
# Spark's own then. What it says may be cut off by its end.
_SPARKS_OWN = re.compile(
    r"(?:PySpark daemon failed to flush the output to the worker process:\n)?"
    r"Traceback \(most recent call last\):\n"
    r'(?:  File "(?:<frozen runpy>|.*/pyspark/(?:daemon|serializers)\.py|.*/socket\.py)".*\n(?:    .*\n)*)*'
    r"(?:(?:BrokenPipeError|ConnectionResetError): .*\n\n?|(?:  .*)?\Z)"
)


def without_sparks_own(text: str) -> str:
    return _SPARKS_OWN.sub("", text)
