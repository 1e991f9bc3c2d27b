"""Applying a log: once, atomically, and with the same outcome however it is sliced."""

from __future__ import annotations

import random

import pytest
from tests.unit.metastore.dict_store import DictStore, WriteFailed
from tests.unit.metastore.driver import Driver

from trimtab.metastore.command_ids import CommandIds
from trimtab.metastore.commands import (
    Actions,
    Command,
    Delete,
    Put,
    compact,
    delete,
    encode,
    invoke,
    put,
    put_all,
    stamp,
)
from trimtab.metastore.conditions import Compare, Exists, Revision
from trimtab.metastore.errors import AppliedGap, Compacted, FutureRevision, InvalidRequest
from trimtab.metastore.layout import Entry
from trimtab.metastore.limits import MAX_TIME_STEP_MS, Memory
from trimtab.metastore.machine import Metastore
from trimtab.metastore.results import (
    CommandExpired,
    CommandFailed,
    CompactResult,
    Failed,
    FailureCode,
    InvokeResult,
    outcome,
)
from trimtab.metastore.watch import Prefix

NOW = 1_700_000_000_000


def ids(clock: list[int], seed: int = 1) -> CommandIds:
    return CommandIds(lambda: clock[0], random.Random(seed).randbytes)


# -- revisions and reads --------------------------------------------------------------------------------------------


def test_a_key_has_a_life() -> None:
    driver = Driver()
    assert driver(put(b"k", b"1")) == InvokeResult(1, True, 1)
    driver(put(b"other", b""))
    driver(put(b"k", b"2"))
    assert driver.machine.get(b"k") == Entry(b"k", b"2", create_revision=1, mod_revision=3, version=2)
    driver(delete(b"k"))
    assert driver.machine.get(b"k") is None
    driver(put(b"k", b"3"))
    assert driver.machine.get(b"k") == Entry(b"k", b"3", create_revision=5, mod_revision=5, version=1)
    values = [driver.machine.get(b"k", revision) for revision in range(6)]
    assert [entry and entry.value for entry in values] == [None, b"1", b"1", b"2", None, b"3"]


def test_keys_and_values_are_any_bytes() -> None:
    driver = Driver()
    keys = [
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"\x00\xff",
        b"a",
        b"a\x00",
        b"a\x00\x01",
        b"a\x01",
        b"\xff",
        b"\xff\xff",
    ]
    for round_ in (b"old", b"new\x00"):
        for key in keys:
            driver(put(key, round_ + key))
    middle = driver.machine.revision - len(keys)
    assert [e.key for e in driver.machine.range(b"\x00", None).entries] == sorted(keys)
    assert [e.value for e in driver.machine.range(b"", None, middle).entries] == [b"old" + k for k in sorted(keys)]


def test_a_range_comes_in_pages_of_one_revision() -> None:
    driver = Driver()
    for number in range(10):
        driver(put(b"k%d" % number, b"v" * 10))
    driver(delete(b"k3"))
    page = driver.machine.range(b"k", b"l", limit=4)
    assert [e.key for e in page.entries] == [b"k0", b"k1", b"k2", b"k4"] and page.more
    driver(put(b"k55", b"later"))
    rest = driver.machine.range(page.next_key or b"", b"l", page.revision)
    assert [e.key for e in rest.entries] == [b"k5", b"k6", b"k7", b"k8", b"k9"] and not rest.more
    assert driver.machine.range(b"k", b"l", limit=9).more is True
    assert driver.machine.range(b"k", b"k9", limit=9).more is False
    assert driver.machine.count(b"k", b"l").keys == 10
    assert driver.machine.count(b"k", b"l", page.revision).keys == 9
    assert driver.machine.count(b"k", b"l", limit=3)[::2] == (3, b"k3")
    only = driver.machine.range(b"k", b"l", limit=1, keys_only=True).entries[0]
    assert (only.key, only.value, only.mod_revision) == (b"k0", b"", 1)


