"""The window of messages on the way, and the three ways to treat a peer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trimtab.raft.progress import Inflights, Progress, ProgressState


class WindowAgainstModel(RuleBasedStateMachine):
    """The window does what a plain list of (index, bytes) would."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Inflights(max_messages=4, max_bytes=20)
        self.model: list[tuple[int, int]] = []
        self.last = 0

    @precondition(lambda self: not self.window.full)
    @rule(step=st.integers(1, 3), size=st.integers(0, 15))
    def add(self, step: int, size: int) -> None:
        self.last += step
        self.window.add(self.last, size)
        self.model.append((self.last, size))

    @rule(back=st.integers(0, 10))
    def free(self, back: int) -> None:
        self.window.free_up_to(self.last - back)
        self.model = [(index, size) for index, size in self.model if index > self.last - back]

    @rule()
    def reset(self) -> None:
        self.window.reset()
        self.model = []

    @invariant()
    def agrees(self) -> None:
        assert len(self.window) == len(self.model)
        assert self.window.size_bytes == sum(size for _, size in self.model)
        assert self.window.full == (len(self.model) >= 4 or self.window.size_bytes >= 20)


TestWindow = WindowAgainstModel.TestCase


def peer(state: ProgressState = ProgressState.REPLICATE, *, match: int = 0, messages: int = 3) -> Progress:
    progress = Progress(match + 1, Inflights(messages, 0), is_learner=False, recent_active=True)
    progress.maybe_update(match)
    if state is ProgressState.REPLICATE:
        progress.become_replicate()
    elif state is ProgressState.SNAPSHOT:
        progress.become_snapshot(match + 10)
    return progress


def test_a_message_must_not_go_into_a_full_window() -> None:
    window = Inflights(1, 0)
    window.add(1, 0)
    with pytest.raises(AssertionError):
        window.add(2, 0)


def test_one_message_may_overshoot_the_byte_limit_or_a_huge_entry_would_never_move() -> None:
    window = Inflights(10, 100)
    window.add(1, 1_000)
    assert window.full


def test_streaming_runs_ahead_of_the_answers_until_the_window_is_full() -> None:
    progress = peer(match=5)
    for sent in range(3):
        assert not progress.is_paused, sent
        progress.sent_entries(2, 10)
    assert progress.is_paused and progress.next == 12
    progress.maybe_update(7)
    progress.inflights.free_up_to(7)
    assert not progress.is_paused and not progress.inflights.full


def test_a_probe_is_one_message_at_a_time() -> None:
    progress = peer(ProgressState.PROBE, match=5)
    progress.sent_entries(1, 10)
    assert progress.is_paused and progress.next == 6


def test_a_rejection_at_or_below_what_matched_is_old_news() -> None:
    progress = peer(match=5)
    assert not progress.maybe_decrease(5, 3)
    progress.sent_entries(4, 0)
    assert progress.maybe_decrease(8, 3) and progress.next == 6


def test_a_probe_believes_only_the_rejection_of_the_probe_that_is_out() -> None:
    progress = peer(ProgressState.PROBE, match=2)
    progress.next = 9
    assert not progress.maybe_decrease(7, 3)
    assert progress.maybe_decrease(8, 4) and progress.next == 5


def test_after_a_snapshot_arrived_probing_goes_on_behind_it_and_after_a_failure_behind_what_matched() -> None:
    progress = peer(ProgressState.SNAPSHOT, match=5)
    progress.become_probe()
    assert progress.next == 16
    failed = peer(ProgressState.SNAPSHOT, match=5)
    failed.pending_snapshot = 0
    failed.become_probe()
    assert failed.next == 6


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("sent"), st.integers(0, 3)),
            st.tuples(st.just("acked"), st.integers(0, 60)),
            st.tuples(st.just("rejected"), st.integers(0, 60)),
            st.tuples(st.just("probe"), st.just(0)),
            st.tuples(st.just("snapshot"), st.integers(0, 60)),
        ),
        max_size=40,
    )
)
def test_match_never_goes_back_and_next_is_always_past_it(events: list[tuple[str, int]]) -> None:
    progress = peer(match=1)
    for event, number in events:
        before = progress.match
        if event == "sent" and progress.state is not ProgressState.SNAPSHOT:
            progress.sent_entries(0 if progress.inflights.full else number, 0)
        elif event == "acked" and progress.maybe_update(number):
            progress.inflights.free_up_to(number)
        elif event == "rejected" and number >= 1:
            progress.maybe_decrease(number, max(number - 3, 0))
        elif event == "probe":
            progress.become_probe()
            progress.become_replicate()
        elif event == "snapshot" and number > progress.match:
            progress.become_snapshot(number)
        assert before <= progress.match < progress.next
