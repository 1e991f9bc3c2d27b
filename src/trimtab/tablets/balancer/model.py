"""What the balancer looks at: nodes, tables and tablets as arrays, checked when they are made.

Replicas are indexes into `nodes`, -1 in places that are not used. A tablet is *busy* while it is under way: its
replicas are those it will have, they count, and nobody touches them. Sizes below `floor_bytes` count as that much,
because there are costs that don't depend on the size, and because the sizes of nearly empty tablets are mostly noise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.tablets.transitions import Cause

# Of whole numbers, of truth values, of numbers; numpy's own types say more than helps.
Ints = NDArray[Any]
Bools = NDArray[Any]
Floats = NDArray[Any]
MAX_NODES = 100_000
MAX_TABLETS = 50_000_000
MAX_TABLES = 1_000_000
MAX_REPLICAS = 64
MAX_BYTES = 1 << 60
_SHOWN = 5


class ModelError(ValueError):
    """The cluster can't be as it is described; the text says where and what."""


class NodeState(enum.Enum):
    """A node that is down keeps what it has and gets nothing: it may come back. What a dead one had is lost."""

    NORMAL = "normal"
    NEW = "new"
    DRAINING = "draining"
    DEAD = "dead"
    DOWN = "down"


USABLE = (NodeState.NORMAL, NodeState.NEW)


class Node(NamedTuple):
    """`id` is for people, and unique; `replaces` is that of another node. `raft_id` is for the running cluster.

    `capacity_bytes` decides about shares. `free_bytes` is what its disk has left now, less where others use it, too;
    None: nobody knows.
    """

    id: str
    dc: str
    rack: str
    host: str
    capacity_bytes: int
    state: NodeState = NodeState.NORMAL
    replaces: str = ""
    raft_id: int = 0
    free_bytes: int | None = None


class Table(NamedTuple):
    """`replication` is replicas by data centre. `name` is what people see; `number` is for the running cluster."""

    id: str
    keyspace: str
    replication: Mapping[str, int]
    name: str = ""
    number: int = 0

    @property
    def shown(self) -> str:
        return self.name or self.id


@dataclass(eq=False)
class Cluster:
    """Row k is one tablet: `tablet[k]` of the table `tables[table[k]]`, of `bytes[k]` bytes, on `replicas[k]`."""

    nodes: tuple[Node, ...]
    tables: tuple[Table, ...]
    table: Ints
    tablet: Ints
    bytes: Ints
    replicas: Ints
    busy: Bools = field(default_factory=lambda: np.zeros(0, bool))
    floor_bytes: int = 0

    def __post_init__(self) -> None:
        if not len(self.busy):
            self.busy = np.zeros(len(self.table), bool)
        check(self)

    @property
    def count(self) -> int:
        """How many tablets there are."""
        return len(self.table)

    @property
    def weights(self) -> Ints:
        """What a replica of each row counts."""
        return np.maximum(self.bytes, self.least_weight)

    @property
    def least_weight(self) -> int:
        return max(self.floor_bytes, 1)

    def place(self, row: int) -> str:
        """A tablet in words."""
        table = self.tables[self.table[row]]
        return f"tablet {self.tablet[row]} of {table.id}"

    def ids(self, row: int) -> list[str]:
        """The nodes that hold it."""
        return [self.nodes[node].id for node in self.replicas[row] if node >= 0]


class Move(NamedTuple):
    """`source` None: nothing leaves (a lost replica is made anew, or one more is wanted). `target` None: one less."""

    row: int
    source: int | None
    target: int | None
    cause: Cause
    why: str


@dataclass(frozen=True, eq=False)
class Plan:
    """Moves in the order of execution, and what they come to. `replicas` is where everything is afterwards.

    `lower_bound_moves` and `lower_bound_bytes`: nobody reaches a state as even as this one with less. `moved_bytes` are
    copied; `weighed_bytes` is what they count (`Cluster.weights`), and the bound is in the same weights, because
    evenness is. `spread`: (max - min) / mean of bytes per capacity, of the data centre where it is greatest.
    `problems`: what could not be had. `shortages`: the figures, where that or what stays uneven is for lack of room.
    """

    moves: tuple[Move, ...]
    replicas: Ints
    moved_bytes: int = 0
    weighed_bytes: int = 0
    lower_bound_bytes: int = 0
    lower_bound_moves: int = 0
    spread_before: float = 0.0
    spread_after: float = 0.0
    problems: tuple[str, ...] = ()
    shortages: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """Moves ÷ their lower bound; 1.0 when both are 0."""
        return _ratio(len(self.moves), self.lower_bound_moves)

    @property
    def ratio_bytes(self) -> float:
        """What is copied ÷ its lower bound, both as they count."""
        return _ratio(self.weighed_bytes, self.lower_bound_bytes)