def test_a_page_is_bounded_in_bytes_and_still_moves() -> None:
    driver = Driver()
    for number in range(4):
        driver(put(b"k%d" % number, b"v" * 100))
    assert [e.key for e in driver.machine.range(b"", None, max_bytes=210).entries] == [b"k0", b"k1"]
    page = driver.machine.range(b"", None, max_bytes=1)
    assert [e.key for e in page.entries] == [b"k0"] and page.next_key == b"k1"


def test_revisions_that_can_not_be_read_say_why() -> None:
    driver = Driver()
    for number in range(5):
        driver(put(b"k", b"%d" % number))
    driver(compact(3))
    with pytest.raises(Compacted, match=r"revision 2 was compacted: history is kept from revision 3 on") as caught:
        driver.machine.get(b"k", 2)
    assert (caught.value.requested, caught.value.compacted) == (2, 3)
    entry = driver.machine.get(b"k", 3)
    assert entry is not None and entry.value == b"2"
    for read in (lambda r: driver.machine.range(b"", None, r), lambda r: driver.machine.count(b"", None, r)):
        with pytest.raises(Compacted):
            read(2)
        with pytest.raises(FutureRevision, match=r"revision 6 is in the future of this member, which is at 5"):
            read(6)
    with pytest.raises(InvalidRequest, match="limit of 0 keys"):
        driver.machine.range(b"", None, limit=0)


# -- the log --------------------------------------------------------------------------------------------------------


def test_later_commands_of_a_batch_see_earlier_ones_and_all_is_one_write() -> None:
    driver = Driver()
    results = driver.many(
        put(b"k", b"1"),
        invoke(Revision(b"k", Compare.EQ, 1), [Put(b"k", b"2"), Put(b"seen", b"")]),
        delete(b"k"),
        invoke(Exists(b"k"), [Put(b"wrong", b"")]),
        put(b"k", b"3"),
    )
    assert [r.yields for r in results if isinstance(r, InvokeResult)] == [True, True, True, False, True]
    assert driver.store.writes == 1
    assert [driver.value(k) for k in (b"k", b"seen", b"wrong")] == [b"3", b"", None]
    old = [driver.machine.get(b"k", r) for r in (1, 2, 3, 4)]
    assert [e and e.value for e in old] == [b"1", b"2", None, b"3"]


def test_replayed_entries_are_skipped_and_a_gap_is_refused() -> None:
    driver = Driver()
    driver.many(put(b"a", b"1"), put(b"b", b"2"))
    before = dict(driver.store.data)
    assert driver.machine.apply(driver.log) == [None, None]
    assert driver.store.data == before
    with pytest.raises(AppliedGap, match="entry 4 does not follow the applied index 2; apply from entry 3 on"):
        driver.machine.apply([(4, 1, b"")])
    with pytest.raises(AppliedGap):
        driver.machine.apply([(3, 1, encode(put(b"c", b""))), (5, 1, b"")])
    assert driver.machine.applied_index == 2 and driver.value(b"c") is None


def test_an_entry_without_data_only_moves_the_index() -> None:
    driver = Driver()
    driver(put(b"a", b"1"))
    checksum = driver.machine.checksum
    assert driver.machine.apply([(2, 7, b"")]) == [None]
    machine = driver.reopen().machine
    assert (machine.applied_index, machine.applied_term, machine.revision) == (2, 7, 1)
    assert machine.checksum == checksum


