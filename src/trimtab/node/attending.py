"""Children beside the node as their supervisor sees them: the bulk child, and a driver of jobs while there is work.

When they are started is decided in `supervision` (`Attendance`, `Errand`); this is the doing. They say nothing and are
asked nothing; only their end is awaited. They can be killed at any time without loss, so that is how they end with
their supervisor, and how the bulk child makes way before the database is dropped.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from trimtab.node.children import Child, Say
from trimtab.node.logs import Log
from trimtab.node.supervision import Attendance, Errand, Exited, StartBulk, StartDriver, Word

BulkBody = Callable[[Say], int]
# By which they are told from the node in a list of processes.
NAME = "trimtab-bulk"
DRIVER_NAME = "trimtab-driver"


class Attending:
    """One child of its kind at a time; none where there is no body. `called`: how the log calls it."""

    def __init__(
        self,
        body: BulkBody | None,
        selector: selectors.BaseSelector,
        log: Log,
        attendance: Attendance | Errand,
        *,
        not_for_it: Callable[[], Sequence[int]],
        name: str = NAME,
        called: str = "the bulk child",
    ) -> None:
        self.due_s: float | None = None
        self._body = body
        self._selector = selector
        self._log = log
        self._attendance = attendance
        self._not_for_it = not_for_it
        self._name = name
        self._called = called
        self._child: Child | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Its own, which are not for the node."""
        return (self._child.reader, self._child.pid_descriptor) if self._child is not None else ()

    def node_said(self, word: Word) -> None:
        self._decided(self._attendance.node_said(word))

    def signal(self, number: int) -> None:
        """Everything is told to end."""
        self._attendance.leave_off()
        self.due_s = None
        if self._child is not None:
            self._child.signal(number)

    def end(self) -> None:
        """It is gone when this returns, until the node is ready again."""
        self._attendance.leave_off()
        self.due_s = None
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
            self._reap(self._child)

    def do_what_is_due(self) -> None:
        if self.due_s is not None and self.due_s <= time.monotonic():
            self.due_s = None
            self._start()

    def _decided(self, decisions: Sequence[StartBulk | StartDriver]) -> None:
        for decision in decisions:
            if self._body is None:
                return
            if decision.why:
                self._log.warning(f"{self._called} ended: {decision.why}; starting it again in {decision.after_s:g} s")
            self.due_s = time.monotonic() + decision.after_s

    def _start(self) -> None:
        assert self._body is not None
        if self._child is not None:
            return
        try:
            child = Child.fork(self._body, close=self._not_for_it(), name=self._name)
        except OSError as error:
            self._log.error(f"{self._called} could not be started: {error}")
            self._decided(self._attendance.exited(Exited(1, 0.0)))
            return
        self._child = child
        self._log.debug(f"started {self._called}", pid=child.pid)
        self._selector.register(child.pid_descriptor, selectors.EVENT_READ, partial(self._ended, child))

    def _ended(self, child: Child) -> None:
        if child is self._child:
            self._decided(self._attendance.exited(self._reap(child)))

    def _reap(self, child: Child) -> Exited:
        self._selector.unregister(child.pid_descriptor)
        self._child = None
        return Exited(*child.reap())
