"""The balancer's scenarios, most of them from the corrections of documents 003 and 004."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.unit.tablets.balancer.building import (
    DEAD,
    DOWN,
    DRAINING,
    NEW,
    after,
    checked,
    counts,
    nodes,
    placed,
    state,
)

from trimtab.tablets.balancer.model import Cluster, Node, Table
from trimtab.tablets.balancer.planning import plan
from trimtab.tablets.balancer.site import ground
from trimtab.tablets.transitions import Cause


def zipfian(number: int, exponent: float = 0.8, largest: float = 1e9) -> np.ndarray:
    sizes = (largest / np.arange(1, number + 1) ** exponent).astype(np.int64)
    np.random.default_rng(1).shuffle(sizes)
    return sizes


def spread(numbers: list[int]) -> int:
    return max(numbers) - min(numbers)


# Manticore


def test_eleven_tablets_on_one_node_and_three_new_ones_spread_the_remainder() -> None:
    cluster = placed(nodes(1, 3), 11, 1)
    found = checked(cluster)
    assert sorted(counts(cluster, found)) == [2, 3, 3, 3]
    assert len(found.moves) == found.lower_bound_moves == 8


def test_two_tablets_and_three_new_nodes_leave_the_old_node_one() -> None:
    cluster = placed(nodes(1, 3), 2, 1)
    found = checked(cluster)
    assert counts(cluster, found)[0] == 1 and len(found.moves) == 1


def test_a_hundred_tablets_move_thirty_replicas_to_a_tenth_node() -> None:
    cluster = placed(nodes(9, 1), 100, 3)
    found = checked(cluster)
    assert counts(cluster, found) == [30] * 10
    assert len(found.moves) == found.lower_bound_moves == 30 and found.ratio == found.ratio_bytes == 1.0
    assert {move.target for move in found.moves} == {9} and {move.cause for move in found.moves} == {Cause.BALANCE}


def test_the_replication_never_ratchets_up_when_nodes_are_added() -> None:
    those, cluster = nodes(3), placed(nodes(3), 16, 3)
    for _ in range(4):
        those = [*those, Node(f"n{len(those)}", "dc1", "r0", f"h{len(those)}", those[0].capacity_bytes, NEW)]
        cluster = Cluster(tuple(those), cluster.tables, cluster.table, cluster.tablet, cluster.bytes, cluster.replicas)
        found = checked(cluster)
        assert sum(counts(cluster, found)) == 48 and all(move.source is not None for move in found.moves)
        cluster = after(cluster, found)


def test_a_dead_node_and_its_replacement_are_planned_together() -> None:
    those = state(nodes(5, 1), 2, DEAD)
    those[5] = those[5]._replace(replaces="n2")
    cluster = placed(those, 40, 3)
    lost = int((cluster.replicas == 2).sum())
    found = checked(cluster)
    assert len(found.moves) == lost == found.lower_bound_moves
    assert all(move.source is None and move.target == 5 and move.cause is Cause.HEAL for move in found.moves)
    assert found.moves[0].why == "n2 is lost: 2 of 3 replicas are left in dc1"


def test_a_dead_node_and_an_unrelated_new_one_are_planned_together() -> None:
    cluster = placed(state(nodes(5, 1), 2, DEAD), 40, 3)
    found = checked(cluster)
    held = counts(cluster, found)
    assert held[2] == 0 and spread(held[:2] + held[3:]) <= 1
    assert len(found.moves) == found.lower_bound_moves


# Scylla


def test_an_empty_node_that_joins_gets_its_fair_share() -> None:
    cluster = placed(nodes(3, 1), 64, 3)
    found = checked(cluster)
    assert counts(cluster, found) == [48] * 4 and len(found.moves) == 48


def test_two_nodes_that_join_get_equal_shares() -> None:
    cluster = placed(nodes(3, 2), 60, 3)
    found = checked(cluster)
    assert counts(cluster, found) == [36] * 5


def test_a_decommission_whose_replication_can_not_be_met_fails_loudly() -> None:
    cluster = placed(state(nodes(3), 1, DRAINING), 8, 3)
    found = checked(cluster)
    assert not found.moves
    assert "n1 can't be drained of tablet 0 of t0" in found.problems[0]
    assert "needs 3 distinct hosts for 3 replicas and has 2" in found.problems[0]


def test_two_decommissions_at_once_are_planned_together() -> None:
    cluster = placed(state(state(nodes(6), 1, DRAINING), 4, DRAINING), 32, 3)
    leaving = int(np.isin(cluster.replicas, (1, 4)).sum())
    found = checked(cluster)
    held = counts(cluster, found)
    assert held[1] == held[4] == 0 and spread([held[0], held[2], held[3], held[5]]) <= 1
    assert len(found.moves) == leaving and {move.cause for move in found.moves} == {Cause.DRAIN}
    assert found.moves[0].why in ("n1 is being drained", "n4 is being drained")


def test_a_decommission_that_is_cancelled_half_way_evens_out_again() -> None:
    cluster = placed(state(nodes(5), 0, DRAINING), 40, 3)
    found = plan(cluster)
    half = cluster.replicas.copy()
    for move in found.moves[: len(found.moves) // 2]:
        half[move.row][half[move.row] == move.source] = move.target
    there = tuple(nodes(5))
    again = Cluster(there, cluster.tables, cluster.table, cluster.tablet, cluster.bytes, half)
    found = checked(again)
    assert counts(again, found) == [24] * 5 and len(found.moves) == found.lower_bound_moves


def test_a_lost_only_copy_is_told_and_nothing_is_made_up() -> None:
    cluster = placed(state(nodes(3), 0, DEAD), 6, 1)
    found = plan(cluster)
    assert not found.moves
    assert found.problems[0].startswith("2 tablets have no living replica, so nothing can be copied: tablet ")
    assert "bring back n0" in found.problems[0]


def test_small_tables_are_balanced_each() -> None:
    cluster = placed(nodes(4, 2), 4, 1, tables=12)
    found = checked(cluster)
    for table in range(12):
        held = np.bincount(found.replicas[cluster.table == table].ravel(), minlength=6)
        assert held.max() == 1, "a table with 4 tablets is on 4 nodes"
    assert counts(cluster, found) == [8] * 6


def test_out_of_space_nothing_is_planned_that_does_not_fit_while_it_moves() -> None:
    those = [node._replace(capacity_bytes=40_000_000) for node in nodes(3)]
    those.append(Node("small", "dc1", "r0", "h3", 10_000_000, NEW))
    cluster = placed(those, 30, 3)
    found = checked(cluster)
    assert 0 < counts(cluster, found)[3] <= 10
    full = [node._replace(capacity_bytes=30_000_000) for node in state(nodes(4), 0, DRAINING)]
    cluster = placed(full, 40, 3)
    found = checked(cluster)
    assert "no node of data centre dc1 on another host has room for it" in found.problems[0]


def test_what_is_missing_for_lack_of_room_is_told_with_the_numbers() -> None:
    those = [node._replace(capacity_bytes=30_000_000) for node in state(nodes(4), 0, DRAINING)]
    (said,) = checked(placed(those, 39, 3)).shortages
    assert "takes 1,000,000 bytes, and of the nodes of data centre dc1 that might hold it " in said
    assert " has most room: 0 bytes; make room there, or add instances, or larger ones" in said


def test_bytes_that_stay_uneven_for_lack_of_room_are_told_with_the_numbers() -> None:
    those = [*nodes(2), *(node._replace(free_bytes=2_500_000) for node in nodes(2, 2)[2:])]
    cluster = placed(those, 20, 1)
    found = plan(cluster)
    assert counts(cluster, found) == [8, 8, 2, 2] and not found.problems
    assert found.shortages == (
        "bytes per capacity stay uneven in data centre dc1: n2 is 60.0 % below its share and has room for 500,000 "
        "bytes, and the smallest tablet that is worth moving there takes 1,000,000 bytes (tablet 0 of t0), and "
        "likewise n3; make room there, or add instances, or larger ones",
    )


def test_room_that_comes_when_what_leaves_has_gone_is_told_as_such() -> None:
    """The disk of n1 is full of tablets that are declared elsewhere by now."""
    those = [nodes(1)[0], nodes(2)[1]._replace(free_bytes=0), Node("far", "dc2", "r0", "h9", 10**15)]
    tables = (Table("t0", "ks", {"dc1": 1}), Table("t1", "ks", {"dc2": 1}))
    replicas = np.array([[0, -1]] * 8 + [[1, 2]] * 4)
    table, size = np.repeat([0, 1], [8, 4]), np.full(12, 1_000_000)
    found = plan(Cluster(tuple(those), tables, table, np.arange(12), size, replicas))
    assert len(found.moves) == 4 and not found.problems
    assert "n1 is 100.0 % below its share and has room for 0 bytes" in found.shortages[0]
    assert found.shortages[0].endswith("; plan again when what leaves it has gone")


def test_unevenness_that_is_not_for_lack_of_room_is_no_shortage() -> None:
    lump = placed(nodes(2), 2, 1, size=lambda tablet: 9_000 if tablet else 1_000)
    tight = [node._replace(free_bytes=10) for node in lump.nodes]
    found = plan(Cluster(tuple(tight), lump.tables, lump.table, lump.tablet, lump.bytes, lump.replicas))
    assert found.spread_after > 1 and not found.moves and not found.shortages
    assert not plan(placed(nodes(3, 1), 11, 1)).shortages


def test_a_node_that_is_down_for_a_short_time_starts_no_rebalance() -> None:
    cluster = placed(state(nodes(5), 2, DOWN), 40, 3)
    assert not checked(cluster).moves


def test_a_node_that_is_down_keeps_what_it_has_and_gets_nothing() -> None:
    cluster = placed(state(nodes(4, 2), 1, DOWN), 40, 3)
    had = int((cluster.replicas == 1).sum())
    found = checked(cluster)
    assert counts(cluster, found)[1] == had


def test_tablets_under_way_count_as_done_and_are_left_alone() -> None:
    cluster = placed(nodes(3, 1), 64, 3)
    found = plan(cluster)
    half = found.moves[:24]
    ends = cluster.replicas.copy()
    for move in half:
        ends[move.row][ends[move.row] == move.source] = move.target
    busy = np.zeros(64, bool)
    busy[[move.row for move in half]] = True
    rest = Cluster(cluster.nodes, cluster.tables, cluster.table, cluster.tablet, cluster.bytes, ends, busy)
    found = checked(rest)
    assert len(found.moves) == 24 and not {move.row for move in found.moves} & {move.row for move in half}


# Evenness


def test_an_even_cluster_makes_no_move() -> None:
    for cluster in (placed(nodes(5), 64, 3, tables=4), placed(nodes(9, racks=3), 50, 3)):
        found = checked(cluster)
        assert not found.moves and found.lower_bound_moves == 0 and found.ratio == 1.0


def test_small_changes_of_sizes_move_nothing() -> None:
    sizes = zipfian(400)
    cluster = placed(nodes(6, 1), 400, 3, size=lambda tablet: int(sizes[tablet]))
    found = checked(cluster)
    settled = after(cluster, found)
    assert found.spread_after < 0.02
    noise = np.random.default_rng(2)
    for _ in range(10):
        settled.bytes = (settled.bytes * noise.uniform(0.995, 1.005, len(settled.bytes))).astype(np.int64)
        assert not plan(settled).moves


def test_zipfian_sizes_end_within_two_percent_and_five_percent_of_the_bound() -> None:
    sizes = zipfian(600)
    start = placed(nodes(9), 600, 3, size=lambda tablet: int(sizes[tablet]))
    even = after(start, plan(start))
    grown = Cluster(tuple(nodes(9, 1)), even.tables, even.table, even.tablet, even.bytes, even.replicas)
    found = checked(grown)
    assert found.spread_after < 0.02 and found.ratio_bytes <= 1.05


@pytest.mark.parametrize(("least", "most"), [(3 << 10, 300 << 10), (3 << 10, 4 << 20), (0, 1)])
def test_small_tablets_weigh_the_same_in_the_plan_and_in_the_bound(least: int, most: int) -> None:
    """The bound was of real bytes, the smallest tablet's for each move: 66 times less than what was planned."""
    sizes = np.random.default_rng(3).integers(least, most, 36)
    start = placed(nodes(3), 36, 2, size=lambda tablet: int(sizes[tablet]))
    start.floor_bytes = 1 << 20
    even = after(start, plan(start))
    even.nodes = tuple(nodes(3, 2))
    found = checked(even)
    copied = [int(sizes[move.row]) for move in found.moves]
    assert found.moves and found.moved_bytes == sum(copied), "what is copied is in real bytes"
    assert found.weighed_bytes == sum(max(size, 1 << 20) for size in copied)
    assert 1.0 <= found.ratio_bytes == found.weighed_bytes / found.lower_bound_bytes <= 1.05


