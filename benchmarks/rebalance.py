"""What it costs to let a node join: three instances and a warm pipeline, replication 3, a fourth one is added.

    ours                                                        beside                                         goal
    64 tablets, 1 GB after replication: seconds of the moves    the moved bytes with `cp` and sync              2×
    the same: moves                                             the fewest that can be                          1.00
    the same: spread of bytes after them                        -                                               2 %
    the same: p99 of point reads at a fixed rate                the same while nothing else happens             2×
    64 tablets with zipfian sizes: bytes moved                  the fewest that can be                          1.05
    256 tiny tablets: milliseconds a moved tablet, all told     -                                               50
    a balanced cluster left alone for ten minutes: moves        -                                               0

Seconds count from the first move's first record to the last one's end: planning before it and everything after the copy
is in them. How long it takes from when the instance's record says that it is Online until that first record is told
apart.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.elastic_cluster import ElasticCluster
from benchmarks.load import BenchmarkFailed
from benchmarks.offered_load import FROM_BEGUN, FROM_DUE
from benchmarks.report import Options, Report, Row, describe_machine, percentile
from trimtab.jobs.records import JobKind
from trimtab.playground.moving import Moves

NODES = 3
REPLICATION = 3
TABLETS = 64
TINY_TABLETS = 256
ROW_BYTES = 1_000
TOTAL_BYTES = 1_000_000_000  # of all replicas
READS_PER_S = 300.0
ZIPF = 1.0
QUIET_MINUTES = 10.0
_QUICK_SHARE = 10
_QUICK_ZIPFIAN = 8
_QUICK_QUIET_S = 20.0
_FILES = 4
_IDLE_S = 10.0
_MOST_S = 900.0
_SETTLED_S = 6.0  # reports of sizes are that far apart, at most
COLUMNS = {"id": "bigint", "value": "blob"}


@dataclass
class Stage:
    options: Options
    report: Report
    say: Callable[[str], None]
    cluster: ElasticCluster

    @property
    def rows(self) -> int:
        share = _QUICK_SHARE if self.options.quick else 1
        return self.options.rows or TOTAL_BYTES // REPLICATION // (ROW_BYTES + 40) // share

    def row(self, case: str, metric: str, ours: float, peer: str, peer_value: float | None) -> None:
        self.report.rows.append(Row(case, metric, ours, peer, peer_value, "lower"))


def run(options: Options, say: Callable[[str], None]) -> Report:
    report = Report("rebalance", describe_machine(options.folder))
    say(f"starting {NODES} instances and the pipeline")
    with ElasticCluster(options.folder, NODES) as cluster:
        stage = Stage(options, report, say, cluster)
        cluster.call(cluster.database.create_keyspace("bench", replication=REPLICATION))
        _warm_up(stage)
        _equal(stage)
        _zipfian(stage)
        _tiny(stage)
        _left_alone(stage)
    report.notes.append("ours ÷ peer: low is good everywhere; `goal` is what we want, `fewest` what no plan can beat")
    report.notes.append("cp copies the very files that were moved, on the same disk, and syncs them; it checks nothing")
    report.notes.append("point reads go on beside cp as well where they do beside the moves")
    return report


# Rows


def _table(stage: Stage, name: str, tablets: int) -> str:
    cluster = stage.cluster
    cluster.call(cluster.database.create_table(f"bench.{name}", COLUMNS, primary_key=["id"], tablets=tablets))
    return f"bench.{name}"


def _load(stage: Stage, table: str, ids: Any) -> None:
    """Rows of random bytes, so that nothing becomes smaller."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = stage.options.folder / table
    folder.mkdir()
    chosen = np.random.default_rng(7)
    for number, part in enumerate(np.array_split(ids, _FILES)):
        content = pa.py_buffer(chosen.bytes(len(part) * ROW_BYTES))
        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ROW_BYTES), len(part), [None, content])
        written = pa.table({"id": pa.array(part, pa.int64()), "value": values.cast(pa.binary())})
        pq.write_table(written, folder / f"{number}.parquet", compression="none", use_dictionary=False)
    stage.say(f"loading {len(ids):,} rows of {ROW_BYTES} bytes into {table}")
    stage.cluster.job(JobKind.LOAD, table=table, paths=[str(path) for path in sorted(folder.iterdir())])
    shutil.rmtree(folder)
    _await_sizes(stage, table, len(ids) * ROW_BYTES * REPLICATION)


