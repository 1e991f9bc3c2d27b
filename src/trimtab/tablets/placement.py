"""Where the replicas of a new table go. Pure, and the same for the same input.

What always holds, in each data centre: the replicas of a tablet are on distinct hosts, and no rack holds two of them
while another rack with a free host has none (in general: racks hold as equal numbers as their hosts allow). Within
that, the instances get equal numbers of tablets of this table, or numbers that differ by one where the division leaves
a remainder; whoever holds less of other tables gets the remainder.

Two steps. First every instance gets a quota: one tablet after the other goes to the instance that has the fewest, as
long as its host has at most one replica of each tablet and its rack stays within its share. These limits are nested
(instance in host in rack), so taking the smallest first ends as evenly as can be. Then the quotas are used up tablet by
tablet, from the hosts with the most left. As no host has more left than there are tablets to come, and their sum is
right, this never gets stuck. Whoever has as much left is drawn by a fixed mixture of numbers, so that every instance
shares tablets with many others: when one is lost, many help to rebuild it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Replicas = tuple[int, ...]


class PlacementRefused(ValueError):
    """There are not as many distinct hosts as replicas are wanted; the text has the numbers."""


class Node(NamedTuple):
    """An instance that may hold replicas. `load` is what it holds already, in tablets; `name` is for people."""

    raft_id: int
    dc: str
    rack: str
    host: str
    load: int = 0
    name: str = ""


@dataclass(eq=False)
class _Host:
    name: str
    nodes: list[Node]
    left: int = 0  # the quota of its nodes together

    def ticket(self, turn: int) -> tuple[int, int, int, _Host]:
        first = self.nodes[0].raft_id
        return -self.left, _mixed(first, turn), first, self


@dataclass(eq=False)
class _Rack:
    hosts: dict[str, _Host] = field(default_factory=dict)
    left: int = 0
    least: int = 0  # replicas of every tablet
    # By what is left, the most first; then drawn. The raft id keeps hosts from being compared.
    heap: list[tuple[int, int, int, _Host]] = field(default_factory=list)


def place(count: int, replication: Mapping[str, int], nodes: Sequence[Node]) -> list[Replicas]:
    """The replicas of each of `count` tablets; PlacementRefused where there are too few hosts."""
    wanted = {dc: number for dc, number in sorted(replication.items()) if number > 0}
    if not wanted:
        raise PlacementRefused("no data centre has a replica by this replication; declare at least one")
    if refusal := shortage(wanted, nodes):
        raise PlacementRefused(refusal)
    tablets: list[list[int]] = [[] for _ in range(count)]
    for dc, number in wanted.items():
        _place_in_datacenter(tablets, number, [node for node in nodes if node.dc == dc])
    return _in_turn(tablets)


def shortage(replication: Mapping[str, int], nodes: Sequence[Node]) -> str | None:
    """Why this replication can't be had, with the numbers of every data centre that is short; None if it can."""
    short = []
    for dc, number in sorted(replication.items()):
        hosts: dict[str, list[str]] = {}
        for node in sorted(nodes):
            if node.dc == dc:
                hosts.setdefault(node.host, []).append(node.name or str(node.raft_id))
        if len(hosts) >= number:
            continue
        there = ", ".join(_host_text(host, names) for host, names in list(hosts.items())[:10])
        has = f"has {len(hosts)}: {there}" if hosts else "has none"
        short.append(f"data centre {dc} needs {number} distinct hosts for {number} replicas and {has}")
    if not short:
        return None
    known = sorted({node.dc for node in nodes})
    unknown = [dc for dc in sorted(replication) if replication[dc] and dc not in known]
    others = f" (data centres that have instances: {', '.join(known) or 'none'})" if unknown else ""
    return f"{'; '.join(short)}{others}; add instances on other hosts, or lower the replication"


def _host_text(host: str, names: list[str]) -> str:
    return host if names == [host] else f"{host} ({', '.join(names[:10])})"


# One data centre


