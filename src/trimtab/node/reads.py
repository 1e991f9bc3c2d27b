"""Linearizable reads of one group: rounds of read index, one under way at a time.

A read that arrives while a round is under way can't use it (the round's index may be older than a write that finished
before the read began), so it waits for the next one, which all waiting reads share. A round that gets no answer
(no leader, a lost message) is asked again under a new number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct

ReadDone = Callable[[Exception | None], None]
_NUMBER = Struct(">Q")


class ReadRounds:
    """The reads of one group, by where they stand: waiting, asked, confirmed at an index."""

    __slots__ = ("_asked", "_confirmed", "_number", "_waiting", "asked_at")

    def __init__(self, first_number: int) -> None:
        self._number = first_number
        self._waiting: list[ReadDone] = []
        self._asked: list[ReadDone] = []
        self._confirmed: deque[tuple[int, list[ReadDone]]] = deque()
        self.asked_at: float | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked) + sum(len(dones) for _, dones in self._confirmed)

    def add(self, done: ReadDone) -> None:
        self._waiting.append(done)

    def next_round(self, now: float, retry_s: float) -> bytes | None:
        """The context to ask Raft with, or None if there is nothing to ask now."""
        if self.asked_at is not None:
            if now - self.asked_at < retry_s:
                return None
        elif not self._waiting:
            return None
        self._asked += self._waiting
        self._waiting = []
        if not self._asked:
            self.asked_at = None
            return None
        self._number += 1
        self.asked_at = now
        return _NUMBER.pack(self._number)

    def confirm(self, context: bytes, index: int) -> None:
        """Raft confirmed a round. Answers to rounds that were asked again are too old to use."""
        if self.asked_at is None or context != _NUMBER.pack(self._number):
            return
        self._confirmed.append((index, self._asked))
        self._asked = []
        self.asked_at = None

    def ask_again(self) -> None:
        """Whoever was asked is no longer there to answer: the round under way joins those that wait."""
        if self.asked_at is not None:
            self._waiting = self._asked + self._waiting
            self._asked, self.asked_at = [], None

    def release(self, applied: int) -> None:
        """Let every read go whose index has been applied."""
        while self._confirmed and self._confirmed[0][0] <= applied:
            for done in self._confirmed.popleft()[1]:
                done(None)

    def fail(self, error: Exception) -> None:
        """End all reads with an error."""
        dones = self._asked + self._waiting + [done for _, batch in self._confirmed for done in batch]
        self._asked, self._waiting, self.asked_at = [], [], None
        self._confirmed.clear()
        for done in dones:
            done(error)