def _await_sizes(stage: Stage, table: str, least_bytes: int) -> None:
    """Wait until the cluster knows how large the tablets are, and nothing changes about that: it plans by that."""
    before, since = -1, time.monotonic()

    def known() -> bool:
        nonlocal before, since
        held_bytes = sum(stage.cluster.held_bytes(table).values())
        if held_bytes != before:
            before, since = held_bytes, time.monotonic()
        return held_bytes >= least_bytes and time.monotonic() - since > _SETTLED_S

    stage.cluster.until(known, "sizes are known")


def _tablet_of(ids: Any, tablets: int) -> Any:
    import numpy as np

    from trimtab.rows.column_hashing import tokens
    from trimtab.rows.ragged import fixed

    keys = fixed(np.ascontiguousarray(ids.astype(">i8")).view(np.uint8).reshape(-1, 8))
    return (tokens(keys).view(np.uint64) ^ np.uint64(1 << 63)) >> np.uint64(65 - tablets.bit_length())


def _zipfian_ids(rows: int, tablets: int) -> Any:
    """So many ids that the tablets' shares of them are as 1, 1/2, 1/3, …, in no order."""
    import numpy as np

    chosen = np.random.default_rng(11)
    weights = 1.0 / np.arange(1, tablets + 1) ** ZIPF
    wanted = np.maximum(1, rows * weights / weights.sum()).astype(np.int64)
    chosen.shuffle(wanted)
    found = []
    left, start = wanted.copy(), 0
    while left.any():
        ids = np.arange(start, start + 16 * rows, dtype=np.int64)
        start += len(ids)
        for tablet, places in enumerate(_by_tablet(_tablet_of(ids, tablets), tablets)):
            taken = places[: left[tablet]]
            left[tablet] -= len(taken)
            found.append(ids[taken])
    return np.concatenate(found)


def _by_tablet(of: Any, tablets: int) -> list[Any]:
    import numpy as np

    order = np.argsort(of, kind="stable")
    return list(np.split(order, np.searchsorted(of[order], np.arange(1, tablets))))


def _warm_up(stage: Stage) -> None:
    """The first copy of a pipeline pays for the start of its workers; that is not what is measured."""
    cluster = stage.cluster
    cluster.call(cluster.database.create_keyspace("warm", replication=1))
    cluster.call(cluster.database.create_table("warm.up", COLUMNS, primary_key=["id"], tablets=4))
    rows = [{"id": id, "value": b"x" * 100} for id in range(1000)]
    cluster.call(cluster.database.table("warm.up").put_many(rows))
    ids = {each.record.instance_id: each.raft_id for each in cluster.call(cluster.client.view()).instances}
    table = cluster.call(cluster.database.tables())["warm.up"].id
    cluster.call(cluster.client.moves.rebalance(enabled=False))
    for tablet in cluster.tablets("warm.up"):
        (source,) = tablet["replicas"]
        to = next(each for each in ids if each != source)
        cluster.call(cluster.client.moves.ask(table, tablet["tablet"], ids[source], ids[to]))
    cluster.until(lambda: len(cluster.moves.done) >= 4, "the pipeline is warm")
    cluster.still(lambda: True)
    cluster.call(cluster.database.drop_keyspace("warm"))
    cluster.call(cluster.client.moves.rebalance(enabled=True))


# Adding a node


@dataclass(frozen=True)
class Added:
    """A node has joined: what was moved, how long that took, and how long it took to begin."""

    instance_id: str
    moves: Moves
    until_first_s: float
    planned: dict[str, Any]

    @property
    def window(self) -> tuple[float, float]:
        return self.moves.first_began, self.moves.last_ended


def _add_node(stage: Stage, table: str) -> Added:
    cluster = stage.cluster
    replicas = sum(cluster.held(table).values())
    cluster.held_bytes(table)
    planned = _planned(stage)
    before = len(cluster.moves.done)
    cluster.moves.first_began = 0.0
    added = cluster.add()
    share = replicas // len(cluster.held(table))
    cluster.still(lambda: cluster.held(table)[added] >= share)
    moves = Moves(
        done=cluster.moves.done[before:],
        first_began=cluster.moves.first_began,
        last_ended=cluster.moves.last_ended,
    )
    stage.say(
        f"{added} has joined: {len(moves.done)} tablets, {moves.done_bytes / 1e6:,.0f} MB moved in {moves.took_s:.2f} s"
    )
    return Added(added, moves, moves.first_began - cluster.online_since[added], planned)


