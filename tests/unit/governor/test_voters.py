"""Votes: how many, whose, and how they move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.governor.driver import World, cluster

from trimtab.governor.steps import ChangeMembers
from trimtab.governor.voters import Seat, choose_voters, wanted_voters
from trimtab.governor.waiting import waiting
from trimtab.topology.grades import Grade


def seat(rack: str = "", host: str = "", **fields: bool) -> Seat:
    domain = {key: value for key, value in (("rack", rack), ("host", host)) if value}
    return Seat(**({"fit": True} | fields), domain=domain)  # type: ignore[arg-type]


def test_the_table_of_sizes() -> None:
    assert [wanted_voters(n) for n in range(1, 10)] == [1, 2, 3, 3, 5, 5, 5, 5, 5]


def test_voters_spread_over_racks() -> None:
    seats = {i: seat(rack=f"r{(i - 1) // 3}") for i in range(1, 10)}
    chosen = choose_voters(seats, frozenset((1,)), 1)
    racks = sorted(seats[i].domain["rack"] for i in chosen)
    assert racks == ["r0", "r0", "r1", "r1", "r2"]


def test_case_does_not_make_two_racks_of_one() -> None:
    seats = {1: seat(rack="A"), 2: seat(rack="a"), 3: seat(rack="b"), 4: seat(rack="c")}
    assert choose_voters(seats, frozenset((1,)), 1) == {1, 3, 4}


def test_voters_that_share_a_rack_are_swapped_in_one_change() -> None:
    world = World()
    world.run()
    for name, rack in (("i2", "a"), ("i3", "a"), ("i4", "b")):
        world.join(name, domain={"host": name, "rack": rack})
        world.run()
    # i1 has no rack: it shares none. i2 and i3 do, until i4 comes.
    assert len(world.voters) == 3
    racks = [world.view.instances[i].failure_domain.get("rack") for i in sorted(world.voters)]
    assert sorted(str(rack) for rack in racks) == ["None", "a", "b"]
    swaps = [why for why in world.story if "others share fewer" in why]
    assert swaps == [
        "i4 gets a vote; i2 votes no more (others share fewer failure domains): i1, i3 and i4 are to decide"
    ]


def test_an_offline_voter_is_replaced_by_somebody_online() -> None:
    world = cluster(4)
    world.kill("i2")
    world.pass_time(8_000)
    assert world.voting() == ["i1", "i3", "i4"]
    assert "i4 gets a vote; i2 votes no more (goes down): i1, i3 and i4 are to decide" in world.story
    world.start("i2")
    world.pass_time(1_000)
    assert world.grade("i2") is Grade.ONLINE
    assert world.voting() == ["i1", "i3", "i4"]  # those who vote now are as good


def test_an_offline_voter_without_a_substitute_keeps_its_vote() -> None:
    world = cluster(3)
    world.kill("i2")
    world.pass_time(8_000)
    assert world.grade("i2") is Grade.OFFLINE
    assert world.voting() == ["i1", "i2", "i3"]
    assert any("i2 should not vote while Offline" in sentence for sentence in waiting(world.state()))


def test_of_two_one_shuts_down_and_the_other_decides_alone() -> None:
    world = cluster(2)
    world.stop("i2")
    step = world.next_step()
    assert isinstance(step, ChangeMembers)
    assert step.why == "i2 votes no more (goes down): i1 is to decide"
    world.run()
    world.kill("i2")
    world.pass_time(8_000)
    assert world.voters == {1}
    world.start("i2")
    world.pass_time(1_000)
    assert world.voters == {1, 2}
    world.assert_settled()


def test_three_that_are_shut_down_one_by_one_do_not_end_with_a_single_voter() -> None:
    world = cluster(3)
    world.stop("i3")
    world.run()
    world.stop("i2")
    world.run()
    assert world.voters == {1, 2, 3}


def test_five_voters_of_which_three_go_down_shrink_to_a_majority_that_is_up() -> None:
    seats = {i: seat(down=i > 2) for i in range(1, 6)}
    assert choose_voters(seats, frozenset(range(1, 6)), 1) == {1, 2, 3}


def test_nothing_changes_while_a_change_is_under_way() -> None:
    world = cluster(4)
    world.kill("i2")
    world.now_ms += 8_000
    for _ in range(3):
        step = world.next_step()
        assert step is not None
        world.carry_out(step)
        if world.row("i2").grades.target.grade is Grade.OFFLINE:
            break
    from trimtab.governor.learners import change_learners
    from trimtab.governor.voters import change_voters

    assert change_voters(world.state()) is not None
    assert change_voters(world.state(joint=True)) is None
    assert change_learners(world.state(joint=True)) is None


SEATS = st.dictionaries(
    st.integers(1, 12),
    st.builds(
        seat,
        rack=st.sampled_from(["", "a", "b", "c", "d"]),
        host=st.sampled_from(["", "x", "y", "z"]),
        fit=st.booleans(),
        down=st.booleans(),
        leaving=st.booleans(),
    ),
    min_size=1,
)


@given(seats=SEATS, data=st.data())
def test_whoever_is_chosen(seats: dict[int, Seat], data: st.DataObject) -> None:
    voters = data.draw(st.frozensets(st.sampled_from(sorted(seats)), min_size=1, max_size=7))
    leader = data.draw(st.sampled_from(sorted(voters)))
    chosen = choose_voters(seats, voters, leader)
    assert leader in chosen
    assert choose_voters(seats, chosen, leader) == chosen, "once is enough"

    up = [i for i in chosen if i == leader or not (seats[i].down or seats[i].leaving)]
    if chosen != voters:
        assert len(chosen) in (1, 2, 3, 5)
        assert 2 * len(up) > len(chosen), "those who are up are a majority"
        assert not any(seats[i].leaving for i in chosen - {leader})
        assert all(seats[i].fit and not seats[i].down for i in chosen - voters)
    if all(s.fit and not s.down and not s.leaving for s in seats.values()):
        assert len(chosen) == wanted_voters(len(seats))


@given(
    racks=st.lists(st.sampled_from("abcd"), min_size=3, max_size=8),
    data=st.data(),
)
def test_the_spread_is_as_good_as_the_best_there_is(racks: list[str], data: st.DataObject) -> None:
    from itertools import combinations

    from trimtab.governor.voters import _shared

    seats = {i: seat(rack=rack) for i, rack in enumerate(racks, 1)}
    voters = data.draw(st.frozensets(st.sampled_from(sorted(seats)), min_size=1, max_size=5))
    leader = min(voters)
    chosen = choose_voters(seats, voters, leader)
    domains = {i: s.domain for i, s in seats.items()}
    best = min(_shared(domains, them) for them in combinations(sorted(seats), len(chosen)) if leader in them)
    assert _shared(domains, chosen) == best
    if len(voters) == len(chosen) and _shared(domains, voters) == best:
        assert chosen == voters, "as good is not better"
