"""How far a log may be cut."""

from trimtab.node.compaction import cut_index


def test_nothing_above_what_is_durable_is_cut() -> None:
    assert cut_index(applied_durable=40, last_applied=100, keep_entries=10, pinned=None) == 40


def test_a_margin_stays_for_members_that_are_a_little_behind() -> None:
    assert cut_index(applied_durable=100, last_applied=100, keep_entries=10, pinned=None) == 90


def test_a_snapshot_on_its_way_pins_the_log_above_it() -> None:
    assert cut_index(applied_durable=100, last_applied=100, keep_entries=10, pinned=55) == 55
