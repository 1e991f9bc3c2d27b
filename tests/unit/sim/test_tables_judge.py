"""The judge of tables: what may be seen after what, told on small histories."""

from __future__ import annotations

import pytest

from trimtab.sim.checks import Violation
from trimtab.sim.tables_history import Cells, Delete, Outcome, Put, Read, Row, TablesHistory, Write
from trimtab.sim.tables_judge import Judge, judge_batches, meets
from trimtab.tablets.consistency import Level

ROW = Row(1, 0, 0)
A, B = 3, 4
QUORUM, ONE, ALL = Level.QUORUM, Level.ONE, Level.ALL
ACKED, UNKNOWN, REFUSED = Outcome.ACKED, Outcome.UNKNOWN, Outcome.REFUSED


class Told:
    """A history, as it is told: every line takes a second, unless it says when."""

    def __init__(self, replication: dict[str, int] | None = None) -> None:
        self.history = TablesHistory(replication or {"dc1": 3})
        self.now = 0.0

    def wrote(
        self,
        *parts: Put | Delete,
        stamp: int = 0,
        outcome: Outcome = ACKED,
        level: Level = QUORUM,
        at: tuple[float, float] | None = None,
    ) -> Write:
        invoked, returned = at or self._second()
        number = self.history.next_number()
        write = Write(number, "c1", level, "dc1", parts, invoked, stamp, returned, outcome)
        self.history.writes.append(write)
        return write

    def put(self, value: str | None, stamp: int, column: int = A, ttl_s: int = 0, **more: object) -> Write:
        cells = {column: None if value is None else value.encode()}
        return self.wrote(Put(ROW, cells, False, ttl_s), stamp=stamp, **more)  # type: ignore[arg-type]

    def deleted(self, stamp: int, **more: object) -> Write:
        return self.wrote(Delete(1, 0, 0, 9), stamp=stamp, **more)  # type: ignore[arg-type]

    def saw(
        self,
        cells: dict[int, tuple[str | None, int]] | None,
        level: Level = QUORUM,
        at: tuple[float, float] | None = None,
        *,
        final: bool = False,
    ) -> None:
        invoked, returned = at or self._second()
        found: Cells | None = None
        if cells is not None:
            found = {id: (text.encode() if text is not None else None, us) for id, (text, us) in cells.items()}
        read = Read(self.history.next_number(), "c2", level, "dc1", invoked, returned, (A, B), {ROW: found})
        read.final = final
        self.history.reads.append(read)

    def saw_a(self, value: str | None, stamp: int = 0, level: Level = QUORUM, **more: object) -> None:
        self.saw({A: (value, stamp), B: (None, 0)} if value is not None else None, level, **more)  # type: ignore[arg-type]

    def wrong(self, match: str) -> None:
        with pytest.raises(Violation, match=match):
            Judge(self.history).judge()

    def right(self) -> None:
        Judge(self.history).judge()

    def _second(self) -> tuple[float, float]:
        self.now += 1.0
        return self.now, self.now + 0.5


def test_what_was_acknowledged_is_seen_or_something_later() -> None:
    told = Told()
    told.put("one", 10)
    told.saw_a("one", 10)
    told.put("two", 20, outcome=UNKNOWN)
    told.saw_a("two", 20)
    told.right()
    told.put("three", 30)
    told.saw_a("two", 20)
    told.wrong("shows 'two' of stamp 20 .* though 'three' of stamp 30")


def test_what_was_acknowledged_may_not_vanish() -> None:
    told = Told()
    told.put("one", 10)
    told.saw_a(None)
    told.wrong("shows nothing in table 1 row 0/0, column 3, though 'one'")


def test_a_write_under_way_may_be_seen_or_not_until_somebody_has_seen_it() -> None:
    told = Told()
    told.put("one", 10)
    told.put("two", 20, outcome=UNKNOWN)
    told.saw_a("one", 10)
    told.saw_a("two", 20)
    told.right()
    told.saw_a("one", 10)
    told.wrong("'two' of stamp 20")


