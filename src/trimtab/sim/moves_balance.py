"""Whether a cluster is balanced: by counting, and whether planning again, from what the leader knows, gives anything.

The count knows nothing of the planner, which would find its own work good. It asks one thing of every two instances
that are alike (same rack, same capacity, each on a host of its own): could the fuller give the emptier a replica? It
could, whatever hosts and racks allow, because the emptier takes just the place of the fuller. So

- of a table, the fuller of the two has at most one replica more, and
- of all tables together, `MOST` more: one each way of what can't be divided.

Tablets of the simulator are all smaller than what counts of a tablet at least (`FLOOR_BYTES`), so numbers are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from trimtab.sim.governed import GovernedCluster
from trimtab.tablets.domains import domain_of, is_online
from trimtab.tablets.replanning import by_balancer, outline, planned
from trimtab.tablets.view import TableView
from trimtab.topology.records import InstanceRecord
from trimtab.topology.states import NodeState

MOST = 2


def lopsided(cluster: GovernedCluster, tables: TableView) -> str | None:
    """Who has more than another that is like it, by what is committed; None: nobody."""
    rows = cluster.topology.committed.rows
    counts = {table: tablets.loads() for table, tablets in tables.maps.items() if table in tables.catalog.tables}
    totals = {raft_id: sum(held.get(raft_id, 0) for held in counts.values()) for raft_id in rows}
    for one, other in _alike(rows):
        names = f"{rows[one].instance_id} and {rows[other].instance_id}, which are alike,"
        if totals[one] - totals[other] > MOST:
            return f"{names} have {totals[one]} and {totals[other]} replicas"
        for table, held in sorted(counts.items()):
            more = held.get(one, 0) - held.get(other, 0)
            # One that has fewer of others must not get even fewer for the sake of a table.
            if more > 1 and totals[one] > totals[other]:
                had = f"{held.get(one, 0)} and {held.get(other, 0)}"
                return f"{names} have {had} replicas of {tables.name_of(table)}"
    return None


def _alike(rows: dict[int, InstanceRecord]) -> Iterator[tuple[int, int]]:
    able = {i: row for i, row in sorted(rows.items()) if row.state is NodeState.NORMAL and is_online(row)}
    hosts = [domain_of(row).host for row in able.values()]
    for one, other in permutations(able, 2):
        ours, theirs = domain_of(able[one]), domain_of(able[other])
        alone = hosts.count(ours.host) == hosts.count(theirs.host) == 1
        same = (ours.dc, ours.rack) == (theirs.dc, theirs.rack)
        if alone and same and able[one].capacity_bytes == able[other].capacity_bytes:
            yield one, other


def unbalanced(cluster: GovernedCluster) -> str | None:
    """What the leader would still move; None: nothing."""
    leader = cluster.leader()
    control = leader.instance.control if leader is not None and leader.instance is not None else None
    if leader is None or control is None:
        return "there is no leader"
    assert leader.instance is not None
    balancing, watching = control.balancing, leader.instance.watching
    if not balancing.current:
        return f"{leader.name} has yet to plan"
    nobody: frozenset[int] = frozenset()
    sizes = control.sizes.ledger()
    seen = outline(watching.view, watching.tables, sizes, lost=nobody, draining=nobody, trigger=watching.revision)
    made = planned(seen, by_balancer)
    for proposal in (*balancing.proposals, *made.proposals):
        return f"{leader.name} would move {proposal}"
    for problem in made.problems:
        return f"{leader.name} can't do what it should: {problem.text}"
    return None
