"""The storage in memory behaves as the port says."""

import pytest

from trimtab.raft.messages import ConfState, Entry, HardState, Snapshot, SnapshotMetadata
from trimtab.raft.storage import Compacted, MemoryStorage, SnapshotOutOfDate, Unavailable


def storage(count: int = 5, *, first: int = 1) -> MemoryStorage:
    made = MemoryStorage()
    if first > 1:
        made.apply_snapshot(Snapshot(SnapshotMetadata(ConfState((1,)), first - 1, 1)))
    made.append([Entry(2, index, data=b"x" * 12) for index in range(first, first + count)])
    return made


def test_a_new_storage_is_empty() -> None:
    made = MemoryStorage()
    assert (made.first_index(), made.last_index(), made.term(0)) == (1, 0, 0)
    assert made.initial_state() == (HardState(), ConfState())


def test_what_is_compacted_or_not_there_is_told_apart() -> None:
    made = storage(first=3)
    assert made.term(2) == 1
    for wrong in (lambda: made.term(1), lambda: made.entries(2, 4, 99)):
        with pytest.raises(Compacted):
            wrong()
    for wrong in (lambda: made.term(8), lambda: made.entries(4, 9, 99)):
        with pytest.raises(Unavailable):
            wrong()


def test_entries_are_cut_at_the_limit_but_never_to_nothing() -> None:
    made = storage()
    assert [entry.index for entry in made.entries(1, 6, 45)] == [1, 2]
    assert [entry.index for entry in made.entries(1, 6, 0)] == [1]


def test_an_append_replaces_the_tail_and_skips_what_was_compacted() -> None:
    made = storage(first=3)
    made.append([Entry(3, index) for index in range(1, 5)])
    assert (made.last_index(), made.term(4)) == (4, 3)
    made.append([Entry(3, 1)])
    assert made.last_index() == 4
    with pytest.raises(Unavailable, match="gap"):
        made.append([Entry(3, 9)])


def test_compaction_keeps_the_term_of_what_it_dropped_last() -> None:
    made = storage()
    made.compact(3)
    assert (made.first_index(), made.last_index(), made.term(3)) == (4, 5, 2)
    with pytest.raises(Compacted):
        made.compact(3)
    with pytest.raises(Unavailable):
        made.compact(9)


def test_a_snapshot_carries_the_configuration_and_never_goes_back() -> None:
    made = storage()
    snapshot = made.create_snapshot(4, ConfState((1, 2)), b"state")
    assert made.snapshot() == snapshot and snapshot.metadata == SnapshotMetadata(ConfState((1, 2)), 4, 2)
    with pytest.raises(SnapshotOutOfDate):
        made.create_snapshot(4, None, b"")
    with pytest.raises(Unavailable):
        made.create_snapshot(9, None, b"")
    with pytest.raises(SnapshotOutOfDate):
        made.apply_snapshot(Snapshot(SnapshotMetadata(ConfState((1,)), 3, 1)))
    made.apply_snapshot(Snapshot(SnapshotMetadata(ConfState((3,)), 9, 4)))
    assert (made.first_index(), made.last_index(), made.term(9)) == (10, 9, 4)
    assert made.initial_state()[1] == ConfState((3,))
