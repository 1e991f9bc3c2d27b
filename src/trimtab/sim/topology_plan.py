"""What a seed of the topology scenario means: machines, who lists whom as a peer, when they start, what they meet.

Any two machines share a listed peer, which is what discovery asks of operators; otherwise lists are as partial as can
be. Times are shorter than in production by the same proportions (`check_timing` holds), so that an instance is found
silent, marked and back again several times in one run. Clocks run apart by no more than leases allow for.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from trimtab.node.settings import Limits, Timing
from trimtab.topology.leases import check_timing

SCENARIO = "topology"
MAX_MACHINES = 9
# After healing, everybody who is not out for good is Online, and all agree, within this virtual time.
CONVERGE_S = 60.0


class Trouble(enum.Enum):
    """Kinds of trouble; the value is the operator's word for it."""

    WEATHER = "bad weather"
    PARTITION = "partition"
    ONE_WAY = "one-way cut"
    CLOG = "clog"
    KILL = "kill"
    POWER = "power failure"
    BLACKOUT = "blackout"
    PAUSE = "pause"
    DRIFT = "clock drift"
    SLOW_DISK = "slow disk"
    STOP = "graceful stop"
    JOIN = "late join"
    EXPEL = "expel"
    REQUEST = "operator's request"
    CANCEL = "cancel"
    REPLACE = "replace"
    FAILPOINT = "death in the middle of a step"
    STRAND = "request that comes late"


# Troubles that are worst together. A seed takes one of these, and others by chance.
THEMES: tuple[tuple[Trouble, ...], ...] = (
    (),
    (Trouble.BLACKOUT,),
    (Trouble.BLACKOUT, Trouble.KILL),
    (Trouble.JOIN, Trouble.EXPEL, Trouble.KILL),
    (Trouble.JOIN, Trouble.EXPEL, Trouble.FAILPOINT),
    (Trouble.PARTITION, Trouble.REQUEST, Trouble.JOIN),
    (Trouble.ONE_WAY, Trouble.PAUSE, Trouble.REQUEST),
    (Trouble.CLOG, Trouble.PAUSE, Trouble.REQUEST),
    (Trouble.CLOG, Trouble.PAUSE, Trouble.JOIN),
    (Trouble.REPLACE, Trouble.POWER, Trouble.CANCEL),
    (Trouble.STOP, Trouble.EXPEL, Trouble.SLOW_DISK),
    (Trouble.PARTITION, Trouble.EXPEL, Trouble.STOP),
    (Trouble.STRAND,),
    (Trouble.STRAND, Trouble.JOIN, Trouble.REQUEST),
)


@dataclass(frozen=True)
class TopologyPlan:
    """Everything a run is told before it begins. `peers[i]` are the machines that machine i lists."""

    seed: int
    peers: tuple[tuple[int, ...], ...]
    starts_s: tuple[float, ...]
    domains: tuple[dict[str, str], ...]
    late_machines: int
    rates: dict[Trouble, float]
    chaos_s: float
    hold_s: float
    timing: Timing
    limits: Limits
    converge_s: float = CONVERGE_S

    def describe(self) -> str:
        troubles = ", ".join(f"{trouble.value} {rate:.2f}" for trouble, rate in self.rates.items()) or "no trouble"
        timing = self.timing
        return (
            f"seed {self.seed}, scenario {SCENARIO}: {len(self.peers)} machines and {self.late_machines} later, "
            f"{self.chaos_s:.0f} s of {troubles}; tick {timing.tick_ms} ms, lease {timing.lease_ms} ms, Offline after "
            f"{timing.offline_after_ms} ms; peers {' '.join(''.join(map(str, peers)) for peers in self.peers)}"
        )


