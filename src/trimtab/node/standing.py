"""This instance's own place in the cluster: it says that it runs, comes back by itself, takes its leave, or is put out.

Announced is a new life: the leader raises the incarnation, and the instance climbs from the foot. From then on, an own
row with a target Offline that this instance did not ask for means that it was not heard from for a while. It puts
itself back Online, after a read barrier (so that it does not answer a decision it has not seen in full) and after a
backoff of 300 ms, doubled each time up to 10 min, so that an instance that comes and goes does not keep the cluster
busy. Ten minutes Online forgive everything.

Expelled is for good: it serves nothing more. Its process ends when nobody needs its vote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trimtab.net.errors import NetError
from trimtab.node.answering import Refused
from trimtab.node.background import telling
from trimtab.node.errors import GroupError
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.topology.grades import Grade
from trimtab.topology.records import InstanceRecord
from trimtab.topology.view import View

FIRST_RETURN_S = 0.3
MAX_RETURN_S = 600.0
FORGIVEN_AFTER_S = 600.0
_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 2.0
_FAILURES = (Refused, NetError, GroupError, WaitedTooLong)
_FOREVER_S = 1e9
# Codes of refusals that no retry changes.
FOR_GOOD = frozenset(("left", "wrong_uuid"))


class Standing:
    """Keeps this instance where it should be: Online, unless it leaves.

    `update` changes the own row and gives its new grades; `barrier` is a read barrier; `put_out` ends the instance;
    `defect` is told of an error that nobody expected: without its standing an instance would never come back.
    """

    def __init__(
        self,
        raft_id: int,
        view: View,
        waits: Waits,
        *,
        update: Callable[[Grade, str, float], Awaitable[int]],
        barrier: Callable[[float], Awaitable[None]],
        put_out: Callable[[str], None],
        defect: Callable[[BaseException], None],
        story: Callable[[str], None],
    ) -> None:
        self._raft_id = raft_id
        self._view = view
        self._waits = waits
        self._update = update
        self._barrier = barrier
        self._put_out = put_out
        self._defect = defect
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._return_s = FIRST_RETURN_S
        self._online_since: float | None = None
        self.leaving = False
        self.incarnation: int | None = None  # of this life; None: the cluster does not know of it yet

    @property
    def record(self) -> InstanceRecord | None:
        """The own row, as this instance has applied it."""
        return self._view.instances.get(self._raft_id)

    @property
    def online(self) -> bool:
        """Whether this life has got to the top of the ladder."""
        record = self.record
        if record is None or self.incarnation is None:
            return False
        current = record.grades.current
        return current.grade is Grade.ONLINE and current.incarnation >= self.incarnation

    def start(self) -> None:
        self._task = self._loop.create_task(self._live(), name="standing")
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def changed(self) -> None:
        """The view changed."""
        record = self.record
        if record is not None and (record.left or record.grades.current.grade is Grade.EXPELLED):
            self._put_out(record.reason or "it was expelled")

    # A life

    async def _live(self) -> None:
        await self._until_told("this instance has started")
        while True:
            until = self._loop.time() + _FOREVER_S
            await self._waits.until(lambda: self._unwanted() or self._rose(), until, "being unwanted")
            if not self._unwanted():
                self._online_since = self._loop.time()
                await self._waits.until(self._unwanted, until, "being unwanted")
            if self._online_since is not None and self._loop.time() - self._online_since >= FORGIVEN_AFTER_S:
                self._return_s = FIRST_RETURN_S
            self._online_since = None
            await self._come_back()

    def _rose(self) -> bool:
        return self._online_since is None and self.online

    def _unwanted(self) -> bool:
        record = self.record
        return not self.leaving and record is not None and record.grades.target.grade is Grade.OFFLINE

    async def _come_back(self) -> None:
        record = self.record
        why = f" ({record.reason})" if record is not None and record.reason else ""
        self._story(f"the cluster has marked this instance Offline{why}; it comes back in {self._return_s:g} s")
        await asyncio.sleep(self._return_s)
        self._return_s = min(self._return_s * 2, MAX_RETURN_S)
        if self._unwanted():
            await self._until_told("it is back", barrier=True)

    async def _until_told(self, reason: str, *, barrier: bool = False) -> None:
        """Say that this instance should be Online until the leader has taken note."""
        wait_s, said, told = _FIRST_RETRY_S, "", False
        while not self.leaving:
            try:
                if not told:
                    if barrier:
                        await self._barrier(5.0)
                        if not self._unwanted():
                            return
                    self.incarnation = await self._update(Grade.ONLINE, reason, 2.0)
                    # Each word begins the climb anew: once it was taken, it is not said again.
                    told = True
                # The own row may still be the one from before: until this instance has seen its word in it, it would
                # take that for a mark that it was put down.
                await self._barrier(5.0)
            except _FAILURES as error:
                if _for_good(error):
                    self._put_out(getattr(error, "text", str(error)))
                    return
                if (text := str(error)) != said and wait_s >= _MAX_RETRY_S:
                    said = text
                    what = "does not answer since it knows" if told else "does not know yet"
                    self._story(f"the cluster {what} that this instance runs: {text}; it goes on trying")
            else:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _MAX_RETRY_S)

    # The end

    async def leave(self, until: float, *, settled: Callable[[], bool]) -> str:
        """Go Offline in an orderly way: empty when the cluster took note and nothing is left to hand over.

        Otherwise why not. `settled` says whether this instance neither leads nor votes where it need not.
        """
        self.leaving = True
        self.stop()
        wait_s, why = 0.05, "no leader was found"
        while (left_s := until - self._loop.time()) > 0:
            try:
                await self._update(Grade.OFFLINE, "it is shutting down", min(left_s, 1.0))
                break
            except _FAILURES as error:
                if _for_good(error):
                    return ""
                # What else its text advises is for those who try again.
                why = str(error).partition(";")[0]
            await asyncio.sleep(min(wait_s, max(until - self._loop.time(), 0.0)))
            wait_s = min(wait_s * 2, 0.5)
        else:
            return why
        try:
            await self._waits.until(lambda: self._is_down() and settled(), until, "the others to take over")
        except WaitedTooLong:
            return "" if self._is_down() else "the cluster has not taken note in time; a majority may be lost"
        return ""

    def _is_down(self) -> bool:
        record = self.record
        return record is None or record.left or record.grades.current.grade in (Grade.OFFLINE, Grade.EXPELLED)


def _for_good(error: Exception) -> bool:
    """Whether no retry changes this, whoever said so: this instance while it leads, or the leader over the network."""
    return getattr(error, "code", "") in FOR_GOOD
