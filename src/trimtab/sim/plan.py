"""What a seed means: the shape of a cluster and the troubles it will meet, drawn once at the beginning.

Swarm testing: a run that has every fault at once mostly tests the retry loops. So each seed switches on a few faults
that belong together (a theme) and a random few of the others, with random rates, and draws small, odd limits (logs that
are cut after a few entries, one entry an append), because rare schedules hide behind comfortable ones. A scenario only
narrows the draw.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field

from trimtab.node.settings import Limits, Timing


class Fault(enum.Enum):
    """Kinds of trouble; the value is the operator's word for it."""

    LOSS = "loss"
    DUPLICATION = "duplication"
    REORDERING = "reordering"
    DELAY = "delay"
    PARTITION = "partition"
    ONE_WAY = "one-way partition"
    CLOG = "clog"
    RESET = "connection reset"
    KILL = "kill"
    POWER = "power failure"
    PAUSE = "pause"
    SKEW = "clock skew"
    SLOW_DISK = "slow sync"
    FULL_DISK = "full disk"
    FAILED_SYNC = "failed sync"
    MEMBERSHIP = "membership change"
    TRANSFER = "leadership transfer"
    STRIKE = "strike at a new leader"
    TRAP = "strike after a promise"


ALL_FAULTS = tuple(Fault)

# Faults that are worst together. A seed of the open scenario takes one of these, and others by chance.
THEMES: tuple[tuple[Fault, ...], ...] = (
    (),
    (Fault.PARTITION,),
    (Fault.PARTITION, Fault.SKEW),
    (Fault.STRIKE,),
    (Fault.STRIKE, Fault.DUPLICATION, Fault.REORDERING),
    (Fault.MEMBERSHIP, Fault.SLOW_DISK, Fault.KILL),
    (Fault.MEMBERSHIP, Fault.PARTITION),
    (Fault.KILL, Fault.POWER, Fault.TRAP),
    (Fault.KILL, Fault.SLOW_DISK),
)


