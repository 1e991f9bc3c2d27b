"""The answer to puts that travel together (`PutRequest.apart`): what became of the rows of each tablet.

They must not wait for each other. Where some tablets have their rows and others not, PATIENCE_S after they came,
those that are done are answered, and the others are called `unfinished`: they go on, may or may not come to an end, and
whoever asked can ask for them again with the stamp of the answer, which is the same as having asked once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from trimtab.node.answering import Refused
from trimtab.node.router.deadlines import Deadlines
from trimtab.rows.protocol import UNFINISHED, Refusal, WriteReply

# Syncs take long on a disk that is busy, but then nothing at all is done.
PATIENCE_S = 0.1


class Apart:
    """Of one request, which has begun at `now` (loop time) and has a write for each of the `tablets`."""

    __slots__ = ("_deadlines", "_done", "_hurries", "_least", "_left", "_refused", "_some_done", "_stamp_us", "_ticket")

    def __init__(
        self,
        tablets: Iterable[int],
        stamp_us: int,
        deadlines: Deadlines,
        now: float,
        done: Callable[[WriteReply], None],
    ) -> None:
        self._left = Counter(tablets)
        self._stamp_us = stamp_us
        self._done: Callable[[WriteReply], None] | None = done
        self._least = 1 << 30
        self._refused: dict[int, Refusal] = {}
        self._some_done = False
        self._hurries = False
        self._deadlines = deadlines
        self._ticket = deadlines.add(now + PATIENCE_S, self._hurry)

    def part(self, tablet: int) -> Callable[[Refused | None, int], None]:
        """Whom to tell the end of a tablet's write."""
        return partial(self._part_done, tablet)

    def _part_done(self, tablet: int, refused: Refused | None, acknowledged: int) -> None:
        if self._done is None:
            return
        self._some_done = True
        self._least = min(self._least, acknowledged)
        if refused is not None:
            self._refused[tablet] = Refusal(refused.code, refused.text, refused.details)
        left = self._left[tablet] - 1
        if left:
            self._left[tablet] = left
        else:
            del self._left[tablet]
        if not self._left or self._hurries:
            self._answer()

    def _hurry(self) -> None:
        self._hurries = True
        if self._some_done:
            self._answer()

    def _answer(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._deadlines.cancel(self._ticket)
        text = f"the others are done, this was not within {PATIENCE_S * 1000:.0f} ms, and goes on"
        unfinished = {tablet: Refusal(UNFINISHED, text) for tablet in self._left}
        done(WriteReply(self._stamp_us, self._least, self._refused | unfinished))
