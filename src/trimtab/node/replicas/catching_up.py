"""The order `governor.replicas`: answered when every replica of this instance is open and has caught up.

Catching up belongs to one climb of the instance (its incarnation in the cluster), not to one order: it runs by itself,
and each order waits for it a while. If it can't go on it says why (`progress`), and the leader asks again.

1. Every replica that this instance should hold is open.
2. Every other member is asked what it holds for this instance. The answer comes when its hints are pushed: they are
   taken as soon as this instance is RaftSynced. A member that can't be asked is waited for a moment.
3. If one has dropped hints ("missed since"), or can't be asked, or has left since this instance had last caught up:
   hints are not all there was: every replica is repaired against enough others to meet every write quorum. They serve
   that from RaftSynced on, so after a full restart nobody waits for somebody who waits for it. If there are not enough,
   it waits: it answers nothing rather than too little.
4. Replicas that lack a load that is visible, because it was committed while this instance was away or its staged files
   are lost, are repaired from others that have it.
5. Whoever had a mark is told that it is repaired; if more was missed meanwhile, it begins again at 2.

An instance that is Online may be marked too: by a coordinator that ended uncleanly, or was kept from reaching it for
longer than hints last. It is told (`catchup.missed`), and does the same at its leisure; where it holds nothing, it only
says so.

One that ended uncleanly may itself lack what it had coordinated (`lost_own`): the others had synced and acknowledged a
write when its own log had not, and nobody keeps a hint for it. A quorum has the write, so this does not keep it from
serving; when it has caught up it is repaired, at its leisure too.

Who is gone, and was so already when this instance had last caught up (`known_gone`, by the incarnation of its last
life), has coordinated nothing since, and is neither asked nor missed.

Replicas that are being rebuilt (see `rebuilding`) are not waited for: they answer nothing by themselves, and the others
of this instance are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from trimtab.net.errors import NetError
from trimtab.node.answering import Refused
from trimtab.node.background import defect_of
from trimtab.node.errors import GroupError
from trimtab.node.replicas.hints import Hints
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.repair_protocol import DoneRequest, StatusRequest
from trimtab.tablets.missed import Status, reasons_to_repair

FAILURES = (Refused, NetError, GroupError, WaitedTooLong, msgspec.DecodeError)
_ASK_TIMEOUT_S = 3.0
_HINTS_WAIT_MS = 2_000
_ASK_AGAIN_S = 0.1
_MAX_ASK_AGAIN_S = 2.0
_MARGIN_S = 0.05
_MAX_STUCK = 3


class Ground(Protocol):
    """What catching up stands on."""

    def others(self) -> Mapping[int, str]:
        """All other members and their names."""
        ...

    def gone(self) -> Mapping[int, int]:
        """All instances that left the cluster or are Offline, by the incarnation of their last life."""
        ...

    def stands(self) -> bool:
        """Whether this instance holds a lease and has caught up, as the cluster sees it."""
        ...

    def holds_any(self) -> bool:
        """Whether there is anything here that could miss a write."""
        ...

    def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> Awaitable[bytes]: ...

    async def opened(self) -> None:
        """Returns when every replica that this instance should hold is open."""
        ...

    async def repair_all(self, why: str, *, gentle: bool) -> None:
        """Returns when every replica was repaired against enough others; it goes on trying as long as it takes."""
        ...

    async def fetch_loads(self, *, gentle: bool) -> None:
        """Returns when no replica lacks a load that is visible; it goes on trying as long as it takes."""
        ...

    def repairing(self) -> str:
        """What the repair is at, in words."""
        ...


class CatchingUp:
    """Of one instance. `climb` is the incarnation that its row says it climbs in."""

    def __init__(
        self,
        ground: Ground,
        hints: Hints,
        waits: Waits,
        *,
        climb: Callable[[], int],
        grace_s: float,
        story: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._ground = ground
        self._hints = hints
        self._waits = waits
        self._climb = climb
        self._grace_s = grace_s
        self._story = story
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._task_climb = -1
        self._background: asyncio.Task[None] | None = None
        self._done_climb = -1
        self._progress = "it has not begun"
        self._closed = False
        self.lost_own = False
        self.repairs = 0  # how often hints were not enough

    @property
    def caught_up(self) -> bool:
        """Whether this climb has caught up."""
        return self._done_climb == self._climb()

    def progress(self) -> str:
        """What it waits for, in words; empty: nothing."""
        if self.caught_up:
            return ""
        return self._ground.repairing() or self._progress

    async def wait(self, deadline: float) -> None:
        """Returns when this climb has caught up; Refused, with what it is at, before the deadline (loop time)."""
        self._begin()
        try:
            await self._waits.until(lambda: self.caught_up, deadline - _MARGIN_S, "")
        except WaitedTooLong:
            raise Refused("catching_up", f"it is still catching up: {self.progress()}") from None

    def missed(self) -> None:
        """Somebody holds a mark for this instance: look into it, unless it is about to anyway."""
        if self.caught_up and self._background is None and not self._closed:
            self._background = self._loop.create_task(self._run(gentle=True), name="catching up at leisure")
            self._background.add_done_callback(self._background_ended)

    def note_gone(self) -> None:
        """Instances may have gone. Whoever goes while this one stands can't have coordinated what it misses later."""
        if self.caught_up and self._background is None and self._ground.stands():
            self._hints.note_gone(self._ground.gone())

    def stop(self) -> None:
        self._closed = True
        for task in (self._task, self._background):
            if task is not None:
                task.cancel()

    # The climb

    def _begin(self) -> None:
        climb = self._climb()
        if self._done_climb == climb or (self._task is not None and self._task_climb == climb) or self._closed:
            return
        if self._task is not None:
            self._task.cancel()
        self._task_climb = climb
        self._task = self._loop.create_task(self._run(gentle=False), name="catching up")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._defect(error)
            return
        self._done_climb = self._task_climb
        self._waits.look()
        if self.lost_own:
            self.missed()

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background = None
        if (error := defect_of(task)) is not None:
            self._defect(error)

    async def _run(self, *, gentle: bool) -> None:
        self._progress = "its replicas are being opened"
        await self._ground.opened()
        while gentle or self._ground.holds_any():
            gone, known = self._ground.gone(), self._hints.known_gone
            unknown = {raft_id for raft_id, life in gone.items() if known.get(raft_id) != life}
            names = self._ground.others()
            statuses, silent = await self._ask_all(names.keys() - (gone.keys() - unknown))
            reasons = reasons_to_repair(statuses, silent, unknown - names.keys(), names)
            self.repairs += bool(reasons)
            self.lost_own = self.lost_own and bool(names)
            if gentle and self.lost_own:
                reasons = [*reasons, "this instance ended before it had written all that it had sent to others"]
            if not self._ground.holds_any():
                # Whatever it missed was of replicas that it has given up; but nobody needs to remember that.
                self.lost_own = False
            elif reasons:
                why = "; ".join(reasons)
                self._story(f"hints are not enough, so replicas are repaired: {why}")
                await self._ground.repair_all(why, gentle=gentle)
                self.lost_own = False
                self._story("all replicas are repaired")
            await self._ground.fetch_loads(gentle=gentle)
            if await self._clear(statuses):
                self._hints.note_gone(gone)
                return

    # The others

    async def _ask_all(self, members: Iterable[int]) -> tuple[dict[int, Status], frozenset[int]]:
        """What each of them holds, once its hints from before are pushed; and who can't be asked."""
        asked: dict[int, asyncio.Task[Status | None]] = {}
        until = self._loop.time() + self._grace_s
        try:
            for raft_id in sorted(members):
                asked[raft_id] = self._loop.create_task(self._ask(raft_id, until))
            while pending := [task for task in asked.values() if not task.done()]:
                self._progress = self._waiting_for(asked)
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers = {raft_id: task.result() for raft_id, task in asked.items()}
        finally:
            for task in asked.values():
                task.cancel()
        statuses = {raft_id: answer for raft_id, answer in answers.items() if answer is not None}
        return statuses, frozenset(raft_id for raft_id in answers if raft_id not in statuses)

    def _waiting_for(self, asked: Mapping[int, asyncio.Task[Status | None]]) -> str:
        names = self._ground.others()
        who = [names.get(raft_id, f"member {raft_id}") for raft_id, task in asked.items() if not task.done()]
        return f"waiting for the hints of {', '.join(who)}"

    async def _ask(self, raft_id: int, until: float) -> Status | None:
        """None: it can't be asked, or does not get rid of its hints."""
        again_s = _ASK_AGAIN_S
        body = protocol.encode(StatusRequest(_HINTS_WAIT_MS))
        silent_since: float | None = None
        held, stuck = -1, 0
        while True:
            try:
                answer = await self._ground.ask(raft_id, protocol.STATUS, body, _ASK_TIMEOUT_S)
                reply = protocol.decode_status_reply(answer)
            except FAILURES:
                silent_since = silent_since if silent_since is not None else self._loop.time()
                left_s = max(until, silent_since + self._grace_s) - self._loop.time()
                if left_s <= 0:
                    return None
                await asyncio.sleep(min(again_s, left_s))
                again_s = min(2 * again_s, self._grace_s, _MAX_ASK_AGAIN_S)
                continue
            silent_since, again_s = None, _ASK_AGAIN_S
            if not reply.hints:
                return Status(0, reply.missed_since_ms, reply.mark)
            stuck = stuck + 1 if reply.hints == held else 0
            if stuck == _MAX_STUCK:
                # They don't get through: waiting longer is no use, but a repair brings what they hold.
                return None
            held = reply.hints

    async def _clear(self, statuses: Mapping[int, Status]) -> bool:
        """Tell those that had a mark; False: one has missed more for this instance since it was asked."""
        for raft_id, status in statuses.items():
            if not status.missed_since_ms or raft_id not in self._ground.others():
                continue
            try:
                answer = await self._ground.ask(
                    raft_id, protocol.DONE, protocol.encode(DoneRequest(status.mark)), _ASK_TIMEOUT_S
                )
            except FAILURES:
                # Its mark stays; it will tell of it again.
                continue
            if not protocol.decode_done_reply(answer).cleared:
                return False
        return True