def draw(seed: int) -> TopologyPlan:
    """The plan of a seed."""
    rng = random.Random(f"plan/{SCENARIO}/{seed}")
    machines = rng.choice((1, 2, 3, 3, 3, 4, 5, 5, 6))
    late = rng.randrange(0, MAX_MACHINES - machines + 1) if rng.random() < 0.8 else 0
    theme = rng.choice(THEMES)
    share = rng.choice((0.0, 0.1, 0.3))
    rates: dict[Trouble, float] = {}
    for trouble in Trouble:
        on = rng.random() < share
        intensity = rng.random()
        if trouble in theme or on:
            rates[trouble] = round(0.2 + 0.8 * intensity, 3)
    if late and Trouble.JOIN not in rates:
        rates[Trouble.JOIN] = round(0.2 + 0.8 * rng.random(), 3)
    # Machines that come one after the other meet more of what happens before there is a cluster.
    spread_s = rng.choice((0.5, 3.0) if Trouble.BLACKOUT in rates else (0.0, 0.02, 0.5, 3.0))
    domains = rng.choice(((), ("rack",), ("rack", "zone")))
    return TopologyPlan(
        seed=seed,
        peers=_peers(rng, machines),
        starts_s=tuple(round(rng.random() * spread_s, 4) for _ in range(machines)),
        domains=tuple(
            {key: f"{key[0]}{rng.randrange(3)}" for key in domains} for _ in range(machines + 2 * MAX_MACHINES)
        ),
        late_machines=late,
        rates=rates,
        chaos_s=rng.choice((8.0, 12.0, 16.0)),
        hold_s=rng.choice((0.0, 0.02, 0.5)),
        timing=_timing(rng, patient=Trouble.STRAND in rates),
        limits=_limits(rng),
    )


def _peers(rng: random.Random, machines: int) -> tuple[tuple[int, ...], ...]:
    """Lists of which any two share a machine: a common one, a majority each, or everybody."""
    everybody = list(range(machines))
    how = rng.choice(("common", "majority", "majority", "everybody"))
    if how == "everybody":
        return tuple(tuple(everybody) for _ in everybody)
    common = rng.choice(everybody)
    lists = []
    for _ in everybody:
        if how == "common":
            others = [other for other in everybody if other != common and rng.random() < 0.3]
            listed = [common, *others]
        else:
            listed = rng.sample(everybody, machines // 2 + 1)
        rng.shuffle(listed)
        lists.append(tuple(listed))
    return tuple(lists)


def _timing(rng: random.Random, *, patient: bool) -> Timing:
    """`patient`: connections outlive the silence of an instance that is marked Offline meanwhile."""
    tick_ms = rng.choice((80, 100, 150))
    election_ticks = rng.choice((3, 4))
    election_max_ms = 2 * election_ticks * tick_ms
    lease_ms = election_max_ms + rng.choice((50, 300))
    offline_after_ms = int((lease_ms + election_max_ms) * 1.021) + rng.choice((1, 50, 500))
    wrong = check_timing(lease_ms, offline_after_ms, election_max_ms)
    assert wrong is None, wrong
    dead_peer_ms = 3 * offline_after_ms if patient else rng.choice((1_500, 4_000, 2 * offline_after_ms))
    return Timing(
        tick_ms=tick_ms,
        heartbeat_ticks=1,
        election_ticks=election_ticks,
        takeover_ms=rng.choice((10, 60)),
        takeover_step_ms=rng.choice((100, 250)),
        housekeeping_ms=rng.choice((500, 1_000)),
        keepalive_ms=dead_peer_ms // 4,
        dead_peer_ms=dead_peer_ms,
        lease_ms=lease_ms,
        lease_heartbeat_ms=lease_ms // rng.choice((4, 6)),
        offline_after_ms=offline_after_ms,
        stall_after_ms=rng.choice((5_000, 30_000)),
        farewell_ms=rng.choice((300, 3_000)),
    )


def _limits(rng: random.Random) -> Limits:
    small_logs = rng.random() < 0.5
    return Limits(
        frame_bytes=256 << 10,
        inflight_messages=rng.choice((4, 64)),
        log_keep_entries=rng.choice((0, 5)) if small_logs else 200,
        log_compact_entries=rng.choice((10, 40)) if small_logs else 1_000,
        snapshot_chunk_bytes=rng.choice((2 << 10, 64 << 10)),
        snapshot_idle_ms=2_000,
        snapshot_keep_ms=rng.choice((1_000, 5_000)),
        promote_lag_entries=rng.choice((5, 50)),
        disk_reserve_bytes=0,
    )
