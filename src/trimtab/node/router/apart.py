"""The answer to puts that travel together (`PutRequest.apart`): what became of the rows of each tablet.

They must not wait long for each other. Where some tablets have their rows and others not, PATIENCE_S after they came or
when half of their time is over, those that are done are answered, and the others are called `unfinished`: they go on,
may or may not come to an end, and whoever asked can ask for them again with the stamp of the answer, which is the same
as having asked once. As long as nothing is done (a disk is busy, say) all of them wait.

Nor may one row be refused because of another. A replica refuses a write whole; where one has done so because of what it
says, the rows are to be asked for again, each by itself: `alone` if nothing was done, else as `unfinished`. What was
meant for a generation of the table that was overwritten is to be asked for `alone`, too: a single row waits here until
the new one is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.deadlines import Deadlines
from trimtab.rows.protocol import ALONE, UNFINISHED, Refusal, WriteReply

PATIENCE_S = 0.1


class Apart:
    """Of one request, which has a write for each of the `tablets`. `time`: the loop's; `deadline` likewise."""

    __slots__ = (
        "_deadlines",
        "_done",
        "_least",
        "_left",
        "_patience_s",
        "_refused",
        "_some_done",
        "_stamp_us",
        "_ticket",
        "_time",
    )

    def __init__(
        self,
        tablets: Iterable[int],
        stamp_us: int,
        deadlines: Deadlines,
        time: Callable[[], float],
        deadline: float,
        done: Callable[[WriteReply], None],
    ) -> None:
        self._left = Counter(tablets)
        self._stamp_us = stamp_us
        self._done: Callable[[WriteReply], None] | None = done
        self._least = 0  # replicas that had synced a write
        self._refused: dict[int, Refusal] = {}
        self._some_done = False
        self._deadlines = deadlines
        self._time = time
        now = time()
        self._patience_s = min(PATIENCE_S, (deadline - now) / 2)
        self._ticket = deadlines.add(now + self._patience_s, self._hurry)

    def part(self, tablet: int) -> Callable[[Refused | None, int], None]:
        """Whom to tell the end of a tablet's write."""
        return partial(self._part_done, tablet)

    def _part_done(self, tablet: int, refused: Refused | None, acknowledged: int) -> None:
        if refused is not None:
            known = self._refused.get(tablet)
            if known is None or known.code == ALONE:  # of several writes one may have been carried out
                self._refused[tablet] = _refusal(refused)
        else:
            self._some_done = True
            self._least = min(self._least or acknowledged, acknowledged)
        self._left[tablet] -= 1
        if not self._left[tablet]:
            del self._left[tablet]
            if not self._left:
                self._deadlines.cancel(self._ticket)
                self._answer()

    def _hurry(self) -> None:
        # Writes that are synced at once are told one after the other: whoever is told first does not end the wait.
        if self._some_done:
            self._answer()
        else:
            self._ticket = self._deadlines.add(self._time() + self._patience_s, self._hurry)

    def _answer(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            text = f"others are done, this was not within {self._patience_s * 1000:.0f} ms, and goes on"
            unfinished = {tablet: Refusal(UNFINISHED, text) for tablet in self._left}
            done(WriteReply(self._stamp_us, self._least, self._refused | unfinished))


def _refusal(refused: Refused) -> Refusal:
    code = refused.code
    if code == refusals.VERSION_MISMATCH:
        code = ALONE
    elif refusals.about_content(refused):
        code = ALONE if isinstance(refused, refusals.NothingDone) else UNFINISHED
    return Refusal(code, refused.text, refused.details)
