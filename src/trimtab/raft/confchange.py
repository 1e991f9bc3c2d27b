"""From one membership to the next: copy, change, check, return. Nothing is altered when a change is refused.

`simple` changes at most one voter, so old and new majorities overlap. `enter_joint` keeps the old voters as a second
half that has to agree to everything until `leave_joint`. Invariants are verified on entry and on exit.

A new peer is probed from the leader's last index on, though it most likely has no log at all: its first rejection says
where it ends.
"""

from collections.abc import Iterable, Sequence

from trimtab.raft.errors import ConfChangeRefused, InvariantViolated
from trimtab.raft.messages import ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState
from trimtab.raft.progress import Progress
from trimtab.raft.quorum import JointVoters
from trimtab.raft.tracker import Configuration, ProgressMap, Tracker

Changed = tuple[Configuration, ProgressMap]


class _Draft:
    """A configuration while it is being changed."""

    __slots__ = ("incoming", "learners", "learners_next", "outgoing", "progress")

    def __init__(self, config: Configuration, progress: ProgressMap) -> None:
        self.incoming = set(config.voters.incoming)
        self.outgoing = config.voters.outgoing
        self.learners = set(config.learners)
        self.learners_next = set(config.learners_next)
        self.progress = {node: peer.copy() for node, peer in progress.items()}

    def finish(self, *, auto_leave: bool) -> Changed:
        config = Configuration(
            voters=JointVoters(frozenset(self.incoming), self.outgoing),
            learners=frozenset(self.learners),
            learners_next=frozenset(self.learners_next),
            auto_leave=auto_leave,
        )
        check_invariants(config, self.progress)
        return config, self.progress


class Changer:
    """Computes changes on top of a tracker's configuration, without touching it."""

    __slots__ = ("last_index", "tracker")

    def __init__(self, tracker: Tracker, last_index: int) -> None:
        self.tracker = tracker
        self.last_index = last_index

    def apply(self, change: ConfChangeV2) -> Changed:
        """Carry out a change the way it asks for."""
        if change.leaves_joint:
            return self.leave_joint()
        if change.enters_joint:
            return self.enter_joint(change.changes, auto_leave=change.auto_leave)
        return self.simple(change.changes)

    def simple(self, changes: Sequence[ConfChangeSingle]) -> Changed:
        """Change at most one voter, and any learners."""
        draft = self._draft()
        if draft.outgoing:
            raise ConfChangeRefused("can't apply simple config change in joint config")
        self._change(draft, changes)
        if len(draft.incoming ^ self.tracker.config.voters.incoming) > 1:
            raise ConfChangeRefused("more than one voter changed without entering joint config")
        return draft.finish(auto_leave=False)

    def enter_joint(self, changes: Sequence[ConfChangeSingle], *, auto_leave: bool) -> Changed:
        """Keep the voters as outgoing half and change the incoming one."""
        draft = self._draft()
        if draft.outgoing:
            raise ConfChangeRefused("config is already joint")
        if not draft.incoming:
            raise ConfChangeRefused("can't make a zero-voter config joint")
        draft.outgoing = frozenset(draft.incoming)
        self._change(draft, changes)
        return draft.finish(auto_leave=auto_leave)

    def leave_joint(self) -> Changed:
        """Drop the outgoing half; those who waited for it become learners, those in no set are forgotten."""
        draft = self._draft()
        if not draft.outgoing:
            raise ConfChangeRefused("can't leave a non-joint config")
        for node in draft.learners_next:
            draft.learners.add(node)
            draft.progress[node].is_learner = True
        draft.learners_next = set()
        for node in draft.outgoing:
            if node not in draft.incoming and node not in draft.learners:
                del draft.progress[node]
        draft.outgoing = frozenset()
        return draft.finish(auto_leave=False)

    def _draft(self) -> _Draft:
        check_invariants(self.tracker.config, self.tracker.progress)
        return _Draft(self.tracker.config, self.tracker.progress)

    def _change(self, draft: _Draft, changes: Iterable[ConfChangeSingle]) -> None:
        for change in changes:
            if change.node_id == 0:
                # The application decided not to carry out this part and blanked it.
                continue
            if change.type == ConfChangeType.ADD_NODE:
                self._make_voter(draft, change.node_id)
            elif change.type == ConfChangeType.ADD_LEARNER_NODE:
                self._make_learner(draft, change.node_id)
            elif change.type == ConfChangeType.REMOVE_NODE:
                self._remove(draft, change.node_id)
        if not draft.incoming:
            raise ConfChangeRefused("removed all voters")

    def _make_voter(self, draft: _Draft, node: int) -> None:
        peer = draft.progress.get(node)
        if peer is None:
            draft.progress[node] = self._new_progress(is_learner=False)
        else:
            peer.is_learner = False
        draft.learners.discard(node)
        draft.learners_next.discard(node)
        draft.incoming.add(node)

    def _make_learner(self, draft: _Draft, node: int) -> None:
        peer = draft.progress.get(node)
        if peer is None:
            draft.progress[node] = self._new_progress(is_learner=True)
            draft.learners.add(node)
            return
        if peer.is_learner:
            return
        self._remove(draft, node)
        draft.progress[node] = peer
        if node in draft.outgoing:
            draft.learners_next.add(node)
        else:
            peer.is_learner = True
            draft.learners.add(node)

    def _remove(self, draft: _Draft, node: int) -> None:
        if node not in draft.progress:
            return
        draft.incoming.discard(node)
        draft.learners.discard(node)
        draft.learners_next.discard(node)
        if node not in draft.outgoing:
            del draft.progress[node]

    def _new_progress(self, *, is_learner: bool) -> Progress:
        return self.tracker.new_progress(max(self.last_index, 1), is_learner=is_learner)