@dataclass(frozen=True)
class Scenario:
    """A named narrowing: faults that are always on, faults that may be, and what clients do."""

    name: str
    about: str
    always: tuple[Fault, ...] = ()
    maybe: tuple[Fault, ...] = ALL_FAULTS
    small_logs: bool = False
    reads: float | None = None
    members: tuple[int, ...] = (3, 3, 3, 3, 5, 5, 4, 2, 1)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("chaos", "any subset of all faults"),
        Scenario("calm", "no faults at all: a baseline", maybe=()),
        Scenario("membership", "members come and go all the time", always=(Fault.MEMBERSHIP,), members=(3, 3, 4, 5)),
        Scenario(
            "snapshots",
            "tiny logs, members that fall behind",
            always=(Fault.KILL, Fault.PARTITION),
            small_logs=True,
            members=(3, 5),
        ),
        Scenario(
            "reads",
            "many reads while leaders are cut off",
            always=(Fault.PARTITION, Fault.STRIKE),
            reads=0.75,
            members=(3, 5),
        ),
        Scenario(
            "crashes",
            "power fails again and again",
            always=(Fault.KILL, Fault.POWER, Fault.TRAP),
            maybe=(Fault.SLOW_DISK, Fault.LOSS, Fault.DELAY, Fault.STRIKE),
            members=(1, 2, 3, 3, 5),
        ),
        Scenario(
            "disks",
            "slow syncs and full disks",
            always=(Fault.SLOW_DISK, Fault.FULL_DISK),
            members=(1, 3, 3, 5),
        ),
        Scenario("topology", "whole governed clusters: instances discover, join, leave, return and are expelled"),
        Scenario(
            "tables", "whole clusters with tables: rows, deletions, times to live, batches, schema changes, crashes"
        ),
        Scenario(
            "loads",
            "tables that are loaded, overwritten and set back; a queue of jobs; drivers of both that die or come late",
        ),
        Scenario(
            "moves",
            "tablets that move all the time: instances join, leave, are replaced; replicas become more and fewer",
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """Everything a run is told before it begins."""

    seed: int
    scenario: str
    members: int
    clients: int
    keys: int
    think_s: float
    read_share: float
    chaos_s: float
    rates: dict[Fault, float]
    timing: Timing
    limits: Limits
    latency_s: tuple[float, float] = (0.000_2, 0.002)
    converge_s: float = 30.0
    operation_s: float = 2.0
    extra: dict[str, float] = field(default_factory=dict)

    def describe(self) -> str:
        faults = ", ".join(f"{fault.value} {rate:.2f}" for fault, rate in self.rates.items()) or "no faults"
        return (
            f"seed {self.seed}, scenario {self.scenario}: {self.members} members, {self.clients} clients on "
            f"{self.keys} keys, {self.chaos_s:.0f} s of {faults}; tick {self.timing.tick_ms} ms, election after "
            f"{self.timing.election_ticks} ticks, log cut after {self.limits.log_compact_entries} entries"
        )


def draw(seed: int, scenario: str = "chaos") -> Plan:
    """The plan of a seed."""
    if scenario not in SCENARIOS:
        raise ValueError(f"there is no scenario {scenario!r}; there are: {', '.join(SCENARIOS)}")
    chosen = SCENARIOS[scenario]
    rng = random.Random(f"plan/{scenario}/{seed}")
    rates: dict[Fault, float] = {}
    share = rng.choice((0.05, 0.15, 0.35))
    theme = chosen.always if chosen.always or not chosen.maybe else rng.choice(THEMES)
    for fault in ALL_FAULTS:
        on = rng.random() < share
        intensity = rng.random()
        if fault in theme or (on and fault in chosen.maybe):
            rates[fault] = round(0.15 + 0.85 * intensity, 3)
    small_logs = chosen.small_logs or rng.random() < 0.5
    members = rng.choice(chosen.members)
    return Plan(
        seed=seed,
        scenario=scenario,
        members=members,
        clients=rng.choice((3, 3, 4)),
        keys=rng.choice((1, 2, 3)),
        think_s=rng.choice((0.01, 0.02, 0.05)),
        read_share=chosen.reads if chosen.reads is not None else rng.choice((0.1, 0.3, 0.5)),
        chaos_s=rng.choice((8.0, 12.0, 16.0)),
        rates=rates,
        timing=_timing(rng),
        limits=_limits(rng, small_logs),
        # Impatient clients soon ask another member: only that way two leaders are ever asked at the same time.
        operation_s=rng.choice((0.15, 0.4, 1.5)),
    )


def _timing(rng: random.Random) -> Timing:
    tick_ms = rng.choice((20, 30, 50))
    return Timing(
        tick_ms=tick_ms,
        heartbeat_ticks=rng.choice((1, 1, 2)),
        election_ticks=rng.choice((4, 5, 8)),
        takeover_ms=rng.choice((10, 60)),
        takeover_step_ms=rng.choice((30, 250)),
        read_retry_ms=rng.choice((100, 500)),
        housekeeping_ms=rng.choice((100, 300, 1_000)),
        disk_retry_ms=100,
        keepalive_ms=1_000,
        dead_peer_ms=3_000,
    )


def _limits(rng: random.Random, small_logs: bool) -> Limits:
    return Limits(
        frame_bytes=64 << 10,
        append_bytes=rng.choice((0, 0, 0, 300, 32 << 10)),
        inflight_messages=rng.choice((1, 2, 4, 64)),
        inflight_bytes=64 << 10,
        uncommitted_bytes=rng.choice((2 << 10, 1 << 20)),
        apply_bytes=rng.choice((200, 4 << 10)),
        waiting_proposals=1_000,
        waiting_reads=1_000,
        log_keep_entries=rng.choice((0, 2, 5)) if small_logs else 200,
        log_compact_entries=rng.choice((5, 10, 20)) if small_logs else 1_000,
        log_compact_bytes=1 << 20,
        snapshot_chunk_bytes=rng.choice((256, 2 << 10, 32 << 10)),
        snapshot_idle_ms=2_000,
        snapshot_keep_ms=rng.choice((1_000, 5_000)),
        promote_lag_entries=rng.choice((5, 50)),
        disk_reserve_bytes=0,
    )
