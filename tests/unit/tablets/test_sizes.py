"""What the leader knows of the sizes of replicas."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from trimtab.tablets.sizes import (
    GONE,
    MAX_REPORTED,
    SizeLedger,
    SizesReply,
    SizesReport,
    by_place,
    decode_report,
    encode,
)

COUNTS = {7: 4, 8: 2}


def report(raft_id: int, sizes: dict[int, dict[int, int]], *, anew: bool = False) -> SizesReport:
    return SizesReport(raft_id, f"u{raft_id}", 1, sizes, anew)


def ledger(**told: dict[int, dict[int, int]]) -> SizeLedger:
    made = SizeLedger()
    for who, sizes in told.items():
        assert made.take(report(int(who.removeprefix("i")), sizes, anew=True), COUNTS)
    return made


def test_the_size_of_a_tablet_is_that_of_its_largest_replica() -> None:
    known = ledger(i1={7: {0: 10, 1: 5}}, i2={7: {0: 12}}, i3={7: {0: 99}})
    assert known.size(7, 0, (1, 2)) == 12, "member 3 holds no replica of it any more"
    assert known.size(7, 1, (1, 2)) == 5
    assert known.size(7, 2, (1, 2)) == GONE and known.size(8, 0, (1,)) == GONE


def test_the_bytes_of_an_instance_are_those_of_all_its_replicas() -> None:
    known = ledger(i1={7: {0: 10, 1: 5}, 8: {0: 1}}, i2={})
    assert known.totals() == {1: 16, 2: 0}
    known.take(report(1, {7: {0: GONE, 1: 7}}), COUNTS)
    assert known.totals() == {1: 8, 2: 0}


def test_what_a_disk_has_left_is_what_was_said_last() -> None:
    known = ledger(i1={}, i2={})
    assert known.free(1) == GONE, "a release before this one does not say"
    for free_bytes, kept in ((70, 70), (50, 50), (0, 0), (-9, GONE)):
        known.take(SizesReport(1, "u1", 1, free_bytes=free_bytes), COUNTS)
        assert known.free(1) == known.copy().free(1) == kept
    assert decode_report(encode([1, "u1", 1, {}, False])).free_bytes == GONE
    known.keep_only({2}, {7})
    assert known.free(1) == GONE


def test_who_reports_to_a_new_leader_is_asked_for_everything() -> None:
    known = ledger(i1={7: {0: 10}})
    known.clear()
    assert not known.take(report(1, {7: {1: 3}}), COUNTS)
    assert known.take(report(1, {7: {0: 10, 1: 3}}, anew=True), COUNTS)
    assert known.totals() == {1: 13}
    assert known.take(report(1, {7: {0: 1}}, anew=True), COUNTS)
    assert known.totals() == {1: 1}, "what is reported anew replaces what was before"


def test_what_makes_no_sense_is_ignored() -> None:
    known = ledger(i1={})
    assert known.take(report(1, {7: {4: 10, -1: 10, 0: -5, 1: 1 << 63}, 9: {0: 1}}), COUNTS)
    assert known.totals() == {1: 0}


def test_what_is_gone_is_forgotten() -> None:
    known = ledger(i1={7: {0: 10}, 8: {0: 1}}, i2={7: {0: 10}})
    known.keep_only({1}, {8})
    assert known.totals() == {1: 1}


def test_pages_go_on_where_the_last_one_ended() -> None:
    known = ledger(i1={7: {0: 10, 1: 11, 3: 13}, 8: {0: 20, 1: 21}})
    maps = {7: [(tablet, (1,)) for tablet in range(4)], 8: [(tablet, (1,)) for tablet in range(2)]}
    found: dict[tuple[int, int], int] = {}
    start: tuple[int, int] | None = (0, 0)
    pages = 0
    while start is not None:
        page = known.page(maps, start, limit=2)
        found |= by_place(page)
        start = page.next
        pages += 1
    assert pages == 3
    assert found == {(7, 0): 10, (7, 1): 11, (7, 3): 13, (8, 0): 20, (8, 1): 21}
    assert known.page(maps, (0, 0)) == SizesReply([(7, 0, [10, 11, GONE, 13]), (8, 0, [20, 21])])


def test_a_full_report_fits_into_a_message() -> None:
    full = report(1, {1 << 40: dict.fromkeys(range(MAX_REPORTED), 1 << 50)})
    assert len(encode(full)) < 1 << 17
    assert decode_report(encode(full)) == full
    assert msgspec.msgpack.decode(encode(SizesReply(next=(1, 2)))) == [[], [1, 2]]


@given(st.lists(st.dictionaries(st.integers(0, 30), st.one_of(st.just(GONE), st.integers(0, 1000)), max_size=8)))
def test_the_ledger_ends_up_with_the_newest_sizes(reports: list[dict[int, int]]) -> None:
    known, expected = SizeLedger(), dict[int, int]()
    known.take(report(1, {}, anew=True), {7: 32})
    for sizes in reports:
        known.take(report(1, {7: sizes}), {7: 32})
        expected = {tablet: size for tablet, size in (expected | sizes).items() if size != GONE}
    assert {tablet: known.size(7, tablet, (1,)) for tablet in range(32)} == {
        tablet: expected.get(tablet, GONE) for tablet in range(32)
    }
    assert known.totals() == {1: sum(expected.values())}
