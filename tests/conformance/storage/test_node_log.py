"""The node log, on RocksDB and on the model: the same code must tell the same story on both."""

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.raft.messages import ConfState, Entry, EntryType, HardState, Snapshot, SnapshotMetadata
from trimtab.raft.storage import Compacted, MemoryStorage, SnapshotTemporarilyUnavailable, Unavailable
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Corrupt, DiskFull, StorageError, StoreClosed

VOTERS = ConfState(voters=(1, 2, 3))
NO_LIMIT = 1 << 60


def entries(first, last, term=1, size=10):
    return [Entry(term, index, EntryType.NORMAL, b"%d." % index + bytes(size)) for index in range(first, last + 1)]


def indexes(found):
    return [entry.index for entry in found]


def opened(machine, **options):
    return NodeLog.open(machine.disk(), "log", **options)


async def synced(log):
    done = asyncio.get_running_loop().create_future()
    log.sync(done.set_result)
    return await done


def with_group(machine, last=10, **options):
    log = opened(machine, **options)
    log.group(7).bootstrap(VOTERS)
    log.stage(7, entries(2, last))
    log.write()
    return log


def reopened(machine, log, **options):
    log.close()
    machine.restart()
    return opened(machine, **options)


def live_and_reopened(machine, log):
    """The group as the running process sees it, then as the next one does."""
    yield log.group(7)
    yield reopened(machine, log).group(7)


def test_a_bootstrapped_group_begins_after_its_snapshot(machine):
    log = opened(machine)
    group = log.group(7)
    assert (group.exists, log.group_ids()) == (False, [])
    group.bootstrap(VOTERS, index=5, term=3)
    assert not group.exists
    log.write()
    for group in live_and_reopened(machine, log):
        assert group.exists
        assert group.initial_state() == (HardState(term=3, vote=0, commit=5), VOTERS)
        assert (group.first_index(), group.last_index(), group.term(5)) == (6, 5, 3)
        assert group.snapshot() == Snapshot(SnapshotMetadata(VOTERS, 5, 3))
        with pytest.raises(StorageError, match="can't begin anew"):
            group.bootstrap(VOTERS)


def test_what_is_staged_is_invisible_until_written(machine):
    log = with_group(machine)
    group = log.group(7)
    log.stage(7, entries(11, 12), HardState(4, 2, 9))
    assert group.last_index() == 10
    assert group.hard_state == HardState(1, 0, 1)
    log.write()
    assert group.last_index() == 12
    assert group.hard_state == HardState(4, 2, 9)
    assert reopened(machine, log).group(7).hard_state == HardState(4, 2, 9)


def test_entries_come_back_as_they_were_with_every_type(machine):
    log = opened(machine)
    written = [
        Entry(1, 1, EntryType.NORMAL, b""),
        Entry(2, 2, EntryType.CONF_CHANGE, b"\x00\xff"),
        Entry(2**40, 3, EntryType.CONF_CHANGE_V2, b"x" * 70_000),
    ]
    log.stage(0, written)
    log.write()
    assert log.group(0).entries(1, 4, NO_LIMIT) == written
    assert reopened(machine, log).group(0).entries(1, 4, NO_LIMIT) == written


def test_new_entries_replace_the_tail_for_good(machine):
    log = with_group(machine, last=20)
    log.stage(7, entries(12, 14, term=5))
    log.write()
    for group in live_and_reopened(machine, log):
        assert group.last_index() == 14
        assert [group.term(index) for index in (11, 12, 14)] == [1, 5, 5]
        assert [entry.term for entry in group.entries(10, 15, NO_LIMIT)] == [1, 1, 5, 5, 5]
        with pytest.raises(Unavailable):
            group.term(15)


def test_a_truncation_and_a_regrowth_in_one_batch_leave_nothing_of_the_old(machine):
    log = with_group(machine, last=20)
    log.stage(7, entries(5, 6, term=2))
    log.stage(7, entries(7, 9, term=3))
    log.stage(7, entries(8, 8, term=4))
    log.write()
    for group in live_and_reopened(machine, log):
        assert group.last_index() == 8
        assert [group.term(index) for index in range(4, 9)] == [1, 2, 2, 3, 4]


