"""A governed cluster in one line, for stories: with production's timing, told to do things, and looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trimtab.node import failpoints
from trimtab.node.settings import Limits, Timing
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.world import World
from trimtab.topology.grades import Grade
from trimtab.topology.records import InstanceRecord, RequestRecord
from trimtab.topology.view import View

# Half of production's times, in the same proportions: stories are told faster.
TIMING = Timing(
    tick_ms=50,
    lease_ms=1_500,
    lease_heartbeat_ms=250,
    offline_after_ms=3_000,
    farewell_ms=1_000,
    dead_peer_ms=3_000,
)


@contextmanager
def governed(
    machines: int = 0, *, seed: int = 1, peers: list[int] | None = None, timing: Timing = TIMING
) -> Iterator[GovernedCluster]:
    """A cluster of so many machines that has formed and settled; 0: nothing is there yet. All failpoints are free."""
    failpoints.disarm()
    with World(seed) as world:
        cluster = GovernedCluster(world, timing, Limits(disk_reserve_bytes=0))
        try:
            for _ in range(machines):
                cluster.add(peers or list(range(machines))).start()
            if machines:
                cluster.settle()
            yield cluster
        finally:
            failpoints.disarm()


def view(cluster: GovernedCluster) -> View:
    """The topology as the leader has it."""
    leader = cluster.leader()
    assert leader is not None and leader.instance is not None, "nobody leads"
    return leader.instance.watching.view


def row(cluster: GovernedCluster, instance_id: str) -> InstanceRecord:
    """The newest committed row of that name."""
    rows = cluster.topology.committed.rows
    return [rows[raft_id] for raft_id in sorted(rows) if rows[raft_id].instance_id == instance_id][-1]


def rows(cluster: GovernedCluster, instance_id: str) -> list[int]:
    return [i for i, record in cluster.topology.committed.rows.items() if record.instance_id == instance_id]


def grade(cluster: GovernedCluster, instance_id: str) -> Grade:
    return row(cluster, instance_id).grades.current.grade


def request(cluster: GovernedCluster, number: int) -> RequestRecord:
    return cluster.topology.committed.requests[number]


def leader(cluster: GovernedCluster) -> Machine:
    found = cluster.leader()
    assert found is not None, "nobody leads"
    return found


def others(cluster: GovernedCluster, *those: Machine) -> list[Machine]:
    return [machine for machine in cluster.machines.values() if machine not in those]


def cut(cluster: GovernedCluster, machine: Machine, *, one_way: bool = False) -> None:
    """Nobody hears this machine any more (and it hears nobody)."""
    for other in others(cluster, machine):
        cluster.world.network.block(machine.host, other.host)
        if not one_way:
            cluster.world.network.block(other.host, machine.host)


def told(cluster: GovernedCluster, machine: Machine, text: str) -> bool:
    """Whether the machine has said so."""
    return any(who == machine.name and text in line for _, who, line in cluster.world.story)
