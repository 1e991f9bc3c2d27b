"""What Raft refuses, and why. Each error names the thing, what was expected and, where there is one, the way out.

An input that raises one of these had no effect. Broken invariants are not here: they raise `InvariantViolated`, after
which the member must stop, because going on could lose what was acknowledged.
"""

import enum

from trimtab.raft.messages import MessageType


class RaftError(Exception):
    """Base of everything this package raises on purpose."""


class DropReason(enum.Enum):
    NO_LEADER = "there is no leader now; try again after an election"
    TRANSFERRING = "leadership is being transferred; try again when the transfer has ended"
    TOO_MUCH_UNCOMMITTED = "too many bytes wait to be committed; slow down and try again"
    REMOVED = "this member leads but was removed from the configuration; ask another member"
    FORWARDING_DISABLED = "this member follows and forwarding is disabled; ask the leader"
    MALFORMED_CHANGE = "the configuration change can't be decoded; build it with encode_conf_change"


class ProposalDropped(RaftError):
    """A proposal was not appended. It is certain that this attempt will never commit."""

    def __init__(self, reason: DropReason) -> None:
        super().__init__(f"proposal dropped: {reason.value}")
        self.reason = reason


class StepRefused(RaftError):
    """A message was not taken in; the host may log it and go on."""


class LocalMessageRefused(StepRefused):
    """A message that only a member itself may say came from somewhere else."""

    def __init__(self, type_: MessageType, sender: int) -> None:
        super().__init__(f"{type_.name} is a local message, but it came from {sender}; drop the connection")
        self.type = type_
        self.sender = sender


class UnknownPeer(StepRefused):
    """An answer from a peer that is not in the configuration, usually one that was just removed."""

    def __init__(self, type_: MessageType, sender: int) -> None:
        super().__init__(f"{type_.name} from {sender}, which is not in the configuration; dropped")
        self.type = type_
        self.sender = sender


class ConfChangeRefused(RaftError):
    """The membership change is not possible on top of the current configuration."""


class InvariantViolated(RaftError):
    """Raft's own rules don't hold any more: corrupt log, a host that broke the contract, or a bug. Stop the member."""
