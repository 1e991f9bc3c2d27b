"""What a seed of the loads scenario means: a cluster with tables, who loads them, who runs jobs, what befalls them.

The cluster, its clients and its troubles are those of the tables scenario. On top of them come drivers of loads that
die, stop, or go on after their load was ended; a queue of jobs with more than one who would run them; tablets that
move between the staging of a load and its commit; and deaths in the middle of what loads do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from trimtab.sim import tables_plan
from trimtab.sim.tables_plan import BARRIERS, TablesPlan

SCENARIO = "loads"
_MAX_DRAWS = 20
_OTHER_SEEDS = 1_000_000


@dataclass(frozen=True)
class LoadsPlan:
    """Everything a run is told before it begins. `tables` is what the cluster and its ordinary clients meet.

    `mishap`: the chance, at each step of a load, that something happens to its driver, or to a copy on its way.
    `lateness_s`: for how long copies go on that nobody waits for any more. `deaths`: how often somebody is killed in
    the middle of a load. `moves`: how often an operator moves a replica of a tablet. Rates are per second.
    `slow`: the chance that an instance which is told to take a load over is so slow about it that it counts as down.
    """

    seed: int
    tables: TablesPlan
    load_drivers: int
    job_drivers: int
    jobs: int
    readers: int
    load_lease_ms: int
    driver_lease_ms: int
    mishap: float
    lateness_s: float
    deaths: float
    moves: float
    slow: float
    bulk_files: int

    def describe(self) -> str:
        return (
            f"{self.tables.describe()}; {self.load_drivers} drivers of loads (lease {self.load_lease_ms} ms, a mishap "
            f"at {self.mishap:.0%} of steps), {self.job_drivers} drivers for {self.jobs} jobs (lease "
            f"{self.driver_lease_ms} ms), {self.readers} readers of epochs, {self.deaths:g} deaths and {self.moves:g} "
            f"moves a second, {self.slow:.0%} of taking over is slow"
        )


def draw(seed: int) -> LoadsPlan:
    """The plan of a seed."""
    rng = random.Random(f"plan/{SCENARIO}/{seed}")
    tables = _tables(rng, seed)
    spare = len(tables.replication) == 1 and sum(tables.replication.values()) < tables.machines
    return LoadsPlan(
        seed=seed,
        tables=tables,
        load_drivers=rng.choice((2, 3)),
        job_drivers=rng.choice((1, 2, 2)),
        jobs=rng.choice((4, 8)),
        readers=2,
        load_lease_ms=rng.choice((1_000, 2_000)),
        driver_lease_ms=2_000,
        mishap=rng.choice((0.0, 0.04, 0.12)),
        lateness_s=rng.choice((0.0, 1.0, 4.0)),
        deaths=rng.choice((0.0, 0.4, 1.2)),
        moves=rng.choice((1.0, 3.0)) if spare else 0.0,
        slow=rng.choice((0.0, 0.2, 0.5)),
        bulk_files=rng.choice((1, 2)),
    )


def _tables(rng: random.Random, seed: int) -> TablesPlan:
    """A plan of the tables scenario that leaves room for loads: few clients, no changes of the schema."""
    for _ in range(_MAX_DRAWS):
        drawn = tables_plan.draw(rng.randrange(_OTHER_SEEDS))
        if not drawn.remote and BARRIERS not in drawn.rates:
            break
    else:
        raise AssertionError("most plans are of this kind")
    return replace(
        drawn,
        seed=seed,
        topology=replace(drawn.topology, seed=seed),
        tablets=rng.choice((1, 2, 4)),
        clients=rng.choice((1, 2)),
        think_s=0.06,
        schema_clients=0,
        chaos_s=8.0,
    )
