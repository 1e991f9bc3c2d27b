from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks import processes
from benchmarks.load import Case, Measurement, median_of
from benchmarks.peers import ETCD, Peers
from benchmarks.report import Report, Row, describe_machine, percentile


def test_the_json_has_the_promised_shape(tmp_path: Path) -> None:
    report = Report("metastore", describe_machine(tmp_path), missing={"etcd": "not installed"})
    report.rows.append(Row("put", "operations/s", 50.0, "etcd 3.4", 100.0))
    report.rows.append(Row("get", "operations/s", 50.0, "etcd 3.4", None))
    answer = json.loads(json.dumps(report.as_json()))
    assert answer["name"] == "metastore"
    assert answer["machine"]["sync_p50_ms"] >= 0
    assert {key: answer["rows"][0][key] for key in ("case", "metric", "ours", "peer", "peer_value", "ratio")} == {
        "case": "put",
        "metric": "operations/s",
        "ours": 50.0,
        "peer": "etcd 3.4",
        "peer_value": 100.0,
        "ratio": 0.5,
    }
    assert answer["rows"][1]["ratio"] is None
    assert answer["missing"] == {"etcd": "not installed"}
    assert not list(tmp_path.iterdir())


def test_rounds_are_summed_up_by_their_medians() -> None:
    rounds = [Measurement(value, value, value, value, value, value) for value in (1.0, 50.0, 2.0)]
    assert median_of(rounds) == Measurement(2.0, 2.0, 2.0, 2.0, 2.0, 2.0)


def test_percentiles_come_from_the_sample_itself() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0


def test_a_case_says_what_it_measures() -> None:
    assert Case("put", 1).title == "put 256 B, synced, 1 client"
    assert Case("get", 64).title == "get 256 B, linearizable, 64 clients"


def test_a_missing_peer_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    reason = Peers(tmp_path).why_missing(ETCD)
    assert reason is not None and reason.endswith("run `./trimtab bench --install-peers`")


def test_cost_of_a_process_and_its_children_is_read_from_the_kernel(tmp_path: Path) -> None:
    script = "sh -c 'while :; do :; done' & echo started; wait"
    process = processes.start(["sh", "-c", script], tmp_path / "log", talk=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        family = processes.with_descendants([process.pid])
        assert len(family) == 2
        while processes.cpu_seconds([process.pid]) < 0.05:
            pass
        assert processes.pss_bytes(os.getpid()) > 1_000_000
    finally:
        for pid in reversed(family):
            os.kill(pid, 9)
        processes.stop(process)
