"""One seed of the loads scenario from its plan to its verdict: formation, chaos, healing, agreement, judgement."""

from __future__ import annotations

import asyncio
from typing import Any

from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, CreateTable
from trimtab.jobs.records import JobState
from trimtab.loads.records import LoadState
from trimtab.net.errors import NetError, RpcError
from trimtab.node import failpoints
from trimtab.node.instance import Instance
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeRequest
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_bulk import BulkServers
from trimtab.sim.loads_drivers import GEN, MOVED, LoadDriver, Loaders
from trimtab.sim.loads_faults import LoadsNemesis
from trimtab.sim.loads_history import LoadsHistory
from trimtab.sim.loads_jobs import Asker, Queue
from trimtab.sim.loads_judge import EpochJudge
from trimtab.sim.loads_plan import LoadsPlan
from trimtab.sim.loads_readers import EpochReader
from trimtab.sim.loads_watch import LoadsWatch
from trimtab.sim.machines import Machine
from trimtab.sim.moves_jobs import MovesDriver
from trimtab.sim.moves_streams import Streams
from trimtab.sim.tables_history import Outcome, TablesHistory
from trimtab.sim.tables_judge import Judge
from trimtab.sim.tables_replicas import differing, owed
from trimtab.sim.tables_run import LAST_S, READ_S, make_tables, read_all, until
from trimtab.sim.tables_workload import Shared, TablesClient
from trimtab.sim.world import SimulationFailure, World
from trimtab.tablets.consistency import Level

SWEPT_S = 30.0
_ATTEMPTS = 8
_AGAIN_S = 0.25


def run(world: World, plan: LoadsPlan) -> str:
    """A sentence about the run. SimulationFailure: an invariant does not hold, or the cluster did not converge."""
    try:
        return _run(world, plan)
    except Violation as violation:
        raise SimulationFailure(violation.why, violation.evidence) from violation
    finally:
        failpoints.disarm()


def _run(world: World, plan: LoadsPlan) -> str:
    tables = plan.tables
    cluster = GovernedCluster(world, tables.topology.timing, tables.topology.limits)
    history, rows = LoadsHistory(), TablesHistory(tables.replication, skew_s=tables.topology.timing.max_skew_ms / 1000)
    watch, queue = LoadsWatch(cluster, history), Queue(cluster)
    watch.also.append(queue.commit)

    def began(_machine: Machine, instance: Instance) -> None:
        instance.holdings.folding.pace = tables.pace
        instance.holdings.shelf.flushing.bounds = tables.flush

    cluster.on_began = began
    for number, peers in enumerate(tables.topology.peers):
        machine = cluster.add(list(peers), failure_domain=tables.topology.domains[number])
        machine.disk.work_takes_time()
        watch.watch_disk(machine)
        machine.start()
    cluster.settle()
    make_tables(cluster, tables)
    make_loaded_tables(cluster, plan)
    bulk, shared = BulkServers(cluster), Shared()
    loaders = Loaders(cluster, plan, bulk, history, rows)
    clients = [TablesClient(cluster, tables, number, rows, shared) for number in range(1, tables.clients + 1)]
    drivers = [LoadDriver(loaders, number) for number in range(1, plan.load_drivers + 1)]
    readers = [EpochReader(cluster, plan, number, history) for number in range(1, plan.readers + 1)]
    streams = Streams(cluster, tables, bulk, mishap=plan.mishap, lateness_s=plan.lateness_s)
    job_drivers = [MovesDriver(loaders, queue, number, streams) for number in range(1, plan.job_drivers + 1)]
    asker = Asker(loaders, queue)
    processes = [each.process for each in clients]
    processes += [each.client.process for each in drivers] + [each.client.process for each in readers]
    nemesis = LoadsNemesis(cluster, plan, processes, watch, list(job_drivers))
    nemesis.begin()
    bulk.start()
    streams.start()
    busy: list[TablesClient | LoadDriver | EpochReader | Asker] = [*clients, *drivers, *readers, asker]
    for each in busy:
        each.start()
    for job_driver in job_drivers:
        job_driver.start()
    world.run(world.now + plan.tables.chaos_s)
    world.tell("nemesis", "everything heals")
    nemesis.heal()
    for each in (*busy, *drivers):
        each.stopped = True
    for worker in drivers:
        worker.clumsy = False
    for job_driver in job_drivers:
        job_driver.quiet = True
    streams.quiet = True
    healed_s = world.now
    for each in busy:
        assert each.task is not None
        world.run_until_done(each.task, world.now + LAST_S)
    world.run_until_done(asker.client.process.spawn(asker.finish()), world.now + LAST_S)
    limit_s = healed_s + tables.converge_s
    until(cluster, cluster.trouble, limit_s, "the healed cluster did not converge")
    until(cluster, lambda: _moving(watch), limit_s, "tablets move without end")
    until(cluster, queue.unfinished, limit_s, "the queue does not come to its end")
    until(cluster, watch.unfinished, limit_s, "a load does not come to its end")
    until(cluster, watch.unswept, world.now + SWEPT_S, "staged files stay")
    until(cluster, lambda: owed(cluster), limit_s, "what replicas missed is still owed")
    until(cluster, lambda: differing(cluster), world.now + tables.converge_s, "replicas do not converge")
    agreed_s = world.now - healed_s
    read_all(cluster, tables, clients[0], shared)
    scan_all(cluster, readers[0])
    # Balance may have been looked for meanwhile.
    until(cluster, lambda: _moving(watch) or differing(cluster), world.now + tables.converge_s, "replicas differ again")
    watch.judge()
    queue.judge({id: record.state for (_table, id), record in watch.loads.loads.items()})
    Judge(rows).judge()
    EpochJudge(history, tables.replication).judge()
    ended = ", ".join(f"{history.ended.get(state, 0)} {state.value}" for state in LoadState if state.final)
    jobs = ", ".join(f"{queue.count(state)} {state.value}" for state in JobState if state.final)
    return (
        f"agreed {agreed_s:.2f} s after healing; loads: {ended}; {bulk.files} files staged, {watch.taken_over} taken "
        f"over, {loaders.moved} commits refused as moved, {nemesis.moves} moves asked for, {streams.told.copies} "
        f"copies and {streams.told.merges} merges; jobs: {jobs}, {queue.terms} terms; "
        f"{rows.count(Outcome.ACKED)} writes acknowledged, {len(rows.reads)} reads, {len(history.reads)} scans by "
        f"epochs, {sum(put.acked for put in history.puts)} of {len(history.puts)} puts there; "
        f"{len(cluster.checks.leaders)} leaders"
    )