@pytest.mark.parametrize("count", [10, 2000])
def test_compaction_drops_entries_and_remembers_the_last_term(machine, count):
    log = with_group(machine, last=count)
    log.compact(7, count - 3)
    log.write()
    for group in live_and_reopened(machine, log):
        assert (group.first_index(), group.last_index()) == (count - 2, count)
        assert group.term(count - 3) == 1
        assert indexes(group.entries(count - 2, count + 1, NO_LIMIT)) == [count - 2, count - 1, count]
        for index in (1, count - 4):
            with pytest.raises(Compacted):
                group.term(index)
        with pytest.raises(Compacted):
            group.entries(count - 3, count + 1, NO_LIMIT)


def test_a_log_compacted_to_its_end_goes_on_from_there(machine):
    log = with_group(machine, last=10)
    log.compact(7, 10)
    log.compact(7, 4)
    log.write()
    with pytest.raises(Unavailable):
        log.compact(7, 11)
    log = reopened(machine, log)
    group = log.group(7)
    assert (group.first_index(), group.last_index(), group.term(10)) == (11, 10, 1)
    log.stage(7, entries(11, 12, term=2))
    log.write()
    assert indexes(group.entries(11, 13, NO_LIMIT)) == [11, 12]
    with pytest.raises(SnapshotTemporarilyUnavailable):
        group.snapshot()
    group.snapshot_source = lambda: Snapshot(SnapshotMetadata(VOTERS, 10, 1), b"where to fetch it")
    assert group.snapshot().data == b"where to fetch it"


def test_a_snapshot_ahead_of_the_log_replaces_all_of_it(machine):
    log = with_group(machine, last=10)
    metadata = SnapshotMetadata(ConfState(voters=(4, 5)), 100, 9)
    log.stage(7, entries(101, 102, term=9), HardState(9, 4, 100), metadata)
    log.write()
    for group in live_and_reopened(machine, log):
        assert group.initial_state() == (HardState(9, 4, 100), ConfState(voters=(4, 5)))
        assert (group.first_index(), group.last_index(), group.term(100)) == (101, 102, 9)
        assert group.snapshot_metadata == metadata
        assert indexes(group.entries(101, 103, NO_LIMIT)) == [101, 102]


def test_a_snapshot_that_contradicts_the_log_drops_all_of_it(machine):
    log = with_group(machine, last=10)
    log.stage(7, snapshot=SnapshotMetadata(VOTERS, 5, 2))
    log.write()
    for group in live_and_reopened(machine, log):
        assert (group.first_index(), group.last_index(), group.term(5)) == (6, 5, 2)


def test_a_snapshot_that_agrees_with_the_log_keeps_what_follows(machine):
    log = with_group(machine, last=10)
    log.stage(7, snapshot=SnapshotMetadata(VOTERS, 5, 1))
    log.write()
    for group in live_and_reopened(machine, log):
        assert (group.first_index(), group.last_index()) == (6, 10)
        assert indexes(group.entries(6, 11, NO_LIMIT)) == [6, 7, 8, 9, 10]
    with pytest.raises(Compacted, match="older"):
        with_older = SnapshotMetadata(VOTERS, 3, 1)
        machine.stop()
        opened(machine).stage(7, snapshot=with_older)


def test_the_configuration_can_be_recorded_by_itself(machine):
    log = with_group(machine)
    log.stage(7, conf_state=ConfState(voters=(1, 2), learners=(9,)))
    log.write()
    for group in live_and_reopened(machine, log):
        assert group.initial_state()[1] == ConfState(voters=(1, 2), learners=(9,))
        assert (group.first_index(), group.last_index()) == (2, 10)


def test_a_removed_group_is_gone_and_may_begin_again(machine):
    log = with_group(machine)
    log.group(8).bootstrap(VOTERS)
    log.write()
    log.remove(7)
    log.write()
    assert log.group_ids() == [8]
    log = reopened(machine, log)
    assert log.group_ids() == [8]
    assert not log.group(7).exists
    log.group(7).bootstrap(VOTERS, index=50, term=4)
    log.write()
    log.remove(7)
    log.group(7).bootstrap(ConfState(voters=(5,)), index=3, term=1)
    log.write()
    for group in live_and_reopened(machine, log):
        assert group.initial_state()[1] == ConfState(voters=(5,))
        assert (group.first_index(), group.last_index()) == (4, 3)


