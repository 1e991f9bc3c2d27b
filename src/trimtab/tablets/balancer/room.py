"""What a plan leaves undone for lack of room, with the numbers: replicas that are missing, and bytes that stay uneven.

For whoever asks for a plan. These sentences are no `problems`: the leader writes those down with the tables they
concern, and again whenever they read otherwise, so the figures of every new plan would be a write and an event.
"""

from __future__ import annotations

import numpy as np

from trimtab.tablets.balancer.levels import BALANCED, helps
from trimtab.tablets.balancer.model import Floats
from trimtab.tablets.balancer.moves import level_in_words
from trimtab.tablets.balancer.site import Site

_TARGETS = 20  # of the emptiest nodes: every replica is looked at for each
_CHECKED = 10_000  # replicas for one of them, the smallest first
_NAMED = 5
_REMEDY = "make room there, or add instances, or larger ones"


def shortage(site: Site) -> str:
    """Of a data centre at the end of its plan; empty if there is room enough. What is missing comes first."""
    return _missing(site) or _uneven(site)


def _left(site: Site) -> tuple[Floats, Floats]:
    """The room of each node for still more: before anything has gone, and when all is done."""
    at = site.at
    size = np.broadcast_to(at.size[:, None], site.now.shape)
    differs = site.now != site.home
    came, gone = (
        np.bincount(nodes[differs & (nodes >= 0)], size[differs & (nodes >= 0)], at.nodes)
        for nodes in (site.now, site.home)
    )
    before = site.load - came + gone
    return np.minimum(at.capacity - before, at.free) - came, np.minimum(at.capacity - site.load, at.free - came + gone)


def _missing(site: Site) -> str:
    """The smallest tablet that lacks a replica which somebody could have if it fitted."""
    at, cluster = site.at, site.at.cluster
    dead = np.array([node.state.value == "dead" for node in cluster.nodes], bool)
    living = ((cluster.replicas >= 0) & ~dead[cluster.replicas]).any(axis=1)
    stays = (site.now >= 0) & (at.usable | at.down)[site.now]
    short = np.flatnonzero((stays.sum(axis=1) < at.want) & living & ~at.fixed)
    room = _left(site)[0] if len(short) else at.capacity
    for row in short[np.argsort(at.size[short], kind="stable")][:_CHECKED].tolist():
        others = at.host[site.now[row][stays[row]]]
        may = np.flatnonzero(at.usable & ~np.isin(at.host, others))
        if not len(may) or room[may].max() >= at.size[row]:
            continue
        node = int(may[room[may].argmax()])
        return (
            f"{cluster.place(row)} takes {_bytes(at.size[row])}, and of the nodes of data centre {at.dc} that might "
            f"hold it {cluster.nodes[node].id} has most room: {_bytes(room[node])}; {_REMEDY}"
        )
    return ""


def _uneven(site: Site) -> str:
    """The emptiest node that would get something, if it fitted."""
    at, cluster, goal, filled = site.at, site.at.cluster, site.goal(), site.filled()
    there = np.flatnonzero(at.usable & (goal > 0))
    if len(there) < 2 or filled[there].max() - filled[there].min() <= BALANCED:
        return ""
    rows, slots = np.nonzero((site.now >= 0) & ~(at.fixed | at.dust[cluster.table])[:, None])
    rows, slots = (each[(at.usable & (goal > 0))[site.now[rows, slots]]] for each in (rows, slots))
    source, size = site.now[rows, slots], at.size[rows]
    room, later = _left(site)
    largest = int(size.max(initial=0))
    said, others = "", list[str]()
    for target in there[np.argsort(filled[there], kind="stable")][:_TARGETS].tolist():
        if room[target] >= largest:
            continue
        far = (filled[source] - filled[target] > BALANCED) & (size > room[target])
        which = np.flatnonzero(far)
        which = which[helps(site.load, goal, source[which], target, size[which])]
        which = which[np.argsort(size[which], kind="stable")][:_CHECKED]
        which = which[site.allowed(rows[which], slots[which], np.full(len(which), target))]
        if not len(which):
            continue
        if said:
            others.append(cluster.nodes[target].id)
            continue
        smallest = int(which[0])
        said = (
            f"bytes per capacity stay uneven in data centre {at.dc}: {cluster.nodes[target].id} is "
            f"{level_in_words(float(filled[target]))} and has room for {_bytes(room[target])}, and the smallest tablet "
            f"that is worth moving there takes {_bytes(size[smallest])} ({cluster.place(int(rows[smallest]))})"
        )
        remedy = _REMEDY if later[target] < size[smallest] else "plan again when what leaves it has gone"
    if not said:
        return ""
    more = f", and likewise {', '.join(others[:_NAMED])}{' and others' if len(others) > _NAMED else ''}"
    return f"{said}{more if others else ''}; {remedy}"


def _bytes(number: float) -> str:
    return f"{max(0, int(number)):,} bytes"
