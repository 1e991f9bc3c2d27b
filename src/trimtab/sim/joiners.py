"""Many instances that join a young cluster at once: how long it takes, and what it costs the metastore.

`trimtab.sim.joiners` run as a module prints a line for each number of joiners.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from trimtab.node.settings import Limits, Timing
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.world import World

SIZES = (10, 30, 100)


@dataclass(frozen=True)
class Joined:
    """What it took until all were Online and agreed. `writes` are commands that changed the topology."""

    joiners: int
    virtual_s: float
    writes: int
    events: int
    cpu_s: float

    @property
    def writes_per_joiner(self) -> float:
        return self.writes / self.joiners

    def describe(self) -> str:
        return (
            f"{self.joiners:>4} join at once: all Online after {self.virtual_s:6.2f} s of virtual time, "
            f"{self.writes:>4} metastore writes, {self.writes_per_joiner:.2f} per joiner "
            f"({self.events} events, {self.cpu_s:.1f} s of CPU)"
        )


def join_at_once(joiners: int, *, seed: int = 1, within_s: float = 60.0) -> Joined:
    """Found a cluster of one, and let so many join it in the same instant. TimeoutError: it did not settle."""
    began = time.process_time()
    with World(seed) as world:
        cluster = GovernedCluster(world, Timing(), Limits(disk_reserve_bytes=0))
        cluster.add([0]).start()
        cluster.settle(within_s)
        before, at_s = cluster.topology.committed.writes, world.now
        for _ in range(joiners):
            cluster.add([0]).start()
        cluster.settle(within_s)
        writes = cluster.topology.committed.writes - before
        return Joined(joiners, world.now - at_s, writes, world.events, time.process_time() - began)


def main() -> None:
    for joiners in map(int, sys.argv[1:] or SIZES):
        print(join_at_once(joiners).describe(), flush=True)


if __name__ == "__main__":
    main()
