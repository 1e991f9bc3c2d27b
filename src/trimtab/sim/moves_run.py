"""One seed of the moves scenario from its plan to its verdict: formation, chaos, healing, agreement, judgement."""

from __future__ import annotations

from trimtab.jobs.records import JobState
from trimtab.node import failpoints
from trimtab.node.instance import Instance
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_bulk import BulkServers
from trimtab.sim.loads_drivers import LoadDriver, Loaders
from trimtab.sim.loads_history import LoadsHistory
from trimtab.sim.loads_jobs import Queue
from trimtab.sim.loads_judge import EpochJudge
from trimtab.sim.loads_readers import EpochReader
from trimtab.sim.loads_run import make_loaded_tables, scan_all
from trimtab.sim.loads_watch import LoadsWatch
from trimtab.sim.machines import Machine
from trimtab.sim.moves_balance import lopsided, unbalanced
from trimtab.sim.moves_changes import MovesNemesis
from trimtab.sim.moves_jobs import MovesDriver
from trimtab.sim.moves_plan import MovesPlan
from trimtab.sim.moves_promises import Promises
from trimtab.sim.moves_streams import Streams
from trimtab.sim.moves_watch import MovesWatch
from trimtab.sim.moves_workload import MovesClient
from trimtab.sim.tables_history import Outcome, TablesHistory
from trimtab.sim.tables_judge import Judge, judge_batches
from trimtab.sim.tables_replicas import differing, owed
from trimtab.sim.tables_run import LAST_S, make_tables, read_all, until
from trimtab.sim.tables_workload import LEDGER, Shared, TablesClient
from trimtab.sim.world import SimulationFailure, World
from trimtab.tablets.consistency import Level

STILL_S = 4.0
# For levels that are judged: QUORUM meets QUORUM and ALL whatever the number of replicas is, and never ONE.
_REPLICATION = {"dc1": 3}


def run(world: World, plan: MovesPlan) -> str:
    """A sentence about the run. SimulationFailure: an invariant does not hold, or the cluster did not converge."""
    try:
        return MovesRun(world, plan).run()
    except Violation as violation:
        raise SimulationFailure(violation.why, violation.evidence) from violation
    finally:
        failpoints.disarm()


