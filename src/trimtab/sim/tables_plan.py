"""What a seed of the tables scenario means: a cluster, its tables, what its clients do and what befalls all of them.

Two kinds of lives. In a *forgetful* one hints live for seconds, repair goes round all the time and deletions are really
forgotten; its clients let coordinators stamp what they put, for with stamps of its own a client may write what was
deleted long ago, and that is right. In the others nothing is ever forgotten; there clients give stamps of their own,
equal ones too, and clocks may be as wrong as they like.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from trimtab.node.replicas.flushing import FlushBounds
from trimtab.node.replicas.folding import FoldPace
from trimtab.node.settings import Limits, Timing
from trimtab.sim.topology_plan import TopologyPlan, Trouble
from trimtab.topology.leases import check_timing

SCENARIO = "tables"
CONVERGE_S = 60.0
# Troubles that tables bring with them, beside those of the topology.
SKEW, WILD_CLOCKS, LONG_CUT, STRIKE, LATE, BARRIERS, OVERTAKEN = (
    "skewed clocks",
    "wild clocks",
    "long cut between two",
    "coordinators that die in the middle of a write",
    "writes that come late",
    "barriers",
    "power failure of several just after a write",
)

_THEMES: tuple[tuple[Trouble | str, ...], ...] = (
    (),
    (Trouble.KILL,),
    (Trouble.POWER, OVERTAKEN),
    (Trouble.BLACKOUT, OVERTAKEN),
    (STRIKE, Trouble.SLOW_DISK),
    (STRIKE, LONG_CUT),
    (Trouble.PARTITION, Trouble.KILL),
    (Trouble.ONE_WAY, Trouble.PAUSE),
    (LONG_CUT,),
    (LONG_CUT, Trouble.KILL),
    (LONG_CUT, Trouble.CLOG),
    (LATE, BARRIERS),
    (LATE, BARRIERS, Trouble.SLOW_DISK),
    (LATE,),
    (LATE, Trouble.PARTITION),
    (Trouble.WEATHER, Trouble.POWER),
    (Trouble.STOP, Trouble.KILL, Trouble.FAILPOINT),
    (Trouble.PAUSE, Trouble.CLOG, BARRIERS),
)

_REMOTE: tuple[tuple[dict[str, int], tuple[str, ...]], ...] = (
    ({"dc1": 1}, ("dc1",) * 3),
    ({"dc1": 3}, ("dc1",) * 4),
)
_CLUSTERS: tuple[tuple[dict[str, int], tuple[str, ...]], ...] = (
    *(({"dc1": 3}, ("dc1",) * 3),) * 3,
    *_REMOTE,
    ({"dc1": 2}, ("dc1",) * 3),
    ({"dc1": 2, "dc2": 1}, ("dc1", "dc1", "dc2")),
    ({"dc1": 2, "dc2": 2}, ("dc1", "dc1", "dc2", "dc2")),
)


@dataclass(frozen=True)
class TablesPlan:
    """Everything a run is told before it begins. `topology` is what the cluster itself meets."""

    seed: int
    topology: TopologyPlan
    replication: dict[str, int]
    tablets: int
    forgetful: bool
    remote: bool  # coordinators are mostly no replicas themselves
    gc_grace_s: int
    history_s: int
    pace: FoldPace
    flush: FlushBounds
    clients: int
    think_s: float
    partitions: int
    rows: int
    schema_clients: int
    rates: dict[str, float]
    chaos_s: float
    converge_s: float = CONVERGE_S

    @property
    def machines(self) -> int:
        return len(self.topology.peers)

    def dc_of(self, machine: int) -> str:
        return self.topology.domains[machine].get("dc", "dc1")

    def describe(self) -> str:
        troubles = [f"{trouble.value} {rate:.2f}" for trouble, rate in self.topology.rates.items()]
        troubles += [f"{trouble} {rate:.2f}" for trouble, rate in self.rates.items()]
        timing = self.topology.timing
        kind = (
            f"hints live {timing.hint_life_ms} ms, deletions {self.gc_grace_s} s, repair goes round every "
            f"{timing.repair_every_ms} ms"
            if self.forgetful
            else "nothing is forgotten"
        )
        replication = ", ".join(f"{dc}: {count}" for dc, count in self.replication.items())
        return (
            f"seed {self.seed}, scenario {SCENARIO}: {self.machines} machines, replicas {replication}, {self.tablets} "
            f"tablets a table, {self.clients} clients and {self.schema_clients} who change the schema on "
            f"{self.partitions}×{self.rows} rows, {self.chaos_s:.0f} s of {', '.join(troubles) or 'no trouble'}; {kind}"
            f"; at most {self.topology.limits.hint_count} hints, skew up to {timing.max_skew_ms} ms, lease "
            f"{timing.lease_ms} ms"
        )


def draw(seed: int) -> TablesPlan:
    """The plan of a seed."""
    rng = random.Random(f"plan/{SCENARIO}/{seed}")
    theme = rng.choice(_THEMES)
    # What comes so late that its sender counts as down by then would be refused for its age where hints live shortly.
    forgetful = rng.random() < 0.55 and BARRIERS not in theme
    # Where a coordinator is no replica itself, what it holds comes latest of all.
    remote = forgetful and (LATE in theme or LONG_CUT in theme) and rng.random() < 0.7
    replication, dcs = _REMOTE[LATE not in theme] if remote else rng.choice(_CLUSTERS)
    machines = len(dcs)
    share = rng.choice((0.0, 0.1, 0.25)) if not remote else 0.0
    allowed: tuple[Trouble | str, ...] = (*_OF_THE_TOPOLOGY, SKEW, LONG_CUT, STRIKE, LATE, BARRIERS, OVERTAKEN)
    rates: dict[Trouble | str, float] = {}
    for trouble in allowed:
        on, intensity = rng.random() < share, rng.random()
        if trouble in theme or on:
            rates[trouble] = round(0.2 + 0.8 * intensity, 3)
    if not forgetful and rng.random() < 0.15:
        rates[WILD_CLOCKS] = round(0.2 + 0.8 * rng.random(), 3)
    timing = _timing(rng, forgetful, patient=BARRIERS in rates)
    if remote:
        # Long enough for what is older than a forgotten deletion to come as a hint, or too short for what comes late.
        hint_life_ms = 800 if LATE in theme else 3_000
        timing = replace(timing, hint_life_ms=hint_life_ms, repair_every_ms=800, max_skew_ms=50, dead_peer_ms=6_000)
    chaos_s = rng.choice((6.0, 8.0, 10.0))
    topology = TopologyPlan(
        seed=seed,
        peers=tuple(tuple(range(machines)) for _ in range(machines)),
        starts_s=(0.0,) * machines,
        domains=tuple({"dc": dc} for dc in dcs),
        late_machines=0,
        rates={trouble: rate for trouble, rate in rates.items() if isinstance(trouble, Trouble)},
        chaos_s=chaos_s,
        hold_s=0.0,
        timing=timing,
        limits=_limits(rng) if not remote else Limits(disk_reserve_bytes=0),
    )
    return TablesPlan(
        seed=seed,
        topology=topology,
        replication=replication,
        tablets=rng.choice((1, 2, 4)) if not remote else 1,
        forgetful=forgetful,
        remote=remote,
        gc_grace_s=(0 if remote else rng.choice((0, 1))) if forgetful else 864_000,
        history_s=(0 if remote else rng.choice((0, 1))) if forgetful else rng.choice((0, 2, 600)),
        pace=FoldPace(every_s=rng.choice((0.2, 1.0)), anyway_s=rng.choice((0.5, 3.0)), rest_s=0.01),
        flush=FlushBounds(
            replica_bytes=rng.choice((2_000, 8 << 20)),
            age_s=rng.choice((0.5, 2.0, 60.0)),
            cut_every_s=rng.choice((0.5, 2.0)),
        ),
        clients=rng.choice((2, 3, 4)) if not remote else 4,
        think_s=rng.choice((0.03, 0.06)) if not remote else 0.03,
        # On rows that are written all the time nobody would see what comes back.
        partitions=rng.choice((1, 2, 3)) if not remote else 2,
        rows=rng.choice((1, 3, 5)) if not remote else 25,
        schema_clients=rng.choice((0, 1, 2)) if not remote else 0,
        rates={trouble: rate for trouble, rate in rates.items() if isinstance(trouble, str)},
        chaos_s=chaos_s,
    )


_OF_THE_TOPOLOGY = (
    Trouble.WEATHER,
    Trouble.PARTITION,
    Trouble.ONE_WAY,
    Trouble.CLOG,
    Trouble.KILL,
    Trouble.POWER,
    Trouble.BLACKOUT,
    Trouble.PAUSE,
    Trouble.SLOW_DISK,
    Trouble.STOP,
    Trouble.FAILPOINT,
)


def _timing(rng: random.Random, forgetful: bool, *, patient: bool) -> Timing:
    """`patient`: connections outlive the silence of an instance that is marked Offline meanwhile."""
    tick_ms, election_ticks = 100, 3
    election_max_ms = 2 * election_ticks * tick_ms
    lease_ms = election_max_ms + rng.choice((50, 300))
    offline_after_ms = int((lease_ms + election_max_ms) * 1.021) + rng.choice((1, 500))
    wrong = check_timing(lease_ms, offline_after_ms, election_max_ms)
    assert wrong is None, wrong
    dead_peer_ms = 3 * offline_after_ms if patient else rng.choice((1_500, 6_000))
    return Timing(
        tick_ms=tick_ms,
        heartbeat_ticks=1,
        election_ticks=election_ticks,
        takeover_ms=10,
        takeover_step_ms=100,
        housekeeping_ms=1_000,
        keepalive_ms=dead_peer_ms // 4,
        dead_peer_ms=dead_peer_ms,
        lease_ms=lease_ms,
        lease_heartbeat_ms=lease_ms // 4,
        offline_after_ms=offline_after_ms,
        stall_after_ms=30_000,
        farewell_ms=500,
        max_skew_ms=rng.choice((50, 200)) if forgetful else rng.choice((50, 500)),
        hint_life_ms=rng.choice((800, 1_500, 3_000)) if forgetful else 3 * 3_600_000,
        catchup_grace_ms=rng.choice((200, 1_000)),
        repair_every_ms=rng.choice((800, 2_000)),
        batch_replay_ms=rng.choice((500, 2_000)),
    )


def _limits(rng: random.Random) -> Limits:
    small_logs = rng.random() < 0.3
    return Limits(
        frame_bytes=256 << 10,
        log_keep_entries=5 if small_logs else 200,
        log_compact_entries=40 if small_logs else 1_000,
        snapshot_chunk_bytes=64 << 10,
        snapshot_idle_ms=2_000,
        snapshot_keep_ms=5_000,
        promote_lag_entries=50,
        disk_reserve_bytes=0,
        hint_count=rng.choice((3, 20, 200_000)),
        hint_bytes=rng.choice((2_000, 64 << 20)),
    )
