"""`plan`: what should move, so that nothing is missing, nobody who goes has anything left, and all is even.

Hard: replicas of a tablet on distinct hosts, racks no worse than before, room for what comes before anything has gone,
one change of a tablet at a time, no data centre given up before the others have theirs. Objectives in order: lost
replicas, draining, replication, even bytes per capacity, even tablets of each table. First what must be (`needs`), then
numbers by table (`tables`), then bytes (`levels`), which leave tables even as far as they can. Tables that are too
small to matter by bytes (`dust`) are evened out by themselves, first, and are never moved for the sake of bytes:
otherwise lumps that can't be even would keep them from it for ever.

What is better is taken only if it is better by more than noise: bytes that are uneven by more than 2 % get evener by a
tenth, or tables get evener and bytes stay within 2 %. The result is planned again until nothing is better, so that
planning it again gives no move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trimtab.tablets.balancer import exact, levels, moves, needs, quotas
from trimtab.tablets.balancer.bounds import bound
from trimtab.tablets.balancer.model import Bools, Cluster, Ints, Move, NodeState, Plan
from trimtab.tablets.balancer.room import shortage
from trimtab.tablets.balancer.site import Ground, Site, ground
from trimtab.tablets.balancer.tables import even_tables

_TRIES = 6
_BETTER = 0.9
_SAME = 1e-9


def plan(cluster: Cluster, clock: Callable[[], float] = lambda: 0.0) -> Plan:
    """The moves that the cluster needs, the fewest that are found, and how few they could be."""
    began = clock()
    met = _met(cluster)
    sites = [each.site for each in met]
    found: list[tuple[int, list[Move]]] = []
    problems: list[str] = []
    short: list[str] = []
    spreads: list[tuple[float, float]] = []
    least_moves = least_bytes = 0
    for site, lives, before, unmet in met:
        problems += unmet
        needed = site.load.copy()
        _even(site)
        allowed = quotas.windows(site)
        changed = moves.in_order(site, moves.changes(site), needed, lives)
        least = bound(site, changed, allowed)
        least_moves += least.moves
        least_bytes += least.bytes
        short.append(shortage(site))
        spreads.append((before, site.spread()))
        found.append((len(changed.row), moves.told(site, changed, needed, lives)))
    every = [move for _, told in found for move in told]
    if len(sites) > 1:
        every.sort(key=lambda move: moves.CAUSES.index(move.cause))
    copied = np.array([move.row for move in every if move.target is not None], np.int64)
    return Plan(
        moves=tuple(every),
        replicas=_joined(cluster, sites),
        moved_bytes=int(cluster.bytes[copied].sum()),
        weighed_bytes=int(cluster.weights[copied].sum()),
        lower_bound_bytes=least_bytes,
        lower_bound_moves=least_moves,
        spread_before=max((before for before, _ in spreads), default=0.0),
        spread_after=max((after for _, after in spreads), default=0.0),
        problems=tuple(problems),
        shortages=tuple(said for said in short if said),
        seconds=clock() - began,
    )


class _Met(NamedTuple):
    """A data centre in which what must be done is done, as far as it can be."""

    site: Site
    lives: Ints  # how many replicas of each row it had that live
    before: float  # its spread
    unmet: list[str]


def _met(cluster: Cluster) -> list[_Met]:
    """A data centre that a table is not declared in any more gives its replicas up when the others have theirs.

    Each is planned by itself, so that is looked at afterwards: tablets that were given up too early are left alone
    there, and all is done again. Otherwise the last copy might go because nobody has room for another.
    """
    living = _living(cluster)
    early = np.zeros(cluster.count, bool)
    while True:
        found = []
        for site in _sites(cluster, early):
            lives, before = _alive_here(site), site.spread()
            found.append(_Met(site, lives, before, needs.meet(site, living)))
        short, given_up = np.zeros(cluster.count, bool), np.zeros(cluster.count, bool)
        for site, lives, _, _ in found:
            now = ((site.now >= 0) & ~site.at.dead[site.now]).sum(axis=1)
            short |= now < site.at.want
            given_up |= (site.at.want == 0) & (now < lives)
        if not (short & given_up).any():
            return found
        early |= short & given_up


def _sites(cluster: Cluster, early: Bools) -> list[Site]:
    dcs = {node.dc for node in cluster.nodes} | {dc for table in cluster.tables for dc in table.replication}
    sites = []
    for dc in sorted(dcs):
        at = ground(cluster, dc)
        if early.any():
            at = replace(at, fixed=at.fixed | (early & (at.want == 0)))
        if cluster.count and (at.here.any() or at.want.any()):
            sites.append(Site(at, _extra(at)))
    return sites


def _extra(at: Ground) -> int:
    """Slots that are needed in addition."""
    held = np.where(at.cluster.replicas >= 0, at.here[at.cluster.replicas], False).sum(axis=1)
    return int(np.maximum(at.want - held, 0).max(initial=0))


def _living(cluster: Cluster) -> Bools:
    """Rows that have a replica somewhere that can be copied."""
    alive = np.array([node.state is not NodeState.DEAD for node in cluster.nodes], bool)
    if not cluster.count:
        return np.zeros(0, bool)
    return np.asarray(np.where(cluster.replicas >= 0, alive[cluster.replicas], False).any(axis=1))


def _alive_here(site: Site) -> Ints:
    held = site.home >= 0
    out: Ints = (held & ~site.at.dead[site.home]).sum(axis=1)
    return out


# Evening out


class _Score(NamedTuple):
    gap: float
    deviation: float
    unevenness: int


def _even(site: Site) -> None:
    """Tables and bytes, as long as it gets better; then again as if the result were the beginning, until nothing is."""
    if site.at.usable.sum() < 2:
        return
    home, room = site.home, site.room
    for turn in range(_TRIES):
        # What racks allow depends on where replicas are by now.
        site.at = ground(site.at.cluster, site.at.dc, site.now)
        allowed = quotas.windows(site)
        moved = _dust_settles(site, allowed)
        for _ in range(_TRIES):
            if not _better(site, allowed):
                break
            moved = True
        moved = _exactly(site, allowed) or moved
        if turn and not moved:
            break
        site.home, site.room = site.now.copy(), np.minimum(site.room, site.at.capacity - site.load)
    site.home, site.room = home, room


def _dust_settles(site: Site, allowed: quotas.Windows | None) -> bool:
    """Even out the tables that can't matter by bytes, if that can be done."""
    dust = site.at.dust
    if allowed is None or not (uneven := quotas.unevenness(site, allowed, dust)):
        return False
    before = site.state()
    even_tables(site, allowed, dust)
    if quotas.unevenness(site, allowed, dust) < uneven:
        return True
    site.restore(before)
    return False


