"""What a seed of the moves scenario means: a cluster whose tablets move all the time, who moves them, what befalls all.

The cluster, its clients and its troubles are those of the tables scenario, its drivers of jobs those of the loads
scenario. On top of them come *changes*: instances that join, leave, are removed or replaced, another number of
replicas, operators who move a tablet or think again, balancing that is switched off and on. Each is a story of its own.
Clients ask for QUORUM and nothing else: that is what a move has to keep.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from trimtab.sim import tables_plan
from trimtab.sim.loads_plan import LoadsPlan
from trimtab.sim.tables_plan import BARRIERS, LATE, LONG_CUT, OVERTAKEN, SKEW, STRIKE, WILD_CLOCKS, TablesPlan
from trimtab.sim.topology_plan import Trouble

SCENARIO = "moves"
# After healing every transition, request and job has ended, replicas are where they should be, and nothing else is on
# any disk, within this virtual time.
CONVERGE_S = 120.0
SPARED_MS = 2_000
MAX_MACHINES = 8
_MAX_DRAWS = 40
_OTHER_SEEDS = 1_000_000


class Change(enum.Enum):
    """What is wanted of the cluster meanwhile; the value is the operator's word for it."""

    JOIN = "join"
    LEAVE = "leave"
    THINK_AGAIN = "leave that is cancelled"
    REMOVE = "remove"
    REPLACE = "replace"
    REBUILD = "rebuild"
    REPLICATION = "replication"
    MOVE = "move by hand"
    SWITCH = "balancing off and on"
    STEER = "jobs paused and cancelled"
    GROW = "another replica while one lags"


# Changes that are worst together. A seed takes one of these, and others by chance.
_THEMES: tuple[tuple[Change, ...], ...] = (
    (Change.JOIN, Change.MOVE),
    (Change.JOIN, Change.LEAVE),
    (Change.LEAVE, Change.THINK_AGAIN),
    (Change.GROW,),
    (Change.REPLICATION,),
    (Change.REPLICATION, Change.JOIN),
    (Change.REPLICATION, Change.MOVE),
    (Change.REMOVE, Change.JOIN),
    (Change.REPLACE,),
    (Change.REPLACE, Change.MOVE),
    (Change.REMOVE, Change.REPLICATION),
    (Change.MOVE,),
    (Change.MOVE, Change.SWITCH),
    (Change.REBUILD, Change.MOVE),
)
_TROUBLES: tuple[tuple[Trouble | str, ...], ...] = (
    (),
    (),
    (Trouble.KILL,),
    (Trouble.POWER,),
    (Trouble.PARTITION,),
    (Trouble.PAUSE,),
    (STRIKE,),
    (STRIKE, LONG_CUT),
    (LATE,),
    (LATE, Trouble.KILL),
    (LONG_CUT,),
    (Trouble.ONE_WAY,),
    (Trouble.SLOW_DISK,),
    (Trouble.CLOG,),
    (Trouble.STOP,),
    (OVERTAKEN,),
)
_MAYBE: tuple[Trouble | str, ...] = (
    *(Trouble.WEATHER, Trouble.PARTITION, Trouble.ONE_WAY, Trouble.CLOG, Trouble.KILL, Trouble.POWER, Trouble.PAUSE),
    *(Trouble.SLOW_DISK, Trouble.STOP, SKEW, LONG_CUT, STRIKE, LATE),
)


@dataclass(frozen=True)
class MovesPlan:
    """Everything a run is told before it begins. `tables`: what cluster and clients meet, `loads`: what drivers do.

    `replications`: how many replicas the tables have, one after the other, the first one first. `deaths`: how often
    somebody is killed in the middle of a move, per second. `mishap`: the chance that something happens to a copy on its
    way. `lateness_s`: for how long tasks go on that nobody waits for any more. `heal_after_ms` 0: as production's.
    `home`: the hosts that the machines are on, in their order. `second_thoughts`: the chance that an operator thinks
    again just when a copy is taken over, and that this takes long.
    """

    seed: int
    tables: TablesPlan
    loads: LoadsPlan
    changes: dict[Change, float]
    replications: tuple[int, ...]
    home: tuple[str, ...]
    racks: tuple[str, ...]
    deaths: float
    mishap: float
    lateness_s: float
    heal_after_ms: int
    moving: int
    loading: bool
    second_thoughts: float

    def domain(self, machine: int) -> dict[str, str]:
        found = {"dc": self.tables.dc_of(0)}
        if self.home[machine]:
            found["host"] = self.home[machine]
        if self.racks[machine]:
            found["rack"] = self.racks[machine]
        return found

    def describe(self) -> str:
        changes = ", ".join(f"{change.value} {rate:.2f}" for change, rate in self.changes.items())
        return (
            f"{self.tables.describe().replace(tables_plan.SCENARIO, SCENARIO, 1)}; changes: {changes}; replicas "
            f"{' '.join(map(str, self.replications))}; {self.deaths:g} deaths a second in moves, a mishap in "
            f"{self.mishap:.0%} of copies, tasks up to {self.lateness_s:g} s late, healed after {self.heal_after_ms} "
            f"ms, {self.moving} tablets at a time; {self.loads.job_drivers} drivers of jobs, "
            f"{self.loads.load_drivers if self.loading else 'no'} of loads; hosts {' '.join(self.home)}"
        )