def test_groups_do_not_see_one_another(machine):
    log = opened(machine)
    ids = [0, 1, 255, 256, 2**63, 2**64 - 1]
    for number, group_id in enumerate(ids):
        log.stage(group_id, entries(1, number + 1, term=number + 1))
    log.write()
    log = reopened(machine, log)
    assert log.group_ids() == ids
    for number, group_id in enumerate(ids):
        assert log.group(group_id).last_index() == number + 1
        assert log.group(group_id).term(number + 1) == number + 1
    for bad in (-1, 2**64):
        with pytest.raises(StorageError, match="not a group id"):
            log.group(bad)


def test_mistakes_of_the_host_are_refused_when_staged(machine):
    log = with_group(machine, last=10)
    with pytest.raises(Unavailable, match="gap"):
        log.stage(7, entries(12, 13))
    with pytest.raises(StorageError, match="can't reach"):
        log.stage(7, [entries(11, 11)[0], entries(13, 13)[0]])
    log.write()
    assert log.group(7).last_index() == 10
    log.compact(7, 8)
    log.write()
    log.stage(7, entries(3, 11, term=1))
    log.write()
    assert (log.group(7).first_index(), log.group(7).last_index()) == (9, 11)


def test_reads_are_cut_after_max_bytes_but_never_to_nothing(machine):
    for cache in (0, 1 << 20):
        log = opened(machine, group_cache_bytes=cache)
        group = log.group(7)
        if not group.exists:
            log.stage(7, entries(1, 20, size=100))
            log.write()
        assert indexes(group.entries(1, 21, 0)) == [1]
        assert len(group.entries(1, 21, 350)) == 3
        assert len(group.entries(1, 21, NO_LIMIT)) == 20
        assert group.entries(5, 5, NO_LIMIT) == []
        with pytest.raises(Unavailable):
            group.entries(1, 22, NO_LIMIT)
        log.close()
        machine.restart()


def test_reads_across_memory_and_disk_are_seamless_and_memory_is_bounded(machine):
    log = opened(machine, group_cache_bytes=3000, cache_bytes=5000)
    for group_id in (1, 2, 3):
        for first in range(1, 200, 10):
            log.stage(group_id, entries(first, first + 9))
            log.write()
    groups = [log.group(group_id) for group_id in (1, 2, 3)]
    assert all(group.cached_bytes <= 3000 for group in groups)
    assert sum(group.cached_bytes for group in groups) <= 5000
    assert groups[2].cached_bytes > 0
    for group in groups:
        for low, high in [(1, 201), (150, 201), (170, 190), (199, 201)]:
            assert indexes(group.entries(low, high, NO_LIMIT)) == list(range(low, high))
        assert [group.term(index) for index in (1, 100, 200)] == [1, 1, 1]
    assert sum(group.cached_bytes for group in groups) <= 5000


def test_one_sync_serves_all_who_wait(machine):
    async def story():
        log = with_group(machine)
        answers = []
        finished = asyncio.Event()

        def done(error):
            answers.append(error)
            if len(answers) == 50:
                finished.set()

        for index in range(11, 61):
            log.stage(7, entries(index, index))
            log.write()
            log.sync(done)
        assert answers == []
        await asyncio.wait_for(finished.wait(), 10)
        assert answers == [None] * 50
        assert log.metrics.syncs == 2
        assert log.metrics.sync_waiters == 50
        assert sum(log.metrics.sync_buckets) == 2
        assert (log.metrics.batches, log.metrics.entries) == (51, 59)
        assert log.metrics.bytes > 59 * 10

    asyncio.run(story())


def test_a_closed_log_calls_nobody_back(machine):
    async def story():
        log = with_group(machine)
        calls = []
        log.sync(calls.append)
        log.close()
        log.close()
        await asyncio.sleep(0.05)
        assert calls == []
        with pytest.raises(StoreClosed):
            log.sync(calls.append)
        log.write()
        with pytest.raises(StoreClosed):
            log.group(99)

    asyncio.run(story())


def test_an_unknown_format_is_refused_by_name(machine):
    log = with_group(machine)
    batch = log.store.batch()
    batch.put(b"\x00format", b"\x00\x00\x00\x63")
    log.store.write(batch)
    log.close()
    machine.restart()
    with pytest.raises(StorageError, match="format version 99; this program knows version 1"):
        opened(machine)
    store = machine.disk().open("other", wal=True)
    batch = store.batch()
    batch.put(b"k", b"v")
    store.write(batch)
    store.close()
    with pytest.raises(Corrupt, match="no format version"):
        NodeLog.open(machine.disk(), "other")