def _moving(watch: LoadsWatch) -> str | None:
    return next((f"{each}" for some in watch.tables.transitions.values() for each in some.values()), None)


def make_loaded_tables(cluster: GovernedCluster, plan: LoadsPlan) -> None:
    columns = [ColumnSpec("p", "bigint"), ColumnSpec("c", "bigint"), ColumnSpec("a", "text")]
    for name in (GEN, MOVED):
        keyspace, _, table = name.partition(".")
        options: dict[str, Any] = {"gc_grace_s": plan.tables.gc_grace_s, "history_s": plan.tables.history_s}
        command = CreateTable(
            keyspace, table, columns, ["p"], [("c", False)], options=options, tablets=plan.tables.tablets
        )
        body = protocol.encode(ChangeRequest(commands.encode(command), f"first {name}"))
        rng = cluster.world.rng(f"first/{name}")
        try:
            cluster.do(cluster.ask(next(iter(cluster.machines.values())), protocol.CHANGE, body, rng, 10.0))
        except (NetError, TimeoutError) as error:
            raise SimulationFailure(f"in a healthy cluster the schema could not be changed: {error}") from error


def scan_all(cluster: GovernedCluster, reader: EpochReader) -> None:
    """Every table that is read by epochs, through every member, at every level."""

    async def scan() -> str:
        for machine in cluster.taking_part():
            for name in (GEN, MOVED):
                for level in (Level.QUORUM, Level.ALL, Level.ONE):
                    for _ in range(_ATTEMPTS):
                        await reader.client.refresh(machine)
                        why = await reader.scan(reader.client.catalog.table(name), level, machine)
                        if not why:
                            break
                        await asyncio.sleep(_AGAIN_S)
                    else:
                        return f"{name} can't be read through {machine.name} at {level.name}: {why}"
        return ""

    try:
        why = cluster.world.run_until_done(reader.client.process.spawn(scan()), cluster.world.now + READ_S)
    except (TimeoutError, RpcError) as error:
        raise SimulationFailure(f"after all had healed, tables could not be read: {error}") from error
    if why:
        raise SimulationFailure(f"after all had healed, {why}")