def test_a_tablet_that_is_larger_than_a_share_has_a_node_almost_for_itself() -> None:
    cluster = placed(nodes(4), 41, 1, size=lambda tablet: 100_000 if tablet == 0 else 1_000)
    found = checked(cluster)
    owner = int(found.replicas[0][0])
    held = counts(cluster, found)
    assert held[owner] == 1 and spread([number for node, number in enumerate(held) if node != owner]) <= 1


def test_bytes_are_even_by_capacity() -> None:
    those = [node._replace(capacity_bytes=10**12 * (1, 2, 4, 8)[number % 4]) for number, node in enumerate(nodes(8))]
    cluster = placed(those, 500, 3)
    found = checked(cluster)
    assert counts(cluster, found) == [50, 100, 200, 400] * 2 and found.spread_after < 0.02


def test_a_node_that_is_too_large_holds_every_tablet_once() -> None:
    those = [node._replace(capacity_bytes=10**12 * (1 + 19 * (number == 0))) for number, node in enumerate(nodes(5))]
    cluster = placed(those, 80, 3)
    found = checked(cluster)
    assert counts(cluster, found) == [80, 40, 40, 40, 40]


def test_racks_bind_and_each_rack_is_even_by_itself() -> None:
    cluster = placed(nodes(9, 1, racks=3), 100, 3)
    found = checked(cluster)
    held = counts(cluster, found)
    assert held[0::3] == [25] * 4 and len(found.moves) == found.lower_bound_moves == 25