def test_the_hosts_blobs_move_with_the_index() -> None:
    driver = Driver()
    driver.machine.bootstrap(1, 1, b"first", meta=b"m")
    assert driver.reopen().machine.conf == b"first"
    with pytest.raises(InvalidRequest, match="can't be bootstrapped"):
        driver.machine.bootstrap(1, 1, b"again")
    assert driver.machine.apply_conf_state(2, 1, b"second") is True
    assert driver.machine.apply_conf_state(2, 1, b"replayed") is False
    with pytest.raises(AppliedGap):
        driver.machine.apply_conf_state(9, 1, b"")
    driver.machine.apply([(3, 2, b"")], meta=b"new")
    machine = driver.reopen().machine
    assert (machine.applied_index, machine.applied_term, machine.conf, machine.meta) == (3, 2, b"second", b"new")


def test_a_failed_write_changes_nothing_and_the_same_entries_apply_later() -> None:
    clock = [NOW]
    make = ids(clock)
    driver = Driver()
    driver(put(b"a", b"1", id=make.next()), now_ms=NOW)
    seen: list[int] = []
    driver.machine.watch(Prefix(b""), lambda changes: seen.append(changes.revision) or True, lambda error: None)
    before = dict(driver.store.data)
    entries = [(2, 1, stamp(encode(put(b"a", b"2", id=make.next())), NOW)), (3, 1, encode(delete(b"a")))]
    driver.store.fail_writes = 2
    for _ in range(2):
        with pytest.raises(WriteFailed):
            driver.machine.apply(entries)
        assert driver.store.data == before and seen == []
        assert (driver.machine.applied_index, driver.machine.revision) == (1, 1)
        assert driver.value(b"a") == b"1"
        assert Metastore(driver.store.copy()).checksum == driver.machine.checksum
    with_less_luck = driver.machine.apply(entries)
    assert with_less_luck == [InvokeResult(2, True, 1), InvokeResult(3, True, 1)] and seen == [2, 3]
    driver.store.fail_writes = 1
    with pytest.raises(WriteFailed):
        driver.machine.apply_conf_state(4, 1, b"conf")
    assert driver.machine.conf is None and driver.machine.applied_index == 3