def draw(seed: int) -> MovesPlan:
    """The plan of a seed."""
    rng = random.Random(f"plan/{SCENARIO}/{seed}")
    changes = _changes(rng)
    machines = rng.choice((3, 4, 4, 5))
    late = rng.choice((1, 2, 3)) if Change.JOIN in changes else 0
    home = _home(rng, machines)
    most = min(5, len(set(home[:machines])))
    replications = [rng.choice((2, 3, 3, 3))]
    if replications[0] == machines and not late and Change.REPLICATION not in changes:
        replications[0] = 2  # else nothing could ever move
    if Change.GROW in changes:
        replications[0] = machines - 1
    elif Change.REPLICATION in changes:
        replications += [rng.randrange(1, most + 1 + (late > 0 and rng.random() < 0.3)) for _ in range(6)]
    tables = _tables(rng, seed, machines, late, replications[0])
    loading = rng.random() < 0.25
    loads = LoadsPlan(
        seed=seed,
        tables=tables,
        load_drivers=1,
        job_drivers=rng.choice((1, 2)),
        jobs=0,
        readers=1,
        load_lease_ms=2_000,
        driver_lease_ms=2_000,
        mishap=rng.choice((0.0, 0.04, 0.1)),
        lateness_s=0.0,
        deaths=0.0,
        moves=0.0,
        slow=0.0,
        bulk_files=1,
    )
    plan = MovesPlan(
        seed=seed,
        tables=tables,
        loads=loads,
        changes=changes,
        replications=tuple(replications),
        home=home,
        racks=_racks(rng),
        deaths=rng.choice((0.0, 0.5, 1.5)),
        mishap=rng.choice((0.0, 0.1, 0.3)),
        lateness_s=rng.choice((0.0, 1.0, 4.0)),
        heal_after_ms=rng.choice((1_000, 2_500, 600_000)),
        moving=rng.choice((1, 3, 256)),
        loading=loading,
        second_thoughts=rng.choice((0.0, 0.1, 0.3)),
    )
    topology = replace(tables.topology, domains=tuple(plan.domain(machine) for machine in range(len(home))))
    tables = replace(tables, topology=topology)
    return replace(plan, tables=tables, loads=replace(loads, tables=tables))


def _changes(rng: random.Random) -> dict[Change, float]:
    theme, share = rng.choice(_THEMES), rng.choice((0.0, 0.15, 0.3))
    changes = {}
    for change in Change:
        on, intensity = rng.random() < share, rng.random()
        if change in theme or on:
            changes[change] = round(0.3 + 0.7 * intensity, 3)
    if Change.THINK_AGAIN in changes:
        changes.setdefault(Change.LEAVE, 0.7)
    # Something is always on its way.
    changes.setdefault(Change.MOVE, 0.3)
    return changes


def _home(rng: random.Random, machines: int) -> tuple[str, ...]:
    """Mostly each is a host of its own; sometimes two share one."""
    home = [""] * (MAX_MACHINES + 4)
    if machines > 3 and rng.random() < 0.2:
        one, other = rng.sample(range(machines), 2)
        home[one] = home[other] = "h1"
    return tuple(host or f"own{number}" for number, host in enumerate(home))


def _racks(rng: random.Random) -> tuple[str, ...]:
    number = rng.choice((1, 1, 2, 3))
    return tuple(f"rack{each % number}" if number > 1 else "" for each in range(MAX_MACHINES + 4))


def _tables(rng: random.Random, seed: int, machines: int, late: int, replicas: int) -> TablesPlan:
    """A plan of the tables scenario that leaves room for moves: few clients, no changes of the schema."""
    for _ in range(_MAX_DRAWS):
        drawn = tables_plan.draw(rng.randrange(_OTHER_SEEDS))
        if not drawn.remote and BARRIERS not in drawn.rates and WILD_CLOCKS not in drawn.rates:
            break
    else:
        raise AssertionError("most plans are of this kind")
    theme, share = rng.choice(_TROUBLES), rng.choice((0.0, 0.0, 0.1))
    rates: dict[Trouble | str, float] = {}
    for trouble in dict.fromkeys((*_MAYBE, *theme)):
        on, intensity = rng.random() < share, rng.random()
        if trouble in theme or on:
            rates[trouble] = round(0.2 + 0.6 * intensity, 3)
    chaos_s = rng.choice((6.0, 8.0))
    topology = replace(
        drawn.topology,
        seed=seed,
        peers=tuple(tuple(range(machines)) for _ in range(machines)),
        starts_s=(0.0,) * machines,
        timing=replace(drawn.topology.timing, spared_ms=SPARED_MS),
        late_machines=late,
        rates={trouble: rate for trouble, rate in rates.items() if isinstance(trouble, Trouble)},
        chaos_s=chaos_s,
        converge_s=CONVERGE_S,
    )
    return replace(
        drawn,
        seed=seed,
        topology=replace(topology, domains=({"dc": "dc1"},) * (MAX_MACHINES + 4)),
        replication={"dc1": replicas},
        tablets=rng.choice((1, 2, 2, 4)),
        clients=rng.choice((2, 3)),
        think_s=rng.choice((0.04, 0.08)),
        schema_clients=0,
        rates={trouble: rate for trouble, rate in rates.items() if isinstance(trouble, str)},
        chaos_s=chaos_s,
        converge_s=CONVERGE_S,
    )