def test_a_new_rack_with_one_node_does_not_get_a_third_of_everything() -> None:
    those = nodes(8, racks=2)
    cluster = placed([*those, Node("lonely", "dc1", "r9", "h99", those[0].capacity_bytes, NEW)], 90, 3)
    found = checked(cluster)
    assert spread(counts(cluster, found)) <= 1


def test_nodes_of_one_host_share_no_tablet() -> None:
    those = [node._replace(host=f"h{number // 2}") for number, node in enumerate(nodes(6, 2))]
    cluster = placed(those, 48, 3)
    found = checked(cluster)
    assert counts(cluster, found) == [18] * 8


# Replication


@pytest.mark.parametrize(("before", "wanted"), [(3, 5), (1, 4), (2, 3)])
def test_the_replication_grows_by_any_amount(before: int, wanted: int) -> None:
    cluster = placed(nodes(6), 30, before, declared=wanted)
    found = checked(cluster)
    assert len(found.moves) == 30 * (wanted - before) == found.lower_bound_moves
    assert all(move.source is None and move.cause is Cause.REPLICATION for move in found.moves)
    assert spread(counts(cluster, found)) <= 1
    assert found.moves[0].why == f"{wanted} replicas are declared in dc1, there are {before}"


@pytest.mark.parametrize(("before", "wanted"), [(5, 3), (4, 1), (3, 2)])
def test_the_replication_shrinks_by_any_amount(before: int, wanted: int) -> None:
    cluster = placed(nodes(6), 30, before, declared=wanted)
    found = checked(cluster)
    drops = [move for move in found.moves if move.target is None]
    assert len(drops) == 30 * (before - wanted) == len(found.moves) and found.moved_bytes == 0
    assert spread(counts(cluster, found)) <= 1


