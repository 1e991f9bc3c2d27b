"""The metastore beside etcd: 256-byte synced puts and linearizable gets, with one client and with 64.

Both clusters have three processes on loopback and keep their data on the same file system. They are up all the time
and put under load in turn (ours, etcd, ours, etcd, ...), so that a slow minute of the machine meets both; figures are
medians over the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import processes
from benchmarks.etcd_cluster import EtcdCluster
from benchmarks.load import Case, Measurement, Target, median_of, run_case
from benchmarks.peers import ETCD, Peers
from benchmarks.report import Options, Report, Row, describe_machine, sync_latency_ms
from benchmarks.trimtab_cluster import TrimtabCluster

CASES = (Case("put", 1), Case("put", 64), Case("get", 1), Case("get", 64))
SETTLE_S = 2.0  # before idle memory is taken

# Metric, its field of a measurement, and which way is better.
METRICS = (
    ("operations/s", "operations_per_s", "higher"),
    ("p50 ms", "p50_ms", "lower"),
    ("p99 ms", "p99_ms", "lower"),
    ("server cores", "server_cores", "lower"),
    ("client cores", "client_cores", "lower"),
    ("server µs/operation", "server_cpu_us_per_operation", "lower"),
)


def run(options: Options, say: Callable[[str], None]) -> Report:
    peers = Peers(options.root)
    report = Report("metastore", describe_machine(options.folder))
    peer = "etcd"
    targets: list[Target] = [TrimtabCluster(options.folder)]
    if reason := peers.why_missing(ETCD):
        report.missing["etcd"] = reason
    else:
        binary = peers.binary(ETCD)
        assert binary is not None
        targets.append(EtcdCluster(binary, peers.python, options.folder))
        peer = f"etcd {peers.version(ETCD)}"
    started: list[Target] = []
    try:
        for target in targets:
            say(f"starting {target.name}")
            started.append(target)
            target.start()
        time.sleep(SETTLE_S)
        idle = {target.name: max(map(processes.pss_bytes, target.pids())) / 1e6 for target in targets}
        report.rows.append(Row("idle member", "PSS MB", idle["trimtab"], peer, idle.get("etcd"), "lower"))
        for case in CASES:
            measured = measure(case, targets, options, say)
            for metric, name, better in METRICS:
                ours, theirs = (
                    getattr(measured[each], name) if each in measured else None for each in ("trimtab", "etcd")
                )
                report.rows.append(Row(case.title, metric, ours, peer, theirs, better))
    finally:
        for target in started:
            target.stop()
    after_p50_ms, after_p99_ms = sync_latency_ms(options.folder)
    report.machine |= {"sync_p50_after_ms": round(after_p50_ms, 3), "sync_p99_after_ms": round(after_p99_ms, 3)}
    report.notes.append("ratio is ours ÷ peer; cores are CPU seconds a second of all members or all clients")
    report.notes.append(
        "members and clients share the machine's cores: where their sum comes near those, the client is measured too"
    )
    return report


def measure(case: Case, targets: list[Target], options: Options, say: Callable[[str], None]) -> dict[str, Measurement]:
    """A case on every target in turn, as often as there are rounds."""
    runs: dict[str, list[Measurement]] = {target.name: [] for target in targets}
    for number in range(options.rounds):
        for target in targets:
            one = run_case(target, case, seconds=options.seconds, root=options.root, folder=options.folder, seed=number)
            runs[target.name].append(one)
            say(f"{case.title}: {target.name} {one.operations_per_s:,.0f}/s (round {number + 1} of {options.rounds})")
    return {name: median_of(each) for name, each in runs.items()}
