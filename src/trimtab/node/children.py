"""A child process that ends with its supervisor and talks to it through a pipe.

The child is forked, not executed: it needs no command line of its own, and shares the memory of an interpreter that has
loaded what children need. The kernel ends it when the supervisor ends, however that ends. It starts with the signal
handling of a fresh process, so that a signal which comes before it has handlers of its own just ends it.

What runs in the child is given as a function, so the same code serves every kind of child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from trimtab.node.supervision import WORD_LIMIT_BYTES, BadWord, Word, decode_word, encode_word

Say = Callable[[Word], None]

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_READ_BYTES = 64 << 10


class Child:
    """A running child. Made by `fork`; `reap` it once when `pid_descriptor` is readable."""

    def __init__(self, pid: int, reader: int) -> None:
        self.pid = pid
        self.pid_descriptor = os.pidfd_open(pid)
        self.reader = reader
        self.closed = False  # it can say nothing any more
        self._started_s = time.monotonic()
        self._unread = b""
        self._skipping = False

    @classmethod
    def fork(cls, body: Callable[[Say], int], *, close: Sequence[int] = (), name: str = "") -> Child:
        """Run `body` in a child; what it returns is its exit code. `close`: descriptors that are not for it.

        `name`: what lists of processes call it, if not what they call its supervisor.
        """
        supervisor = os.getpid()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        for stream in (sys.stdout, sys.stderr):
            # What is buffered here would be written by both. A stream that is gone is nobody's loss.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # The child must not run the supervisor's handlers, not even for the signal that comes right after the fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                _be_the_child(body, supervisor, writer, [reader, *close], before, name)
        except OSError:
            os.close(reader)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writer)
        try:
            return cls(pid, reader)
        except OSError:
            # Without a descriptor its end could not be awaited.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            raise

    def hear(self) -> list[Word | BadWord]:
        """What it has said since the last time."""
        words: list[Word | BadWord] = []
        # Bounded by what a pipe holds; a child that writes faster than this reads waits for its turn.
        for _ in range(64):
            try:
                data = os.read(self.reader, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self.closed = True
                break
            *lines, self._unread = (self._unread + data).split(b"\n")
            words += [word for line in lines if (word := self._word(line)) is not None]
            if len(self._unread) > WORD_LIMIT_BYTES:
                if not self._skipping:
                    words.append(BadWord(f"the child said more than {WORD_LIMIT_BYTES} bytes: {self._unread[:100]!r}"))
                self._unread, self._skipping = b"", True
        return words

    def _word(self, line: bytes) -> Word | BadWord | None:
        if self._skipping:
            self._skipping = False
            return None
        try:
            return decode_word(line)
        except BadWord as error:
            return error

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            # It has just ended by itself, and is going to be reaped.
            signal.pidfd_send_signal(self.pid_descriptor, number)

    def reap(self) -> tuple[int, float]:
        """Its exit code (minus the signal that ended it), and how long it lived."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pid_descriptor)
        os.close(self.reader)
        return os.waitstatus_to_exitcode(status), time.monotonic() - self._started_s


def _be_the_child(
    body: Callable[[Say], int],
    supervisor: int,
    writer: int,
    close: Sequence[int],
    mask: set[signal.Signals | int],
    name: str,
) -> NoReturn:
    status = 1
    try:
        _be_called(name)
        _end_with(supervisor)
        signal.set_wakeup_fd(-1)
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in close:
            os.close(descriptor)

        def say(word: Word) -> None:
            with contextlib.suppress(BrokenPipeError):
                # The supervisor is gone, and this process about to be.
                os.write(writer, encode_word(word))

        status = body(say)
    except BaseException:
        # A defect of ours: the trace is what a bug report needs, and the supervisor starts another child.
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        # Not sys.exit: what the supervisor meant to do at its own end is not for the child to do.
        os._exit(status)


def _be_called(name: str) -> None:
    """Be known by this name to whoever lists processes, as far as it fits."""
    import ctypes

    if name:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _end_with(supervisor: int) -> None:
    """Let the kernel kill this process when its supervisor ends."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let a child end with its parent")
    if os.getppid() != supervisor:
        # It ended before the kernel was asked.
        os._exit(1)
