"""Watches: each change once, in order, whole revisions, from anywhere that is not compacted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metastore.driver import Driver, catch_up

from trimtab.metastore.commands import compact, delete, put, put_all
from trimtab.metastore.errors import Compacted, InvalidRequest
from trimtab.metastore.machine import Metastore
from trimtab.metastore.watch import Changes, Exact, Prefix, Range, Selector, Watcher


class Receiver:
    """Writes down what it is told."""

    def __init__(self, machine: Metastore, selector: Selector, start: int | None = None) -> None:
        self.got: list[Changes] = []
        self.ended: list[Exception] = []
        self.go_on = True
        self.watcher: Watcher = machine.watch(selector, self.deliver, self.ended.append, start)

    def deliver(self, changes: Changes) -> bool:
        self.got.append(changes)
        return self.go_on

    @property
    def revisions(self) -> list[int]:
        return [changes.revision for changes in self.got]


def told(changes: Changes) -> list[tuple[bytes, bytes | None, bytes | None]]:
    return [(c.key, c.old and c.old.value, c.new and c.new.value) for c in changes.changes]


def test_each_kind_of_watch_is_told_of_its_keys_only() -> None:
    driver = Driver()
    selectors = [Exact(b"ab"), Prefix(b"a"), Prefix(b"ab"), Prefix(b""), Range(b"ab", b"b"), Range(b"b", None)]
    receivers = [Receiver(driver.machine, selector) for selector in selectors]
    driver(put_all({b"a": b"1", b"ab": b"2", b"abc": b"3", b"b": b"4"}))
    assert [[c.key for c in r.got[0].changes] for r in receivers] == [
        [b"ab"],
        [b"a", b"ab", b"abc"],
        [b"ab", b"abc"],
        [b"a", b"ab", b"abc", b"b"],
        [b"ab", b"abc"],
        [b"b"],
    ]
    assert all(len(r.got) == 1 for r in receivers)


def test_a_revision_is_one_batch_with_old_and_new_entries() -> None:
    driver = Driver()
    receiver = Receiver(driver.machine, Prefix(b""))
    driver(put(b"a", b"1"))
    driver(put_all({b"a": b"2", b"b": b"3"}))
    driver(delete(b"a"))
    driver(put(b"a", b"4"))
    assert [told(changes) for changes in receiver.got] == [
        [(b"a", None, b"1")],
        [(b"a", b"1", b"2"), (b"b", None, b"3")],
        [(b"a", b"2", None)],
        [(b"a", None, b"4")],
    ]
    new = receiver.got[1].changes[0].new
    assert new is not None and (new.create_revision, new.mod_revision, new.version) == (1, 2, 2)


def test_nobody_sees_a_revision_before_everybody_saw_the_one_before() -> None:
    driver = Driver()
    order: list[tuple[int, str]] = []
    for name in ("first", "second", "third"):

        def deliver(changes: Changes, name: str = name) -> bool:
            order.append((changes.revision, name))
            return True

        driver.machine.watch(Prefix(b""), deliver, lambda error: None)
    driver.many(*(put(b"k", b"%d" % n) for n in range(3)))
    assert order == [(r, name) for r in (1, 2, 3) for name in ("first", "second", "third")]


def test_what_was_not_written_is_not_told_and_what_does_not_change_neither() -> None:
    driver = Driver()
    receiver = Receiver(driver.machine, Prefix(b""))
    driver(delete(b"never"))
    driver.raw(b"", b"damaged")
    assert receiver.got == [] and receiver.watcher.progress == 0


@pytest.mark.parametrize("start", range(7, 23))
def test_a_watch_resumes_from_any_kept_revision_without_gap_or_repetition(start: int) -> None:
    driver = Driver()
    live = Receiver(driver.machine, Prefix(b"k"))
    for number in range(20):
        driver(put(b"k%d" % (number % 3), b"%d" % number) if number % 5 else delete(b"k1"))
    driver(compact(6))
    late = Receiver(driver.machine, Prefix(b"k"), start)
    driver(put(b"k0", b"meanwhile"))
    for _ in range(4):
        driver.machine.pump(3)
        driver(put(b"k1", b"and now"))
    catch_up(driver.machine, 3)
    driver(put(b"k2", b"live again"))
    assert not late.watcher.behind
    assert late.got == [changes for changes in live.got if changes.revision >= start]


def test_below_compaction_a_watch_is_refused_with_the_way_out() -> None:
    driver = Driver()
    driver.many(*(put(b"k", b"%d" % n) for n in range(5)))
    driver(compact(3))
    with pytest.raises(Compacted, match=r"revision 3 was compacted: history is kept from revision 4 on .* watch from"):
        Receiver(driver.machine, Exact(b"k"), 3)
    first = Receiver(driver.machine, Exact(b"k"), 4)
    catch_up(driver.machine, 10)
    assert [told(changes) for changes in first.got] == [[(b"k", b"2", b"3")], [(b"k", b"3", b"4")]]


def test_history_is_told_the_same_before_and_after_purging() -> None:
    driver = Driver()
    driver.many(put(b"a", b"1"), delete(b"a"), put(b"b", b"1"), compact(3), put(b"a", b"2"), put(b"b", b"2"))
    before = Receiver(driver.machine, Prefix(b""), 4)
    driver.machine.pump(10)
    while driver.machine.compact_step(1):
        pass
    after = Receiver(driver.machine, Prefix(b""), 4)
    driver.machine.pump(10)
    assert before.got == after.got
    assert [told(c) for c in after.got] == [[(b"a", None, b"2")], [(b"b", b"1", b"2")]]


def test_a_watch_that_compaction_overtakes_ends_and_says_so() -> None:
    driver = Driver()
    driver.many(*(put(b"k", b"%d" % n) for n in range(9)))
    slow = Receiver(driver.machine, Exact(b"k"), 1)
    driver.machine.pump(2)
    live = Receiver(driver.machine, Exact(b"k"))
    driver(compact(5))
    assert slow.revisions == [1, 2] and not slow.watcher.active
    (error,) = slow.ended
    assert isinstance(error, Compacted) and (error.requested, error.compacted) == (3, 5)
    driver(put(b"k", b"x"))
    assert slow.revisions == [1, 2] and live.revisions == [10]


def test_catching_up_is_bounded_and_lowest_first() -> None:
    driver = Driver()
    driver.many(*(put(b"k", b"%d" % n) for n in range(10)))
    early, late = Receiver(driver.machine, Exact(b"k"), 1), Receiver(driver.machine, Exact(b"k"), 4)
    assert driver.machine.pump(3) is True
    assert (early.revisions, late.revisions) == ([1, 2, 3], [])
    assert (early.watcher.progress, late.watcher.progress) == (3, 3)
    assert driver.machine.pump(2) is True
    assert (early.revisions, late.revisions) == ([1, 2, 3, 4, 5], [4, 5])
    assert driver.machine.pump(100) is False
    assert not early.watcher.behind and not late.watcher.behind


def test_a_watch_from_the_future_waits_for_its_revision() -> None:
    driver = Driver()
    receiver = Receiver(driver.machine, Exact(b"k"), 3)
    driver.many(*(put(b"k", b"%d" % n) for n in range(4)))
    assert receiver.revisions == [3, 4]
    assert receiver.watcher.progress == 4


def test_progress_moves_without_matching_changes() -> None:
    driver = Driver()
    receiver = Receiver(driver.machine, Exact(b"quiet"))
    driver.many(*(put(b"loud", b"%d" % n) for n in range(4)))
    assert receiver.watcher.progress == 4 and receiver.got == []


def test_deliver_answering_false_ends_the_watch() -> None:
    driver = Driver()
    receiver = Receiver(driver.machine, Exact(b"k"))
    receiver.go_on = False
    driver.many(put(b"k", b"1"), put(b"k", b"2"))
    assert receiver.revisions == [1] and not receiver.watcher.active and receiver.ended == []
    assert len(driver.machine.watches) == 0


def test_a_receiver_that_raises_harms_only_itself() -> None:
    driver = Driver()
    ended: list[Exception] = []

    def broken(changes: Changes) -> bool:
        raise RuntimeError("receiver's fault")

    driver.machine.watch(Exact(b"k"), broken, ended.append)
    good = Receiver(driver.machine, Exact(b"k"))
    results = driver.many(put(b"k", b"1"), put(b"k", b"2"))
    assert len(results) == 2 and good.revisions == [1, 2]
    assert [str(error) for error in ended] == ["receiver's fault"]


def test_a_paused_watch_misses_nothing() -> None:
    driver = Driver()
    receiver = Receiver(driver.machine, Exact(b"k"))
    driver(put(b"k", b"1"))
    receiver.watcher.pause()
    driver.many(put(b"k", b"2"), put(b"k", b"3"))
    assert driver.machine.pump(10) is False
    assert receiver.revisions == [1] and receiver.watcher.progress == 1
    receiver.watcher.resume()
    assert driver.machine.pump(10) is False
    driver(put(b"k", b"4"))
    assert receiver.revisions == [1, 2, 3, 4]


def test_a_receiver_may_pause_itself_and_cancel_others_while_being_told() -> None:
    driver = Driver()
    got: list[int] = []

    def deliver(changes: Changes) -> bool:
        got.append(changes.revision)
        mine.pause()
        victim.watcher.cancel()
        return True

    mine = driver.machine.watch(Exact(b"k"), deliver, lambda error: None)
    victim = Receiver(driver.machine, Exact(b"k"))
    driver.many(put(b"k", b"1"), put(b"k", b"2"))
    assert got == [1] and victim.got == []
    mine.resume()
    driver.machine.pump(1)
    assert got == [1, 2]


def test_pausing_another_watch_while_a_revision_is_given_does_not_lose_that_revision() -> None:
    driver = Driver()

    def deliver(changes: Changes) -> bool:
        second.watcher.pause()
        return True

    driver.machine.watch(Exact(b"k"), deliver, lambda error: None)
    second = Receiver(driver.machine, Exact(b"k"))
    driver(put(b"k", b"1"))
    assert second.got == [] and second.watcher.progress == 0
    second.watcher.resume()
    driver.machine.pump(1)
    assert second.revisions == [1]


def test_a_watch_made_while_a_revision_is_given_starts_with_the_next() -> None:
    driver = Driver()
    made: list[Receiver] = []

    def deliver(changes: Changes) -> bool:
        if not made:
            made.append(Receiver(driver.machine, Exact(b"k")))
            made.append(Receiver(driver.machine, Exact(b"k"), 1))
            assert driver.machine.pump(5) is True  # not now
        return True

    driver.machine.watch(Exact(b"k"), deliver, lambda error: None)
    driver.many(put(b"k", b"1"), put(b"k", b"2"))
    catch_up(driver.machine, 1)
    driver(put(b"k", b"3"))
    assert [r.revisions for r in made] == [[2, 3], [1, 2, 3]]


def test_watches_move_to_the_machine_that_replaced_theirs() -> None:
    driver = Driver()
    driver.many(*(put(b"k", b"%d" % n) for n in range(3)))
    ahead = Driver(driver.store.copy())
    ahead.many(*(put(b"k", b"more %d" % n) for n in range(3)))
    live, behind = Receiver(driver.machine, Exact(b"k")), Receiver(driver.machine, Exact(b"k"), 2)
    paused = Receiver(driver.machine, Exact(b"k"))
    paused.watcher.pause()
    ahead.machine.take_watches_from(driver.machine)
    assert len(driver.machine.watches) == 0
    catch_up(ahead.machine, 2)
    ahead(put(b"k", b"last"))
    assert (live.revisions, behind.revisions, paused.revisions) == ([4, 5, 6, 7], [2, 3, 4, 5, 6, 7], [])
    paused.watcher.resume()
    ahead.machine.pump(9)
    assert paused.revisions == [4, 5, 6, 7]

    compacted = Driver(ahead.store.copy())
    compacted(put(b"k", b""))
    compacted(compact(8))
    compacted.machine.take_watches_from(ahead.machine)
    assert [type(r.ended[0]) for r in (live, behind, paused)] == [Compacted] * 3


def test_an_empty_key_can_not_be_watched() -> None:
    with pytest.raises(InvalidRequest, match="must not be empty"):
        Receiver(Driver().machine, Exact(b""))


KEYS = [b"", b"a", b"b", b"\x00", b"\xff"]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_any_watches_over_any_changes_see_what_a_filter_of_the_whole_history_sees(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver()
    everything = Receiver(driver.machine, Prefix(b""))
    watching: list[tuple[Receiver, int]] = []
    for _ in range(rng.randrange(5, 40)):
        what = rng.randrange(6)
        key = b"".join(rng.choices(KEYS, k=3)) or b"k"
        if what < 3:
            driver.many(*(put(key, b"%d" % n) for n in range(rng.randrange(1, 4))))
        elif what == 3:
            driver(delete(key))
        elif what == 4:
            driver.machine.pump(rng.randrange(1, 4))
        else:
            low, high = sorted((b"".join(rng.choices(KEYS, k=2)), b"".join(rng.choices(KEYS, k=2))))
            selector = rng.choice([Exact(key), Prefix(low), Range(low, rng.choice([high, None]))])
            start = rng.randrange(1, driver.machine.revision + 3)
            watching.append((Receiver(driver.machine, selector, start), start))
    catch_up(driver.machine, 3)
    for receiver, start in watching:
        expected = []
        for changes in everything.got:
            matching = tuple(c for c in changes.changes if receiver.watcher.selector.matches(c.key))
            if matching and changes.revision >= start:
                expected.append(Changes(changes.revision, matching))
        assert receiver.got == expected
        assert receiver.watcher.progress == max(driver.machine.revision, start - 1)
