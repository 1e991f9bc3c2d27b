"""Errors as whoever writes a Spark program should see them: what was wrong, without the way it took through our code.

Spark shows a failed step of a source with its traceback, in front of the sentence that says what to do. Of errors that
we raise on purpose the sentence is all there is to know; any other exception is a defect and keeps its traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from trimtab.client.errors import Error

P = ParamSpec("P")
R = TypeVar("R")


def told_plainly(step: Callable[P, R]) -> Callable[P, R]:
    """The same step; where it raises an Error, that comes without its traceback and without what it came from."""

    @functools.wraps(step)
    def told(*given: P.args, **named: P.kwargs) -> R:
        try:
            return step(*given, **named)
        except Error as error:
            raise error.with_traceback(None) from None

    return told