def _ratio(ours: int, bound: int) -> float:
    return ours / bound if bound else 1.0 if not ours else float(ours)


# Checks


def check(cluster: Cluster) -> None:
    """ModelError where something names what is not there, or is there twice."""
    _check_nodes(cluster.nodes)
    _check_tables(cluster.tables)
    rows = len(cluster.table)
    for name in ("tablet", "bytes", "replicas", "busy"):
        if len(getattr(cluster, name)) != rows:
            raise ModelError(f"{name} has {len(getattr(cluster, name))} rows, and there are {rows} tablets")
    if rows > MAX_TABLETS:
        raise ModelError(f"{rows} tablets are more than the {MAX_TABLETS} that are planned at once")
    if cluster.replicas.ndim != 2:
        raise ModelError(f"replicas are rows of nodes, not an array of {cluster.replicas.ndim} dimensions")
    if cluster.replicas.shape[1] > MAX_REPLICAS:
        raise ModelError(f"a tablet has at most {MAX_REPLICAS} replicas, not {cluster.replicas.shape[1]}")
    if rows:
        _check_rows(cluster)


def _check_nodes(nodes: tuple[Node, ...]) -> None:
    if len(nodes) > MAX_NODES:
        raise ModelError(f"{len(nodes)} nodes are more than the {MAX_NODES} that are planned at once")
    seen = _checked_ids("node", (node.id for node in nodes))
    for node in nodes:
        if not 0 < node.capacity_bytes <= MAX_BYTES:
            raise ModelError(f"the node {node.id} has the capacity {node.capacity_bytes}; 1 to {MAX_BYTES} can be")
        if node.replaces and (node.replaces not in seen or node.replaces == node.id):
            raise ModelError(f"the node {node.id} replaces {node.replaces}, which is no other node")


def _check_tables(tables: tuple[Table, ...]) -> None:
    if len(tables) > MAX_TABLES:
        raise ModelError(f"{len(tables)} tables are more than the {MAX_TABLES} that are planned at once")
    _checked_ids("table", (table.id for table in tables))
    for table in tables:
        for dc, number in table.replication.items():
            if not 0 <= number <= MAX_REPLICAS:
                raise ModelError(f"the table {table.id} wants {number} replicas in {dc}; 0 to {MAX_REPLICAS} can be")
        if not sum(table.replication.values()):
            raise ModelError(f"the table {table.id} wants no replica anywhere; declare at least one")


def _checked_ids(kind: str, ids: Iterable[str]) -> set[str]:
    """All of them, of which each is there once."""
    seen: set[str] = set()
    for id in ids:
        if not id:
            raise ModelError(f"a {kind} has an empty id")
        if id in seen:
            raise ModelError(f"the {kind} {id} is there twice")
        seen.add(id)
    return seen


def _check_rows(cluster: Cluster) -> None:
    table, tablet, size, replicas = cluster.table, cluster.tablet, cluster.bytes, cluster.replicas
    if int(table.min()) < 0 or int(table.max()) >= len(cluster.tables):
        raise ModelError("a tablet is of a table that is not there")
    if (wrong := _first((tablet < 0) | (tablet >= 1 << 31))) is not None:
        raise ModelError(f"{cluster.place(wrong)}: a tablet's number is 0 to {(1 << 31) - 1}")
    if (wrong := _first((size < 0) | (size > MAX_BYTES))) is not None:
        raise ModelError(f"{cluster.place(wrong)} has {size[wrong]} bytes; 0 to {MAX_BYTES} can be")
    places = table.astype(np.int64) << 31 | tablet
    ordered = np.argsort(places, kind="stable")
    if (wrong := _first(places[ordered][1:] == places[ordered][:-1])) is not None:
        raise ModelError(f"{cluster.place(int(ordered[wrong]))} is there twice")
    if int(replicas.max(initial=-1)) >= len(cluster.nodes) or int(replicas.min(initial=-1)) < -1:
        raise ModelError("a replica is on a node that is not there")
    if (wrong := _first((replicas < 0).all(axis=1))) is not None:
        raise ModelError(f"{cluster.place(wrong)} has no replica at all")
    together = np.sort(replicas, axis=1)
    if (wrong := _first(((together[:, 1:] == together[:, :-1]) & (together[:, 1:] >= 0)).any(axis=1))) is not None:
        raise ModelError(f"{cluster.place(wrong)} has two replicas on one node: {', '.join(cluster.ids(wrong))}")


def _first(wrong: Any) -> int | None:
    return int(wrong.argmax()) if wrong.any() else None


def some(names: Iterator[str] | list[str], total: int) -> str:
    """The first few of many names, and how many more there are."""
    shown = [name for name, _ in zip(names, range(_SHOWN), strict=False)]
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
