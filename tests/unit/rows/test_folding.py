"""What goes, what stays, and until when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.rows.cells import bigint, int_
from tests.unit.rows.tables import add_column, table
from tests.unit.rows.test_reading import (
    FLAT,
    LOADED,
    NOW_MS,
    NOW_S,
    P0,
    S0,
    V0,
    WIDE,
    Store,
    everything,
    some_rows,
    whole,
    without_load,
)

from trimtab.catalog.schema import TableOptions
from trimtab.rows import keys, tokens
from trimtab.rows.folding import Folded, FoldRule, fold_range, fold_row, newest_stamp, rule_for
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Bound, RangeRead
from trimtab.rows.reading import rows_of

C0, V1 = 2, 5
KEEP = FoldRule(forget_before_ms=0, history_from_us=1 << 60)
FORGET = FoldRule(forget_before_ms=NOW_MS + 1, history_from_us=1 << 60)


def fold(store: Store, rule: FoldRule, **more: Any) -> list[Folded]:
    steps = [step for step in fold_range(store.layout, sorted(store.pairs.items()), rule, **more) if step is not None]
    for step in steps:
        for key in step.deletes:
            del store.pairs[key]
        store.pairs.update(zip(step.puts[::2], step.puts[1::2], strict=True))
    return steps


def kinds(store: Store) -> list[int]:
    return sorted(key[-9] for key in store.pairs)


def test_many_partial_updates_become_one_version_and_read_the_same() -> None:
    store = Store().rows(1, 1)
    for stamp in range(11, 40):
        store.put([P0, C0, V0], [bigint(1), int_(0), int_(stamp)], stamp=stamp, update=True)
    before = store.read(whole(1))
    fold(store, KEEP)
    assert len(store.pairs) == 1
    assert store.read(whole(1)) == before
    assert fold(store, KEEP) == []


def test_versions_of_the_history_are_kept_apart_until_there_are_too_many() -> None:
    rule = FoldRule(0, history_from_us=15, max_versions=9)
    store = Store()
    for stamp in range(10, 19):
        store.put([P0, C0, V0], [bigint(1), int_(0), int_(stamp)], stamp=stamp)
    (step,) = fold(store, rule)
    assert step.forgot_us == 0
    assert [keys.stamp_of(key) for key in sorted(store.pairs)] == [18, 17, 16, 15, 14]
    for stamp in range(19, 24):
        store.put([P0, C0, V0], [bigint(1), int_(0), int_(stamp)], stamp=stamp)
    (step,) = fold(store, rule)
    assert step.forgot_us == 23
    assert [keys.stamp_of(key) for key in store.pairs] == [23]


def test_what_a_deletion_of_the_history_covers_is_kept_for_reads_as_of_a_time_before_it() -> None:
    store = Store().rows(1, 2).delete(1, stamp=50).delete(1, stamp=20, start=Bound([int_(1)]))
    fold(store, FoldRule(NOW_MS + 1, history_from_us=40))
    fold(store, FoldRule(NOW_MS + 1, history_from_us=40))
    found = store.read(whole(1), as_of_us=45)
    assert rows_of(WIDE, found.pairs, [V0], NOW_S).cells == [[int_(0)]]
    assert store.read(whole(1)).live == 0


def test_a_cell_that_expired_within_the_history_is_kept_for_reads_as_of_a_time_before_it_did() -> None:
    store = Store().put([P0, C0, V0], [bigint(1), int_(0), int_(7)], stamp=10, ttl_s=60)
    expired_ms = NOW_MS + 60_000
    assert fold(store, FoldRule(expired_ms + 30_000, history_from_us=(expired_ms - 1) * 1000)) == []
    assert len(store.pairs) == 1
    fold(store, FoldRule(expired_ms + 30_000, history_from_us=expired_ms * 1000))
    assert not store.pairs


def test_the_newest_stamp_of_a_pair_may_be_that_of_a_part() -> None:
    store = Store().put([P0, C0, V0], [bigint(1), int_(0), int_(1)], stamp=10)
    store.put([P0, C0, V0], [bigint(1), int_(0), int_(2)], stamp=30, update=True)
    fold(store, KEEP)
    ((key, value),) = store.pairs.items()
    assert (keys.stamp_of(key), newest_stamp(WIDE, (key, value))) == (10, 30)
    store.delete(1, stamp=50)
    assert sorted(newest_stamp(WIDE, pair) for pair in store.pairs.items()) == [30, 50]


def test_a_row_of_too_many_versions_keeps_what_only_a_deletion_of_the_history_covers() -> None:
    store = Store().delete(1, stamp=60)
    for stamp in (41, 42, 43):
        store.put([P0, C0, V0], [bigint(1), int_(0), int_(stamp)], stamp=stamp)
    (step,) = fold(store, FoldRule(0, history_from_us=40, max_versions=2))
    assert step.forgot_us == 43
    found = store.read(whole(1), as_of_us=59)
    assert rows_of(WIDE, found.pairs, [V0], NOW_S).cells == [[int_(43)]]


def test_a_row_in_an_older_layout_is_rewritten_in_the_newest() -> None:
    before = table(["bigint"], [], ["int"])
    store = Store(RowLayout(before)).put([1, 2], [bigint(1), int_(5)])
    store.layout = RowLayout(add_column(before, "text"))
    fold(store, KEEP)
    ((_, value),) = store.pairs.items()
    assert value[1:3] == b"\x00\x02"


def test_a_deletion_stays_until_everybody_has_it_and_then_goes() -> None:
    store = Store().rows(1, 1).delete(1, row=[int_(0)])
    fold(store, KEEP)
    assert kinds(store) == [keys.ROW_DELETE]
    fold(store, FoldRule(NOW_MS, 1 << 60))
    assert kinds(store) == [keys.ROW_DELETE]
    fold(store, FORGET)
    assert store.pairs == {}


def test_what_expired_goes_only_when_a_deletion_would() -> None:
    store = Store().put([P0, C0, V0], [bigint(1), int_(0), int_(1)], ttl_s=10)
    fold(store, FoldRule(NOW_MS + 10_000, 1 << 60))
    assert kinds(store) == [keys.PUT]
    fold(store, FoldRule(NOW_MS + 10_001, 1 << 60))
    assert store.pairs == {}


def test_a_deletion_of_a_partition_or_range_goes_only_after_a_pass_that_met_nothing_of_what_it_covers() -> None:
    for more in ({}, {"start": Bound([int_(0)])}):
        store = Store().rows(1, 3).delete(1, **more)
        fold(store, FORGET)
        assert len(store.pairs) == 1
        assert store.read(whole(1)).live == 0
        fold(store, FORGET)
        assert store.pairs == {}


def test_a_deletion_stays_while_a_version_of_the_history_holds_something_older_beside_newer_cells() -> None:
    """Such versions come from repairs: merged rows, with cells of many stamps."""
    store = Store().put([P0, C0, V0], [bigint(1), int_(0), int_(1)], stamp=10, update=True)
    store.put([P0, C0, V1], [bigint(1), int_(0), b"new"], stamp=50, update=True)
    store.pairs = dict(zip(*[iter(store.read(whole(1)).pairs)] * 2, strict=True))  # one version, stamps 10 and 50
    store.delete(1, row=[int_(0)], stamp=20)
    rule = FoldRule(NOW_MS + 1, history_from_us=40)
    fold(store, rule)
    found = store.read(whole(1))
    assert rows_of(WIDE, found.pairs, [V0, V1], NOW_S).cells == [[None, b"new"]]
    store.delete(1, stamp=20)
    for _ in range(3):
        fold(store, rule)
    assert rows_of(WIDE, store.read(whole(1)).pairs, [V0, V1], NOW_S).cells == [[None, b"new"]]


def test_a_deletion_that_a_later_one_hides_stays_while_reads_as_of_a_time_need_it() -> None:
    store = Store().rows(1, 2).delete(1, stamp=20, start=Bound([int_(0)])).delete(1, stamp=50)
    rule = FoldRule(NOW_MS + 1, history_from_us=40)
    steps = list(fold_range(WIDE, sorted(store.pairs.items()), rule))
    # Whatever of a pass is done, what was deleted does not come back.
    assert [step for step in steps if step is not None and len(step.deletes) == 1] == steps[:2]
    assert steps[2] is None


def test_deletions_that_others_hide_go_at_once() -> None:
    store = Store().delete(1, stamp=20, start=Bound([int_(1)]), end=Bound([int_(2)]))
    store.delete(1, stamp=30, start=Bound([int_(0)]))
    assert sum(len(step.deletes) for step in fold(store, KEEP)) == 1
    store.delete(1, stamp=40)
    fold(store, KEEP)
    assert kinds(store) == [keys.PARTITION_DELETE]


def test_deletions_stay_where_only_a_part_of_the_partition_was_seen() -> None:
    store = Store().delete(1)
    assert fold(store, FORGET, complete=False) == []
    store.put([P0, C0], [bigint(1), int_(5)], stamp=30)
    pairs = sorted(store.pairs.items())
    steps = list(fold_range(WIDE, pairs[1:], FORGET, before=pairs[:1]))
    assert [step for step in steps if step is not None] == []
    assert sum(len(step.deletes) for step in fold(store, FORGET)) == 1


def test_the_static_row_is_folded_like_any_other() -> None:
    store = Store().put([P0, S0], [bigint(1), b"a"], stamp=10).put([P0, S0], [bigint(1), b"b"], stamp=20)
    fold(store, KEEP)
    assert len(store.pairs) == 1
    store.delete(1, stamp=30)
    fold(store, FORGET)
    fold(store, FORGET)
    assert store.pairs == {}


def test_folding_changes_no_answer_and_no_digest() -> None:
    store = Store().rows(1, 5).rows(2, 5).delete(1, row=[int_(2)]).delete(2, start=Bound([int_(3)]))
    store.put([P0, C0, V1], [bigint(1), int_(1), b"x"], stamp=40, update=True)
    everything = RangeRead(*tokens.keys_between(None, None), 100)
    before = store.read(everything)
    assert fold(store, KEEP)
    assert store.read(everything) == before


def test_the_rule_is_the_earliest_of_all_that_may_bring_a_write_back() -> None:
    options = TableOptions(gc_grace_s=100, history_s=10)
    assert rule_for(options, NOW_MS, NOW_MS, NOW_MS).forget_before_ms == NOW_MS - 100_000
    assert rule_for(options, NOW_MS, NOW_MS - 200_000, NOW_MS).forget_before_ms == NOW_MS - 200_000
    assert rule_for(options, NOW_MS, NOW_MS, NOW_MS - 300_000).forget_before_ms == NOW_MS - 300_000
    assert rule_for(options, NOW_MS, 0, NOW_MS).forget_before_ms == 0
    assert rule_for(options, NOW_MS, 0, 0).history_from_us == (NOW_MS - 10_000) * 1000


def test_a_plain_row_costs_no_decoding() -> None:
    store = Store().rows(1, 1)
    ((key, _),) = store.pairs.items()
    assert fold_row(WIDE, key[: -keys.TAIL], list(store.pairs.items()), KEEP) is None


@pytest.mark.parametrize("layout", [FLAT, WIDE], ids=["flat", "wide"])
@pytest.mark.parametrize("seed", range(40))
def test_rows_of_a_load_that_is_not_settled_are_folded_with_nothing(seed: int, layout: RowLayout) -> None:
    """However many versions there are: readers that leave the load out, and those that don't, see what they saw."""
    store = some_rows(seed, layout)
    seen, before = everything(store), everything(without_load(store))
    history, most = random.Random(seed).choice(((1 << 60, 64), (20, 64), (20, 1), (0, 1)))
    rule = FoldRule(0, history_from_us=history, max_versions=most, apart=frozenset((LOADED,)))
    loaded = {key for key in store.pairs if keys.stamp_of(key) == LOADED}
    fold(store, rule)
    assert loaded <= store.pairs.keys()
    assert everything(store) == seen and everything(without_load(store)) == before
    # When it is settled it is folded with the rest.
    fold(store, FoldRule(0, history_from_us=1 << 60))
    assert everything(store) == seen


def test_a_deletion_that_covers_rows_of_a_load_that_is_not_settled_stays() -> None:
    store = Store(FLAT).put([P0, 2], [bigint(1), int_(1)], stamp=LOADED).delete(1, stamp=LOADED + 1, row=[])
    fold(store, FoldRule(NOW_MS + 1, 1 << 60, apart=frozenset((LOADED,))))
    assert len(store.pairs) == 2 and everything(store).live == 0
    fold(store, FORGET)
    assert not store.pairs