def test_two_reads_at_the_same_time_may_differ() -> None:
    told = Told()
    told.put("one", 10)
    told.put("two", 20, at=(5.0, 9.0))
    told.saw_a("two", 20, at=(6.0, 7.0))
    told.saw_a("one", 10, at=(6.5, 8.0))
    told.right()


def test_at_one_nothing_is_promised_but_that_it_was_written() -> None:
    told = Told()
    told.put("one", 10)
    told.put("two", 20)
    told.saw_a("one", 10, ONE)
    told.saw_a(None, level=ONE)
    told.right()
    told.saw_a("ghost", 15, ONE)
    told.wrong("what nobody wrote there: b'ghost'")


def test_in_the_end_what_was_acknowledged_at_one_is_there_but_not_at_any() -> None:
    told = Told()
    told.put("one", 10, level=ONE)
    told.put("any", 20, level=Level.ANY)
    told.saw_a("one", 10, final=True)
    told.right()
    told.saw_a(None, final=True)
    told.wrong("shows nothing")


def test_what_was_refused_never_happened() -> None:
    told = Told()
    told.put("one", 10, outcome=REFUSED)
    told.saw_a("one", 10)
    told.wrong("what was refused: one")


def test_nothing_deleted_comes_back() -> None:
    told = Told()
    told.put("one", 10)
    told.deleted(20)
    told.saw_a(None)
    told.right()
    told.saw_a("one", 10)
    told.wrong("though a deletion of stamp 20")


def test_a_deletion_that_nobody_acknowledged_stays_once_it_was_seen() -> None:
    told = Told()
    told.put("one", 10)
    told.deleted(20, outcome=UNKNOWN)
    told.saw_a("one", 10)
    told.saw_a(None)
    told.right()
    told.saw_a("one", 10)
    told.wrong("though a deletion of stamp 20")


def test_what_expired_stays_gone_and_hides_what_is_older() -> None:
    told = Told()
    told.put("one", 10)
    told.put("short", 20, ttl_s=2)
    told.saw_a("short", 20)
    told.saw_a(None, at=(10.0, 10.5))
    told.right()
    told.saw_a("one", 10, at=(11.0, 11.5))
    told.wrong("'short' of stamp 20")
    told.history.reads.pop()
    told.saw_a("short", 20, at=(12.0, 12.5))
    told.wrong("what had expired: short")


def test_of_equal_stamps_a_deletion_wins_then_what_expires_then_the_greater_value() -> None:
    told = Told()
    told.put("a", 10)
    told.put("b", 10)
    told.saw_a("b", 10)
    told.right()
    told.saw_a("a", 10)
    told.wrong("though 'b' of stamp 10")
    told.history.reads.pop()
    told.put("0", 10, ttl_s=1000)
    told.saw_a("0", 10)
    told.right()
    told.put(None, 10)
    told.saw_a("0", 10)
    told.wrong("though a deletion of stamp 10")


def test_of_a_write_that_is_seen_all_cells_of_the_row_are() -> None:
    told = Told()
    told.wrote(Put(ROW, {A: b"a1", B: b"b1"}, False), stamp=10)
    told.wrote(Put(ROW, {A: b"a2", B: b"b2"}, False), stamp=20, outcome=UNKNOWN)
    told.saw({A: ("a2", 20), B: ("b2", 20)})
    told.right()
    told.history.reads.clear()
    told.saw({A: ("a2", 20), B: ("b1", 10)})
    told.wrong("shows 'b1' of stamp 10 .* though 'b2' of stamp 20")


def test_a_stamp_that_the_client_did_not_hear_of_is_learned_from_reads() -> None:
    told = Told()
    told.put("one", 10)
    told.put("two", 0, outcome=UNKNOWN)
    told.saw_a("one", 10)
    told.saw_a("two", 20)
    told.right()
    told.saw_a("two", 30)
    told.wrong("with the stamp 30, not 20")


