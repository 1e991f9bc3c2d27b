"""What a bulk child goes by: what its node told it last, and how long ago.

The child asks its node twice a second (`child`), and at once when somebody names a session that it has not heard of:
the session may be younger than the last answer, so only a younger answer refuses it. What was told stays good
for a while after the node fell silent (it may just be restarting), then everything is refused until it speaks again:
not at once, because a child that was just started is sent its first files as soon as its node is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from trimtab.loads.protocol import BulkState

STALE_S = 10.0
# For a session that was opened a moment ago to be heard of here, through the leader and the own node.
SESSION_S = 2.0
_FIRST_TRIES = 5
_TRY_S = 0.2


class NotTold(Exception):
    """The node has not said what to go by, or too long ago; the text says so."""


class Told:
    """The newest state, for all threads. `ask` wakes up whoever asks the node."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.clock_s = clock_s
        self._news = threading.Condition()
        self._state: BulkState | None = None
        self._at_s = 0.0
        self._sessions: frozenset[str] = frozenset()
        self._why = "the node of this instance has not answered yet"
        self.ask: Callable[[], None] = lambda: None

    def take(self, state: BulkState) -> None:
        """The node answered."""
        with self._news:
            self._state, self._at_s = state, self.clock_s()
            self._sessions = frozenset(state.sessions)
            self._news.notify_all()

    def failed(self, why: str) -> None:
        """The node did not answer."""
        with self._news:
            self._why = why

    def now(self) -> BulkState:
        """What to go by; NotTold where there is nothing."""
        with self._news:
            if self._state is None or not self._state.key:
                raise NotTold(f"this bulk server does not know yet what to serve: {self._why}")
            silent_s = self.clock_s() - self._at_s
            if silent_s > STALE_S:
                raise NotTold(f"the node of this instance has not answered for {silent_s:.0f} s: {self._why}")
            return self._state

    def await_now(self) -> BulkState:
        """What to go by; where there is nothing the node is asked, and has a moment to answer. NotTold."""
        with self._news:
            for _ in range(_FIRST_TRIES):
                with suppress(NotTold):
                    return self.now()
                self.ask()
                self._news.wait(_TRY_S)
            return self.now()

    def is_open(self, session: str) -> bool:
        """Whether the session is open, as far as is known now."""
        self.now()
        return session in self._sessions

    def await_open(self, session: str, asked_s: float) -> bool:
        """Whether a session that somebody named at `asked_s` is open; if it is not known, waits for news of later.

        A node that is too busy to answer has not refused it: that takes an answer. NotTold where none comes, so this
        ends within SESSION_S and STALE_S.
        """
        with self._news:
            while not self.is_open(session):
                if self._at_s >= asked_s + SESSION_S:
                    return False
                self.ask()
                self._news.wait(_TRY_S)
            return True
