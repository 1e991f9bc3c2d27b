"""The threads that jobs run in: so many, made when they are first needed, and used again and again.

Spark ties each thread that talks to it to one of its own; so there are only ever a few. They are daemons: a job that
does not end keeps its thread busy, but can't keep the process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]


class JobThreads:
    """Used from one thread, the driver's loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    @property
    def free(self) -> int:
        """How many more can begin at once."""
        return self._count - self._busy

    def begin(self, work: Work) -> None:
        """Run it in a thread. It must not raise; call `ended` from the loop when it is done."""
        assert self.free > 0, "every thread is busy"
        self._busy += 1
        if len(self._threads) < self._busy:
            thread = threading.Thread(target=self._run, name=f"job-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put(work)

    def ended(self) -> None:
        """One that was begun is done."""
        self._busy -= 1

    def close(self) -> None:
        """Threads that are idle end."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