def _better(site: Site, allowed: quotas.Windows | None) -> bool:
    """Take a state that is better, if one is found.

    Where all tablets of a table are equally large, even numbers are even bytes, so tables come first. Else bytes do,
    and tables only where that leaves them uneven.
    """
    before, score = site.state(), _score(site, allowed)
    crowded = score.gap > levels.BALANCED
    if not crowded and not score.unevenness:
        return False
    equal = bool(site.at.equal[np.unique(site.at.cluster.table)].all())
    kept = None
    if crowded and not equal:
        levels.even_bytes(site, allowed)
        found = _score(site, allowed)
        if _is_better(found, score):
            if not found.unevenness:
                return True
            kept, best = site.state(), found
        site.restore(before)
        before = site.state()
    if allowed is not None and score.unevenness:
        even_tables(site, allowed)
    if levels.gap(site) > levels.BALANCED:
        levels.even_bytes(site, allowed)
    found = _score(site, allowed)
    if _is_better(found, score) and (kept is None or _is_better(found, best)):
        return True
    site.restore(before if kept is None else kept)
    return kept is not None


def _exactly(site: Site, allowed: quotas.Windows | None) -> bool:
    """Where the search ended with more moves than the bound, or unevenly: what a flow finds, if that is better."""
    if allowed is None or not exact.fits(site):
        return False
    uneven, found = quotas.unevenness(site, allowed), moves.changes(site)
    if not uneven and len(found.row) <= bound(site, found, allowed).moves:
        return False
    better = exact.fewest_moves(site, allowed)
    if better is None:
        return False
    before, old = site.state(), _score(site, allowed)
    rows, slots = np.nonzero(better != site.now)
    site.put(rows, slots, better[rows, slots])
    new = _score(site, allowed)
    # Bytes must not get worse by it, or the search would undo it.
    within = new.gap <= old.gap + _SAME and new.deviation <= old.deviation + _SAME
    if within and (new.unevenness, len(moves.changes(site).row)) < (old.unevenness, len(found.row)):
        return True
    site.restore(before)
    return False


def _score(site: Site, allowed: quotas.Windows | None) -> _Score:
    uneven = quotas.unevenness(site, allowed) if allowed is not None and site.counts is not None else 0
    return _Score(levels.gap(site), levels.deviation(site), uneven)


def _is_better(new: _Score, old: _Score) -> bool:
    """Never both ways round: while bytes are uneven they don't get worse, and then they stay even."""
    if old.gap <= levels.BALANCED:
        return new.gap <= levels.BALANCED and new.unevenness < old.unevenness
    if new.deviation < _BETTER * old.deviation:
        return True
    return new.deviation <= old.deviation + _SAME and new.unevenness < old.unevenness


def _joined(cluster: Cluster, sites: list[Site]) -> Ints:
    """The replicas of all data centres, in the slots they had."""
    width = cluster.replicas.shape[1]
    first = np.full((cluster.count, width), -1, np.int64)
    more = []
    for site in sites:
        now = site.now[:, :width]
        first = np.where(now >= 0, now, first)
        more.append(site.now[:, width:].astype(np.int64))
    return np.concatenate([first, *more], axis=1)
