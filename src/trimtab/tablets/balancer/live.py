"""The running cluster as the balancer sees it, and its plan as proposals for tablets.

Tablets under way count as done: their replicas are those they will have, and they are left alone. The exception is a
target that nobody wants any more (it has somebody who is lost or about to go, or another number of replicas than is
declared now) and that may still change: then the tablet is planned anew, from what is stable, instead of waiting for
a copy that is of no use.

A proposal is one transition, so each tablet gets one. Where replicas are lost, or others are wanted than there are, all
that is needed is done at once: it is copied from the merge of several replicas anyway. Otherwise replicas move one
after the other, because copying the one that leaves is cheaper, and the rest comes with a later plan.

Importing this is cheap; numpy is imported by whoever plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from trimtab.tablets.domains import domain_of, is_online, may_hold
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.sizes import GONE
from trimtab.tablets.transitions import ADJUSTABLE, Cause, Proposal, TabletTransition, goes_back, same
from trimtab.tablets.view import Place, TableView
from trimtab.topology.records import InstanceRecord
from trimtab.topology.states import NodeState as Standing
from trimtab.topology.view import View

if TYPE_CHECKING:
    from trimtab.tablets.balancer.model import Cluster, Move, Node, NodeState, Plan

FLOOR_BYTES = 1 << 20  # of a replica: its files, its place in every list
ALIKE = 0.75  # capacities that differ by less than a quarter are taken for the same
# Without a place in the cluster: they hold nothing, or what they hold is lost.
_NO_PLACE = (Standing.NONE, Standing.BOOTSTRAPPING, Standing.REPLACING, Standing.LEFT)
_MERGED = (Cause.HEAL, Cause.REPLICATION)
_UNKNOWN_BYTES = 1 << 50


class Sizes(Protocol):
    """What is known of sizes: a `SizeLedger`, say."""

    def size(self, table: int, tablet: int, replicas: Sequence[int]) -> int:
        """The bytes of a tablet's largest replica; GONE if nobody knows."""
        ...

    def free(self, raft_id: int) -> int:
        """The bytes that an instance has room for by its disk; GONE if nobody knows."""
        ...


def cluster_of(
    view: View,
    tables: TableView,
    sizes: Sizes,
    *,
    lost: Collection[int] = (),
    draining: Collection[int] = (),
    busy: Collection[Place] = (),
) -> Cluster:
    """The cluster as the balancer takes it. All instances are raft ids.

    `lost`: whom nobody waits for any more; those that have left or are being removed are lost anyway. `draining`: who
    is asked to go (those in the state decommissioning are, anyway). `busy`: tablets to be left alone, besides those
    that are under way. Instances that are not Online and not lost keep what they have, and get nothing.
    """
    import numpy as np

    from trimtab.tablets.balancer.model import Cluster, Table

    nodes = _nodes(view, tables, sizes, lost, draining)
    index = {node.raft_id: number for number, node in enumerate(nodes)}
    dead = {node.raft_id for node in nodes if node.state.value == "dead"}
    unwanted = dead | {node.raft_id for node in nodes if node.state.value == "draining"}
    dcs = {node.raft_id: node.dc for node in nodes}
    known: list[Table] = []
    coming: dict[int, int] = {}  # bytes that are on their way to each instance, and not on its disk yet
    rows: list[tuple[int, int, int, bool, Replicas]] = []
    for number in sorted(tables.maps):
        table = tables.catalog.tables.get(number)
        keyspace = tables.catalog.keyspaces.get(table.keyspace) if table is not None else None
        if table is None or keyspace is None or not sum(keyspace.replication.values()):
            continue  # dropped, or not known here yet
        at = len(known)
        known.append(Table(table.full_name, table.keyspace, keyspace.replication, table.name, number))
        under_way = tables.transitions.get(number, {})
        sized: list[int] = []
        for tablet, stable in tables.maps[number]:
            current = under_way.get(tablet)
            replicas, kept = stable, (number, tablet) in busy
            if current is not None:
                ends_as = _ends_as(stable, current)
                given_up = unwanted.difference(stable) | dead
                if kept or not _useless(stable, ends_as, current, keyspace.replication, given_up, dcs):
                    replicas, kept = ends_as, True
            sized.append(sizes.size(number, tablet, stable))
            for raft_id in set(replicas).difference(stable) if kept else ():
                there = max(sizes.size(number, tablet, (raft_id,)), 0)
                coming[raft_id] = coming.get(raft_id, 0) + max(sized[-1] - there, 0)
            rows.append((at, tablet, sized[-1], kept, replicas))
        _guess(rows, sized)
    slots = max((len(row[4]) for row in rows), default=1)
    replicas_of = np.full((len(rows), slots), -1, np.int64)
    for number, row in enumerate(rows):
        replicas_of[number, : len(row[4])] = [index[raft_id] for raft_id in row[4]]
    return Cluster(
        nodes=tuple(_with_less_room(node, coming.get(node.raft_id, 0)) for node in nodes),
        tables=tuple(known),
        table=np.array([row[0] for row in rows], np.int64),
        tablet=np.array([row[1] for row in rows], np.int64),
        bytes=np.array([row[2] for row in rows], np.int64),
        busy=np.array([row[3] for row in rows], bool),
        replicas=replicas_of,
        floor_bytes=FLOOR_BYTES,
    )


