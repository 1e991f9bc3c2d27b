"""The settings of one Raft member, checked once when the member is made.

Times are counted in ticks of the host; sizes in bytes. `random` is the only source of chance: it is asked for a
number in 0..n-1 whenever an election timeout is drawn, so a simulated member replays from its seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trimtab.raft.messages import LOCAL_APPEND, LOCAL_APPLY, NONE
from trimtab.raft.storage import LogStorage

NO_LIMIT = 2**63 - 1


@dataclass(slots=True)
class Config:
    id: int
    election_tick: int
    heartbeat_tick: int
    storage: LogStorage
    # Chance: n -> 0..n-1.
    random: Callable[[int], int]
    # The last index the state machine has applied, when it keeps that itself; nothing up to it is handed out again.
    applied: int = 0
    # Ready carries storage messages, and their responses take the place of advance().
    async_storage_writes: bool = False
    # Bytes of entries in one append message; 0 means one entry a message.
    max_size_per_msg: int = 1 << 20
    # Bytes of committed entries handed out and not yet applied; 0 means the same as max_size_per_msg.
    max_committed_size_per_ready: int = 0
    # Payload bytes a leader appends beyond what is applied before it drops proposals; 0 means no limit.
    max_uncommitted_entries_size: int = 64 << 20
    # Append messages, and their payload bytes (0: no limit), on the way to one peer.
    max_inflight_msgs: int = 256
    max_inflight_bytes: int = 0
    # A leader that does not hear from a quorum for an election timeout steps down; votes are ignored while in lease.
    check_quorum: bool = True
    # Ask before disturbing: a member raises its term only when a quorum would vote for it.
    pre_vote: bool = True
    # 'safe' confirms every read with a quorum. 'lease' trusts clocks and check_quorum; Python pauses, so don't.
    read_only: Literal["safe", "lease"] = "safe"
    disable_proposal_forwarding: bool = False
    disable_conf_change_validation: bool = False
    # A leader that was removed or demoted becomes a follower as soon as it applies that.
    step_down_on_removal: bool = True
    # Takes lines that start with DEBUG, INFO, WARN or ERROR.
    log: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.id == NONE or self.id in (LOCAL_APPEND, LOCAL_APPLY):
            raise ValueError(f"{self.id} can't be a member's id: 0 and the two highest 64-bit numbers are reserved")
        if self.heartbeat_tick <= 0:
            raise ValueError(f"heartbeat_tick must be at least 1, not {self.heartbeat_tick}")
        if self.election_tick <= self.heartbeat_tick:
            raise ValueError(
                f"election_tick ({self.election_tick}) must be greater than heartbeat_tick ({self.heartbeat_tick}); "
                "ten times is usual"
            )
        if self.max_inflight_msgs <= 0:
            raise ValueError(f"max_inflight_msgs must be at least 1, not {self.max_inflight_msgs}")
        if self.max_inflight_bytes == 0:
            self.max_inflight_bytes = NO_LIMIT
        elif self.max_inflight_bytes < self.max_size_per_msg:
            raise ValueError(
                f"max_inflight_bytes ({self.max_inflight_bytes}) must not be less than max_size_per_msg "
                f"({self.max_size_per_msg}), or no full message could ever be sent"
            )
        if self.max_uncommitted_entries_size == 0:
            self.max_uncommitted_entries_size = NO_LIMIT
        if self.max_committed_size_per_ready == 0:
            self.max_committed_size_per_ready = self.max_size_per_msg
        if self.read_only == "lease" and not self.check_quorum:
            raise ValueError("read_only='lease' needs check_quorum: without it a deposed leader never learns of it")
