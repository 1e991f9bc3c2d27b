"""The supervisor: a process that starts the node, hears its words, and starts it again when it crashed.

It does the same, with less ado, for the bulk child and a driver of jobs (`attending`), which never keep it from
anything.

What to do is decided in `supervision`; this is the doing: fork, wait, drop the database, forward signals, kill what
does not end. It sleeps in one system call until a child speaks or ends, a signal comes, or a time is up; idle it does
nothing at all. What a node needs is loaded by whoever calls it, before the first child is forked: the memory is shared,
and whoever follows a child that ended begins without loading anything. What only a member needs is loaded while the
first child of a new instance looks for others: one that has joined gets tablets and requests at once, and would have to
load it in competition with them.

Document 002: "the only purpose of the parent process is to be able to reset the state of the child".
"""

from __future__ import annotations

import gc
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from trimtab.node.attending import DRIVER_NAME, Attending, BulkBody
from trimtab.node.children import HANDLED_SIGNALS, Child, Say
from trimtab.node.data_directory import DataDirectory, DirectoryRefused
from trimtab.node.logs import Log
from trimtab.node.supervision import (
    Attendance,
    BadWord,
    Begin,
    Decision,
    DropDatabase,
    Errand,
    Event,
    Exit,
    Exited,
    ForwardSignal,
    KillAfter,
    Patience,
    Phase,
    Said,
    Start,
    Started,
    Supervision,
    Told,
)

Body = Callable[[Phase, Say], int]


def supervise(
    data_dir: Path,
    body: Body,
    *,
    instance_id: str,
    log: Log,
    patience: Patience | None = None,
    bulk: BulkBody | None = None,
    driver: BulkBody | None = None,
    load_ahead: Callable[[], None] = lambda: None,
) -> int:
    """Run `body` in a child until told to stop or until a child says that there is no use; the exit code.

    `bulk` runs in another child from the node's first Ready on, `driver` in a third while the node wants it.
    `load_ahead` loads what members need, and is called while a new instance is none yet.
    """
    patience = patience or Patience()
    try:
        directory = DataDirectory.claim(data_dir, instance_id, dying_s=patience.ending_s)
    except DirectoryRefused as error:
        log.error(str(error))
        return 1
    try:
        return Supervisor(directory, body, log, patience, bulk, driver, load_ahead).run()
    finally:
        directory.release()


