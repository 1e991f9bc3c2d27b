"""What if: the same cluster with nodes added, nodes drained, or another replication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trimtab.tablets.balancer.model import USABLE, Cluster, ModelError, Node, NodeState, some

MAX_ADDED = 10_000


def with_changes(
    cluster: Cluster,
    *,
    add: int = 0,
    remove: tuple[str, ...] = (),
    replication: Mapping[str, int | dict[str, int]] = {},
) -> Cluster:
    """ModelError where a change names what is not there."""
    nodes = list(cluster.nodes)
    for name in remove:
        nodes = _without(nodes, name)
    nodes += _added(nodes, add)
    tables = list(cluster.tables)
    for keyspace, wanted in replication.items():
        known = sorted({table.keyspace for table in tables})
        if keyspace not in known:
            raise ModelError(f"there is no keyspace '{keyspace}'; there {_are(known)}")
        for number, table in enumerate(tables):
            if table.keyspace == keyspace:
                new = wanted if isinstance(wanted, dict) else dict.fromkeys(table.replication, wanted)
                tables[number] = table._replace(replication=new)
    return Cluster(
        tuple(nodes),
        tuple(tables),
        cluster.table,
        cluster.tablet,
        cluster.bytes,
        cluster.replicas,
        cluster.busy,
        cluster.floor_bytes,
    )


def _without(nodes: list[Node], name: str) -> list[Node]:
    if name not in {node.id for node in nodes}:
        raise ModelError(f"there is no node '{name}'; there {_are([node.id for node in nodes])}")
    return [
        node._replace(state=NodeState.DRAINING) if node.id == name and node.state is not NodeState.DEAD else node
        for node in nodes
    ]


def _added(nodes: list[Node], number: int) -> list[Node]:
    """Like those there are: in the data centre that has most, in the rack that has fewest, on hosts of their own."""
    if not 0 <= number <= MAX_ADDED:
        raise ModelError(f"at most {MAX_ADDED} nodes are added, not {number}")
    usable = [node for node in nodes if node.state in USABLE]
    if number and not usable:
        raise ModelError("nothing says what added nodes would be like: no node is normal or new")
    taken = {node.id for node in nodes} | {node.host for node in nodes}
    names = (name for name in (f"added-{count}" for count in range(1, number + len(taken) + 1)) if name not in taken)
    made: list[Node] = []
    if number:
        dc = max(Counter(node.dc for node in usable).items(), key=lambda each: (each[1], each[0]))[0]
        here = [node for node in usable if node.dc == dc]
        capacity = sorted(node.capacity_bytes for node in here)[len(here) // 2]
        racks = Counter(node.rack for node in here)
        for name, _ in zip(names, range(number), strict=False):
            rack = min(racks.items(), key=lambda each: (each[1], each[0]))[0]
            racks[rack] += 1
            made.append(Node(name, dc, rack, name, capacity, NodeState.NEW))
    return made


def _are(names: list[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {some(names, len(names)) or 'none'}"