def test_a_replication_that_needs_more_hosts_is_told_with_the_numbers() -> None:
    found = checked(placed(nodes(4), 8, 3, declared=6))
    assert "can't have 6 replicas: data centre dc1 needs 6 distinct hosts for 6 replicas and has 4" in found.problems[0]
    assert len(found.moves) == 8, "as many as can be had"


def test_a_new_data_centre_gets_its_replicas_and_an_old_one_gives_up_its_own() -> None:
    far = [Node(f"f{number}", "dc2", "r0", f"h{number}", 10**12, NEW) for number in range(3)]
    cluster = placed([*nodes(4), *far], 20, 3)
    tables = (Table("t0", "ks", {"dc1": 3, "dc2": 2}),)
    both = Cluster(cluster.nodes, tables, cluster.table, cluster.tablet, cluster.bytes, cluster.replicas)
    found = checked(both)
    assert Counter(move.cause for move in found.moves) == {Cause.REPLICATION: 40}
    assert counts(both, found)[4:] == [13, 13, 14] or sorted(counts(both, found)[4:]) == [13, 13, 14]
    moved = after(both, found)
    only = Cluster(
        moved.nodes, (Table("t0", "ks", {"dc2": 2}),), moved.table, moved.tablet, moved.bytes, moved.replicas
    )
    found = checked(only)
    assert counts(only, found)[:4] == [0] * 4 and found.moved_bytes == 0


