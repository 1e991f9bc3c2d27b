"""The active membership, what is known about each of its members, and the votes of an election under way.

A `Configuration` is a value; a change makes a new one (see `confchange`). Invariants: a learner is in neither half of
the voters; whoever is in `learners_next` is an outgoing voter; outside joint consensus `outgoing`, `learners_next` and
`auto_leave` are empty. Peers are always visited in order of their ids, so that a run replays exactly.
"""

from collections.abc import Iterable

import msgspec

from trimtab.raft.messages import ConfState
from trimtab.raft.progress import Inflights, Progress
from trimtab.raft.quorum import JointVoters, VoteResult, describe_ids

ProgressMap = dict[int, Progress]


class Configuration(msgspec.Struct, frozen=True, gc=False):
    voters: JointVoters = JointVoters()
    learners: frozenset[int] = frozenset()
    # Voters of the outgoing half that become learners when the joint configuration is left. They can't be learners at
    # once, because then they would be voter and learner at the same time.
    learners_next: frozenset[int] = frozenset()
    # Leave the joint configuration as soon as it is applied, without being asked.
    auto_leave: bool = False

    @property
    def is_joint(self) -> bool:
        return bool(self.voters.outgoing)

    def conf_state(self) -> ConfState:
        return ConfState(
            voters=tuple(sorted(self.voters.incoming)),
            learners=tuple(sorted(self.learners)),
            voters_outgoing=tuple(sorted(self.voters.outgoing)),
            learners_next=tuple(sorted(self.learners_next)),
            auto_leave=self.auto_leave,
        )

    def __str__(self) -> str:
        text = f"voters={self.voters}"
        if self.learners:
            text += f" learners={describe_ids(self.learners)}"
        if self.learners_next:
            text += f" learners_next={describe_ids(self.learners_next)}"
        if self.auto_leave:
            text += " autoleave"
        return text


EMPTY_CONFIGURATION = Configuration()


class Tracker:
    __slots__ = ("config", "ids", "max_inflight_bytes", "max_inflight_messages", "progress", "votes")

    def __init__(self, max_inflight_messages: int, max_inflight_bytes: int) -> None:
        self.max_inflight_messages = max_inflight_messages
        self.max_inflight_bytes = max_inflight_bytes
        self.config = EMPTY_CONFIGURATION
        self.progress: ProgressMap = {}
        # Everyone in the configuration, in the order in which they are visited.
        self.ids: tuple[int, ...] = ()
        self.votes: dict[int, bool] = {}

    def switch(self, config: Configuration, progress: ProgressMap) -> None:
        self.config = config
        self.progress = progress
        self.ids = tuple(sorted(progress))

    def new_progress(self, next_index: int, *, is_learner: bool) -> Progress:
        """A peer that was just added counts as heard from: it had no chance to speak before the next quorum check."""
        inflights = Inflights(self.max_inflight_messages, self.max_inflight_bytes)
        return Progress(next_index, inflights, is_learner=is_learner, recent_active=True)

    def sole_voter(self, node: int) -> bool:
        """Whether it decides everything alone, be it on both sides of a joint configuration."""
        voters = self.config.voters
        return len(voters.incoming) == 1 and node in voters.incoming and voters.outgoing <= voters.incoming

    def committed(self) -> int:
        """The highest index that a quorum has, by what they acknowledged."""
        acked = {node: progress.match for node, progress in self.progress.items()}
        return self.config.voters.committed_index(acked)

    def quorum_active(self) -> bool:
        active = {node: progress.recent_active for node, progress in self._voters()}
        return self.config.voters.vote_result(active) is VoteResult.WON

    def _voters(self) -> Iterable[tuple[int, Progress]]:
        return ((node, progress) for node, progress in self.progress.items() if not progress.is_learner)

    def reset_votes(self) -> None:
        if self.votes:
            self.votes = {}

    def record_vote(self, node: int, granted: bool) -> None:
        """The first vote counts; a peer that answers twice is still one vote."""
        self.votes.setdefault(node, granted)

    def tally_votes(self) -> tuple[int, int, VoteResult]:
        """Votes for, votes against, and the outcome so far."""
        cast = [self.votes[node] for node, _ in self._voters() if node in self.votes]
        return cast.count(True), cast.count(False), self.config.voters.vote_result(self.votes)
