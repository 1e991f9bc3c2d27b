"""The log: what matches, what is replaced, what is handed out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.raft.config import NO_LIMIT
from trimtab.raft.errors import InvariantViolated
from trimtab.raft.log import Log
from trimtab.raft.messages import ConfState, Entry, Snapshot, SnapshotMetadata
from trimtab.raft.storage import Compacted, MemoryStorage, Unavailable, entries_bytes, entry_bytes, limit_bytes

TERMS = st.lists(st.integers(1, 5), max_size=10).map(sorted)


def entries(terms: list[int], first: int = 1, data: bytes = b"") -> list[Entry]:
    return [Entry(term, index, data=data) for index, term in enumerate(terms, first)]


def log_of(terms: list[int], *, stable: int = 0, snapshot: int = 0, max_applying_bytes: int = NO_LIMIT) -> Log:
    """A log with these terms from snapshot+1 on, of which the first `stable` are in storage."""
    storage = MemoryStorage()
    if snapshot:
        storage.apply_snapshot(Snapshot(SnapshotMetadata(ConfState((1,)), snapshot, 1)))
    all_entries = entries(terms, snapshot + 1)
    storage.append(all_entries[:stable])
    log = Log(storage, max_applying_bytes)
    if all_entries[stable:]:
        log.append(all_entries[stable:])
    return log


def terms_of(log: Log) -> list[int]:
    return [log.term(index) for index in range(log.first_index(), log.last_index() + 1)]


@given(TERMS, TERMS, st.integers(0, 10), st.integers(0, 10))
def test_an_append_makes_the_logs_equal_up_to_its_end_and_cuts_only_where_they_differ(
    ours: list[int], theirs: list[int], stable: int, prev: int
) -> None:
    log = log_of(ours, stable=min(stable, len(ours)))
    prev = min(prev, len(theirs))
    sent = entries(theirs[prev:], prev + 1)
    prev_term = theirs[prev - 1] if prev else 0
    matched = prev <= len(ours) and (ours[prev - 1] if prev else 0) == prev_term
    # By Raft's log matching, logs that agree at prev agree before it too; make it so.
    if matched and ours[:prev] != theirs[:prev]:
        return
    assert log.maybe_append(prev, prev_term, sent, 0) is matched
    if not matched:
        assert terms_of(log) == ours
        return
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    if same >= len(theirs):
        assert terms_of(log) == ours, "an old append must not cut off what came after it"
    else:
        assert terms_of(log) == theirs


@given(TERMS, st.integers(0, 12), st.integers(0, 6))
def test_the_guess_where_logs_agree_skips_only_what_can_not_agree(terms: list[int], index: int, term: int) -> None:
    log = log_of(terms)
    guess, guess_term = log.find_conflict_by_term(index, term)
    if index > len(terms):
        assert (guess, guess_term) == (index, 0)
        return
    candidates = [position for position in range(1, index + 1) if terms[position - 1] <= term]
    assert guess == max(candidates, default=0)
    assert guess_term == (terms[guess - 1] if guess else 0)


@given(TERMS.filter(bool), st.integers(0, 10), st.integers(0, 4), st.integers(1, 60))
def test_entries_are_the_same_wherever_they_are(terms: list[int], stable: int, snapshot: int, limit: int) -> None:
    log = log_of(terms, stable=min(stable, len(terms)), snapshot=snapshot)
    first, last = log.first_index(), log.last_index()
    everything = entries(terms, snapshot + 1)
    assert log.slice(first, last + 1, NO_LIMIT) == everything
    assert [entry for page in log.scan(first, last + 1, limit) for entry in page] == everything
    for low in range(first, last + 1):
        page = log.slice(low, last + 1, limit)
        assert page and (len(page) == 1 or entries_bytes(page) <= limit)
        assert page == everything[low - first : low - first + len(page)]


def test_committed_entries_are_never_replaced() -> None:
    log = log_of([1, 1, 1])
    log.commit_to(2)
    with pytest.raises(InvariantViolated, match="committed"):
        log.maybe_append(0, 0, entries([1, 2]), 0)
    with pytest.raises(InvariantViolated, match="committed"):
        log.append(entries([9], 2))


def test_a_commit_index_past_the_end_means_the_log_lost_something() -> None:
    with pytest.raises(InvariantViolated, match="past the end"):
        log_of([1, 1]).commit_to(3)


def test_a_follower_commits_no_further_than_what_the_append_proves() -> None:
    log = log_of([1, 1, 1])
    assert log.maybe_append(0, 0, entries([1, 1]), committed=3)
    assert log.committed == 2


def test_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    log = log_of([1, 2])
    assert not log.maybe_commit(2, 3)
    assert log.maybe_commit(2, 2) and log.committed == 2


def test_the_write_that_was_replaced_meanwhile_does_not_make_the_new_entries_stable() -> None:
    log = log_of([1, 1, 1])
    log.unstable.accept_in_progress()
    log.append(entries([2, 2], 2))
    assert [entry.term for entry in log.unstable.next_entries()] == [2, 2]
    assert not log.unstable.stable_to(3, 1)
    assert log.unstable.stable_to(1, 1)
    assert log.unstable.offset == 2 and log.last_index() == 3


def test_entries_being_written_are_not_handed_out_again_unless_they_are_replaced() -> None:
    log = log_of([1, 1])
    log.unstable.accept_in_progress()
    assert not log.unstable.has_next_entries
    log.append(entries([1], 3))
    assert [entry.index for entry in log.unstable.next_entries()] == [3]
    log.append(entries([2], 1))
    assert [(entry.index, entry.term) for entry in log.unstable.next_entries()] == [(1, 2)]


def test_a_snapshot_replaces_the_log_and_nothing_is_applied_until_it_is_installed() -> None:
    log = log_of([1, 1], stable=2)
    log.restore(Snapshot(SnapshotMetadata(ConfState((1,)), 10, 3)))
    assert (log.first_index(), log.last_index(), log.committed, log.last_term()) == (11, 10, 10, 3)
    with pytest.raises(Compacted):
        log.term(2)
    log.append(entries([3], 11))
    log.commit_to(11)
    assert not log.has_next_committed(allow_unstable=True)
    log.unstable.stable_snapshot_to(10)
    log.applied_to(10, 0)
    assert [entry.index for entry in log.next_committed(allow_unstable=True)] == [11]


def test_with_asynchronous_writes_only_stable_entries_are_applied() -> None:
    log = log_of([1, 1, 1], stable=1)
    log.commit_to(3)
    assert [entry.index for entry in log.next_committed(allow_unstable=False)] == [1]
    assert [entry.index for entry in log.next_committed(allow_unstable=True)] == [1, 2, 3]


def test_applying_pauses_at_its_byte_limit_and_goes_on_when_some_is_applied() -> None:
    log = log_of([1] * 5, stable=5, max_applying_bytes=2 * entry_bytes(Entry()) + 1)
    log.commit_to(5)
    page = log.next_committed(allow_unstable=True)
    assert [entry.index for entry in page] == [1, 2]
    log.accept_applying(2, entries_bytes(page), allow_unstable=True)
    assert not log.has_next_committed(allow_unstable=True)
    log.applied_to(1, entry_bytes(page[0]))
    assert [entry.index for entry in log.next_committed(allow_unstable=True)] == [3]


def test_what_is_applied_never_goes_back_nor_past_what_is_committed() -> None:
    log = log_of([1, 1])
    log.commit_to(1)
    log.applied_to(1, 0)
    for index in (0, 2):
        with pytest.raises(InvariantViolated):
            log.applied_to(index, 0)


def test_asking_outside_the_log_says_which_side() -> None:
    log = log_of([2, 2], stable=2, snapshot=5)
    assert log.term(5) == 1 and log.term_or_zero(4) == 0 and log.term_or_zero(9) == 0
    with pytest.raises(Compacted):
        log.term(4)
    with pytest.raises(Unavailable):
        log.term(8)
    with pytest.raises(Compacted):
        log.entries(5, NO_LIMIT)


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(0, 100))
def test_a_limit_cuts_to_the_longest_prefix_that_fits_but_never_to_nothing(data: list[bytes], limit: int) -> None:
    all_entries = [Entry(1, index, data=each) for index, each in enumerate(data, 1)]
    cut = limit_bytes(all_entries, limit)
    assert cut == all_entries[: len(cut)] and bool(cut) == bool(all_entries)
    assert len(cut) <= 1 or entries_bytes(cut) <= limit
    assert len(cut) == len(all_entries) or entries_bytes(all_entries[: len(cut) + 1]) > limit
