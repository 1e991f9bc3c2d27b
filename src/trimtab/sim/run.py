"""One seed from its plan to its verdict: chaos, healing, convergence, and the judgement of what clients saw."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from trimtab.sim import (
    loads_plan,
    loads_run,
    moves_plan,
    moves_run,
    tables_plan,
    tables_run,
    topology_plan,
    topology_run,
)
from trimtab.sim.cluster import SimCluster
from trimtab.sim.faults import Nemesis
from trimtab.sim.history import History, Outcome
from trimtab.sim.linearizability import Verdict
from trimtab.sim.plan import Plan, draw
from trimtab.sim.workload import SimClient
from trimtab.sim.world import SimulationFailure, World

CHECK_EVERY_S = 0.05
MAX_JUDGE_STEPS = 200_000
# A run that makes this many events is stuck in a loop of its own; virtual time would take too long to show it.
MAX_EVENTS = 2_000_000


@dataclass
class Outcomes:
    """The verdict on one seed, with what is needed to tell its story."""

    seed: int
    scenario: str
    why: str = ""
    evidence: str = ""
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    summary: str = ""
    story: list[tuple[float, str, str]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.why


def run_seed(seed: int, scenario: str = "chaos", *, tracing: bool = False, plan: Plan | None = None) -> Outcomes:
    """Run one seed. Never raises for what the simulated code does."""
    began = time.process_time()
    outcome = Outcomes(seed, scenario)
    with World(seed, tracing=tracing) as world:
        try:
            if scenario == topology_plan.SCENARIO:
                governed = topology_plan.draw(seed)
                world.tell("plan", governed.describe())
                outcome.summary = topology_run.run(world, governed)
            elif scenario == tables_plan.SCENARIO:
                tables = tables_plan.draw(seed)
                world.tell("plan", tables.describe())
                outcome.summary = tables_run.run(world, tables)
            elif scenario == loads_plan.SCENARIO:
                loads = loads_plan.draw(seed)
                world.tell("plan", loads.describe())
                outcome.summary = loads_run.run(world, loads)
            elif scenario == moves_plan.SCENARIO:
                moves = moves_plan.draw(seed)
                world.tell("plan", moves.describe())
                outcome.summary = moves_run.run(world, moves)
            else:
                plan = plan or draw(seed, scenario)
                world.tell("plan", plan.describe())
                outcome.summary = _run(world, plan)
        except SimulationFailure as failure:
            outcome.why, outcome.evidence = failure.why, failure.evidence
        outcome.events, outcome.virtual_s = world.events, world.now
        outcome.story, outcome.trace = world.story, world.trace_lines
    outcome.cpu_s = time.process_time() - began
    return outcome


def _run(world: World, plan: Plan) -> str:
    history = History()
    cluster = SimCluster(world, plan)
    clients = [SimClient(cluster, number, history) for number in range(1, plan.clients + 1)]
    nemesis = Nemesis(cluster, [client.process.host for client in clients])
    for member in list(cluster.members.values()):
        cluster.start(member)
    for client in clients:
        client.start()
    nemesis.begin()
    world.run(plan.chaos_s)
    world.tell("nemesis", "everything heals")
    for client in clients:
        client.stopped = True
    nemesis.heal()
    healed_at = world.now
    _wait(world, cluster, healed_at + plan.converge_s)
    converged_s = world.now - healed_at
    _serve(world, clients, healed_at + plan.converge_s)
    _wait(world, cluster, healed_at + plan.converge_s + 5.0)
    _judge(history)
    checks = cluster.checks
    return (
        f"converged {converged_s:.2f} s after healing; {len(checks.leaders)} leaders, {len(checks.committed) - 1} "
        f"entries committed, {len(cluster.members)} members, {len(checks.changes) - 1} changes of membership; "
        f"{history.count(Outcome.OK)} operations ok, {history.count(Outcome.FAILED)} failed, "
        f"{history.count(Outcome.UNKNOWN)} unknown; {world.network.frames_sent} frames, "
        f"{world.network.frames_lost} lost"
    )


def _wait(world: World, cluster: SimCluster, until: float) -> None:
    """Go on until the cluster has converged."""
    while (trouble := cluster.trouble()) is not None:
        if world.now >= until:
            raise SimulationFailure(f"the healed cluster did not converge: {trouble}", cluster.checks.describe())
        if world.events > MAX_EVENTS:
            raise SimulationFailure(f"more than {MAX_EVENTS} events: something is busy without end")
        world.run(world.now + CHECK_EVERY_S)


def _serve(world: World, clients: list[SimClient], until: float) -> None:
    """Every client is served."""
    tasks: list[asyncio.Task[str | None]] = [client.process.spawn(client.final()) for client in clients]
    for task in tasks:
        try:
            trouble = world.run_until_done(task, until)
        except TimeoutError as error:
            raise SimulationFailure("a client's last operations did not end in time") from error
        if trouble is not None:
            raise SimulationFailure(trouble)


def _judge(history: History) -> None:
    report = history.judge(MAX_JUDGE_STEPS)
    if report.verdict is Verdict.NOT_LINEARIZABLE:
        raise SimulationFailure("what clients saw is not linearizable", str(report.explanation))
    if report.verdict is Verdict.UNKNOWN:
        # Undecided is not passed: a check that gives up silently proves nothing.
        raise SimulationFailure(f"what clients saw could not be judged within {MAX_JUDGE_STEPS} steps")