def proposals(plan: Plan, cluster: Cluster, tables: TableView, trigger: int) -> tuple[Proposal, ...]:
    """One target for each tablet that the plan moves, in the order of execution."""
    moves: dict[int, list[Move]] = {}
    for move in plan.moves:
        moves.setdefault(move.row, []).append(move)
    return tuple(_proposal(cluster, tables, row, of_row, trigger) for row, of_row in moves.items())


def _proposal(cluster: Cluster, tables: TableView, row: int, moves: list[Move], trigger: int) -> Proposal:
    table, tablet = cluster.tables[cluster.table[row]].number, int(cluster.tablet[row])
    merged = any(move.cause in _MERGED for move in moves)
    chosen = [move for move in moves if move.cause is not Cause.BALANCE] if merged else moves[:1]
    target = [node for node in cluster.replicas[row].tolist() if node >= 0]
    if merged:
        # Whoever is lost goes with the replicas that take its place.
        target = [node for node in target if cluster.nodes[node].state is not _dead()]
    for move in chosen:
        arriving = [] if move.target is None else [move.target]
        if move.source is None or move.source not in target:
            target += arriving
        else:
            at = target.index(move.source)
            target[at : at + 1] = arriving
    why = "; ".join(dict.fromkeys(move.why for move in chosen))
    stable = tables.maps[table].replicas(tablet)
    raft_ids = tuple(cluster.nodes[node].raft_id for node in target)
    return Proposal(table, tablet, raft_ids, chosen[0].cause, why, trigger, int(cluster.bytes[row]), stable)


def _dead() -> NodeState:
    from trimtab.tablets.balancer.model import NodeState

    return NodeState.DEAD


# Instances


def _nodes(
    view: View, tables: TableView, sizes: Sizes, lost: Collection[int], draining: Collection[int]
) -> tuple[Node, ...]:
    from trimtab.tablets.balancer.model import Node, NodeState

    holding = {raft_id for number in tables.maps for raft_id in tables.maps[number].loads()}
    for under_way in tables.transitions.values():
        for current in under_way.values():
            holding.update(current.pending, current.planned)
    shown = {
        raft_id: record
        for raft_id, record in view.instances.items()
        if raft_id in holding or record.state not in _NO_PLACE
    }
    # A replacement may be there before anything of the replaced one has moved, and after it has left.
    shown |= {
        record.replaces: view.instances[record.replaces]
        for record in shown.values()
        if record.replaces in view.instances and record.replaces in holding
    }
    names = _names(shown)
    capacities = _alike({raft_id: record.capacity_bytes for raft_id, record in shown.items()})
    nodes = [
        Node(
            names[raft_id],
            *domain_of(record),
            capacities[raft_id],
            _state(raft_id, record, lost, draining),
            names.get(record.replaces, "") if record.replaces != raft_id else "",
            raft_id,
            None if sizes.free(raft_id) == GONE else sizes.free(raft_id),
        )
        for raft_id, record in sorted(shown.items())
    ]
    unknown = sorted(holding - shown.keys())
    nodes += [Node(f"raft id {each}", "", "", f"raft id {each}", 1, NodeState.DEAD, "", each) for each in unknown]
    return tuple(nodes)


