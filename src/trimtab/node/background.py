"""How work that runs beside requests ends: in silence when it is done or was stopped, and told when it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def defect_of(task: asyncio.Task[Any]) -> BaseException | None:
    """What ended it; None if it is done, or was stopped."""
    return None if task.cancelled() else task.exception()


def telling(defect: Callable[[BaseException], None]) -> Callable[[asyncio.Task[Any]], None]:
    """For `add_done_callback` of a task that never ends by itself."""

    def ended(task: asyncio.Task[Any]) -> None:
        if (error := defect_of(task)) is not None:
            defect(error)

    return ended
