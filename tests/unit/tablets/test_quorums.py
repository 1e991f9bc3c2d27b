from collections.abc import Iterator
from itertools import combinations, product

from trimtab.tablets.consistency import Level, goal
from trimtab.tablets.quorums import enough, hopeless, missing, peers_needed

ONE_CENTRE = dict.fromkeys(range(1, 10), "a")


def test_an_intact_replica_of_three_needs_one_other() -> None:
    assert peers_needed(1, (1, 2, 3), ONE_CENTRE, intact=True) == {"a": 1}
    assert enough(1, (1, 2, 3), {2}, ONE_CENTRE, intact=True)
    assert missing(1, (1, 2, 3), set(), ONE_CENTRE, intact=True) == (
        "needs 1 of 2 other replicas in data centre a, 0 compared"
    )


def test_one_that_lost_its_data_needs_both_others() -> None:
    assert peers_needed(1, (1, 2, 3), ONE_CENTRE, intact=False) == {"a": 2}
    assert not enough(1, (1, 2, 3), {3}, ONE_CENTRE, intact=False)
    assert enough(1, (1, 2, 3), {2, 3}, ONE_CENTRE, intact=False)


def test_the_only_replica_has_nobody_to_ask() -> None:
    assert enough(1, (1,), set(), ONE_CENTRE, intact=True)
    assert hopeless(1, (1,), ONE_CENTRE, intact=False) and not hopeless(1, (1, 2), ONE_CENTRE, intact=False)


def test_another_data_centre_is_asked_for_a_quorum_of_its_own() -> None:
    centre = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
    assert peers_needed(1, (1, 2, 3, 4, 5, 6), centre, intact=True) == {"a": 1, "b": 2}
    assert not enough(1, (1, 2, 3, 4, 5, 6), {4, 5, 6}, centre, intact=True)
    assert enough(1, (1, 2, 3, 4, 5, 6), {3, 4, 6}, centre, intact=True)


def sets_of(members: tuple[int, ...]) -> Iterator[set[int]]:
    for size in range(len(members) + 1):
        yield from (set(each) for each in combinations(members, size))


def test_whoever_has_asked_enough_has_met_every_acknowledged_write() -> None:
    """Every way to acknowledge, in every shape of up to two data centres, against every set of peers."""
    for near, far, intact in product(range(1, 5), range(3), (True, False)):
        replicas = tuple(range(1, near + far + 1))
        centre = {raft_id: "a" if raft_id <= near else "b" for raft_id in replicas}
        goals = [
            goal(level, [replicas], centre, local, for_write=True)
            for level in (Level.QUORUM, Level.LOCAL_QUORUM, Level.EACH_QUORUM, Level.ALL)
            for local in {"a", "b"} & set(centre.values())
        ]
        acknowledged = [acks for acks in sets_of(replicas) if any(each.reached(acks) for each in goals)]
        for asked in sets_of(replicas[1:]):
            has = asked | {1} if intact else asked
            if enough(1, replicas, asked, centre, intact=intact):
                assert all(has & acks for acks in acknowledged), (replicas, asked, intact)
            elif intact and not far:
                assert not all(has & acks for acks in acknowledged), "it asks for no more than it must"


def test_who_left_for_good_is_not_waited_for_where_too_few_are_left() -> None:
    assert peers_needed(9, (1, 2, 3), ONE_CENTRE, intact=False, gone={3}) == {"a": 2}, "a read quorum can still be had"
    assert peers_needed(9, (1, 2, 3), ONE_CENTRE, intact=False, gone={2, 3}) == {"a": 1}
    assert missing(9, (1, 2, 3), {1}, ONE_CENTRE, intact=False, gone={2, 3}) is None
    assert missing(9, (1, 2, 3), (), ONE_CENTRE, intact=False, gone={2, 3}) == (
        "needs 1 of 3 other replicas in data centre a, 0 compared"
    )


def test_who_is_intact_has_at_least_what_it_has() -> None:
    assert enough(1, (1, 2, 3), (), ONE_CENTRE, intact=True) is False
    assert missing(1, (1, 2, 3), (), ONE_CENTRE, intact=True, gone={2, 3}) is None
    assert missing(1, (1, 2, 3), (), ONE_CENTRE, intact=True, gone={2}) is not None


def test_of_nobody_nothing_can_be_made() -> None:
    assert not missing(9, (1,), {1}, ONE_CENTRE, intact=False, gone=())
    assert missing(9, (1,), (), ONE_CENTRE, intact=False, gone={1})
    assert missing(9, (1, 2, 3), (), ONE_CENTRE, intact=False, gone={1, 2, 3})


def test_a_data_centre_that_is_gone_altogether_is_made_anew_from_the_other() -> None:
    centre = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
    assert peers_needed(9, (1, 2, 3, 4, 5, 6), centre, intact=False, gone={1, 2, 3}) == {"b": 2}