class Supervisor:
    """One node child at a time, on a data directory that is locked for it, and the children beside it."""

    def __init__(
        self,
        directory: DataDirectory,
        body: Body,
        log: Log,
        patience: Patience,
        bulk: BulkBody | None,
        driver: BulkBody | None,
        load_ahead: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._load_ahead: Callable[[], None] | None = load_ahead if directory.is_new else None
        self._body = body
        self._log = log
        self._supervision = Supervision(patience)
        # Not epoll: its descriptor would be shared with the child.
        self._selector = selectors.PollSelector()
        self._child: Child | None = None
        self._next: tuple[float, Start] | None = None
        self._kill_at: float | None = None
        self._exit: Exit | None = None
        self._attending = Attending(bulk, self._selector, log, Attendance(patience), not_for_it=self._descriptors)
        self._driver = Attending(
            driver,
            self._selector,
            log,
            Errand(patience),
            not_for_it=self._descriptors,
            name=DRIVER_NAME,
            called="the driver of jobs",
        )

    def run(self) -> int:
        """The exit code."""
        with self._hearing_signals():
            # The child inherits this memory; what the collector does not touch stays shared.
            gc.collect()
            gc.freeze()
            self._happened(Begin())
            while self._exit is None:
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self._do_what_is_due()
                self._do_ahead()
            self._attending.end()
            self._driver.end()
        if self._exit.text:
            self._log.error(self._exit.text)
        return self._exit.code

    # Decisions

    def _happened(self, event: Event) -> None:
        for decision in self._supervision.handle(event):
            self._do(decision)

    def _do(self, decision: Decision) -> None:
        now = time.monotonic()
        match decision:
            case _ if self._exit is not None:
                return
            case Start():
                if decision.why:
                    self._log.warning(f"the node ended: {decision.why}; starting it again in {decision.after_s:g} s")
                self._next = (now + decision.after_s, decision)
            case DropDatabase():
                self._drop_database()
            case ForwardSignal(number):
                if self._child is not None:
                    self._child.signal(number)
                self._attending.signal(number)
                self._driver.signal(number)
            case KillAfter(after_s):
                self._kill_at = min(self._kill_at or now + after_s, now + after_s)
            case Exit():
                self._exit = decision

    def _drop_database(self) -> None:
        self._log.debug("dropping the database", directory=str(self._directory.path))
        # It writes there too; it is back when the node is.
        self._attending.end()
        try:
            self._directory.drop_database()
        except DirectoryRefused as error:
            self._exit = Exit(1, str(error))

    # Times

    def _patience_s(self) -> float | None:
        """How long nothing needs to be done; None: until something happens."""
        times = [self._next[0]] if self._next else []
        times += [each for each in (self._kill_at, self._attending.due_s, self._driver.due_s) if each is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._exit is None:
            self._attending.do_what_is_due()
            self._driver.do_what_is_due()
        if self._exit is None and self._next is not None and self._next[0] <= now:
            _, start = self._next
            self._next = None
            self._start(start.phase)
        if self._kill_at is not None and self._kill_at <= now:
            self._kill_at = None
            if self._child is not None:
                self._log.warning("the node does not end; killing it", pid=self._child.pid)
                self._child.signal(signal.SIGKILL)

    def _do_ahead(self) -> None:
        """Once, when the first child is at work."""
        if self._load_ahead is not None and self._child is not None:
            load, self._load_ahead = self._load_ahead, None
            try:
                load()
            except Exception as error:
                # Whoever needs it loads it, and says what is wrong with it.
                self._log.warning(f"what members need could not be loaded ahead: {error!r}")
            gc.freeze()

    # The child

    def _start(self, phase: Phase) -> None:
        try:
            close = [*self._own_descriptors, *self._attending.descriptors, *self._driver.descriptors]
            child = Child.fork(partial(self._body, phase), close=close)
        except OSError as error:
            self._log.error(f"no child could be started: {error}")
            self._happened(Exited(1, 0.0))
            return
        self._child = child
        self._log.debug("started the node", pid=child.pid, phase=phase.value)
        self._selector.register(child.reader, selectors.EVENT_READ, partial(self._hear, child))
        self._selector.register(child.pid_descriptor, selectors.EVENT_READ, partial(self._ended, child))
        self._happened(Started())

    def _descriptors(self) -> list[int]:
        """What is not for the children beside the node."""
        child = self._child
        beside = (*self._attending.descriptors, *self._driver.descriptors)
        return [*self._own_descriptors, *beside, *((child.reader, child.pid_descriptor) if child is not None else ())]

    def _hear(self, child: Child) -> None:
        if child is not self._child:
            return
        words = child.hear()
        if child.closed:
            self._selector.unregister(child.reader)
        for word in words:
            if isinstance(word, BadWord):
                self._log.error(str(word))
            else:
                self._attending.node_said(word)
                self._driver.node_said(word)
                self._happened(Said(word))

    def _ended(self, child: Child) -> None:
        if child is not self._child:
            return
        # Its last words may have come with its end, and say why.
        if not child.closed:
            self._hear(child)
        if not child.closed:
            self._selector.unregister(child.reader)
        self._selector.unregister(child.pid_descriptor)
        status, lived_s = child.reap()
        self._child = None
        self._kill_at = None
        self._happened(Exited(status, lived_s))

    # Signals

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """Signals wake the selector up through a socket, so that none is missed between looking and sleeping."""
        hear, tell = socket.socketpair()
        for end in (hear, tell):
            end.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in HANDLED_SIGNALS}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        wakeup = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
        self._own_descriptors = (hear.fileno(), tell.fileno())
        self._selector.register(hear, selectors.EVENT_READ, partial(self._take_signals, hear))
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            hear.close()
            tell.close()

    def _take_signals(self, hear: socket.socket) -> None:
        for number in hear.recv(64):
            if number in HANDLED_SIGNALS:
                self._log.info(f"told to stop by {signal.Signals(number).name}")
                self._happened(Told(number))
