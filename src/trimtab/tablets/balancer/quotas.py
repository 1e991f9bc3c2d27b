"""How many tablets of each table a node should hold: its share, rounded down or up.

Of those whose share has a fraction, some are rounded up, so that all tablets are somewhere. First come those that hold
one more already (nothing has to move), unless another's fraction is greater by more than a half; then those that are
emptiest by bytes. So the quotas of a table that fulfils them are what it has: they ask for nothing new.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trimtab.tablets.balancer.model import Bools, Floats, Ints
from trimtab.tablets.balancer.site import Site

_BLOCK_CELLS = 4_000_000
_NEARLY = 1e-6


class Windows(NamedTuple):
    """The fewest and the most tablets of each table [table, node] that are no reason to move anything."""

    least: Ints
    most: Ints


def rounded(want: Floats, have: Ints, filled: Floats) -> Ints:
    """Whole numbers of the same sum as `want`, each rounded down or up."""
    floor = np.floor(want + _NEARLY).astype(np.int64)
    left = int(np.rint(want.sum())) - int(floor.sum())
    if left <= 0:
        return floor
    fraction = np.round(want - floor, 6)
    # A node's fullness only decides between equals.
    worth = fraction + 0.5 * (have > floor) - _NEARLY * np.minimum(filled, 100.0) / 100.0
    worth[want <= 0] = -np.inf
    floor[np.argsort(-worth, kind="stable")[:left]] += 1
    return floor


def factor_of(site: Site) -> Ints:
    """How many replicas the tablets of each table have here."""
    return np.array([table.replication.get(site.at.dc, 0) for table in site.at.cluster.tables], np.int64)


def windows(site: Site) -> Windows | None:
    """Of all tables; None where there are too many to look at each."""
    if site.counts is None:
        return None
    least = np.zeros(site.counts.shape, np.int32)
    most = np.zeros(site.counts.shape, np.int32)
    for block, want in wanted(site):
        slack = site.at.slack[block, None] * want
        least[block] = np.floor(want - slack + _NEARLY)
        most[block] = np.ceil(want + slack - _NEARLY)
    return Windows(least, most)


def uneven(site: Site, allowed: Windows) -> Bools:
    """The tables that have more or fewer tablets somewhere than is allowed."""
    assert site.counts is not None
    usable = site.at.usable
    wrong: Bools = ((site.counts < allowed.least) | (site.counts > allowed.most))[:, usable]
    return np.asarray(wrong.any(axis=1))


def unevenness(site: Site, allowed: Windows, tables: Bools | None = None) -> int:
    """How many tablets are too many or too few anywhere, of all tables or of these."""
    assert site.counts is not None
    which = np.ix_(np.ones(len(site.counts), bool) if tables is None else tables, site.at.usable)
    counts = site.counts[which]
    over, under = np.maximum(counts - allowed.most[which], 0), np.maximum(allowed.least[which] - counts, 0)
    return int(over.sum() + under.sum())


def quotas(site: Site, table: int, factor: int, coming: int, filled: Floats) -> Ints:
    """Tablets of a table that each usable node should hold, `coming` more than they hold now. Others: as now."""
    assert site.counts is not None
    usable = site.at.usable
    have = site.counts[table]
    total = int(have[usable].sum()) + coming
    share = np.where(usable, site.at.share[factor], 0.0)
    if not share.sum():
        return np.array(have)
    want = share * (total / share.sum())
    return np.where(usable, rounded(want, have, filled), have)


def wanted(site: Site) -> Iterator[tuple[slice, Floats]]:
    """Blocks of tables, and the share [table, node] of each of them in what is on usable nodes."""
    assert site.counts is not None
    usable = site.at.usable
    factors = factor_of(site)
    share = np.where(usable[None, :], site.at.share, 0.0)
    step = max(1, _BLOCK_CELLS // max(1, site.at.nodes))
    for first in range(0, len(factors), step):
        block = slice(first, first + step)
        part = share[factors[block]]
        total = site.counts[block][:, usable].sum(axis=1)
        sums = part.sum(axis=1)
        yield block, part * np.divide(total, sums, out=np.zeros(len(sums)), where=sums > 0)[:, None]
