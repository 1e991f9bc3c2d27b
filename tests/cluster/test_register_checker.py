"""The checker of registers finds what it is there for, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.register_checker import Read, Write, violations

FIRST = Write(1, 1, 0.0, 1.0, True)
SECOND = Write(1, 2, 2.0, 3.0, True)
UNKNOWN = Write(1, 3, 4.0, 5.0, False)


def test_a_read_during_a_write_may_give_the_old_or_the_new() -> None:
    assert violations([FIRST, SECOND], [Read(1, 1, 2.5, 2.6), Read(1, 2, 2.5, 2.6)]) == []


def test_a_read_after_an_acknowledged_write_that_gives_the_old_is_stale() -> None:
    (wrong,) = violations([FIRST, SECOND], [Read(1, 1, 3.5, 3.6)])
    assert "gave 1, but 2 had been acknowledged before it began" in wrong


def test_what_a_read_has_seen_the_next_one_must_see_too() -> None:
    (wrong,) = violations([FIRST, SECOND], [Read(1, 2, 2.1, 2.2), Read(1, 1, 2.3, 2.4)])
    assert "gave 1, but a read that ended before it began had given 2" in wrong


def test_a_write_that_was_not_acknowledged_may_be_seen_or_not_but_not_come_and_go() -> None:
    assert violations([FIRST, SECOND, UNKNOWN], [Read(1, 2, 6.0, 6.1), Read(1, 3, 7.0, 7.1)]) == []
    assert len(violations([FIRST, SECOND, UNKNOWN], [Read(1, 3, 6.0, 6.1), Read(1, 2, 7.0, 7.1)])) == 1


def test_nothing_is_read_before_it_is_written() -> None:
    (wrong,) = violations([FIRST, SECOND], [Read(1, 2, 1.1, 1.2)])
    assert "no more than 1 had been written" in wrong


def test_registers_have_nothing_to_do_with_each_other() -> None:
    assert violations([FIRST, Write(2, 9, 0.0, 1.0, True)], [Read(1, 1, 2.0, 2.1)]) == []


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.booleans()), max_size=20))
def test_whatever_a_register_in_one_place_answers_is_fine(steps: list[tuple[float, float, bool]]) -> None:
    """Writes and reads of a variable: each takes effect at one instant while it lasts."""
    writes, now = [], 0.0
    effects = [(0.0, 0)]
    for value, (lasts, gap, acknowledged) in enumerate(steps, 1):
        writes.append(Write(1, value, now, now + lasts, acknowledged))
        effects.append((now + lasts / 2, value))
        now += lasts + gap
    reads = []
    for at in range(40):
        instant = now * at / 40
        value = max(value for time, value in effects if time <= instant)
        reads.append(Read(1, value, instant - 0.05, instant + 0.05))
    assert violations(writes, reads) == []