def _planned(stage: Stage) -> dict[str, Any]:
    """What `trimtab plan` says of adding a node: the fewest moves and bytes, and what it would do."""
    command = [sys.executable, "-m", "trimtab", "plan", "--add", "1", "--json", "--peer", stage.cluster.peers[0]]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if said.returncode != 0:
        raise BenchmarkFailed(f"trimtab plan: {said.stderr.strip()}")
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def _spread(stage: Stage, table: str) -> float:
    _await_sizes(stage, table, 0)
    held = list(stage.cluster.held_bytes(table).values())
    return (max(held) - min(held)) / statistics.mean(held)


def _copied_s(stage: Stage, added: Added, table: str) -> tuple[float, int]:
    """Seconds to copy what the new node has with cp, and to sync it; and its bytes."""
    _await_sizes(stage, table, 0)  # RocksDB merges files that have come together
    source, target = stage.cluster.data_dir(added.instance_id) / "tablets", stage.options.folder / "copy"
    took = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(["cp", "-r", str(source), str(target)], check=True)
        subprocess.run(["sync", "-f", str(target)], check=True)
        took.append(time.perf_counter() - began)
        size_bytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        shutil.rmtree(target)
    return statistics.median(took), size_bytes


def _equal(stage: Stage) -> None:
    import numpy as np

    cluster, options = stage.cluster, stage.options
    table = _table(stage, "equal", TABLETS)
    _load(stage, table, np.arange(stage.rows, dtype=np.int64))
    idle = _Reads(stage, table, stage.rows, 2.0 if options.quick else _IDLE_S)
    idle_ms = idle.wait()
    stage.say(f"point reads at {READS_PER_S:.0f}/s while idle: p99 {percentile(idle_ms, 0.99):.2f} ms")
    rounds, begins, during_ms, begun_ms, failed = 1 if options.quick else options.rounds, [], [], [], 0
    # Whether rows are read beside the moves -> seconds of the moves, and of cp beside the same reads.
    moved_s: dict[bool, list[float]] = {False: [], True: []}
    copied_s: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        read = bool(number % 2)
        reads = _Reads(stage, table, stage.rows, _MOST_S) if read else None
        added = _add_node(stage, table)
        begins.append(added.until_first_s)
        moved_s[read].append(added.moves.took_s)
        copy_s, copy_bytes = _copied_s(stage, added, table)
        copied_s[read].append(copy_s)
        if reads is not None:
            during_ms += reads.stop(*added.window)
            begun_ms += reads.begun_ms
            failed += reads.failed
        beside = "beside point reads" if read else "alone"
        stage.say(f"cp and sync of {copy_bytes / 1e6:,.0f} MB, {beside}: {copy_s:.2f} s (round {number // 2 + 1})")
        spread = _spread(stage, table)
        if number < 2 * rounds - 1:
            cluster.drain(added.instance_id)
            cluster.still(lambda: True)
    during_ms.sort()
    begun_ms.sort()
    total_mb = stage.rows * ROW_BYTES * REPLICATION / 1e6
    case = f"a node joins three: {TABLETS} equal tablets, {total_mb:,.0f} MB of replicas"
    for read, metric in ((False, "seconds of the moves"), (True, "the same beside point reads, s")):
        stage.row(case, metric, statistics.median(moved_s[read]), "cp and sync", statistics.median(copied_s[read]))
    stage.row(case, "MB moved", added.moves.done_bytes / 1e6, "cp and sync", copy_bytes / 1e6)
    stage.row(case, "seconds from Online to the first move", statistics.median(begins), "-", None)
    stage.row(case, "moves", len(added.moves.done), "fewest", added.planned["lower_bound_moves"])
    stage.row(case, "spread after, %", spread * 100, "goal", 2.0)
    if not during_ms:
        raise BenchmarkFailed("no read fell into the time of the moves")
    case = f"point reads at {READS_PER_S:.0f}/s meanwhile ({len(during_ms)} reads)"
    for metric, share in (("p50 ms", 0.5), (FROM_DUE, 0.99)):
        stage.row(case, metric, percentile(during_ms, share), "idle", percentile(idle_ms, share))
    stage.row(case, FROM_BEGUN, percentile(begun_ms, 0.99), "idle", percentile(sorted(idle.begun_ms), 0.99))
    stage.row(case, "reads that failed", failed, "idle", idle.failed)
    _leave(stage, added, table)


