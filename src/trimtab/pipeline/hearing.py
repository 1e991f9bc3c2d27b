"""What tasks say while they run, and what they are told: a socket between the driver of a job and each of its tasks.

Spark tells of a task when it has ended. That is too late for who wants to see bytes move every second, and Spark lets
go of a task that is cancelled without stopping it. So every task connects to its job's driver, says a few times a
second how far it is, and hears when it is to stop: it ends what it has under way then, or its process.

    task ▶ token, number of the task · then lines: bytes, rows, and what it has finished since the last one
    driver ▶ "stop"; the end of the connection means the same

A task that can't reach the driver goes on: it is heard of when it has ended.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

EVERY_S = 0.25
_CONNECT_S = 3.0
_STOP_S = 1.0  # for a task to end by itself
_MOST_LINE_BYTES = 1 << 20
_BACKLOG = 128


@dataclass(frozen=True)
class Ear:
    """Where tasks find their driver."""

    host: str
    port: int
    token: str


@dataclass
class Done:
    """What a task has done so far: it adds to this, and the job sees the sums, and each thing that was finished.

    Threads of the task may share it. `on_stop`: called once, from another thread, when the task is to stop.
    """

    bytes: int = 0
    rows: int = 0
    stopping: bool = False
    _finished: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stops: list[Callable[[], None]] = field(default_factory=list)

    def add(self, bytes: int = 0, rows: int = 0) -> None:
        with self._lock:
            self.bytes += bytes
            self.rows += rows

    def finish(self, *things: Any) -> None:
        """Plain values (JSON) that tell the job what it need not do again."""
        with self._lock:
            self._finished += things

    def on_stop(self, stop: Callable[[], None]) -> None:
        with self._lock:
            self._stops.append(stop)
            late = self.stopping
        if late:
            stop()

    def stop(self) -> None:
        with self._lock:
            if self.stopping:
                return
            self.stopping = True
            stops = list(self._stops)
        for each in stops:
            each()

    def news(self) -> tuple[int, int, list[Any]]:
        """Bytes, rows, and what was finished since the last time."""
        with self._lock:
            finished, self._finished = self._finished, []
            return self.bytes, self.rows, finished


class Hearing:
    """The driver's side, for the tasks of one Spark job. `finished` is called with what tasks say they have finished.

    `host` is how tasks reach this machine, `bind` where it listens; where it can't, it hears nothing. Only what a task
    said last counts: one that is tried again begins at nothing.
    """

    def __init__(self, host: str, finished: Callable[[Sequence[Any]], None], *, bind: str = "") -> None:
        self._finished = finished
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[int, int]] = {}
        self._open: set[socket.socket] = set()
        self._stopped = False
        self.ear: Ear | None = None
        self._token = secrets.token_hex(16)
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._listener = socket.create_server((bind or host, 0), backlog=_BACKLOG)
            self.ear = Ear(host, self._listener.getsockname()[1], self._token)
            threading.Thread(target=self._accept, args=(self._listener,), name="trimtab-ear", daemon=True).start()

    def sums(self) -> tuple[int, int]:
        """Bytes and rows of all tasks."""
        with self._lock:
            return sum(each[0] for each in self._sums.values()), sum(each[1] for each in self._sums.values())

    def take(self, number: int, bytes: int, rows: int) -> None:
        """What a task has done by now."""
        with self._lock:
            self._sums[number] = bytes, rows

    def stop(self) -> None:
        """Let all tasks stop, those too that are only beginning."""
        with self._lock:
            self._stopped, told = True, list(self._open)
        for each in told:
            _tell_stop(each)

    def close(self) -> None:
        """No task says anything any more."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            self._stopped, left = True, list(self._open)
        for each in left:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(sock,), name="trimtab-task", daemon=True).start()

    def _listen(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            sock.settimeout(_CONNECT_S)
            lines = sock.makefile("rb")
            first = json.loads(lines.readline(_MOST_LINE_BYTES))
            if not hmac.compare_digest(str(first["token"]), self._token):
                return
            number = int(first["task"])
            sock.settimeout(None)
            with self._lock:
                self._open.add(sock)
                stopped = self._stopped
            try:
                if stopped:
                    _tell_stop(sock)
                while line := lines.readline(_MOST_LINE_BYTES):
                    bytes, rows, finished = json.loads(line)
                    self.take(number, int(bytes), int(rows))
                    if finished:
                        self._finished(finished)
            finally:
                with self._lock:
                    self._open.discard(sock)


class Saying:
    """A task's side: `with Saying(ear, number, done):` around its work. Without an ear it says nothing."""

    def __init__(self, ear: Ear | None, number: int, done: Done, *, end: Callable[[int], object] = os._exit) -> None:
        self._done = done
        self._end = end
        self._over = threading.Event()
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()
        if ear is None:
            return
        try:
            self._sock = socket.create_connection((ear.host, ear.port), _CONNECT_S)
            self._sock.settimeout(None)
            self._send({"token": ear.token, "task": number})
        except OSError:
            # Not from here, then; what it did is counted when it has ended.
            self._sock = None

    def __enter__(self) -> Saying:
        if self._sock is not None:
            threading.Thread(target=self._say, name="trimtab-saying", daemon=True).start()
            threading.Thread(target=self._hear, name="trimtab-hearing", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sock is None:
            return
        with contextlib.suppress(OSError), self._lock:
            self._send(self._done.news())
        self._over.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _say(self) -> None:
        while not self._over.wait(EVERY_S):
            with contextlib.suppress(OSError), self._lock:
                if not self._over.is_set():
                    self._send(self._done.news())

    def _hear(self) -> None:
        assert self._sock is not None
        with contextlib.suppress(OSError):
            self._sock.recv(16)
        if self._over.is_set():
            return
        # Told to stop, or the driver is gone: what this task does is not wanted any more.
        self._done.stop()
        if not self._over.wait(_STOP_S):
            self._end(1)

    def _send(self, thing: Any) -> None:
        assert self._sock is not None
        self._sock.sendall(json.dumps(thing).encode() + b"\n")


def _tell_stop(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(b"stop\n")