def test_a_row_without_cells_is_there_because_somebody_inserted_it() -> None:
    told = Told()
    told.put("one", 10)
    told.put(None, 20)
    told.saw({A: (None, 0), B: (None, 0)})
    told.wrong("shows nothing in table 1 row 0/0, whether there is a row")
    told = Told()
    told.wrote(Put(ROW, {A: None}, True), stamp=10)
    told.saw({A: (None, 0), B: (None, 0)})
    told.right()
    told.saw(None)
    told.wrong("whether there is a row, though ''")


@pytest.mark.parametrize(
    ("write", "read", "replication", "sure"),
    [
        (QUORUM, QUORUM, {"dc1": 3}, True),
        (QUORUM, ONE, {"dc1": 3}, False),
        (ONE, ALL, {"dc1": 3}, True),
        (ONE, ONE, {"dc1": 1}, True),
        (QUORUM, QUORUM, {"dc1": 2, "dc2": 2}, True),
        (Level.EACH_QUORUM, Level.LOCAL_QUORUM, {"dc1": 3, "dc2": 3}, True),
        (QUORUM, Level.LOCAL_QUORUM, {"dc1": 3, "dc2": 3}, False),
        (Level.ANY, ALL, {"dc1": 3}, False),
    ],
)
def test_levels_that_meet_in_every_case(write: Level, read: Level, replication: dict[str, int], sure: bool) -> None:
    assert meets(write, read, replication, "dc1", "dc1") is sure


def test_quorums_of_two_data_centres_need_not_meet() -> None:
    local = Level.LOCAL_QUORUM
    assert meets(local, local, {"dc1": 3, "dc2": 3}, "dc1", "dc1")
    assert not meets(local, local, {"dc1": 3, "dc2": 3}, "dc1", "dc2")


def test_a_batch_happens_as_a_whole() -> None:
    rows = [Row(1, 0, 1), Row(1, 1, 1)]
    batch = Write(1, "c1", QUORUM, "dc1", tuple(Put(row, {A: b"x"}) for row in rows), 0.0, outcome=UNKNOWN)
    there: Cells = {A: (b"x", 1)}
    judge_batches([batch], dict.fromkeys(rows, there), whole=True)
    judge_batches([batch], dict.fromkeys(rows), whole=True)
    half: dict[Row, Cells | None] = {rows[0]: there, rows[1]: None}
    with pytest.raises(Violation, match="half of a batch happened: table 1 row 0/1, but not table 1 row 1/1"):
        judge_batches([batch], half, whole=True)
    judge_batches([batch], half, whole=False)
    batch.outcome = ACKED
    with pytest.raises(Violation, match="an acknowledged batch has lost table 1 row 1/1"):
        judge_batches([batch], half, whole=False)
    batch.outcome = REFUSED
    with pytest.raises(Violation, match="a refused batch has written table 1 row 0/1"):
        judge_batches([batch], half, whole=False)


def test_of_a_load_everything_is_seen_or_nothing_and_by_whoever_asks_one_who_knows_of_it() -> None:
    other = Row(1, 0, 1)

    def read(first: str, second: str, epoch: int) -> Told:
        told = Told()
        told.wrote(Put(ROW, {A: b"old 1"}), Put(other, {A: b"old 2"}), stamp=5, at=(0.0, 0.5))
        load = told.wrote(Put(ROW, {A: b"new 1"}), Put(other, {A: b"new 2"}), stamp=7, level=ALL, at=(2.0, 2.0))
        load.epoch = 3
        rows: dict[Row, Cells | None] = {
            row: {A: (text.encode(), 5 if text.startswith("old") else 7)}
            for row, text in ((ROW, first), (other, second))
        }
        told.history.reads.append(Read(9, "c2", ONE, "dc1", 3.0, 4.0, (A,), rows, epoch=epoch))
        return told

    read("old 1", "old 2", 2).right()
    read("new 1", "new 2", 2).right()
    read("new 1", "new 2", 3).right()
    read("old 1", "old 2", 3).wrong("'new 1' of stamp 7")
    read("old 1", "new 2", 2).wrong("'new 1' of stamp 7")