@pytest.mark.parametrize("trouble", ["nowhere", "dead", "down", "room", "draining"])
def test_an_old_data_centre_keeps_its_replicas_while_the_new_one_can_not_have_them(trouble: str) -> None:
    """Drop before add: the last copy would go because nobody has room for another."""
    states = {"dead": DEAD, "down": DOWN, "draining": DRAINING}
    far = [Node("f0", "dc2", "r0", "hf", 1 if trouble == "room" else 10**12, states.get(trouble, NEW))]
    cluster = placed([*nodes(4), *(far if trouble != "nowhere" else [])], 8, 3)
    tables = (Table("t0", "ks", {"dc2": 1}),)
    moved = Cluster(cluster.nodes, tables, cluster.table, cluster.tablet, cluster.bytes, cluster.replicas)
    found = checked(moved)
    assert not found.moves and "can't have 1 replicas" in found.problems[0]


def test_an_old_data_centre_gives_up_the_tablets_that_the_new_one_has_and_no_others() -> None:
    far = [Node("f0", "dc2", "r0", "hf", 3_500_000, NEW)]
    cluster = placed([*nodes(4), *far], 8, 3)
    tables = (Table("t0", "ks", {"dc2": 1}),)
    found = checked(Cluster(cluster.nodes, tables, cluster.table, cluster.tablet, cluster.bytes, cluster.replicas))
    ends = [sorted(node for node in row.tolist() if node >= 0) for row in found.replicas]
    assert [4] in ends and ends.count([4]) == 3, ends
    assert all(replicas == [4] or len(replicas) == 3 for replicas in ends), ends


# Order


