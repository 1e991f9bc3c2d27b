"""What a leader knows about one peer, and how fast it may send to it.

Three ways to treat a peer. PROBE: where its log ends is unknown, so one message at a time. REPLICATE: its log
matches, so entries are streamed ahead of the answers, within a window. SNAPSHOT: it needs what the log no longer has,
so nothing is sent until the snapshot has arrived.

Invariants: 0 <= match < next. Entries in (match, next) are on the way. In SNAPSHOT, next is one past the snapshot.
"""

import enum
from collections.abc import Mapping


class ProgressState(enum.Enum):
    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


_PROBE = ProgressState.PROBE
_REPLICATE = ProgressState.REPLICATE
_SNAPSHOT = ProgressState.SNAPSHOT


class Inflights:
    """The window of append messages on the way to one peer, bounded by their number and their payload bytes.

    One message may overshoot the byte limit (the last one that fits begins below it), never more: that keeps a single
    huge entry from getting stuck for ever.
    """

    __slots__ = ("_window", "max_bytes", "max_messages", "size_bytes")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        # 0 means no limit.
        self.max_bytes = max_bytes
        self.size_bytes = 0
        # (last index, payload bytes) of each message, oldest first; short, so a list beats a deque in memory.
        self._window: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._window)

    @property
    def full(self) -> bool:
        return len(self._window) >= self.max_messages or (0 < self.max_bytes <= self.size_bytes)

    def add(self, last_index: int, size_bytes: int) -> None:
        assert not self.full, "a message was sent into a full window"
        self._window.append((last_index, size_bytes))
        self.size_bytes += size_bytes

    def free_up_to(self, index: int) -> None:
        """The peer has everything up to index: messages that end there or before are answered."""
        window = self._window
        answered = 0
        for last_index, size_bytes in window:
            if last_index > index:
                break
            answered += 1
            self.size_bytes -= size_bytes
        if answered:
            del window[:answered]

    def reset(self) -> None:
        self._window.clear()
        self.size_bytes = 0


class Progress:
    """One peer as its leader sees it."""

    __slots__ = (
        "inflights",
        "is_learner",
        "match",
        "next",
        "paused_flow",
        "pending_snapshot",
        "recent_active",
        "sent_commit",
        "state",
    )

    def __init__(self, next_index: int, inflights: Inflights, *, is_learner: bool, recent_active: bool) -> None:
        # The peer's log is known to equal ours up to here. Never goes back within a term.
        self.match = 0
        # The next entry to send.
        self.next = next_index
        # The highest commit index sent so far; lets a leader send a commit index early, but not twice.
        self.sent_commit = 0
        self.state = _PROBE
        # In SNAPSHOT: the index of the snapshot on the way, else 0.
        self.pending_snapshot = 0
        # Heard from within the last election timeout.
        self.recent_active = recent_active
        # No append until the next heartbeat answer: probing, or streaming into a full window.
        self.paused_flow = False
        self.inflights = inflights
        self.is_learner = is_learner

    def copy(self) -> "Progress":
        """Enough of a copy for a configuration change, which alters nothing but is_learner; the window is shared."""
        twin = Progress(self.next, self.inflights, is_learner=self.is_learner, recent_active=self.recent_active)
        twin.match = self.match
        twin.sent_commit = self.sent_commit
        twin.state = self.state
        twin.pending_snapshot = self.pending_snapshot
        twin.paused_flow = self.paused_flow
        return twin

    def restart(self, *, match: int, next_index: int) -> None:
        """Forget everything but the role, at the beginning of a term."""
        self.match = match
        self.next = next_index
        self.sent_commit = 0
        self.recent_active = False
        self._enter(_PROBE)

    def _enter(self, state: ProgressState) -> None:
        self.paused_flow = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.reset()

    def become_probe(self) -> None:
        """Probe after match, or after the snapshot that was on the way, if that is further."""
        pending_snapshot = self.pending_snapshot if self.state is _SNAPSHOT else 0
        self._enter(_PROBE)
        self.next = max(self.match, pending_snapshot) + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        self._enter(_REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, snapshot_index: int) -> None:
        self._enter(_SNAPSHOT)
        self.pending_snapshot = snapshot_index
        self.next = snapshot_index + 1
        self.sent_commit = snapshot_index

    def sent_entries(self, count: int, size_bytes: int) -> None:
        """An append with so many entries from `next` on was sent."""
        if self.state is _REPLICATE:
            if count > 0:
                self.next += count
                self.inflights.add(self.next - 1, size_bytes)
            # A message that fills the window, or goes out although it is full, is a probe: wait for an answer.
            self.paused_flow = self.inflights.full
        else:
            assert self.state is _PROBE, "an append was sent to a peer that waits for a snapshot"
            if count > 0:
                self.paused_flow = True

    def can_bump_commit(self, commit: int) -> bool:
        """Whether sending this commit index could move the peer's, given what was sent before."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: int) -> bool:
        """The peer acknowledged up to index. False when that is old news."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.paused_flow = False
        return True

    def maybe_decrease(self, rejected: int, match_hint: int) -> bool:
        """The peer rejected an append after `rejected`. False when the rejection is stale.

        Messages may arrive late or twice: when streaming, a rejection at or below match is old; when probing, only a
        rejection of the one probe that is out, at next - 1, is genuine.
        """
        if self.state is _REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
            self.sent_commit = min(self.sent_commit, self.next - 1)
            return True
        if self.next - 1 != rejected:
            return False
        self.next = max(min(rejected, match_hint + 1), self.match + 1)
        self.sent_commit = min(self.sent_commit, self.next - 1)
        self.paused_flow = False
        return True

    @property
    def is_paused(self) -> bool:
        return self.paused_flow or self.state is _SNAPSHOT

    def __str__(self) -> str:
        text = f"{self.state.value} match={self.match} next={self.next}"
        if self.is_learner:
            text += " learner"
        if self.is_paused:
            text += " paused"
        if self.pending_snapshot > 0:
            text += f" pendingSnap={self.pending_snapshot}"
        if not self.recent_active:
            text += " inactive"
        if len(self.inflights) > 0:
            text += f" inflight={len(self.inflights)}"
            if self.inflights.full:
                text += "[full]"
        return text


def describe_progress(progress: Mapping[int, Progress]) -> str:
    """One line per peer, by id."""
    return "".join(f"{node}: {progress[node]}\n" for node in sorted(progress))