def test_a_hole_in_the_log_is_noticed_when_read(machine):
    log = with_group(machine, last=10)
    group = log.group(7)
    batch = log.store.batch()
    batch.delete(b"e" + (7).to_bytes(8, "big") + (5).to_bytes(8, "big"))
    log.store.write(batch)
    group = reopened(machine, log).group(7)
    with pytest.raises(Corrupt, match="entry 5 is missing"):
        group.entries(2, 11, NO_LIMIT)
    with pytest.raises(Corrupt, match="entry 5 is missing"):
        group.term(5)


def test_ten_thousand_groups_open_within_two_seconds(machine):
    log = opened(machine)
    for group_id in range(10_000):
        log.group(group_id).bootstrap(VOTERS)
        log.stage(group_id, entries(2, 4))
    log.write()
    log.close()
    machine.restart()
    started = time.process_time()
    log = opened(machine)
    assert len(log.group_ids()) == 10_000
    # What others use of the machine does not count.
    assert time.process_time() - started < 2
    assert sum(log.group(group_id).last_index() for group_id in log.group_ids()) == 40_000


def test_below_the_reserve_entries_are_refused_while_votes_pass(machine, monkeypatch):
    log = with_group(machine, last=10)
    disk = machine.disk()
    free = [500]
    monkeypatch.setattr(type(disk), "reserve_bytes", property(lambda self: 1000))
    monkeypatch.setattr(disk, "free_bytes", lambda: free[0] if free[0] < 1000 else 1 << 40)
    assert not log.has_space()
    log.stage(7, hard_state=HardState(5, 2, 10))
    log.write()
    log.stage(7, entries(11, 12, term=5))
    for _ in range(2):
        with pytest.raises(DiskFull) as caught:
            log.write()
    assert (caught.value.free_bytes, caught.value.reserve_bytes) == (500, 1000)
    assert log.group(7).hard_state.term == 5
    assert log.group(7).last_index() == 10
    assert log.metrics.disk_full == 2
    free[0] = 2000
    assert log.has_space()
    log.write()
    assert log.group(7).last_index() == 12


log_steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 6), st.integers(1, 8)),
    st.tuples(st.just("compact"), st.integers(0, 10)),
    st.tuples(st.just("snapshot"), st.integers(1, 5)),
    st.just(("restart",)),
    st.just(("write",)),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(log_steps, max_size=25), cache=st.sampled_from([0, 500, 1 << 20]))
def test_any_sequence_of_changes_agrees_with_a_log_in_memory(machines, story, cache):
    async def run():
        machine = machines()
        log = opened(machine, group_cache_bytes=cache)
        log.stage(7, hard_state=HardState())
        reference = MemoryStorage()
        term = 1
        try:
            for step in story:
                term += 1
                last = reference.last_index()
                if step[0] == "append":
                    first = max(reference.first_index(), last + 1 - step[1])
                    added = entries(first, first + step[2] - 1, term=term)
                    reference.append(added)
                    log.stage(7, added)
                elif step[0] == "compact":
                    index = min(last, reference.first_index() + step[1])
                    log.write()
                    if index >= reference.first_index():
                        reference.compact(index)
                    log.compact(7, index)
                elif step[0] == "snapshot":
                    metadata = SnapshotMetadata(VOTERS, last + step[1], term)
                    reference.apply_snapshot(Snapshot(metadata))
                    log.stage(7, snapshot=metadata)
                elif step[0] == "restart":
                    log.write()
                    log = reopened(machine, log, group_cache_bytes=cache)
                else:
                    log.write()
                    check_same(log.group(7), reference)
            log.write()
            check_same(log.group(7), reference)
            check_same(reopened(machine, log).group(7), reference)
        finally:
            machine.stop()

    asyncio.run(run())


def check_same(group, reference):
    first, last = reference.first_index(), reference.last_index()
    assert (group.first_index(), group.last_index()) == (first, last)
    assert [group.term(index) for index in range(first - 1, last + 1)] == [
        reference.term(index) for index in range(first - 1, last + 1)
    ]
    if last >= first:
        assert group.entries(first, last + 1, NO_LIMIT) == reference.entries(first, last + 1, NO_LIMIT)
        assert group.entries(first, last + 1, 40) == reference.entries(first, last + 1, 40)