def _leave(stage: Stage, added: Added, table: str) -> None:
    """Three again, and empty."""
    cluster = stage.cluster
    cluster.call(cluster.database.drop_table(table))
    cluster.drain(added.instance_id)
    cluster.still(lambda: True)


def _zipfian(stage: Stage) -> None:
    # Tablets below a mebibyte count as that much, in the plan and in its bound; there must not be many of those.
    tablets = _QUICK_ZIPFIAN if stage.options.quick else TABLETS
    table = _table(stage, "zipfian", tablets)
    _load(stage, table, _zipfian_ids(stage.rows, tablets))
    added = _add_node(stage, table)
    planned = added.planned
    case = f"a node joins three: {tablets} tablets of zipfian sizes"
    stage.row(case, "MB moved", added.moves.done_bytes / 1e6, "planned", planned["moved_bytes"] / 1e6)
    stage.row(case, "MB as they count", planned["weighed_bytes"] / 1e6, "fewest", planned["lower_bound_bytes"] / 1e6)
    stage.row(case, "spread after, %", _spread(stage, table) * 100, "goal", 2.0)
    stage.row(case, "seconds of the moves", added.moves.took_s, "-", None)
    _leave(stage, added, table)


def _tiny(stage: Stage) -> None:
    table = _table(stage, "tiny", TINY_TABLETS)
    rows = [{"id": id, "value": b"x" * 50} for id in range(20 * TINY_TABLETS)]
    stage.cluster.until(lambda: _written(stage, table, rows), "all tablets are open")
    added = _add_node(stage, table)
    moved = len(added.moves.done)
    case = f"a node joins three: {TINY_TABLETS} tiny tablets, {moved} moves"
    stage.row(case, "ms a moved tablet", added.moves.took_s * 1000 / moved, "goal", 50.0)
    stage.row(case, "seconds from Online to the first move", added.until_first_s, "-", None)


def _written(stage: Stage, table: str, rows: list[dict[str, Any]]) -> bool:
    """Whether the rows are written: so many tablets are open a moment after their table is known."""
    try:
        stage.cluster.call(stage.cluster.database.table(table).put_many(rows))
    except BenchmarkFailed:
        return False
    return True


def _left_alone(stage: Stage) -> None:
    """Four instances that are balanced, and nobody does anything."""
    minutes = _QUICK_QUIET_S / 60 if stage.options.quick else stage.options.quiet_minutes
    before = stage.cluster.moves.begun
    stage.say(f"left alone for {minutes:.1f} minutes")
    time.sleep(minutes * 60)
    begun = stage.cluster.moves.begun - before
    stage.row(f"balanced, and left alone for {minutes:.1f} minutes", "moves", begun, "goal", 0.0)


class _Reads:
    """A process that reads at a fixed rate, and notes when each read was due and how long it took."""

    def __init__(self, stage: Stage, table: str, rows: int, seconds: float) -> None:
        self._journal = stage.options.folder / "reads"
        command = [sys.executable, "-m", "benchmarks.offered_load", ",".join(stage.cluster.peers), table, str(rows)]
        command += [str(READS_PER_S), str(seconds), str(self._journal)]
        self._journal.unlink(missing_ok=True)
        self._process = subprocess.Popen(command, cwd=stage.options.root, stdout=subprocess.PIPE, text=True)
        self.failed = 0
        self.begun_ms: list[float] = []
        stage.cluster.until(lambda: self._journal.exists() or self._process.poll() is not None, "reads begin")

    def wait(self) -> list[float]:
        """Milliseconds of all reads, in order, when its time is over."""
        return self._result(0.0, float("inf"))

    def stop(self, since: float, until: float) -> list[float]:
        """Milliseconds of those reads that were due in this time."""
        self._process.terminate()
        return self._result(since, until)

    def _result(self, since: float, until: float) -> list[float]:
        self._process.communicate(timeout=120)
        found = []
        for line in self._journal.read_text().splitlines():
            due, took_ms, begun_ms, good = line.split()
            if since <= float(due) <= until:
                found.append(float(took_ms))
                self.begun_ms.append(float(begun_ms))
                self.failed += good != "1"
        return sorted(found)
