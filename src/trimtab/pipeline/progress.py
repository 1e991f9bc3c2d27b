"""How far a job is: bytes and rows done, of how many, at which rate, and how long it may still take.

The job says what it has done, from its thread; the driver asks once a second. The rate is that of the last while, so
that it follows a limit that was changed and is not confused by a slow start; the time left follows from bytes where
their total is known, else from rows.
"""

from __future__ import annotations

import threading
from collections import deque

from trimtab.jobs.protocol import Progress

WINDOW_S = 20.0
MAX_SAMPLES = 64
MAX_PHASE_CHARACTERS = 200
UNKNOWN = -1.0


class Meter:
    """Of one job. `told` from any thread, `now` from the driver's loop."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._bytes = self._rows = self._total_bytes = self._total_rows = 0
        self._phase = ""
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=MAX_SAMPLES)

    def set(
        self,
        *,
        bytes_done: int | None = None,
        rows_done: int | None = None,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        phase: str | None = None,
    ) -> None:
        """What is true now; what is not given stays."""
        with self._lock:
            self._bytes = self._bytes if bytes_done is None else max(int(bytes_done), 0)
            self._rows = self._rows if rows_done is None else max(int(rows_done), 0)
            self._total_bytes = self._total_bytes if total_bytes is None else max(int(total_bytes), 0)
            self._total_rows = self._total_rows if total_rows is None else max(int(total_rows), 0)
            self._phase = self._phase if phase is None else phase[:MAX_PHASE_CHARACTERS]

    def add(self, bytes_done: int = 0, rows_done: int = 0) -> None:
        """So much more is done."""
        with self._lock:
            self._bytes += max(int(bytes_done), 0)
            self._rows += max(int(rows_done), 0)

    def now(self, at_s: float) -> Progress:
        """What is told of it, at this time of a clock that only goes forward."""
        with self._lock:
            self._samples.append((at_s, self._bytes, self._rows))
            while len(self._samples) > 2 and at_s - self._samples[0][0] > WINDOW_S:
                self._samples.popleft()
            rate_bytes, rate_rows = self._rates(at_s)
            return Progress(
                self._number,
                self._bytes,
                self._total_bytes,
                self._rows,
                self._total_rows,
                round(rate_bytes, 1),
                self._eta_s(rate_bytes, rate_rows),
                self._phase,
            )

    def _rates(self, at_s: float) -> tuple[float, float]:
        first_s, first_bytes, first_rows = self._samples[0]
        took_s = at_s - first_s
        if took_s <= 0:
            return 0.0, 0.0
        # A job that began anew (another phase) has less than before; that is no rate.
        return max(self._bytes - first_bytes, 0) / took_s, max(self._rows - first_rows, 0) / took_s

    def _eta_s(self, rate_bytes: float, rate_rows: float) -> float:
        if self._total_bytes:
            left, rate = self._total_bytes - self._bytes, rate_bytes
        elif self._total_rows:
            left, rate = self._total_rows - self._rows, rate_rows
        else:
            return UNKNOWN
        if left <= 0:
            return 0.0
        return round(left / rate, 1) if rate > 0 else UNKNOWN
