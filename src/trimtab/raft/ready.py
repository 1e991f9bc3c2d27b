"""What a member wants done: written, sent, applied, answered.

Rules for the host. Without asynchronous writes: write entries, hard state and snapshot (and sync them, if `must_sync`),
then send the messages, then apply the committed entries, then call `advance`. With asynchronous writes: the storage
messages say all that, their responses take the place of `advance`, and the other messages may leave at once. A snapshot
may then overtake committed entries that were handed out before it: skip those it covers.
"""

from collections.abc import Sequence

import msgspec

from trimtab.raft.messages import Entry, HardState, Message, Snapshot
from trimtab.raft.reads import ReadState
from trimtab.raft.roles import StateType


class SoftState(msgspec.Struct, frozen=True, gc=False):
    """Useful to know, no need to store."""

    lead: int
    state: StateType


class Ready(msgspec.Struct, gc=False):
    # None: as before.
    soft_state: SoftState | None = None
    hard_state: HardState | None = None
    # To be written, replacing any tail from the first one's index on.
    entries: Sequence[Entry] = ()
    # To be written and installed before any entries.
    snapshot: Snapshot | None = None
    # To be applied, in order.
    committed_entries: Sequence[Entry] = ()
    messages: Sequence[Message] = ()
    read_states: Sequence[ReadState] = ()
    # Something here was, or will be, promised to others.
    must_sync: bool = False

    @property
    def is_empty(self) -> bool:
        return not (
            self.soft_state
            or self.hard_state
            or self.entries
            or self.snapshot
            or self.committed_entries
            or self.messages
            or self.read_states
        )