def a_log(seed: int, length: int) -> list[tuple[int, int, bytes]]:
    """Any commands: good, failing, duplicate, damaged, empty; with ids that expire."""
    rng = random.Random(seed)
    clock = [NOW]
    make = ids(clock, seed)
    datas: list[bytes] = []
    for _ in range(length):
        clock[0] += rng.choice([0, 1, 50, 400])
        key = b"k%d" % rng.randrange(6)
        command_id = rng.choice([b"", make.next()])
        what = rng.randrange(9)
        if what < 3:
            command = put(key, rng.randbytes(3), id=command_id)
        elif what == 3:
            command = delete(key, id=command_id)
        elif what == 4:
            command = invoke(Exists(key), [Delete(key), Put(key + b"x", b"")], [Put(key, b"new")], id=command_id)
        elif what == 5:
            command = Command(command_id, Actions((), b"nothing"))
        elif what == 6:
            command = compact(rng.randrange(1, 1 + max(1, len(datas) // 2)), id=command_id)
        elif what == 7 and datas:
            datas.append(rng.choice(datas[-8:]))
            continue
        else:
            datas.append(rng.choice([b"", b"\x01damaged", rng.randbytes(12)]))
            continue
        datas.append(stamp(encode(command), clock[0]))
    return [(n + 1, 1, data) for n, data in enumerate(datas)]


@pytest.mark.parametrize("seed", range(12))
def test_the_same_log_in_other_slices_and_with_restarts_gives_the_same_state_to_the_byte(seed: int) -> None:
    log = a_log(seed, 150)
    memory = Memory(expiry_ms=2000, max_results=7, evicted_per_command=2)
    rng = random.Random(seed)

    def run(slices: int, restart: float) -> tuple[DictStore, list[object], list[bytes]]:
        store = DictStore()
        machine = Metastore(store, memory=memory)
        results: list[object] = []
        at = 0
        while at < len(log):
            size = rng.randint(1, slices)
            results += machine.apply(log[at : at + size])
            at += size
            if rng.random() < restart:
                machine = Metastore(store, memory=memory)
        kept = range(machine.compacted_revision, machine.revision + 1)
        return store, results, [machine.checksum_at(revision) for revision in kept]

    reference = run(1, 0.0)
    for slices, restart in ((1, 0.5), (7, 0.3), (150, 0.0), (40, 1.0)):
        store, results, checksums = run(slices, restart)
        assert store.data == reference[0].data
        assert results == reference[1]
        assert checksums == reference[2]


def test_a_checksum_covers_changes_results_and_compactions() -> None:
    def checksum(*commands: Command) -> bytes:
        driver = Driver()
        driver.many(*commands, now_ms=NOW)
        driver(put(b"last", b""), now_ms=NOW)
        return driver.machine.checksum

    clock = [NOW]
    one, two = ids(clock, 1).next(), ids(clock, 2).next()
    base = put(b"k", b"v")
    variants = [
        checksum(base),
        checksum(put(b"k", b"w")),
        checksum(put(b"kv", b"")),
        checksum(put(b"k", b"v", id=one)),
        checksum(put(b"k", b"v", id=two)),
        checksum(base, Command(one, Actions((), b"yes"))),
        checksum(base, Command(one, Actions((), b"no"))),
        checksum(base, compact(1)),
    ]
    assert len(set(variants)) == len(variants)
    assert checksum(base) == checksum(base)
    assert checksum(base) == checksum(base, Command(b"", Actions((), b"nothing at all")))


def test_the_checksum_of_a_revision_is_kept_until_compaction() -> None:
    driver = Driver()
    kept = [driver.machine.checksum]
    for number in range(6):
        driver(put(b"k%d" % (number % 2), b"%d" % number))
        kept.append(driver.machine.checksum)
    assert [driver.machine.checksum_at(r) for r in range(7)] == kept
    driver(compact(4))
    while driver.machine.compact_step(1):
        pass
    assert [driver.machine.checksum_at(r) for r in (4, 5, 6)] == kept[4:]
    with pytest.raises(Compacted):
        driver.machine.checksum_at(3)
    with pytest.raises(FutureRevision):
        driver.machine.checksum_at(7)


# -- command ids ----------------------------------------------------------------------------------------------------


def test_a_retry_gets_the_first_result_and_changes_nothing() -> None:
    clock = [NOW]
    command = put(b"k", b"1", id=ids(clock).next())
    driver = Driver()
    first = driver(command, now_ms=NOW)
    driver(put(b"k", b"2"), now_ms=NOW)
    checksum = driver.machine.checksum
    for _ in range(2):
        assert driver(command, now_ms=NOW + 1000) == first == InvokeResult(1, True, 1)
        driver.reopen()
    assert driver.value(b"k") == b"2" and driver.machine.revision == 2 and driver.machine.checksum == checksum


def test_a_retry_in_the_same_batch_is_executed_once() -> None:
    clock = [NOW]
    command = put(b"k", b"1", id=ids(clock).next())
    driver = Driver()
    assert driver.many(command, command, command, now_ms=NOW) == [InvokeResult(1, True, 1)] * 3
    entry = driver.machine.get(b"k")
    assert entry is not None and entry.version == 1


def test_a_failed_condition_is_remembered_too() -> None:
    clock = [NOW]
    command = invoke(Exists(b"k"), [Delete(b"k")], id=ids(clock).next())
    driver = Driver()
    assert driver(command, now_ms=NOW) == InvokeResult(0, False, 0)
    driver(put(b"k", b"v"))
    assert driver(command, now_ms=NOW) == InvokeResult(0, False, 0)
    assert driver.value(b"k") == b"v"


def test_a_retry_after_expiry_is_refused_and_never_executed_twice() -> None:
    clock = [NOW]
    make = ids(clock)
    old = put(b"k", b"old", id=make.next())
    driver = Driver(memory=Memory(expiry_ms=1000))
    driver(old, now_ms=NOW)
    clock[0] += 1000
    driver(put(b"k", b"new", id=make.next()), now_ms=clock[0])
    refused = driver(old, now_ms=clock[0])
    assert isinstance(refused, Failed) and refused.code is FailureCode.EXPIRED and refused.time_ms == NOW + 1000
    assert driver.value(b"k") == b"new"
    with pytest.raises(CommandExpired, match="may have been before"):
        outcome(refused)
    assert driver.reopen()(old, now_ms=clock[0]) == refused


def test_when_there_are_too_many_results_the_oldest_ids_are_refused() -> None:
    clock = [NOW]
    make = ids(clock)
    driver = Driver(memory=Memory(max_results=3))
    commands = []
    for _ in range(5):
        clock[0] += 1
        commands.append(put(b"k", b"v", id=make.next()))
        driver(commands[-1], now_ms=clock[0])
    revision = driver.machine.revision
    again = [driver(command, now_ms=clock[0]) for command in commands]
    assert [isinstance(result, Failed) for result in again] == [True, True, False, False, False]
    assert driver.machine.revision == revision and driver.machine.stored_results == 3


def test_a_lagging_clock_is_told_the_time_and_goes_on() -> None:
    slow = [NOW - 10_000]
    make = ids(slow)
    driver = Driver(memory=Memory(expiry_ms=1000))
    driver(put(b"k", b"v"), now_ms=NOW)
    refused = driver(put(b"k", b"w", id=make.next()), now_ms=NOW)
    assert isinstance(refused, Failed) and refused.code is FailureCode.EXPIRED
    make.observe(refused.time_ms)
    assert driver(put(b"k", b"w", id=make.next()), now_ms=NOW) == InvokeResult(2, True, 1)


def test_an_id_from_the_far_future_is_refused() -> None:
    driver = Driver(memory=Memory(expiry_ms=1000))
    refused = driver(put(b"k", b"v", id=ids([NOW + 5000]).next()), now_ms=NOW)
    assert isinstance(refused, Failed) and "4000 ms" not in refused.text and "5000 ms in the future" in refused.text
    with pytest.raises(CommandFailed, match="set the client's clock"):
        outcome(refused)
    assert driver.machine.revision == 0


def test_one_wrong_clock_does_not_expire_everything() -> None:
    driver = Driver()
    clock = [NOW]
    make = ids(clock)
    driver(put(b"k", b"v"), now_ms=NOW)
    driver(put(b"k", b"v"), now_ms=NOW + 10 * 24 * 3600 * 1000)
    assert driver.machine.time_ms == NOW + MAX_TIME_STEP_MS
    assert not isinstance(driver(put(b"k", b"w", id=make.next()), now_ms=NOW), Failed)


def puts_that_observe(driver: Driver, make: CommandIds, now_ms: int) -> int:
    """Put as a client does whose first attempt may be refused as expired; how often it had to issue a new id."""
    for reissued in range(3):
        result = driver(put(b"k", b"v", id=make.next()), now_ms=now_ms)
        if not isinstance(result, Failed):
            return reissued
        assert result.code is FailureCode.EXPIRED
        make.observe(result.time_ms)
    raise AssertionError("refused even after its clock was set")


@pytest.mark.parametrize("first", [0, NOW])
def test_ten_minutes_of_puts_pass_under_a_leader_whose_clock_is_two_hours_ahead(first: int) -> None:
    driver, clock = Driver(), [NOW]
    make, other = ids(clock), ids(clock, seed=2)
    if first:
        driver(put(b"k", b"v"), now_ms=first)
    reissued = 0
    for second in range(600):
        clock[0] = NOW + second * 1000
        reissued += puts_that_observe(driver, make, clock[0] + 2 * 3600 * 1000)
    assert reissued <= 4
    # A client that comes later, and one after a leader with a good clock took over, are set right as well.
    assert puts_that_observe(driver, other, clock[0] + 2 * 3600 * 1000) == 1
    assert puts_that_observe(driver, ids(clock, seed=3), clock[0]) == 1


def test_a_client_far_ahead_does_not_lock_the_others_out() -> None:
    driver, clock, ahead = Driver(memory=Memory(max_results=3)), [NOW], [NOW + 3_000_000]
    fast, right = ids(ahead), ids(clock, seed=2)
    for _ in range(6):
        driver(put(b"k", b"v", id=fast.next()), now_ms=NOW)
    # Its ids were the last to be forgotten, and now everything issued before them counts as forgotten.
    assert puts_that_observe(driver, right, NOW) == 1
    assert puts_that_observe(driver, right, NOW) == 0


def test_time_never_goes_back() -> None:
    driver = Driver()
    for now in (NOW + 5, NOW, 0):
        driver(put(b"k", b"v"), now_ms=now)
    assert driver.machine.time_ms == NOW + 5


# -- compaction -----------------------------------------------------------------------------------------------------


def test_compaction_answers_and_refuses() -> None:
    clock = [NOW]
    driver = Driver()
    driver.many(put(b"k", b"1"), put(b"k", b"2"), put(b"k", b"3"))
    assert driver(compact(2, id=ids(clock).next()), now_ms=NOW) == CompactResult(3, 2)
    assert driver(compact(1)) == CompactResult(3, 2)
    refused = driver(compact(4))
    assert isinstance(refused, Failed) and refused.code is FailureCode.FUTURE_REVISION
    assert "the current one is 3" in refused.text
    assert driver(compact(3)) == CompactResult(3, 3)


def test_purging_keeps_what_can_be_read_and_survives_restarts() -> None:
    driver = Driver()
    driver(put_all({b"%d" % n: b"0" for n in range(5)}))
    for number in range(5):
        driver(put(b"%d" % number, b"1"))
    driver(delete(b"0"))
    driver(delete(b"1"))
    driver(put(b"1", b"back"))
    driver(compact(8))
    want = [driver.machine.range(b"", None, r) for r in (8, 9)]
    keys_before = len(driver.store.data)
    slices = 0
    while driver.machine.compact_step(1):
        slices += 1
        driver.reopen()
        assert [driver.machine.range(b"", None, r) for r in (8, 9)] == want
    assert slices == 7 and driver.machine.purged_revision == 8
    assert len(driver.store.data) < keys_before
    assert driver.value(b"0") is None and driver.value(b"1") == b"back" and driver.value(b"4") == b"1"
    # One version of each live key, the tombstone that revision 9 replaced, and the records of revisions 8 and 9.
    by_kind = sorted(key[:1] for key in driver.store.data if key[:1] != b"m")
    assert by_kind == [b"h"] + [b"k"] * 4 + [b"r"] * 2


def test_a_version_that_was_not_purged_yet_is_not_read_past_a_forgotten_tombstone() -> None:
    driver = Driver()
    driver.many(put(b"k", b"1"), put(b"x", b""), delete(b"k"), put(b"x", b""), put(b"x", b""))
    driver(compact(5))
    driver(put(b"y", b""))
    driver(put(b"k", b"7"))
    assert [driver.machine.get(b"k", revision) for revision in (5, 6)] == [None, None]
    while driver.machine.compact_step(1):
        assert driver.machine.get(b"k", 5) is None
    entry = driver.machine.get(b"k")
    assert entry is not None and (entry.create_revision, entry.version) == (7, 1)


def test_a_purge_that_can_not_be_written_is_tried_again() -> None:
    driver = Driver()
    driver.many(put(b"k", b"1"), put(b"k", b"2"), compact(2))
    driver.store.fail_writes = 1
    with pytest.raises(WriteFailed):
        driver.machine.compact_step()
    assert driver.machine.purged_revision == 0
    assert driver.machine.compact_step() is False
    assert driver.machine.purged_revision == 2
