"""One seed of the topology scenario from its plan to its verdict: formation, chaos, healing, convergence."""

from __future__ import annotations

import asyncio

from trimtab.net.errors import NetError
from trimtab.node import failpoints
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.topology_faults import Prober, TopologyNemesis
from trimtab.sim.topology_plan import TopologyPlan
from trimtab.sim.world import SimulationFailure, World
from trimtab.topology.protocol import Level

CHECK_EVERY_S = 0.25
PROBERS = 2
SERVE_S = 5.0
MAX_EVENTS = 3_000_000


def run(world: World, plan: TopologyPlan) -> str:
    """A sentence about the run. SimulationFailure: an invariant does not hold, or the cluster did not converge."""
    try:
        return _run(world, plan)
    finally:
        failpoints.disarm()


def _run(world: World, plan: TopologyPlan) -> str:
    cluster = GovernedCluster(world, plan.timing, plan.limits)
    if plan.hold_s:
        holding = world.rng("hold")

        async def hold(_machine: Machine) -> None:
            await asyncio.sleep(holding.expovariate(1.0 / plan.hold_s))

        cluster.hold = hold
    control = world.control.loop
    assert control is not None
    for number, peers in enumerate(plan.peers):
        machine = cluster.add(list(peers), failure_domain=plan.domains[number])
        control.call_later(plan.starts_s[number], machine.start)
    nemesis = TopologyNemesis(cluster, plan)
    probers = [Prober(cluster, number) for number in range(1, PROBERS + 1)]
    nemesis.begin()
    for prober in probers:
        prober.start()
    world.run(plan.chaos_s)
    world.tell("nemesis", "everything heals")
    nemesis.heal()
    healed_at = world.now
    converged_s = _converge(world, cluster, healed_at + plan.converge_s) - healed_at
    for prober in probers:
        prober.stopped = True
    cluster.hold = None
    _serve(cluster)
    committed, topology = cluster.topology.committed, cluster.topology
    left = sum(row.left for row in committed.rows.values())
    return (
        f"converged {converged_s:.2f} s after healing; {len(committed.rows)} instances, {left} of them left; "
        f"{len(cluster.checks.leaders)} leaders, {committed.writes} writes, version {committed.version}, fence "
        f"{committed.fence}, {committed.highest_request} requests; {topology.answered} probes answered, "
        f"{topology.refused} refused"
    )


def _converge(world: World, cluster: GovernedCluster, until: float) -> float:
    while (trouble := cluster.trouble()) is not None:
        if world.now >= until:
            raise SimulationFailure(f"the healed cluster did not converge: {trouble}", cluster.checks.describe())
        if world.events > MAX_EVENTS:
            raise SimulationFailure(f"more than {MAX_EVENTS} events: something is busy without end")
        world.run(world.now + CHECK_EVERY_S)
    return world.now


def _serve(cluster: GovernedCluster) -> None:
    """Every member answers at QUORUM, through a router that is not it; a lease may just have to be renewed."""
    running = cluster.running()
    for number, machine in enumerate(running):
        router = running[(number + 1) % len(running)]
        until = cluster.world.now + SERVE_S
        while True:
            try:
                reply = cluster.do(cluster.probe(router, machine.raft_id, Level.QUORUM, timeout_s=SERVE_S))
                break
            except (NetError, TimeoutError) as error:
                if cluster.world.now >= until:
                    raise SimulationFailure(f"{machine.name} does not serve after all healed: {error}") from error
                cluster.world.run(cluster.world.now + CHECK_EVERY_S)
        if reply.stale or reply.raft_id != machine.raft_id:
            raise SimulationFailure(f"{machine.name} answers at QUORUM with {reply}")