def _place_in_datacenter(tablets: list[list[int]], number: int, nodes: list[Node]) -> None:
    racks = _racks(nodes)
    left = _quotas(len(tablets), number, racks)
    for rack in racks:
        rack.left = sum(host.left for host in rack.hosts.values())
        rack.heap = [host.ticket(0) for host in rack.hosts.values()]
        heapq.heapify(rack.heap)
    extra = number - sum(rack.least for rack in racks)
    for tablet, replicas in enumerate(tablets):
        coming = len(tablets) - tablet
        # Racks whose share is more than what every tablet takes there: those with the most of that left come first.
        fuller = sorted(racks, key=lambda rack: rack.least * coming - rack.left)[:extra] if extra else []
        for rack in racks:
            taken = [heapq.heappop(rack.heap)[3] for _ in range(rack.least + (rack in fuller))]
            rack.left -= len(taken)
            for host in taken:
                node = host.nodes[0]
                if len(host.nodes) > 1:
                    node = max(host.nodes, key=lambda each: (left[each.raft_id], _mixed(each.raft_id, tablet)))
                left[node.raft_id] -= 1
                host.left -= 1
                replicas.append(node.raft_id)
                heapq.heappush(rack.heap, host.ticket(tablet))


def _racks(nodes: list[Node]) -> list[_Rack]:
    """By name. A host whose instances name several racks is in the rack of the first."""
    racks: dict[str, _Rack] = {}
    rack_of: dict[str, str] = {}
    for node in sorted(nodes):
        rack = racks.setdefault(rack_of.setdefault(node.host, node.rack), _Rack())
        rack.hosts.setdefault(node.host, _Host(node.host, [])).nodes.append(node)
    return [racks[name] for name in sorted(racks)]


def _quotas(count: int, number: int, racks: list[_Rack]) -> dict[int, int]:
    """How many tablets each instance gets, in all as many as `number` for each tablet. Fills `least` and `left`."""
    level = 0
    while sum(min(len(rack.hosts), level + 1) for rack in racks) <= number and level < number:
        level += 1
    quotas: dict[int, int] = {}
    for rack in racks:
        rack.least = min(len(rack.hosts), level)
        quotas.update({node.raft_id: 0 for host in rack.hosts.values() for node in host.nodes})
        _fill(quotas, [(rack, count * rack.least)], count, count * rack.least)
    rest = count * (number - sum(rack.least for rack in racks))
    _fill(quotas, [(rack, count * min(len(rack.hosts), level + 1)) for rack in racks], count, rest)
    return quotas


def _fill(quotas: dict[int, int], racks: list[tuple[_Rack, int]], count: int, amount: int) -> None:
    """Give out `amount`, always to whoever has least, while its rack stays within its limit and its host too."""
    room = [limit - sum(host.left for host in rack.hosts.values()) for rack, limit in racks]
    open_nodes = [
        (node, host, number)
        for number, (rack, _) in enumerate(racks)
        for host in rack.hosts.values()
        for node in host.nodes
    ]
    open_nodes.sort(key=lambda each: (each[0].load, each[0].raft_id))
    while amount > 0:
        open_nodes = [each for each in open_nodes if each[1].left < count and room[each[2]] > 0]
        assert open_nodes, "there are as many hosts as replicas, so there is room for all"
        level = min(quotas[node.raft_id] for node, _, _ in open_nodes)
        for node, host, number in open_nodes:
            if amount > 0 and quotas[node.raft_id] == level and host.left < count and room[number] > 0:
                quotas[node.raft_id] += 1
                host.left += 1
                room[number] -= 1
                amount -= 1


def _in_turn(tablets: list[list[int]]) -> list[Replicas]:
    """Each tablet's replicas in such an order that all instances are first equally often, as far as that goes."""
    firsts: dict[int, int] = {}
    ordered = []
    for replicas in tablets:
        first = min(replicas, key=lambda raft_id: (firsts.get(raft_id, 0), raft_id))
        firsts[first] = firsts.get(first, 0) + 1
        at = replicas.index(first)
        ordered.append((*replicas[at:], *replicas[:at]))
    return ordered


def _mixed(raft_id: int, turn: int) -> int:
    """A number that is neither random nor regular."""
    mixed = (raft_id * 0x9E3779B97F4A7C15 + turn * 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 32)
