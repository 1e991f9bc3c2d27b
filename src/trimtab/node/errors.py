"""Why a request to a Raft group was not done, and whether it may be tried again.

`outcome_known` is what a careful client needs: True means the thing certainly did not happen; False means it may
have, so only an idempotent retry (same command id) is safe.
"""

from __future__ import annotations


class GroupError(Exception):
    """A Raft group did not do what was asked. `code` travels over the wire."""

    code = "failed"
    outcome_known = True


class NotLeader(GroupError):
    """Another member leads, or none does."""

    code = "not_leader"

    def __init__(self, leader: int) -> None:
        self.leader = leader
        super().__init__(f"member {leader} leads; ask it" if leader else "no leader is known yet; try again shortly")


class ProposalRefused(GroupError):
    """Raft did not take the proposal; nothing of it is in any log."""

    code = "refused"


class LeadershipLost(GroupError):
    """The proposal was in the log of a leader that stepped down; it may still be committed by the next one."""

    code = "leadership_lost"
    outcome_known = False


class Overwritten(GroupError):
    """Another leader's entry took the proposal's place: it will never be applied."""

    code = "overwritten"


class TooBusy(GroupError):
    """A limit on waiting work is reached."""

    code = "overloaded"


class NoSpace(GroupError):
    """The disk of this member is (nearly) full; the request was not taken."""

    code = "disk_full"


class Stalled(GroupError):
    """The disk of this member became full while the request was under way."""

    code = "stalled"
    outcome_known = False


class Stopped(GroupError):
    """The instance is stopping; what was under way may or may not have been committed."""

    code = "stopped"
    outcome_known = False


class Removed(GroupError):
    """This member is none any more."""

    code = "removed"


class JoinRejected(Exception):
    """The cluster does not want this instance as it is; the text says why. Trying again as it is would not help."""


class JoinExpired(Exception):
    """The cluster gave up on this instance before it had its place there; it may try again, as somebody new."""


class Expelled(Exception):
    """The instance had its place in the cluster, and was put out for good."""
