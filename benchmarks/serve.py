"""Rows of 1 KB served beside Redis, PostgreSQL and etcd: gets, synced puts, and get_many of 100 keys.

    ours                       beside
    one instance, RF 1, ONE    Redis (appendfsync always), PostgreSQL: single servers that keep one copy
    three instances, RF 3,     the same single copies, and three members of etcd, which also need a majority
      QUORUM

One client process each, with their usual asyncio clients; 1 and 64 requests in flight; keys picked uniformly, and
zipfian as YCSB has it. All servers are up all the time and put under load in turn, so that a slow minute of the machine
meets all of them; figures are medians over the rounds. Goals are judged by the median of what each round says by
itself, because what is measured within one round was measured within seconds.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.etcd_cluster import EtcdCluster
from benchmarks.load import BenchmarkFailed, Case, Measurement, Target, median_of, run_case
from benchmarks.loop_blocks import LoopBlocks
from benchmarks.peers import ETCD, POSTGRES, REDIS, Peers
from benchmarks.postgres_server import PostgresServer
from benchmarks.redis_server import RedisServer
from benchmarks.report import Options, Report, Row, describe_machine, sync_latency_ms
from benchmarks.trimtab_cluster import TrimtabCluster

KEYS = 10_000
VALUE_BYTES = 1024
ONLINE_TIMEOUT_S = 30
_BLOCKS = re.compile(r'^trimtab_loop_blocked_seconds_bucket\{.*le="([^"]+)".*\} (\S+)$')
_LONGEST_MS = 60_000.0  # stands for what is longer than the watchdog tells apart


class RowsCluster(TrimtabCluster):
    """A Target: instances with a table replicated over all of them, read and written at one level."""

    client = "rows_client"
    client_processes = 1

    def __init__(self, folder: Path, members: int, level: str) -> None:
        super().__init__(folder, members)
        self.name = f"trimtab-rf{members}"
        self._level = level

    def start(self) -> None:
        super().start()
        asyncio.run(self._create())

    async def _create(self) -> None:
        import trimtab
        from benchmarks import rows_client

        deadline = time.monotonic() + ONLINE_TIMEOUT_S
        while True:
            try:
                await rows_client.create(self._addresses, self._count)
                return
            except trimtab.Error as error:
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"the table could not be made: {error}") from error
            await asyncio.sleep(0.2)

    def endpoints(self) -> list[str]:
        return [*self._addresses, self._level]

    def loop_blocks(self) -> Counter[float]:
        """How often so far an instance's loop stood still for at most so many ms, and longer than for those before it.

        So says its own watchdog. What it waited for a processor, on a machine that has too few for all of this, is not
        in it.
        """
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        found: Counter[float] = Counter()
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            with opener.open(f"http://{host}:{int(port) + 2}/metrics", timeout=5) as answer:
                before = 0
                for line in answer.read().decode().splitlines():
                    if bucket := _BLOCKS.match(line):
                        up_to = int(float(bucket[2]))
                        found[min(float(bucket[1]) * 1000, _LONGEST_MS)] += up_to - before
                        before = up_to
        return found


def case(kind: str, in_flight: int, distribution: str = "uniform") -> Case:
    what = {"put": "put 1 KB, synced", "get": "get 1 KB", "get_many": "get_many of 100 × 1 KB"}[kind]
    return Case(
        kind,
        in_flight,
        VALUE_BYTES,
        distribution,
        KEYS,
        shared=True,
        name=f"{what}, {distribution}, {in_flight} in flight",
    )


# What is asked of each, and the least that ours ÷ theirs should be at 64 in flight.
SINGLE = (
    *(case(kind, count, keys) for kind in ("get", "put") for keys in ("uniform", "zipfian") for count in (1, 64)),
    case("get_many", 1),
    case("get_many", 64),
)
QUORUM = (case("put", 1), case("put", 64), case("get", 64))
GOALS = {
    ("trimtab-rf1", "get", "redis"): 0.7,
    ("trimtab-rf1", "get", "postgresql"): 1.5,
    ("trimtab-rf1", "put", "redis"): 1.0,
    ("trimtab-rf1", "put", "postgresql"): 1.0,
    ("trimtab-rf1", "get_many", "redis"): 0.3,
    ("trimtab-rf1", "get_many", "postgresql"): 1.0,
    ("trimtab-rf3", "put", "redis"): 0.5,
    ("trimtab-rf3", "put", "etcd"): 1.0,
}
P99_OVER_P50 = 5.0


def run(options: Options, say: Callable[[str], None]) -> Report:
    peers = Peers(options.root)
    report = Report("serve", describe_machine(options.folder))
    single, three = RowsCluster(options.folder, 1, "ONE"), RowsCluster(options.folder, 3, "QUORUM")
    targets: dict[str, Target] = {}
    versions: dict[str, str] = {}
    for server in (REDIS, POSTGRES, ETCD):
        if reason := peers.why_missing(server):
            report.missing[server.name] = reason
        else:
            versions[server.name] = f"{server.name} {peers.version(server)}"
    if REDIS.name in versions:
        targets["redis"] = RedisServer(peers, options.folder)
    if POSTGRES.name in versions:
        targets["postgresql"] = PostgresServer(peers, options.folder)
    # One after the other, and not all at once: idle members of the other cluster would take from the machine.
    blocks = LoopBlocks(options.folder)
    for ours, cases, beside in (
        (single, SINGLE, ("redis", "postgresql")),
        (three, QUORUM, ("redis", "etcd")),
    ):
        chosen = {name: targets[name] for name in beside if name in targets}
        if "etcd" in beside and ETCD.name in versions:
            binary = peers.binary(ETCD)
            assert binary is not None
            chosen["etcd"] = EtcdCluster(binary, peers.python, options.folder)
            chosen["etcd"].client_processes = 1
        _compare(report, ours, cases, chosen, versions, options, blocks, say)
    blocks.tell(report)
    after_p50_ms, after_p99_ms = sync_latency_ms(options.folder)
    report.machine |= {"sync_p50_after_ms": round(after_p50_ms, 3), "sync_p99_after_ms": round(after_p99_ms, 3)}
    report.notes.append("ratio is ours ÷ peer; one client process each, which shares the cores with the servers")
    return report


def _compare(
    report: Report,
    ours: RowsCluster,
    cases: tuple[Case, ...],
    beside: dict[str, Target],
    versions: dict[str, str],
    options: Options,
    blocks: LoopBlocks,
    say: Callable[[str], None],
) -> None:
    """Rows of the report for one of our clusters."""
    targets: dict[str, Target] = {ours.name: ours, **beside}
    started: list[Target] = []
    try:
        for target in targets.values():
            say(f"starting {target.name}")
            started.append(target)
            target.start()
            _run(target, case("put", 64), options, 0, fill=True)
        blocks.begin(ours)
        for each in cases:
            runs = _measure(each, targets, options, blocks, say)
            mine = median_of(runs[ours.name])
            for name in beside:
                theirs, peer = median_of(runs[name]), versions[name]
                title = f"{ours.name}: {each.title}"
                report.rows.append(Row(title, "operations/s", mine.operations_per_s, peer, theirs.operations_per_s))
                report.rows.append(Row(title, "p50 ms", mine.p50_ms, peer, theirs.p50_ms, "lower"))
                report.rows.append(Row(title, "p99 ms", mine.p99_ms, peer, theirs.p99_ms, "lower"))
                _judge(report, ours.name, each, name, runs[ours.name], runs[name])
            if each.clients == 64:
                spread = statistics.median(run.p99_ms / run.p50_ms for run in runs[ours.name])
                report.rows.append(
                    Row(f"{ours.name}: {each.title}", "p99 ÷ p50", spread, "goal", P99_OVER_P50, "lower")
                )
    finally:
        blocks.end()
        for target in started:
            target.stop()


def _judge(
    report: Report, ours: str, each: Case, peer: str, mine: list[Measurement], theirs: list[Measurement]
) -> None:
    goal = GOALS.get((ours, each.kind, peer))
    if goal is None or each.clients != 64:
        return
    rounds = zip(mine, theirs, strict=True)
    ratio = statistics.median(one.operations_per_s / other.operations_per_s for one, other in rounds)
    verdict = "met" if ratio >= goal else "MISSED"
    report.notes.append(f"goal {verdict}: {ours}, {each.title}: {ratio:.2f}× of {peer}, wanted {goal}×")


def _run(target: Target, each: Case, options: Options, seed: int, *, fill: bool = False) -> Measurement:
    return run_case(
        target,
        each,
        seconds=0.2 if fill else options.seconds,
        root=options.root,
        folder=options.folder,
        seed=seed,
        fill=fill,
    )


def _measure(
    each: Case, targets: dict[str, Target], options: Options, blocks: LoopBlocks, say: Callable[[str], None]
) -> dict[str, list[Measurement]]:
    """Every round, by target."""
    runs: dict[str, list[Measurement]] = {name: [] for name in targets}
    for number in range(options.rounds):
        for name, target in targets.items():
            one = _run(target, each, options, number)
            blocks.look()
            runs[name].append(one)
            rates = [run.operations_per_s for run in runs[name]]
            say(
                f"{each.title}: {name} {one.operations_per_s:,.0f}/s (round {number + 1} of {options.rounds}, "
                f"median {statistics.median(rates):,.0f}, p50 {one.p50_ms:.2f} ms, p99 {one.p99_ms:.2f} ms)"
            )
    return runs
