import pytest

from trimtab.tablets.consistency import Level, goal, needed, parse_level, quorum_of

TWO_CENTRES = {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("level", "needs"),
    [
        (Level.ANY, (("", 1),)),
        (Level.ONE, (("", 1),)),
        (Level.TWO, (("", 2),)),
        (Level.THREE, (("", 3),)),
        (Level.QUORUM, (("", 3),)),
        (Level.ALL, (("", 5),)),
        (Level.LOCAL_ONE, (("b", 1),)),
        (Level.LOCAL_QUORUM, (("b", 2),)),
        (Level.EACH_QUORUM, (("a", 2), ("b", 2))),
    ],
)
def test_what_each_level_needs_of_two_data_centres(level: Level, needs: tuple[tuple[str, int], ...]) -> None:
    requirement = needed(level, TWO_CENTRES, "b", for_write=True)
    assert requirement.needs == needs
    assert requirement.needed == sum(number for _, number in needs)


def test_a_quorum_of_each_is_not_a_quorum_of_all() -> None:
    each = needed(Level.EACH_QUORUM, TWO_CENTRES, "a", for_write=True)
    assert not each.satisfied({"a": 3, "b": 1}) and each.satisfied({"a": 2, "b": 2})
    both = needed(Level.QUORUM, TWO_CENTRES, "a", for_write=True)
    assert both.satisfied({"a": 3}) and not both.satisfied({"a": 1, "b": 1})
    local = needed(Level.LOCAL_QUORUM, TWO_CENTRES, "a", for_write=False)
    assert not local.satisfied({"a": 1, "b": 2}) and local.possible({"a": 2})


def test_a_hint_is_enough_for_any_and_for_nothing_else() -> None:
    anyone = needed(Level.ANY, {"a": 3}, "a", for_write=True)
    assert anyone.possible({}) and not anyone.satisfied({}) and anyone.satisfied({}, hinted=True)
    one = needed(Level.ONE, {"a": 3}, "a", for_write=True)
    assert not one.possible({}) and not one.satisfied({}, hinted=True)


def test_a_read_at_any_is_refused() -> None:
    with pytest.raises(ValueError, match="ANY is for writes only"):
        needed(Level.ANY, {"a": 3}, "a", for_write=False)


def test_a_read_at_each_quorum_is_allowed() -> None:
    assert needed(Level.EACH_QUORUM, {"a": 3}, "a", for_write=False).needed == 2


def test_a_local_level_where_no_replica_is_can_not_be_reached() -> None:
    local = needed(Level.LOCAL_QUORUM, {"a": 3}, "elsewhere", for_write=True)
    assert not local.possible({"a": 3})
    assert local.describe({"a": 3}, "alive") == ("LOCAL_QUORUM needs 1 of 0 replicas in data centre elsewhere, 0 alive")


def test_more_replicas_than_there_are_can_be_asked_for_but_not_had() -> None:
    assert not needed(Level.THREE, {"a": 2}, "a", for_write=True).possible({"a": 2})


def test_the_numbers_are_told_in_words() -> None:
    each = needed(Level.EACH_QUORUM, TWO_CENTRES, "a", for_write=True)
    assert each.describe({"a": 3, "b": 1}, "answered") == (
        "EACH_QUORUM needs 2 of 3 replicas in data centre a, 3 answered; 2 of 2 replicas in data centre b, 1 answered"
    )
    assert each.counted({"a": 3, "b": 1}) == 3, "the third of a brings it no nearer"
    assert needed(Level.ONE, {"a": 1}, "a", for_write=True).describe({}, "alive") == "ONE needs 1 of 1 replica, 0 alive"


CENTRE = {1: "a", 2: "a", 3: "a", 4: "a", 5: "b"}


def test_while_a_tablet_moves_the_level_is_reached_in_each_set() -> None:
    both = goal(Level.QUORUM, [(1, 2, 3), (2, 3, 4)], CENTRE, "a", for_write=True)
    assert both.needed == 2
    assert both.reached({2, 3}), "who is in both sets counts in both"
    assert not both.reached({1, 2}) and not both.reached({3, 4}) and both.reached({1, 2, 4})
    assert not both.possible({1, 2}) and both.possible({1, 2, 4})
    assert both.got({1, 2}) == 1
    assert both.describe({1, 2}) == "QUORUM needs 2 of 3 replicas, 1 answered"


def test_an_answer_of_a_stranger_does_not_count() -> None:
    one = goal(Level.TWO, [(1, 2)], CENTRE, "a", for_write=False)
    assert not one.reached({1, 5}) and one.reached({1, 2})
    assert one.got({1, 5}) == 1


def test_a_replica_whose_place_is_forgotten_counts_anywhere_but_not_in_a_data_centre() -> None:
    assert goal(Level.QUORUM, [(1, 2, 9)], CENTRE, "a", for_write=True).reached({1, 9})
    assert not goal(Level.LOCAL_QUORUM, [(1, 2, 9)], CENTRE, "a", for_write=True).reached({1, 9})


def test_levels_are_read_in_any_case_and_wrong_ones_explained() -> None:
    assert parse_level("local_quorum") is Level.LOCAL_QUORUM
    with pytest.raises(ValueError, match=r"'most' is no consistency level; there are ANY, ONE, .*LOCAL_ONE"):
        parse_level("most")


def test_quorums_are_more_than_half() -> None:
    assert [quorum_of(number) for number in range(1, 6)] == [1, 2, 2, 3, 3]
