"""Where a client believes tablets to be: who is read, who gets files, and what news take back."""

from __future__ import annotations

from trimtab.client.members import Members
from trimtab.tablets.records import pack


def members() -> Members:
    found = Members(lambda _address: None, None)
    found.take_instances({each: (f"i{each}", f"h{each}:1", "dc1", True) for each in (1, 2, 3, 4)})
    return found


def test_reads_go_where_they_are_answered_and_files_to_everybody_who_has_or_gets_a_replica() -> None:
    known = members()
    known.take_tablets({7: [pack([(1, 2, 3)])], 8: [pack([(1,)])]})
    assert [member.raft_id for member in known.holding(7, 0)] == [1, 2, 3]
    known.take_moved({7: [pack([(1, 2, 3)])]}, {7: [pack([(1, 2, 3, 4)])]}, {7: [pack([(1, 2, 4)])]})
    held, reading = known.held(7), known.reading(7)
    assert held is not None and held.replicas(0) == (1, 2, 3, 4)
    assert reading is not None and reading.replicas(0) == (1, 2, 4)
    assert [member.raft_id for member in known.holding(7, 0)] == [1, 2, 4]
    assert known.held(8) is known.maps[8] is known.reading(8)


def test_news_of_a_table_that_does_not_move_any_more_take_back_what_was_said_before() -> None:
    known = members()
    known.take_tablets({7: [pack([(1, 2, 3)])]}, {7: [pack([(1, 2, 3, 4)])]}, {7: [pack([(1, 2, 4)])]})
    known.take_moved({7: [pack([(1, 2, 4)])]})
    held = known.held(7)
    assert held is not None and held is known.reading(7) and held.replicas(0) == (1, 2, 4)
    known.take_tablets({})
    assert known.held(7) is None and known.reading(7) is None and known.holding(7, 0) == ()
