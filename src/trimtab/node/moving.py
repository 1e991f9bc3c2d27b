"""The leader's memory of moves: which instances have prepared, adopted and cleaned which tablets, in this term.

It is filled by asking them, and lost with the office: a new leader asks again, and whoever has done its part says so at
once. What an instance could not do is asked for again after a rest, of each tablet by itself; what it is still at, as
soon as its answer is there.

A tablet whose move was undone because something failed is left alone for a while, longer each time; and whoever failed
at it is avoided for longer, so that it goes elsewhere if it can (`avoided`). One whose move an operator undid is left
alone by balancing, and only by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

from trimtab.governor.moves import crossed
from trimtab.governor.state import Attempt, ClusterState, MoveFacts, Trouble
from trimtab.governor.steps import AskMoves, CommitMoves, Write
from trimtab.net.errors import NetError
from trimtab.node.answering import Refused
from trimtab.node.backoffs import Backoffs
from trimtab.node.calls import Calls
from trimtab.node.errors import GroupError
from trimtab.node.executor import StepFailed
from trimtab.node.waits import WaitedTooLong
from trimtab.tablets import move_protocol
from trimtab.tablets.move_protocol import UNDER_WAY, MovesCall, MovesReply, MovingTablet
from trimtab.tablets.selectors import Stage
from trimtab.tablets.stages import MAX_TRIES
from trimtab.tablets.transitions import decode_transition, place_of
from trimtab.tablets.view import TableView
from trimtab.topology.records import TRANSITIONS

# For how long an instance may be at it before it answers with what is done by then.
TIMES_S = {move_protocol.PREPARE: 5.0, move_protocol.ADOPT: 8.0, move_protocol.CLEAN: 5.0}
_MAX_TEXT = 300
_FULL = "disk_full"


class Moving:
    """Of one instance, while it leads. `look` gives the state that decisions are made on, now."""

    def __init__(
        self,
        calls: Calls,
        tables: TableView,
        *,
        look: Callable[[], ClusterState],
        wake_later: Callable[[float], None],
        spared_s: float = 600.0,
    ) -> None:
        self._calls = calls
        self._tables = tables
        self._look = look
        self._wake_later = wake_later
        self._loop = asyncio.get_running_loop()
        self._done: dict[str, dict[Attempt, frozenset[int]]] = {}
        self._troubles: dict[Attempt, dict[int, Trouble]] = {}
        self._resting: Backoffs[tuple[Attempt, int]] = Backoffs(1.0, 30.0)
        self._at_it: Backoffs[tuple[Attempt, int]] = Backoffs(0.05, 1.0)
        self._put_off: Backoffs[tuple[int, int]] = Backoffs(2.0, 120.0)
        self._spared: Backoffs[tuple[int, int]] = Backoffs(spared_s, spared_s)
        self._avoided: Backoffs[int] = Backoffs(20.0, 320.0)
        self._serial = 0
        self._memory: dict[object, Any] = {}
        self.took_office()

    def took_office(self) -> None:
        """What was heard in an earlier term does not count."""
        self._done = {method: {} for method in TIMES_S}
        self._troubles.clear()
        self._resting.clear()
        self._at_it.clear()
        self._put_off.clear()
        self._spared.clear()
        self._avoided.clear()
        self._serial += 1

    def facts(self) -> MoveFacts:
        """What is known now."""
        now = self._loop.time()
        return MoveFacts(
            prepared=self._done[move_protocol.PREPARE],
            adopted=self._done[move_protocol.ADOPT],
            cleaned=self._done[move_protocol.CLEAN],
            troubles={attempt: tuple(found.values()) for attempt, found in self._troubles.items()},
            resting=self._resting.waiting(now) | self._at_it.waiting(now),
            put_off=self._put_off.waiting(now),
            spared=self._spared.waiting(now),
            serial=self._serial,
            memory=self._memory,
        )

    def avoided(self) -> frozenset[int]:
        """Who could not take tablets lately, and gets none where others can."""
        return self._avoided.waiting(self._loop.time())

    # Asking

    async def ask(self, step: AskMoves, term: int) -> None:
        """Ask one instance, and remember what it has done. StepFailed: it did not answer, or did none of it."""
        body = move_protocol.encode(MovesCall(term, step.index, list(step.tablets)))
        try:
            answer = await self._calls.ask(step.node, step.method, body, TIMES_S[step.method])
            reply: MovesReply = move_protocol.decode_reply(answer)
        except (NetError, Refused, GroupError, WaitedTooLong) as error:
            raise StepFailed(f"member {step.node} has not answered {step.method}: {error}") from error
        except ValueError as error:
            raise StepFailed(f"the answer of member {step.node} to {step.method} can't be read: {error}") from error
        self._serial += 1
        self._forget_ended()
        jobs = {_attempt(tablet): job for tablet, job in zip(step.tablets, step.jobs, strict=True)}
        self._take_done(step, [attempt for attempt in map(_attempt, reply.done) if attempt in jobs])
        now = self._loop.time()
        for each in reply.failed:
            attempt = _attempt(each.tablet)
            if attempt not in jobs:
                continue
            if each.code == UNDER_WAY:
                self._wake_later(self._at_it.failed((attempt, step.node), now))
                continue
            troubles, text = self._troubles.setdefault(attempt, {}), each.text[:_MAX_TEXT]
            before = troubles.get(step.node)
            times = before.times + 1 if before is not None and before.job == jobs[attempt] else 1
            troubles[step.node] = Trouble(step.node, each.code, text, jobs[attempt], times)
            self._wake_later(self._resting.failed((attempt, step.node), now))

    def _take_done(self, step: AskMoves, attempts: Collection[Attempt]) -> None:
        done = self._done[step.method]
        for attempt in attempts:
            done[attempt] = done.get(attempt, frozenset()) | {step.node}
            self._resting.succeeded((attempt, step.node))
            self._at_it.succeeded((attempt, step.node))
            if (troubles := self._troubles.get(attempt)) is not None:
                troubles.pop(step.node, None)
                if not troubles:
                    del self._troubles[attempt]

    def _forget_ended(self) -> None:
        """Of attempts that are over nobody asks."""
        for done in self._done.values():
            for attempt in [each for each in done if not self._goes_on(each)]:
                del done[attempt]
        for attempt in [each for each in self._troubles if not self._goes_on(each)]:
            del self._troubles[attempt]

    def _goes_on(self, attempt: Attempt) -> bool:
        table, tablet, session = attempt
        current = self._tables.transition(table, tablet)
        return current is not None and current.session == session

    # Writing

    def crossed(self, version: int) -> CommitMoves | None:
        """What may be written now that a barrier at this version has passed."""
        return crossed(self._look(), version)

    def written(self, write: Write) -> None:
        """Take note of what a write about moves says."""
        now = self._loop.time()
        for key, value in write.puts.items():
            if key.startswith(TRANSITIONS):
                place, record = place_of(key), decode_transition(value)
                if record.stage is Stage.CLEANUP_TARGET and record.error:
                    self._wake_later(self._put_off.failed(place, now))
                    self._avoid((*place, record.session), now)
                if record.stage is Stage.CLEANUP_TARGET:
                    self._forget_troubles((*place, record.session))
                elif record.stage is Stage.WRITE_BOTH_READ_NEW:
                    self._put_off.succeeded(place)

    def _avoid(self, attempt: Attempt, now: float) -> None:
        """A move was undone: who could not do its part is not asked for the next one at once."""
        # Many tablets may have been on their way there: that is one failure.
        already = self._avoided.waiting(now)
        for trouble in self._troubles.get(attempt, {}).values():
            unable = trouble.code == _FULL or trouble.times >= MAX_TRIES
            if unable and trouble.raft_id not in already:
                self._wake_later(self._avoided.failed(trouble.raft_id, now))

    def _forget_troubles(self, attempt: Attempt) -> None:
        """What is asked of them next is another thing: who could not make a replica may well drop it, and at once."""
        for raft_id in self._troubles.pop(attempt, {}):
            self._resting.succeeded((attempt, raft_id))

    def spare(self, places: Iterable[tuple[int, int]]) -> None:
        """An operator undid what balancing wanted with these tablets: it does not begin it again for a while."""
        now = self._loop.time()
        for place in places:
            self._wake_later(self._spared.failed(place, now))


def _attempt(tablet: MovingTablet) -> Attempt:
    return tablet.table, tablet.tablet, tablet.session
