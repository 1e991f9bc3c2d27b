"""How many of a tablet's replicas each node should hold on average, where all is as even as it can be.

Shares are in proportion to capacity, but no host gets more than one replica of a tablet, and no rack more or fewer than
there can be without racks getting worse: a share is a nested water level. Where neither binds, it is the plain
proportion.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.tablets.balancer.model import Floats, Ints

_STEPS = 60


def shares(number: int, capacity: Floats, host: Ints, rack: Ints, least: float = 0.0, most: float = 1e9) -> Floats:
    """Replicas a tablet has on each node, on average; their sum is `number`, or the hosts there are.

    `host` and `rack` are numbers from 0 on, and a host is in one rack. `least` and `most`: how many replicas of a
    tablet a rack has, on average, as far as it has the hosts.
    """
    if not len(capacity):
        return np.zeros(0)
    hosts, racks = int(host.max()) + 1, int(rack.max()) + 1
    rack_of_host = np.zeros(hosts, np.int64)
    rack_of_host[host] = rack
    weight = np.bincount(host, capacity, hosts) / capacity.mean()
    there = np.bincount(rack_of_host, minlength=racks)
    number = min(number, int(there.sum()))
    ideal = rack_limits(number, there)
    lowest = np.minimum(np.minimum(there, least), ideal[0])
    highest = np.maximum(np.minimum(there, most), ideal[1])
    plain: Floats = capacity * (number / capacity.sum())
    of_hosts = np.bincount(host, plain, hosts)
    of_racks = np.bincount(rack, plain, racks)
    if (of_hosts <= 1).all() and (of_racks >= lowest - 1e-9).all() and (of_racks <= highest + 1e-9).all():
        return plain
    level = _level(lambda at: float(np.clip(_filled(at, weight, rack_of_host, racks), lowest, highest).sum()), number)
    filled = np.clip(_filled(level, weight, rack_of_host, racks), lowest, highest)
    # Racks at a limit have a level of their own.
    low, high = np.zeros(racks), np.full(racks, 1.0)
    while (_filled(high[rack_of_host], weight, rack_of_host, racks) < filled - 1e-12).any() and high.max() < 1e30:
        high *= 4
    for _ in range(_STEPS):
        middle = (low + high) / 2
        under = _filled(middle[rack_of_host], weight, rack_of_host, racks) < filled
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    of_host = np.minimum(1.0, high[rack_of_host] * weight)
    share: Floats = of_host[host] * capacity / np.bincount(host, capacity, hosts)[host]
    total = share.sum()
    return share * (number / total) if total else share


def rack_limits(number: int, hosts: Ints) -> tuple[Ints, Ints]:
    """The least and the most replicas of one tablet in each rack, where racks hold as equal numbers as they can."""
    level = 0
    while level < number and int(np.minimum(hosts, level + 1).sum()) <= number:
        level += 1
    least = np.minimum(hosts, level)
    most = np.minimum(hosts, level + 1) if int(least.sum()) < number else least
    return least, most


def _filled(level: float | Floats, weight: Floats, rack_of_host: Ints, racks: int) -> Floats:
    return np.bincount(rack_of_host, np.minimum(1.0, level * weight), racks)


def _level(amount: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 1.0
    while amount(high) < wanted - 1e-12 and high < 1e30:
        high *= 4
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if amount(middle) < wanted else (low, middle)
    return high
