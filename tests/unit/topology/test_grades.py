"""Grades: the incarnation rules of the document, whatever happens in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.topology.grades import (
    CHANGES,
    LADDER,
    TARGETS,
    Grade,
    GradeRefused,
    Grades,
    Standing,
    set_current,
    set_target,
)


def climbed(grades: Grades) -> Grades:
    """After the leader has brought it up all the rungs."""
    for grade in LADDER[1:]:
        grades = set_current(grades, grade)
    return grades


def test_the_way_up_down_and_up_again() -> None:
    grades = set_target(Grades(), Grade.ONLINE)
    assert grades == Grades(Standing(), Standing(Grade.ONLINE, 1))
    assert grades.must_climb
    grades = climbed(grades)
    assert grades == Grades(Standing(Grade.ONLINE, 1), Standing(Grade.ONLINE, 1))
    assert grades.settled
    assert not grades.must_climb
    grades = set_target(grades, Grade.OFFLINE)
    assert grades.target == Standing(Grade.OFFLINE, 1)
    grades = set_current(grades, Grade.OFFLINE)
    assert grades.settled
    grades = set_target(grades, Grade.ONLINE)
    assert grades.target == Standing(Grade.ONLINE, 2)
    assert grades.must_climb


def test_one_that_was_away_unnoticed_climbs_from_the_foot() -> None:
    """It was killed and is back before anybody marked it: still Online in the books, but behind."""
    grades = set_target(climbed(set_target(Grades(), Grade.ONLINE)), Grade.ONLINE)
    assert grades.current == Standing(Grade.ONLINE, 1)
    assert grades.must_climb
    grades = set_current(grades, Grade.RAFT_SYNCED)
    assert grades.current == Standing(Grade.RAFT_SYNCED, 2)
    assert not grades.must_climb


def test_an_offline_asked_for_in_the_middle_of_a_climb_keeps_the_incarnations_apart() -> None:
    grades = set_target(Grades(), Grade.ONLINE)
    grades = set_target(grades, Grade.OFFLINE)
    assert grades.target == Standing(Grade.OFFLINE, 0)
    assert grades.settled


def test_expelled_is_for_good() -> None:
    grades = set_target(climbed(set_target(Grades(), Grade.ONLINE)), Grade.EXPELLED)
    with pytest.raises(GradeRefused, match="expelled for good"):
        set_target(grades, Grade.ONLINE)
    gone = set_current(grades, Grade.EXPELLED)
    with pytest.raises(GradeRefused, match="no step leads from Expelled to Offline"):
        set_current(gone, Grade.OFFLINE)


@pytest.mark.parametrize("grade", sorted(set(Grade) - TARGETS, key=str))
def test_rungs_in_between_are_no_targets(grade: Grade) -> None:
    with pytest.raises(GradeRefused, match="is no target"):
        set_target(Grades(), grade)


def test_no_rung_is_skipped_upwards() -> None:
    for rung, grade in enumerate(LADDER):
        for higher in LADDER[rung + 2 :]:
            assert higher not in CHANGES[grade], f"{grade} to {higher}"


moves = st.lists(st.tuples(st.booleans(), st.sampled_from(Grade)), max_size=40)


@given(moves)
def test_incarnations_follow_the_rules_whatever_happens(steps: list[tuple[bool, Grade]]) -> None:
    grades = Grades()
    onlines = 0
    for is_target, grade in steps:
        before = grades
        try:
            grades = set_target(grades, grade) if is_target else set_current(grades, grade)
        except GradeRefused:
            assert grades == before
            continue
        if is_target and grade is Grade.ONLINE:
            onlines += 1
            assert grades.target.incarnation == before.target.incarnation + 1
            assert grades.current == before.current
        elif is_target:
            assert grades.target.incarnation == before.current.incarnation
            assert grades.current == before.current
        else:
            assert grades.current.incarnation == before.target.incarnation
            assert grades.target == before.target
        assert 0 <= grades.current.incarnation <= onlines
        assert 0 <= grades.target.incarnation <= onlines
        # What is written as Online was reached by a climb that began after it was last asked for.
        if grades.current.grade is Grade.ONLINE and grades.target.grade is Grade.ONLINE and not grades.must_climb:
            assert grades.settled or grades.current.incarnation >= grades.target.incarnation
