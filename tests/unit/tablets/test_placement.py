from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.tablets.placement import Node, PlacementRefused, place


def cluster(*hosts: str, dc: str = "dc1", first: int = 1) -> list[Node]:
    """Nodes by "rack/host", such as "r1/a"."""
    return [
        Node(first + number, dc, host.partition("/")[0], host.partition("/")[2], 0, f"i{first + number}")
        for number, host in enumerate(hosts)
    ]


def counts(placed: list[tuple[int, ...]], nodes: list[Node]) -> list[int]:
    held = Counter(raft_id for replicas in placed for raft_id in replicas)
    return [held[node.raft_id] for node in nodes]


def test_three_instances_hold_everything_three_times() -> None:
    nodes = cluster("r/a", "r/b", "r/c")
    placed = place(8, {"dc1": 3}, nodes)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in placed)
    assert sorted(Counter(replicas[0] for replicas in placed).values()) == [2, 3, 3], "each is first in its turn"


def test_the_remainder_is_spread() -> None:
    nodes = cluster("r/a", "r/b", "r/c", "r/d", "r/e")
    assert sorted(counts(place(8, {"dc1": 3}, nodes), nodes)) == [4, 5, 5, 5, 5]


def test_more_instances_than_tablets_is_fine() -> None:
    nodes = cluster(*(f"r/h{number}" for number in range(40)))
    assert sorted(counts(place(8, {"dc1": 3}, nodes), nodes)) == [0] * 16 + [1] * 24


def test_whoever_holds_less_of_other_tables_gets_the_remainder() -> None:
    nodes = [node._replace(load=load) for node, load in zip(cluster("r/a", "r/b", "r/c"), (9, 2, 5), strict=True)]
    assert counts(place(1, {"dc1": 1}, nodes), nodes) == [0, 1, 0]
    assert counts(place(4, {"dc1": 1}, nodes), nodes) == [1, 2, 1]
    assert counts(place(8, {"dc1": 1}, nodes), nodes) == [2, 3, 3]


def test_instances_of_one_host_share_what_the_host_gets() -> None:
    nodes = cluster("r/big", "r/big", "r/y", "r/z")
    placed = place(64, {"dc1": 2}, nodes)
    assert counts(placed, nodes) == [32, 32, 32, 32]
    assert not any({1, 2} <= set(replicas) for replicas in placed)


def test_a_host_can_be_too_small_for_an_even_spread() -> None:
    nodes = cluster("r/big", "r/big", "r/big", "r/y", "r/z")
    assert counts(place(30, {"dc1": 2}, nodes), nodes) == [10, 10, 10, 15, 15]


def test_each_data_centre_gets_its_own_number() -> None:
    near, far = cluster("r/a", "r/b", "r/c"), cluster("r/a", "r/b", "r/c", dc="dc2", first=11)
    for replicas in place(16, {"dc1": 3, "dc2": 2}, near + far):
        assert sum(raft_id < 10 for raft_id in replicas) == 3 and sum(raft_id > 10 for raft_id in replicas) == 2
    assert all(raft_id > 10 for replicas in place(4, {"dc2": 1, "dc1": 0}, near + far) for raft_id in replicas)


def test_too_few_hosts_are_refused_with_the_numbers() -> None:
    nodes = cluster("r/big", "r/big", "r/c") + cluster("r/x", dc="dc2", first=11)
    with pytest.raises(PlacementRefused) as refused:
        place(8, {"dc1": 3, "dc2": 1, "dc3": 1}, nodes)
    assert str(refused.value) == (
        "data centre dc1 needs 3 distinct hosts for 3 replicas and has 2: big (i1, i2), c (i3); data centre dc3 needs "
        "1 distinct hosts for 1 replicas and has none (data centres that have instances: dc1, dc2); add instances on "
        "other hosts, or lower the replication"
    )
    with pytest.raises(PlacementRefused, match="at least one"):
        place(8, {"dc1": 0}, nodes)


def test_many_instances_share_tablets_with_each_other() -> None:
    nodes = cluster(*(f"r{number % 3}/h{number}" for number in range(12)))
    placed = place(256, {"dc1": 3}, nodes)
    partners = {raft_id for replicas in placed if 1 in replicas for raft_id in replicas} - {1}
    assert partners == {node.raft_id for node in nodes if node.rack != "r0"}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 50)), min_size=1, max_size=14),
    st.integers(1, 5),
    st.integers(0, 7).map(lambda exponent: 1 << exponent),
)
def test_any_cluster_is_used_as_evenly_as_it_allows(shape: list[tuple[int, int, int]], wanted: int, count: int) -> None:
    nodes = [
        Node(number, "dc1", f"r{rack}", f"r{rack}h{host}", load)
        for number, (rack, host, load) in enumerate(shape, start=1)
    ]
    by_id = {node.raft_id: node for node in nodes}
    hosts = {node.host for node in nodes}
    if len(hosts) < wanted:
        with pytest.raises(PlacementRefused, match=f"needs {wanted} distinct hosts .* has {len(hosts)}: "):
            place(count, {"dc1": wanted}, nodes)
        return
    placed = place(count, {"dc1": wanted}, list(reversed(nodes)))
    assert placed == place(count, {"dc1": wanted}, nodes), "the order of the input does not matter"
    assert len(placed) == count
    in_rack = Counter({node.rack: 0 for node in nodes})
    rack_hosts = {rack: {node.host for node in nodes if node.rack == rack} for rack in in_rack}
    for replicas in placed:
        used = [by_id[raft_id] for raft_id in replicas]
        assert len(used) == wanted and len({node.host for node in used}) == wanted
        racks = Counter(dict.fromkeys(in_rack, 0)) + Counter(node.rack for node in used)
        room = [racks[rack] for rack in rack_hosts if racks[rack] < len(rack_hosts[rack])]
        assert not room or max(racks[rack] for rack in rack_hosts) <= min(room) + 1
    # Nobody could give a tablet to somebody with two fewer: on the way stand only hosts and racks.
    held = dict(zip((node.raft_id for node in nodes), counts(placed, nodes), strict=True))
    for full in nodes:
        for empty in nodes:
            if full.host == empty.host:
                assert abs(held[full.raft_id] - held[empty.raft_id]) <= 1
    if len(hosts) == len(nodes) and len({len(each) for each in rack_hosts.values()}) == 1:
        assert max(held.values()) - min(held.values()) <= 1


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 6).map(lambda exponent: 1 << exponent))
def test_equal_hosts_in_one_rack_differ_by_one_at_most(size: int, wanted: int, count: int) -> None:
    if size < wanted:
        return
    nodes = cluster(*(f"r/h{number}" for number in range(size)))
    held = counts(place(count, {"dc1": wanted}, nodes), nodes)
    assert max(held) - min(held) <= 1 and sum(held) == count * wanted