def test_what_is_urgent_comes_first() -> None:
    those = state(state(nodes(6, 1), 0, DEAD), 1, DRAINING)
    found = checked(placed(those, 48, 3))
    order = [Cause.HEAL, Cause.DRAIN, Cause.REPLICATION, Cause.BALANCE]
    ranks = [order.index(move.cause) for move in found.moves]
    assert ranks == sorted(ranks) and {0, 1} <= set(ranks)


def test_tablets_that_have_fewest_replicas_left_are_healed_first() -> None:
    those = state(state(nodes(6), 0, DEAD), 1, DEAD)
    cluster = placed(those, 48, 3)
    living = [sum(node not in (0, 1) for node in row) for row in cluster.replicas.tolist()]
    found = checked(cluster)
    urgency = [living[move.row] for move in found.moves if move.cause is Cause.HEAL]
    assert urgency == sorted(urgency) and urgency[0] == 1


def test_no_prefix_of_a_plan_makes_bytes_less_even() -> None:
    sizes = zipfian(300, 0.6)
    cluster = placed(nodes(5, 2), 300, 3, size=lambda tablet: int(sizes[tablet]))
    found = plan(cluster)
    load = np.bincount(cluster.replicas.ravel(), np.repeat(cluster.bytes, 3), 7)
    widest = load.max() - load.min()
    for move in found.moves:
        assert move.source is not None and move.target is not None
        load[move.source] -= cluster.bytes[move.row]
        load[move.target] += cluster.bytes[move.row]
        assert load.max() - load.min() <= widest


# Tables that are too small to matter by bytes


Holders = list[list[int]]


def beside(those: list[Node], large: list[int], factor: int, holders: Holders, small: Holders) -> Cluster:
    """A table of these sizes and holders, and a small one of 1 MB tablets."""
    return Cluster(
        tuple(those),
        (Table("large", "ks", {"dc1": factor}), Table("small", "ks", {"dc1": factor})),
        np.array([0] * len(large) + [1] * len(small)),
        np.array([*range(len(large)), *range(len(small))]),
        np.array([*large, *[1_000_000] * len(small)]),
        np.array([*holders, *small]),
    )


def of_small(cluster: Cluster, found: np.ndarray) -> list[int]:
    return np.bincount(found[cluster.table == 1].ravel(), minlength=len(cluster.nodes)).tolist()


LUMPS = [size * 10**9 for size in (12, 5, 9, 14, 6, 15, 8, 11)]


def test_a_new_node_gets_its_share_of_a_small_table_although_large_tablets_can_not_be_even() -> None:
    cluster = beside(nodes(3, 1), LUMPS, 3, [[0, 1, 2]] * 8, [[0, 1, 2]] * 16)
    assert of_small(cluster, checked(cluster).replicas) == [12] * 4


def test_a_small_table_is_even_although_bytes_are_not() -> None:
    lumps = [(10 + number % 3) * 10**9 for number in range(40)]
    cluster = beside(nodes(10), lumps, 1, [[number % 10] for number in range(40)], [[9]] * 64)
    found = checked(cluster)
    assert sorted(of_small(cluster, found.replicas)) == [6] * 6 + [7] * 4
    assert len(found.moves) == found.lower_bound_moves == 57
    assert {move.why[:18] for move in found.moves} == {"small is more even"}


def test_a_small_table_does_not_fill_the_gaps_between_large_tablets() -> None:
    cluster = beside(nodes(1, 3), LUMPS[:6], 1, [[0]] * 6, [[0]] * 64)
    found = checked(cluster)
    assert of_small(cluster, found.replicas) == [16] * 4
    assert found.ratio == 1.0


def test_many_small_tables_matter_together() -> None:
    """Else nothing would be left to even bytes out with."""
    many = placed(nodes(3, 1), 2, 1, tables=400, size=lambda tablet: 1_000_000 * (1 + 5 * tablet))
    assert not ground(many, "dc1").dust.all()
    assert checked(many).spread_after < 0.02