class MovesRun:
    """Everything that takes part in one run."""

    def __init__(self, world: World, plan: MovesPlan) -> None:
        tables = plan.tables
        self.world = world
        self.plan = plan
        self.cluster = GovernedCluster(world, tables.topology.timing, tables.topology.limits)
        self.cluster.on_began = self._began
        self.history = LoadsHistory()
        self.rows = TablesHistory(_REPLICATION, skew_s=tables.topology.timing.max_skew_ms / 1000)
        self.loads, self.queue = LoadsWatch(self.cluster, self.history), Queue(self.cluster)
        self.loads.also.append(self.queue.commit)
        self.promises = Promises(self.cluster, self.rows)
        self.watch = MovesWatch(self.cluster, self.loads, self.promises)
        self.bulk, self.shared = BulkServers(self.cluster), Shared()
        self.streams = Streams(self.cluster, tables, self.bulk, mishap=plan.mishap, lateness_s=plan.lateness_s)
        self.loaders = Loaders(self.cluster, plan.loads, self.bulk, self.history, self.rows)
        numbers = range(1, plan.loads.job_drivers + 1)
        self.drivers = [MovesDriver(self.loaders, self.queue, number, self.streams) for number in numbers]
        self.clients = [
            MovesClient(self.cluster, tables, number, self.rows, self.shared) for number in range(1, tables.clients + 1)
        ]
        self.load_drivers: list[LoadDriver] = []
        self.readers: list[EpochReader] = []
        if plan.loading:
            self.load_drivers = [LoadDriver(self.loaders, number) for number in range(1, plan.loads.load_drivers + 1)]
            numbers = range(1, plan.loads.readers + 1)
            self.readers = [EpochReader(self.cluster, plan.loads, number, self.history) for number in numbers]
            for reader in self.readers:
                reader.other_level = Level.QUORUM
        processes = [each.process for each in self.clients]
        processes += [driver.client.process for driver in self.load_drivers]
        processes += [reader.client.process for reader in self.readers]
        self.nemesis = MovesNemesis(self.cluster, plan, processes, self.loads.tables, self.queue, list(self.drivers))
        self.nemesis.on_machine = self._new_machine  # type: ignore[method-assign]
        self.healed_s = 0.0

    def _began(self, _machine: Machine, instance: Instance) -> None:
        instance.holdings.folding.pace = self.plan.tables.pace
        instance.holdings.shelf.flushing.bounds = self.plan.tables.flush

    def _new_machine(self, machine: Machine) -> None:
        machine.disk.work_takes_time()
        self.loads.watch_disk(machine)
        self.watch.watch_disk(machine)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> str:
        self.form()
        self.chaos()
        agreed_s = self.agree()
        self.judge()
        return self.summary(agreed_s)

    def form(self) -> None:
        """A cluster with tables, and everybody who will use it."""
        cluster, topology = self.cluster, self.plan.tables.topology
        for number, peers in enumerate(topology.peers):
            machine = cluster.add(list(peers), failure_domain=topology.domains[number])
            self._new_machine(machine)
            machine.start()
        cluster.settle()
        make_tables(cluster, self.plan.tables)
        if self.plan.loading:
            make_loaded_tables(cluster, self.plan.loads)
        cluster.do(self.nemesis.settings(self.nemesis.wanted(), tries=20))
        self.bulk.start()
        self.streams.start()
        for driver in self.drivers:
            driver.start()

    def chaos(self) -> None:
        self.nemesis.begin()
        self.begin_load()
        self.world.run(self.world.now + self.plan.tables.chaos_s)
        self.world.tell("nemesis", "everything heals")
        self.nemesis.heal()
        self.end_load()
        self.cluster.do(self.nemesis.finish())

    def begin_load(self) -> None:
        """Clients begin to work."""
        for each in self._busy():
            each.start()

    def end_load(self) -> None:
        """They end, and from now on nothing happens to anything on its way."""
        for each in self._busy():
            each.stopped = True
        for worker in self.load_drivers:
            worker.clumsy = False
        for driver in self.drivers:
            driver.quiet = True
        self.streams.quiet = True
        self.healed_s = self.world.now
        for each in self._busy():
            assert each.task is not None
            self.world.run_until_done(each.task, self.world.now + LAST_S)

    def _busy(self) -> list[TablesClient | LoadDriver | EpochReader]:
        return [*self.clients, *self.load_drivers, *self.readers]

    def agree(self) -> float:
        """Wait until everything has come to its end; how long that took."""
        cluster, limit_s = self.cluster, self.healed_s + self.plan.tables.converge_s
        until(cluster, self._moving, limit_s, "the healed cluster did not come to its end")
        until(cluster, self.queue.unfinished, limit_s, "the queue does not come to its end")
        until(cluster, self.loads.unfinished, limit_s, "a load does not come to its end")
        until(cluster, lambda: owed(cluster), limit_s, "what replicas missed is still owed")
        until(cluster, lambda: differing(cluster), limit_s, "replicas do not converge")
        until(cluster, self.watch.left_behind, limit_s, "something was left behind")
        return self.world.now - self.healed_s

    def _moving(self) -> str | None:
        moving = self.watch.unfinished() or self.cluster.trouble() or unbalanced(self.cluster)
        return moving or lopsided(self.cluster, self.loads.tables)

    def judge(self) -> None:
        """After all has ended nothing moves, all is there, and what clients saw can be."""
        cluster, begun = self.cluster, self.watch.counted.begun
        self.world.run(self.world.now + STILL_S)
        if (why := self._moving()) is not None or self.watch.counted.begun != begun:
            raise SimulationFailure(f"a balanced cluster that is left alone moves: {why or 'a move began and ended'}")
        read_all(cluster, self.plan.tables, self.clients[0], self.shared)
        if self.readers:
            scan_all(cluster, self.readers[0])
        if (why := differing(cluster)) is not None:
            raise SimulationFailure(f"replicas differ again: {why}")
        self.loads.judge()
        self.queue.judge({id: record.state for (_table, id), record in self.loads.loads.loads.items()})
        Judge(self.rows).judge()
        EpochJudge(self.history, _REPLICATION).judge()
        ledger = self.clients[0].catalog.table(LEDGER)
        last = [read for read in self.rows.reads if read.final]
        found = {row: cells for read in last for row, cells in read.rows.items() if row.table == ledger.id}
        judge_batches(self.shared.batches, found, whole=not self.plan.tables.forgetful)

    def summary(self, agreed_s: float) -> str:
        counted, told, queue = self.watch.counted, self.streams.told, self.queue
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(counted.kinds.items()))
        jobs = ", ".join(f"{queue.count(state)} {state.value}" for state in JobState if state.final)
        done = ", ".join(f"{number} {what}" for what, number in sorted(self.nemesis.done.items()))
        return (
            f"agreed {agreed_s:.2f} s after healing; {counted.begun} moves begun ({kinds or 'none'}), {counted.ended} "
            f"ended, {counted.undone} undone, {counted.adjusted} adjusted, {counted.planned} planned; "
            f"{told.copies} copies, {told.merges} merges, {told.failed} failed, {told.spoiled} spoiled, {told.late} "
            f"late; jobs: {jobs}, {queue.terms} terms; {self.promises.checked} sets looked at; done: "
            f"{done or 'nothing'}; {self.rows.count(Outcome.ACKED)} writes acknowledged, {len(self.rows.reads)} reads; "
            f"{len(self.cluster.checks.leaders)} leaders, {len(self.cluster.machines)} machines"
        )
