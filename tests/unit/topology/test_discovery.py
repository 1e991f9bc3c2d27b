"""Discovery: at most one founder, whatever starts, calls, gets lost and restarts; and one, if all goes well."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.topology.discovery import MAX_PEERS, Discovery, DiscoveryRefused, Follow, Lead
from trimtab.topology.protocol import DiscoverReply, DiscoverRequest

CLUSTER = "demo"


def address(number: int) -> str:
    return f"127.0.0.1:{3301 + number}"


def alias(number: int) -> str:
    return f"localhost:{3301 + number}"


class Machine:
    """One instance with its disk. Its memory is lost when it restarts."""

    def __init__(self, number: int, listed: list[str]) -> None:
        self.address = address(number)
        self.listed = listed
        self.disk: list[str] = []
        self.founded = False
        self.running: Discovery | None = None

    def start(self) -> None:
        self.running = Discovery(self.address, self.listed, self.disk, uuid=self.address)

    def crash(self) -> None:
        self.running = None

    def decide(self) -> None:
        if self.running is not None and isinstance(self.running.decision(), Lead):
            self.founded = True  # durable before another word is said

    def asked(self, request: DiscoverRequest, *, crash_before_reply: bool = False) -> DiscoverReply | None:
        """What the server side of a node does: founders and followers answer with the leader."""
        if self.founded:
            return DiscoverReply(self.address, [], self.address, self.address)
        if self.running is None:
            return None
        if self.running.receive(request):
            self.disk = self.running.known()
        if crash_before_reply:
            self.crash()
            return None
        return self.running.reply()


class Start:
    """Many machines; every word between them passes here."""

    def __init__(self, lists: list[list[int]], aliases: bool = False) -> None:
        naming = alias if aliases else address
        self.machines = [Machine(number, [naming(peer) for peer in peers]) for number, peers in enumerate(lists)]
        self.by_name = {
            naming(number): machine for number, machine in enumerate(self.machines) for naming in (address, alias)
        }

    def call(self, caller: Machine, name: str, *, lose_request: bool, lose_reply: bool, crash: bool = False) -> None:
        discovery = caller.running
        assert discovery is not None
        request = discovery.request(CLUSTER, name)
        receiver = self.by_name[name]
        reply = None if lose_request else receiver.asked(request, crash_before_reply=crash)
        if caller.running is not discovery:
            return  # it called itself, and crashed
        if reply is None or lose_reply:
            discovery.failed(name, "no answer", 0.0)
        else:
            discovery.answered(name, reply)

    def founders(self) -> list[str]:
        return [machine.address for machine in self.machines if machine.founded]

    def finish(self) -> None:
        """Everybody is up, and calls succeed."""
        for machine in self.machines:
            if machine.running is None and not machine.founded:
                machine.start()
        for _round in range(4 * len(self.machines) + 4):
            for machine in self.machines:
                if machine.running is None or machine.founded:
                    continue
                for name in machine.running.to_visit():
                    self.call(machine, name, lose_request=False, lose_reply=False)
                machine.decide()


@st.composite
def peer_lists(draw: st.DrawFn) -> list[list[int]]:
    """Lists in which any two instances have somebody in common, counting each among its own peers."""
    size = draw(st.integers(1, 7))
    lists = [draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True)) for _ in range(size)]
    for one, other in combinations(range(size), 2):
        if not {one, *lists[one]} & {other, *lists[other]}:
            lists[one].append(draw(st.sampled_from(lists[other])))
    return lists


@settings(max_examples=300, deadline=None)
@given(lists=peer_lists(), seed=st.integers(0, 2**32), aliases=st.booleans())
def test_never_two_lead_and_in_the_end_one_does(lists: list[list[int]], seed: int, aliases: bool) -> None:
    rng = random.Random(seed)
    start = Start(lists, aliases)
    loss = rng.choice((0.0, 0.2, 0.5))
    restarts = rng.choice((0.0, 0.05, 0.2))
    for _step in range(150):
        machine = rng.choice(start.machines)
        if machine.running is None:
            if not machine.founded and rng.random() < 0.5:
                machine.start()
            continue
        if rng.random() < restarts:
            machine.crash()
            continue
        if (names := machine.running.to_visit()) and not machine.founded:
            start.call(
                machine,
                rng.choice(names),
                lose_request=rng.random() < loss,
                lose_reply=rng.random() < loss,
                crash=rng.random() < restarts,
            )
        if rng.random() < 0.7:
            machine.decide()
        assert len(start.founders()) <= 1
    start.finish()
    (founder,) = start.founders()
    for machine in start.machines:
        if machine.address != founder:
            assert machine.running is not None
            assert machine.running.decision() == Follow(founder)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_peer_that_forgot_what_it_acknowledged_would_let_a_second_one_found(forgets: bool) -> None:
    """Why peers are durable before they are acknowledged: the schedule that breaks without it."""
    start = Start([[2], [2], [2]])
    late, early, shared = start.machines
    early.start()
    shared.start()
    start.call(early, shared.address, lose_request=False, lose_reply=False)
    early.decide()
    assert early.founded
    shared.crash()
    if forgets:
        shared.disk = []
    shared.start()
    late.start()
    assert late.running is not None
    start.call(late, shared.address, lose_request=False, lose_reply=False)
    late.decide()
    assert late.founded == forgets
    if not forgets:
        assert late.running.to_visit() == [early.address]


def test_all_three_restarted_in_the_middle_still_found_one_cluster() -> None:
    start = Start([[0, 1, 2]] * 3)
    for machine in start.machines:
        machine.start()
    start.call(start.machines[2], address(1), lose_request=False, lose_reply=False)
    start.call(start.machines[1], address(2), lose_request=False, lose_reply=True)
    for machine in start.machines:
        machine.crash()
    start.finish()
    assert start.founders() == [address(0)]


def test_one_instance_alone_founds_at_once() -> None:
    discovery = Discovery(address(0), [address(0)])
    assert discovery.to_visit() == []
    assert discovery.decision() == Lead()
    assert discovery.reply().leader == address(0)


def test_an_alias_of_its_own_is_found_out_by_calling_it() -> None:
    discovery = Discovery(address(0), [alias(0)], uuid="a")
    assert discovery.decision() is None
    assert discovery.to_visit() == [alias(0)]
    request = discovery.request(CLUSTER, alias(0))
    discovery.receive(request)
    discovery.answered(alias(0), discovery.reply())
    assert discovery.decision() == Lead()


def test_whoever_is_not_the_smallest_keeps_asking_the_smallest() -> None:
    discovery = Discovery(address(1), [address(0), address(1)])
    assert discovery.to_visit() == [address(0)]
    discovery.answered(address(0), DiscoverReply(address(0), [address(0), address(1)]))
    assert discovery.decision() is None
    assert discovery.to_visit() == [address(0)]
    assert discovery.waiting_for() == f"{address(0)} to found the cluster: its address is the smallest"
    discovery.answered(address(0), DiscoverReply(address(0), [], address(0)))
    assert discovery.decision() == Follow(address(0))
    assert discovery.to_visit() == []


def test_ports_compare_as_numbers() -> None:
    discovery = Discovery("h:9000", ["h:10000"])
    discovery.answered("h:10000", DiscoverReply("h:10000", []))
    assert discovery.decision() == Lead()


def test_asked_of_an_ex_leader_or_any_member_names_the_leader() -> None:
    discovery = Discovery(address(3), [address(2)])
    discovery.answered(address(2), DiscoverReply(address(2), [], address(1)))
    assert discovery.decision() == Follow(address(1))
    assert discovery.reply().leader == address(1)


def test_a_new_peer_makes_everybody_be_visited_again() -> None:
    discovery = Discovery(address(1), [address(0), address(2)])
    discovery.answered(address(0), DiscoverReply(address(0), []))
    assert discovery.receive(DiscoverRequest(CLUSTER, address(3), address(1), [address(1)]))
    assert sorted(discovery.to_visit()) == [address(0), address(2), address(3)]
    assert not discovery.receive(DiscoverRequest(CLUSTER, address(3), address(1), [address(1)]))


def test_a_decision_stays_whoever_comes_later() -> None:
    discovery = Discovery(address(1), [address(1)])
    assert discovery.decision() == Lead()
    assert not discovery.receive(DiscoverRequest(CLUSTER, address(0), address(1), []))
    assert discovery.decision() == Lead()
    assert discovery.reply() == DiscoverReply(address(1), [address(1)], address(1))


def test_names_that_are_not_resolved_are_not_passed_on() -> None:
    discovery = Discovery(address(0), [alias(1), "dead.example:3301"])
    assert discovery.request(CLUSTER, alias(1)).peers == [address(0)]
    discovery.answered(alias(1), DiscoverReply(address(1), []))
    assert discovery.reply().peers == [address(0), address(1)]


def test_listed_names_are_not_remembered_so_that_a_wrong_list_can_be_corrected() -> None:
    discovery = Discovery(address(0), ["typo.example:3301"])
    discovery.receive(DiscoverRequest(CLUSTER, address(1), address(0), []))
    assert discovery.known() == [address(1)]
    again = Discovery(address(0), [address(1)], discovery.known())
    assert again.to_visit() == [address(1)]


def test_a_listed_peer_that_called_is_remembered_even_if_the_list_changes() -> None:
    discovery = Discovery(address(0), [address(1)])
    assert discovery.receive(DiscoverRequest(CLUSTER, address(1), address(0), []))
    assert discovery.known() == [address(1)]


def test_a_silent_peer_is_reported_after_five_seconds_and_again_after_thirty() -> None:
    discovery = Discovery(address(0), [address(1), address(2)])
    discovery.answered(address(2), DiscoverReply(address(2), []))
    discovery.failed(address(1), "connection refused", 10.0)
    assert discovery.report(14.9) == []
    discovery.failed(address(1), "timed out", 14.9)
    (sentence,) = discovery.report(15.0)
    assert sentence.startswith(f"waiting for an answer from {address(1)} (timed out): no cluster is founded until")
    assert "--peer" in sentence
    assert discovery.report(44.9) == []
    assert discovery.report(45.0) != []
    discovery.answered(address(1), DiscoverReply(address(1), []))
    assert discovery.silent(100.0) == []
    assert discovery.report(100.0) == []


def test_a_winner_that_does_not_found_is_reported_by_those_who_wait_for_it() -> None:
    discovery = Discovery(address(1), [address(0)])
    discovery.answered(address(0), DiscoverReply(address(0), []))
    assert discovery.report(10.0) == []
    assert discovery.report(15.0) == [
        f"waiting for {address(0)} to found the cluster: its address is the smallest; see there what it is waiting for "
        "itself"
    ]
    discovery.answered(address(0), DiscoverReply(address(0), [], address(0)))
    assert discovery.report(50.0) == []


def test_a_silent_peer_that_others_told_of_needs_an_empty_directory_to_forget() -> None:
    discovery = Discovery(address(0), [address(0)], [address(7)])
    discovery.failed(address(7), "connection refused", 0.0)
    (sentence,) = discovery.report(5.0)
    assert f"told of {address(7)}" in sentence


def test_lists_without_anybody_in_common_are_warned_about() -> None:
    """W lists both P and Q, so X (P) and Y (Q) hear of each other through it."""
    ours = Discovery("y:1", ["q:1"])
    ours.answered("q:1", DiscoverReply("q:1", []))
    ours.receive(DiscoverRequest(CLUSTER, "w:1", "y:1", [], ["p:1", "q:1"]))
    assert ours.disjoint() is None
    ours.receive(DiscoverRequest(CLUSTER, "x:1", "y:1", ["p:1"], ["p:1"]))
    warning = ours.disjoint()
    assert warning is not None
    assert "x:1 lists the peers p:1" in warning
    assert "two clusters might be founded" in warning
    assert warning in ours.report(0.0)


def test_two_directories_behind_one_address_refuse_each_other() -> None:
    discovery = Discovery(address(0), [alias(0)], uuid="mine")
    with pytest.raises(DiscoveryRefused, match="with another data directory"):
        discovery.answered(alias(0), DiscoverReply(address(0), [], "", "theirs"))
    assert discovery.decision() is None
    with pytest.raises(DiscoveryRefused, match="address of its own"):
        discovery.receive(DiscoverRequest(CLUSTER, address(0), alias(0), [], [], "theirs"))
    (sentence,) = discovery.report(0.0)
    assert sentence.startswith(f"another instance called and said that it is at {address(0)}, as this instance is")
    # Once the other one was corrected, it goes on.
    discovery.answered(alias(0), DiscoverReply(address(0), [], "", "mine"))
    assert discovery.decision() == Lead()


def test_an_answer_under_another_address_is_no_visit_of_whoever_said_it_is_there() -> None:
    discovery = Discovery(address(0), [address(0)], [address(1)])
    with pytest.raises(DiscoveryRefused, match=f"{address(2)} answers instead"):
        discovery.answered(address(1), DiscoverReply(address(2), []))
    assert discovery.decision() is None
    assert discovery.to_visit() == [address(1)]


def test_too_many_peers_are_refused_and_change_nothing() -> None:
    discovery = Discovery(address(0), [address(0)])
    many = [f"h{number}:1" for number in range(MAX_PEERS)]
    with pytest.raises(DiscoveryRefused, match=f"at most {MAX_PEERS}"):
        discovery.receive(DiscoverRequest(CLUSTER, address(1), address(0), many))
    assert discovery.known() == []
    assert discovery.decision() == Lead()


@pytest.mark.parametrize("bad", ["", "nowhere", "h:0", "h:99999", "h:1 ", "[zz]:1", "x" * 300 + ":1", "0.0.0.0:1"])
def test_addresses_that_cannot_be_used_are_refused(bad: str) -> None:
    with pytest.raises(DiscoveryRefused):
        Discovery(bad, [address(0)])
    discovery = Discovery(address(0), [address(0)])
    with pytest.raises(DiscoveryRefused):
        discovery.receive(DiscoverRequest(CLUSTER, bad, address(0), []))
    with pytest.raises(DiscoveryRefused):
        discovery.answered(address(0), DiscoverReply(bad, []))
    assert discovery.known() == []


def test_a_winner_whose_directory_was_emptied_neither_follows_itself_nor_founds_again() -> None:
    """Those it told that it leads say so still, and wait for it."""
    discovery = Discovery(address(0), [address(0), address(1)], uuid="another")
    told = DiscoverReply(address(1), [], leader=address(0))
    for now_s in (1.0, 2.0, 7.0):
        with pytest.raises(DiscoveryRefused, match="leads the cluster already") as refused:
            discovery.answered(address(1), told)
        discovery.failed(address(1), str(refused.value), now_s)
        assert discovery.decision() is None and discovery.to_visit() == [address(1)]
    (sentence,) = discovery.report(7.0)
    assert "its directory was emptied" in sentence and f"empty the data directories of {address(1)}" in sentence
    # A member that had not noticed yet says so for a moment only.
    assert discovery.answered(address(1), DiscoverReply(address(1), [], leader=address(2)))
    assert discovery.decision() == Follow(address(2))
