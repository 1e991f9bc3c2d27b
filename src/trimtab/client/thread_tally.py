"""How a put_many of a blocking client goes: like `tally`, but rows come from a thread, which waits itself.

The application's rows are read in its own thread: what yields them may use the client, or take its time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from trimtab.client.asks import Ask
from trimtab.client.errors import Error, InvalidRequest
from trimtab.client.loop_thread import LoopThread
from trimtab.client.many import Placed, RowBatches
from trimtab.client.tally import told
from trimtab.client.writes import PutSome

_LOOK_S = 1.0


class ThreadTally:
    """The sink of all requests of one put_many: told on the loop, looked at by the thread."""

    gone = False

    def __init__(self, thread: LoopThread, batches: RowBatches) -> None:
        self._thread = thread
        self._batches = batches
        self._changed = threading.Condition()
        self._ended: deque[Ask[Any]] = deque()
        self._under_way = 0
        self._written = 0
        self._error: Exception | None = None

    def added(self, row: Mapping[str, Any]) -> PutSome | None:
        """Take a row; a request that is full now. Raises what went wrong so far."""
        if self._error is not None:
            self.result()
        try:
            row, plan, cells, key = self._placed(row)
        except Error as error:
            self._error = error
            self.result()
            raise
        self._note_ended()
        if self._batches.conflicts(key, plan):
            for ask in self._batches.rest():
                self.send(ask, 1 << 30)
            self.drain()
            self._batches.forget()
        return self._batches.add(row, plan, cells, key)

    def _placed(self, row: Mapping[str, Any]) -> Placed:
        known = self._thread.session.known
        try:
            return self._batches.placed(row)
        except InvalidRequest:
            if not self._thread.look(known):
                raise
            return self._batches.placed(row)

    def send(self, ask: PutSome, most: int) -> None:
        """Send a request when fewer than `most` are under way."""
        self._below(most)
        if self._error is not None:
            self.result()
        ask.sink = self
        with self._changed:
            self._under_way += 1
        try:
            self._thread.submit(ask)
        except Error:
            # It is not on its way, and its end would be waited for in vain.
            with self._changed:
                self._under_way -= 1
            raise

    def drain(self) -> None:
        """Wait until nothing is under way."""
        self._below(1)

    def result(self) -> int:
        """How many rows were written, or the first error, which says so too."""
        if self._error is not None:
            self.drain()
            raise told(self._error, self._written)
        return self._written

    def _below(self, most: int) -> None:
        with self._changed:
            while self._under_way >= most:
                if not self._changed.wait(_LOOK_S) and not self._thread.alive:
                    raise Error("the client's own thread has ended; it is unknown what was written")
        self._note_ended()

    def _note_ended(self) -> None:
        while self._ended:
            self._batches.ended(self._ended.popleft())

    # The sink

    def answered(self, ask: Ask[Any], body: bytes) -> None:
        assert isinstance(ask, PutSome)
        error: Exception | None = None
        try:
            ask.read(body)
        except Exception as found:
            error = found
        self._end(ask, error, len(ask.rows))

    def failed(self, ask: Ask[Any], error: Exception) -> None:
        self._end(ask, error, 0)

    def _end(self, ask: Ask[Any], error: Exception | None, rows: int) -> None:
        with self._changed:
            if error is None:
                self._written += rows
            self._error = self._error or error
            self._ended.append(ask)
            self._under_way -= 1
            self._changed.notify()
