from __future__ import annotations

import pytest
from tests.unit.tablets.balancer.building import DEAD, DRAINING, NEW, nodes, placed, state

from trimtab.tablets.balancer.model import ModelError
from trimtab.tablets.balancer.supposing import with_changes


def test_added_nodes_are_like_the_others_in_the_racks_that_have_fewest() -> None:
    cluster = with_changes(placed(nodes(5, racks=3), 8, 2), add=2)
    first, second = cluster.nodes[5:]
    assert (first.id, first.rack, first.state, first.capacity_bytes) == ("added-1", "r2", NEW, 10**15)
    assert second.host == "added-2" and second.rack == "r0"


def test_a_node_that_is_removed_is_drained_unless_it_is_dead() -> None:
    cluster = with_changes(placed(state(nodes(5), 1, DEAD), 8, 2), remove=("n0", "n1"))
    assert [node.state for node in cluster.nodes[:2]] == [DRAINING, DEAD]


def test_another_replication_holds_for_all_tables_of_a_keyspace() -> None:
    cluster = with_changes(placed(nodes(5), 8, 2, tables=2), replication={"ks": 3})
    assert [table.replication for table in cluster.tables] == [{"dc1": 3}] * 2
    assert with_changes(cluster, replication={"ks": {"dc2": 1}}).tables[0].replication == {"dc2": 1}


def test_changes_of_what_is_not_there_are_refused() -> None:
    cluster = placed(nodes(7), 8, 2)
    with pytest.raises(ModelError, match="there is no node 'x'; there are n0, n1, n2, n3, n4 and 2 more"):
        with_changes(cluster, remove=("x",))
    with pytest.raises(ModelError, match="there is no keyspace 'x'; there is ks"):
        with_changes(cluster, replication={"x": 3})
    with pytest.raises(ModelError, match="wants 99 replicas"):
        with_changes(cluster, replication={"ks": 99})
