"""Rounds of repair: from time to time all replicas of a tablet are made equal, so that deletions can be forgotten.

The first replica of a tablet that is Online asks every replica to repair itself against all others. When all have, each
stores how far that reaches: everything that began before the start of the round, less the time that late writes are
still taken (`tablets.missed.repaired_through`, which also argues why nothing deleted comes back). A replica stores that
only while it holds a lease and has caught up; a round in which one can't be asked promises nothing, and is tried again.
There are no rounds of a tablet while a copy of it is under way: what that will hold nobody has compared.

Rounds are gentle: one tablet at a time for each instance, in steps that leave the loop to those who serve. They are
there for where no job does it: a scheduled repair (`trimtab.pipeline.repairing`) compares copies, which costs the nodes
next to nothing, and moves the same time (`repair_jobs`), so that a round is due only when no job has come for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.background import telling
from trimtab.node.replicas.catching_up import FAILURES
from trimtab.node.replicas.repair import Repair, RepairFailed, Subject
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.repair_protocol import TabletRequest, ThroughRequest
from trimtab.tablets.missed import repaired_through

_ASK_TIMEOUT_S = 10.0
_MARGIN_S = 0.1
# So often is a replica asked whether it has done its part; each time it is waited for.
_MAX_ASKED = 2_000
_KEPT_ENDED = 1_000
_LOOK_SHARE = 24  # how often within the interval it is looked whether a round is due
_MIN_LOOK_S, _MAX_LOOK_S = 0.5, 60.0
_NEW_FOR_MS = 600_000
STILL_REPAIRING = "repairing"


class Kept(Subject, Protocol):
    """A replica of this instance that serves."""

    async def set_repaired_through(self, through_ms: int) -> None:
        """Returns when it is durable."""
        ...


class Round(Protocol):
    """What rounds have to know."""

    def kept(self) -> list[Kept]:
        """The replicas of this instance that serve."""
        ...

    def find(self, table: int, tablet: int) -> Kept:
        """One of them; Refused where it is not."""
        ...

    def replicas(self, table: int, tablet: int) -> tuple[int, ...]: ...

    def moving(self, table: int, tablet: int) -> bool:
        """Whether there are, or will be, replicas of it that a round would not compare."""
        ...

    def online(self, raft_id: int) -> bool: ...

    def stands(self) -> bool:
        """Whether this instance holds a lease and has caught up."""
        ...

    def wall_ms(self) -> int: ...

    def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> Awaitable[bytes]: ...


class RepairRounds:
    """Of one instance, whose raft id is `own`: those it coordinates, and its part in those of others."""

    def __init__(
        self,
        own: int,
        around: Round,
        repair: Repair,
        *,
        every_ms: int,
        hint_life_ms: int,
        max_skew_ms: int,
        complain: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._own = own
        self._around = around
        self._repair = repair
        self._every_ms = every_ms
        self._hint_life_ms = hint_life_ms
        self._max_skew_ms = max_skew_ms
        self._complain = complain
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._parts: dict[tuple[int, int, int], asyncio.Task[None]] = {}
        self._tried_ms: dict[tuple[int, int], int] = {}
        self._seen_ms: dict[tuple[int, int], int] = {}
        self.done = 0
        self.failed = 0

    def methods(self) -> dict[str, Method]:
        return {protocol.TABLET: self.tablet, protocol.THROUGH: self.through}

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="repair rounds")
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for task in self._parts.values():
            task.cancel()

    # As the one who coordinates

    @property
    def _again_ms(self) -> int:
        return max(self._every_ms // _LOOK_SHARE, 1)

    async def _run(self) -> None:
        look_s = min(max(self._again_ms / 1000, _MIN_LOOK_S), _MAX_LOOK_S)
        while True:
            await asyncio.sleep(look_s)
            if not self._around.stands():
                continue
            kept = self._around.kept()
            now_ms = self._around.wall_ms()
            here = {(each.table, each.tablet) for each in kept}
            self._tried_ms = {key: tried for key, tried in self._tried_ms.items() if key in here}
            self._seen_ms = {key: self._seen_ms.get(key, now_ms) for key in here}
            for replica in kept:
                if self._is_due(replica):
                    await self._round(replica)

    def _is_due(self, replica: Kept) -> bool:
        now_ms, key = self._around.wall_ms(), (replica.table, replica.tablet)
        if now_ms - self._tried_ms.get(key, 0) < self._again_ms:
            return False
        # A table that is new is being filled.
        if not replica.repaired_through_ms and now_ms - self._seen_ms[key] < min(self._again_ms, _NEW_FOR_MS):
            return False
        reached_ms = repaired_through(now_ms, self._hint_life_ms, self._max_skew_ms)
        if replica.repaired_through_ms and reached_ms - replica.repaired_through_ms < self._every_ms:
            return False
        if self._around.moving(replica.table, replica.tablet):
            return False
        replicas = self._around.replicas(replica.table, replica.tablet)
        first = next((raft_id for raft_id in replicas if self._around.online(raft_id)), None)
        return first == self._own and all(map(self._around.online, replicas))

    async def _round(self, replica: Kept) -> None:
        start_ms = self._around.wall_ms()
        self._tried_ms[replica.table, replica.tablet] = start_ms
        replicas = self._around.replicas(replica.table, replica.tablet)
        through_ms = repaired_through(start_ms, self._hint_life_ms, self._max_skew_ms)
        try:
            if len(replicas) > 1:
                body = protocol.encode(TabletRequest(replica.table, replica.tablet, start_ms))
                await self._all(self._ask_until_done(raft_id, body) for raft_id in replicas)
            if self._around.replicas(replica.table, replica.tablet) != replicas:
                raise RepairFailed("its replicas are others now")
            told = protocol.encode(ThroughRequest(replica.table, replica.tablet, through_ms))
            await self._all(self._around.ask(each, protocol.THROUGH, told, _ASK_TIMEOUT_S) for each in replicas)
        except (*FAILURES, RepairFailed) as error:
            self.failed += 1
            self._complain(f"a round of repair of {replica.name} failed and is tried again later: {error}")
        else:
            self.done += 1

    async def _all(self, asked: Iterable[Awaitable[object]]) -> None:
        tasks = [asyncio.ensure_future(each) for each in asked]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _ask_until_done(self, raft_id: int, body: bytes) -> None:
        for _ in range(_MAX_ASKED):
            try:
                await self._around.ask(raft_id, protocol.TABLET, body, _ASK_TIMEOUT_S)
            except FAILURES as error:
                if getattr(error, "code", "") != STILL_REPAIRING:
                    raise
            else:
                return
        raise RepairFailed(f"replica {raft_id} does not come to an end")

    # As one of the replicas

    async def tablet(self, asked: Asked) -> bytes:
        """Answered when this replica has everything that any other one had when it was first asked in this round."""
        request: TabletRequest = protocol.decode_tablet(asked.body)
        key = (request.table, request.tablet, request.round)
        self._forget_ended()
        task = self._parts.get(key)
        if task is None:
            replica = self._find(request.table, request.tablet)
            task = self._parts[key] = self._loop.create_task(self._part(replica), name=f"repair of {replica.name}")
        await asyncio.wait((task,), timeout=max(asked.deadline - _MARGIN_S - self._loop.time(), 0.0))
        if not task.done():
            raise Refused(STILL_REPAIRING, "it is still repairing; ask again")
        if task.cancelled() or (error := task.exception()) is not None:
            self._parts.pop(key, None)
            raise Refused("repair_failed", "it was stopped" if task.cancelled() else str(error))
        return b""

    async def _part(self, replica: Kept) -> None:
        others = [each for each in self._around.replicas(replica.table, replica.tablet) if each != self._own]
        for peer in others:
            await self._repair.against(replica, peer, gentle=True)

    def _forget_ended(self) -> None:
        ended = [key for key, task in self._parts.items() if task.done()]
        for key in ended[: max(len(ended) - _KEPT_ENDED, 0)]:
            del self._parts[key]

    async def through(self, asked: Asked) -> bytes:
        """Answered when it is stored how far repair reaches."""
        request: ThroughRequest = protocol.decode_through(asked.body)
        replica = self._find(request.table, request.tablet)
        if request.through_ms > repaired_through(
            self._around.wall_ms() + self._max_skew_ms, self._hint_life_ms, self._max_skew_ms
        ):
            raise Refused("invalid", f"a repair can't reach up to {request.through_ms}; are the clocks right?")
        if request.through_ms > replica.repaired_through_ms:
            await replica.set_repaired_through(request.through_ms)
        return b""

    def _find(self, table: int, tablet: int) -> Kept:
        if not self._around.stands():
            raise Refused(
                "not_ready", "this instance has no lease or has not caught up; a repair would promise nothing"
            )
        return self._around.find(table, tablet)
