"""Barriers: when is everybody past an older topology, and what if somebody can't say?

A barrier at version v answers the question "can any request still run by a topology older than v?". Each node answers
for itself: it has seen v, and every request that it stamped with an older version has ended (`OpenRequests`). A dead
node can't answer. It is skipped only once its row says *current* Offline: then it holds no lease, so it takes no writes
and answers nothing above ONE. But a request it sent before it died may still be on its way to a replica. So whoever
skips a node raises `topology/fence` to v, and asks the others once more, this time at an index that includes the fence
(`Round`): from then on every live replica refuses what is older than v. The same holds for a node that was started anew
while the barrier waited: it answers, but not for the requests of its life before.

    WAITING ──all answered──▶ PASSED
       │
       └─some were skipped, or began anew──▶ RAISE_FENCE ──fence_raised()──▶ WAITING (all, once more) ──▶ PASSED

A node that dies in the second pass needs no third: the fence is written, and each of the others has seen it when it
answers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

MAX_WAITERS = 1_000


class TooManyWaiters(RuntimeError):
    """More barriers wait on this node than any leader can have under way."""


class OpenRequests:
    """The requests that this node routed and that have not ended, by the topology version they were stamped with."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}  # token -> version
        self._counts: dict[int, int] = {}  # version -> open requests; as few keys as there are versions in use
        self._waiters: dict[int, tuple[int, Callable[[], None]]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._versions)

    def open(self, version: int) -> int:
        """A request begins; the token ends it."""
        self._last += 1
        self._versions[self._last] = version
        self._counts[version] = self._counts.get(version, 0) + 1
        return self._last

    def close(self, token: int) -> None:
        """It has ended, however it did. A token counts once: closing it again does nothing."""
        version = self._versions.pop(token, None)
        if version is None:
            return
        self._counts[version] -= 1
        if self._counts[version]:
            return
        del self._counts[version]
        self._wake()

    def oldest(self) -> int | None:
        """The oldest version a request is open at; None if none is open."""
        return min(self._counts, default=None)

    def drained(self, version: int) -> bool:
        """Whether no request older than `version` is open."""
        oldest = self.oldest()
        return oldest is None or oldest >= version

    def wait(self, version: int, callback: Callable[[], None]) -> int:
        """Call back once no request older than `version` is open; at once if so. The number is for `forget`."""
        self._last += 1
        if self.drained(version):
            callback()
        elif len(self._waiters) >= MAX_WAITERS:
            raise TooManyWaiters(f"{MAX_WAITERS} barriers wait here already, the oldest request is of {self.oldest()}")
        else:
            self._waiters[self._last] = (version, callback)
        return self._last

    def forget(self, number: int) -> None:
        """Whoever waited has gone."""
        self._waiters.pop(number, None)

    def waiting(self) -> int:
        return len(self._waiters)

    def _wake(self) -> None:
        oldest = self.oldest()
        for number, (version, callback) in list(self._waiters.items()):
            if oldest is None or oldest >= version:
                del self._waiters[number]
                callback()


class RoundState(enum.Enum):
    """What whoever runs the barrier does next."""

    WAITING = "waiting"
    RAISE_FENCE = "raise_fence_and_repeat"
    PASSED = "passed"


class Round:
    """One barrier as its leader sees it: who is asked, who answered, who was skipped."""

    def __init__(self, version: int, nodes: Iterable[int]) -> None:
        self.version = version
        self._alive = set(nodes)
        self._answered: set[int] = set()
        self._skipped: set[int] = set()
        self._anew: set[int] = set()
        self._fenced = False

    @property
    def to_ask(self) -> frozenset[int]:
        """Who has not answered in this pass."""
        if self.state is RoundState.RAISE_FENCE:
            return frozenset()
        return frozenset(self._alive - self._answered)

    @property
    def skipped(self) -> frozenset[int]:
        return frozenset(self._skipped)

    @property
    def unanswered_for(self) -> frozenset[int]:
        """Whose requests nobody answers for: those of nodes that were skipped, and of former lives."""
        return frozenset(self._skipped | self._anew)

    @property
    def repeating(self) -> bool:
        """Whether this is the pass after the fence was raised."""
        return self._fenced

    @property
    def state(self) -> RoundState:
        if self._alive - self._answered:
            return RoundState.WAITING
        if self.unanswered_for and not self._fenced:
            return RoundState.RAISE_FENCE
        return RoundState.PASSED

    def answered(self, raft_id: int) -> None:
        """A node is past the older versions."""
        if raft_id in self._alive:
            self._answered.add(raft_id)

    def dead(self, raft_id: int) -> None:
        """A node's row says current Offline (not only that it should be): it holds no lease, so it is skipped.

        Also one that answered before: what it began then may still be on its way, but nothing that it begins now.
        """
        if raft_id in self._alive:
            self._alive.discard(raft_id)
            if raft_id not in self._answered:
                self._skipped.add(raft_id)

    def came_in(self, raft_id: int) -> None:
        """A node that was absent when the barrier began is up again: it has to answer too."""
        self._alive.add(raft_id)

    def began_anew(self, raft_id: int) -> None:
        """A node is in another life than the one that had sent requests; only the fence helps against those."""
        self._anew.add(raft_id)

    def fence_raised(self) -> None:
        """The fence is written; ask everybody who lives once more, at an index that includes it."""
        assert self.state is RoundState.RAISE_FENCE, "the fence is raised once, after everybody answered or was skipped"
        self._fenced = True
        self._answered.clear()