def restore(tracker: Tracker, last_index: int, conf_state: ConfState) -> Changed:
    """Build the configuration a snapshot carries, by the same changes that could have led to it.

    The tracker must be empty. First the outgoing voters are made the only ones; then a joint configuration is entered
    in which they are removed and everyone else is added.
    """
    assert not tracker.progress, "a configuration is restored into an empty tracker"
    scratch = Tracker(tracker.max_inflight_messages, tracker.max_inflight_bytes)
    changer = Changer(scratch, last_index)
    incoming = [ConfChangeSingle(ConfChangeType.REMOVE_NODE, node) for node in conf_state.voters_outgoing]
    incoming += [ConfChangeSingle(ConfChangeType.ADD_NODE, node) for node in conf_state.voters]
    incoming += [
        ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, node)
        for node in (*conf_state.learners, *conf_state.learners_next)
    ]
    if not conf_state.voters_outgoing:
        for change in incoming:
            scratch.switch(*changer.simple([change]))
    else:
        for node in conf_state.voters_outgoing:
            scratch.switch(*changer.simple([ConfChangeSingle(ConfChangeType.ADD_NODE, node)]))
        scratch.switch(*changer.enter_joint(incoming, auto_leave=conf_state.auto_leave))
    restored = scratch.config.conf_state()
    if restored != _normal_form(conf_state):
        raise InvariantViolated(f"the configuration {conf_state} can't be restored, it would become {restored}")
    return scratch.config, scratch.progress


def _normal_form(conf_state: ConfState) -> ConfState:
    return ConfState(
        voters=tuple(sorted(conf_state.voters)),
        learners=tuple(sorted(conf_state.learners)),
        voters_outgoing=tuple(sorted(conf_state.voters_outgoing)),
        learners_next=tuple(sorted(conf_state.learners_next)),
        auto_leave=conf_state.auto_leave,
    )


def check_invariants(config: Configuration, progress: ProgressMap) -> None:
    """Raises InvariantViolated unless the configuration is a legal one. The empty one is: bootstrap begins there."""
    voters = config.voters
    for node in voters.ids() | config.learners | config.learners_next:
        if node not in progress:
            raise InvariantViolated(f"no progress for {node}")
    for node in config.learners_next:
        if node not in voters.outgoing:
            raise InvariantViolated(f"{node} is to become a learner, but is not an outgoing voter")
        if progress[node].is_learner:
            raise InvariantViolated(f"{node} is to become a learner, but already is one")
    for node in config.learners:
        if node in voters:
            raise InvariantViolated(f"{node} is a learner and a voter")
        if not progress[node].is_learner:
            raise InvariantViolated(f"{node} is a learner, but not marked as one")
    if not config.is_joint and (config.learners_next or config.auto_leave):
        raise InvariantViolated("only a joint configuration has learners to come or is left automatically")
