"""When replicas bring what they hold in memory into files, and how far the log of mutations may be cut.

A replica is flushed when it holds much, when all together hold too much (the one that holds most first), when it has
held something for long, or when the log has grown and this one is what keeps it from being cut. So memory, the log and
the time that replay takes are bounded, and a replica that is hardly ever written to does not pin the log. One whose
files are a copy that has just come (`swapping`) is flushed when the moves of that moment are over: whoever copies it
on would have to wait for that. Copies, and what loads bring, come many at once, and the first flush opens each for
writing, which holds the interpreter: so a few of them at a time, and requests are answered in between.

The log is cut below what every replica has flushed. If flushing does not keep up, writers are refused until it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica import Replica
from trimtab.storage.late_store import NotMade
from trimtab.storage.mutation_log import LogBusy, MutationLog
from trimtab.storage.port import Corrupt, DiskFull

_AT_ONCE = 2
_REST_S = 5.0  # for one that could not be brought into files
_MAX_NOT_MADE = 12  # times in a row; it pins the log all the while


@dataclass(frozen=True)
class FlushBounds:
    """`total_bytes`: of all replicas together; twice that and writers have to wait. Sizes are those of the log."""

    replica_bytes: int = 8 << 20
    total_bytes: int = 24 << 20
    age_s: float = 60.0
    copied_age_s: float = 4.0
    woken_a_tick: int = 2  # of those that rest, for their age
    log_bytes: int = 48 << 20
    cut_bytes: int = 4 << 20
    cut_every_s: float = 30.0


class Flushing:
    """Of all replicas of one node."""

    def __init__(
        self,
        replicas: Callable[[], Collection[Replica]],
        log: MutationLog,
        bounds: FlushBounds,
        *,
        may_cut: Callable[[], bool],
        now: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        lost: Callable[[Replica, Corrupt], None],
        fatal: Callable[[BaseException], None],
        complain: Callable[[str], None],
    ) -> None:
        self.bounds = bounds
        self.flushes = 0
        self.unflushed_bytes = 0
        self.refused = 0
        self._replicas = replicas
        self._log = log
        self._may_cut = may_cut
        self._now = now
        self._call_soon = call_soon
        self._lost = lost
        self._fatal = fatal
        self._complain = complain
        self._looking = False
        self._wakes_left = 0  # before the next tick
        self._cut_at = now()
        self._closed = False

    def wrote(self, replica: Replica, size_bytes: int) -> None:
        """So much more is in memory only."""
        self.unflushed_bytes += size_bytes
        if replica.unflushed_bytes >= self.bounds.replica_bytes or self.unflushed_bytes >= self.bounds.total_bytes:
            self._look_soon()

    def refusal(self) -> LogBusy | None:
        if self.unflushed_bytes < 2 * self.bounds.total_bytes:
            return None
        self.refused += 1
        return LogBusy(f"{self.unflushed_bytes} bytes wait to be brought into files; slow down and try again")

    def tick(self) -> None:
        """Now and then: look at ages, and cut the log."""
        self._wakes_left = self.bounds.woken_a_tick
        self._look()
        self._cut()
        self._log.nudge()

    def close(self) -> None:
        self._closed = True

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self._closed:
            return
        for _ in range(_AT_ONCE - sum(each.flushing for each in self._replicas())):
            replica = self._next()
            if replica is None:
                return
            self.flushes += 1
            self._wakes_left -= replica.rests
            replica.flush(partial(self._flushed, replica))

    def _next(self) -> Replica | None:
        """The replica that is to be flushed before others; None: none needs to be."""
        bounds = self.bounds
        able = [
            each
            for each in self._replicas()
            if each.unflushed_since is not None and not (each.flushing or each.closed or each.stalled or each.held)
            if each.rests_until <= self._now()
        ]
        self.unflushed_bytes = sum([each.unflushed_bytes for each in self._replicas()])
        if not able:
            return None
        being_flushed = sum([each.unflushed_bytes for each in self._replicas() if each.flushing])
        largest = max(able, key=lambda each: each.unflushed_bytes)
        if largest.unflushed_bytes >= bounds.replica_bytes:
            return largest
        if self.unflushed_bytes - being_flushed >= bounds.total_bytes:
            return largest
        due = min(able, key=self._due_s)
        if self._now() >= self._due_s(due):
            return due
        if self._log.bytes >= bounds.log_bytes:
            return min(able, key=lambda each: each.flushed_position)
        return None

    def _due_s(self, replica: Replica) -> float:
        """When it has held something for long."""
        if replica.rests and self._wakes_left <= 0:
            return math.inf
        age_s = self.bounds.copied_age_s if replica.has_copy else self.bounds.age_s
        return (replica.unflushed_since or 0.0) + age_s

    def _flushed(self, replica: Replica, error: BaseException | None) -> None:
        if self._closed:
            return
        if isinstance(error, NotMade):
            self._not_made(replica, error)
            return
        replica.not_made = 0
        if error is not None and not isinstance(error, DiskFull | Corrupt | Refused):
            # A full disk and damage have been told to the shelf, and one that was closed meanwhile is gone; anything
            # else is a device that fails.
            self._fatal(error)
            return
        self._cut()
        self._look()

    def _not_made(self, replica: Replica, error: NotMade) -> None:
        replica.not_made += 1
        if replica.not_made < _MAX_NOT_MADE:
            replica.rests_until = self._now() + _REST_S
            self._complain(f"{replica.title} could not be brought into files: {error}; it is tried again")
        elif not replica.arriving:
            # It pins the log of all others, until the disk is full. A start gives back what the process is short of.
            self._fatal(error)
        else:
            # It only arrives: its move begins anew, and the log of all others can be cut.
            self._lost(
                replica, Corrupt(replica.name, f"no files could be made, tried {replica.not_made} times: {error}")
            )

    def _cut(self) -> None:
        if not self._may_cut():
            return
        pinned = [each.needed_from for each in self._replicas() if each.unflushed]
        position = min(pinned, default=self._log.applied_position)
        # Each cut leaves a mark in the log's store that readers step over; so there are few.
        now = self._now()
        if self._log.bytes_up_to(position) >= self.bounds.cut_bytes or now - self._cut_at >= self.bounds.cut_every_s:
            self._cut_at = now
            self._log.cut(position)