def _with_less_room(node: Node, coming_bytes: int) -> Node:
    """What is under way counts as arrived, but the disk does not know of it yet."""
    return node if node.free_bytes is None else node._replace(free_bytes=max(node.free_bytes - coming_bytes, 0))


def _state(raft_id: int, record: InstanceRecord, lost: Collection[int], draining: Collection[int]) -> NodeState:
    from trimtab.tablets.balancer.model import NodeState

    if record.left or raft_id in lost or record.state is Standing.REMOVING:
        return NodeState.DEAD
    if raft_id in draining or record.state is Standing.DECOMMISSIONING:
        return NodeState.DRAINING
    return NodeState.NORMAL if may_hold(record) and is_online(record) else NodeState.DOWN


def _names(shown: dict[int, InstanceRecord]) -> dict[int, str]:
    """Instance ids; one that left and whose name another has now is told apart by its raft id."""
    used: dict[str, int] = {}
    for raft_id, record in sorted(shown.items()):
        if record.instance_id not in used or not record.left:
            used[record.instance_id] = raft_id
    return {
        raft_id: record.instance_id if used[record.instance_id] == raft_id else f"{record.instance_id} ({raft_id})"
        for raft_id, record in shown.items()
    }


def _alike(capacities: dict[int, int]) -> dict[int, int]:
    """Capacities without small differences: what was free on a disk when an instance began is no exact figure.

    From the largest down, all that have at least ALIKE of the first of their group get the smallest of it. Whoever has
    told none counts as the smallest; where nobody has, all are alike, and nothing is known of how much fits.
    """
    found: dict[int, int] = {}
    group: list[int] = []
    told = sorted(((size, raft_id) for raft_id, size in capacities.items() if size > 0), reverse=True)
    for size, raft_id in told:
        if group and size < ALIKE * capacities[group[0]]:
            group = []
        group.append(raft_id)
        found.update(dict.fromkeys(group, size))
    least = min(found.values(), default=_UNKNOWN_BYTES)
    return {raft_id: found.get(raft_id, least) for raft_id in capacities}


# Tablets


def _ends_as(stable: Replicas, current: TabletTransition) -> Replicas:
    if current.planned:
        return current.planned
    return stable if goes_back(current) else current.pending


def _useless(
    stable: Replicas,
    target: Replicas,
    current: TabletTransition,
    replication: dict[str, int],
    unwanted: set[int],
    dcs: dict[int, str],
) -> bool:
    """Whether nobody wants this target any more, and it may still change. `unwanted` must not be in it."""
    if current.locked or current.stage not in ADJUSTABLE or current.cause is Cause.OPERATOR:
        return False
    if unwanted & set(target):
        return True
    counts: dict[str, int] = {}
    for raft_id in target:
        counts[dcs[raft_id]] = counts.get(dcs[raft_id], 0) + 1
    return not same(target, stable) and counts != {dc: number for dc, number in replication.items() if number}


def _guess(rows: list[tuple[int, int, int, bool, Replicas]], sized: list[int]) -> None:
    """Tablets whose size nobody has told are taken for as large as the others of their table."""
    told = [size for size in sized if size != GONE]
    if len(told) == len(sized):
        return
    guess = sum(told) // len(told) if told else 0
    first = len(rows) - len(sized)
    for offset, size in enumerate(sized):
        if size == GONE:
            rows[first + offset] = (*rows[first + offset][:2], guess, *rows[first + offset][3:])
