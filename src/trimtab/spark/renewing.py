"""Saying that a load is still worked on, beside the work.

The leader ends a load whose driver is silent for longer than its lease. A job's driver renews in a thread for as long
as the load is under way. In a plain write of a DataFrame nobody of ours lives that long: Spark makes the writer in one
process, runs its tasks in others, and commits in a third. There the tasks renew, each while it runs, and the lease is
long enough for the time between two of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from trimtab.client.errors import Error
from trimtab.spark.load_plan import LoadFailed, NotNow

PER_LEASE = 4  # renewals
_JOIN_S = 0.5


class Renewing:
    """A context manager. `renew` raises LoadFailed when the load has ended; any other Error is tried again, until the
    lease is over. `check` raises what ended it.
    """

    def __init__(self, renew: Callable[[], None], lease_ms: int, *, at_once: bool = False) -> None:
        self._renew = renew
        self._lease_s = lease_ms / 1000
        self._at_once = at_once
        self._stop = threading.Event()
        self._ended: str = ""
        self._thread = threading.Thread(target=self._run, name="trimtab-renew", daemon=True)

    def __enter__(self) -> Renewing:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # If it is just asking, it asks in vain; nobody has to wait for that.
        self._thread.join(_JOIN_S)

    @property
    def ended(self) -> str:
        """Why the load is over; empty: it is not, as far as is known."""
        return self._ended

    def check(self) -> None:
        if self._ended:
            raise NotNow(self._ended)

    def _run(self) -> None:
        good_until = time.monotonic() + self._lease_s
        pause_s = 0.0 if self._at_once else self._lease_s / PER_LEASE
        while not self._stop.wait(pause_s):
            pause_s = self._lease_s / PER_LEASE
            asked = time.monotonic()
            try:
                self._renew()
                good_until = asked + self._lease_s
            except LoadFailed as error:
                self._ended = str(error)
                return
            except Error as error:
                if time.monotonic() > good_until:
                    self._ended = (
                        f"the lease of the load ended: no leader could be told for {self._lease_s:g} s: {error}"
                    )
                    return
                pause_s = min(pause_s, 1.0)
