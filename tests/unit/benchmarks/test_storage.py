"""The storage benchmark on few rows: it measures all it says, and finds what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import BENCHMARKS, storage
from benchmarks.load import BenchmarkFailed
from benchmarks.report import Options


def test_a_small_run_reports_every_figure_beside_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "GETS", 50)
    said: list[str] = []
    report = storage.run(Options(0.2, 2, tmp_path, tmp_path, rows=2000), said.append).as_json()
    rows = {(row["case"], row["metric"], row["peer"]): row for row in report["rows"]}  # type: ignore[union-attr]
    for case, metric in (("write 2,000 rows", "encode + SST, s"), ("read 2,000 rows", "scan + decode, s")):
        assert rows[case, metric, "Parquet"]["ratio"] > 0
    assert rows["read 2,000 rows", "every value verified, CPU s", "Parquet, verified"]["ratio"] > 0
    assert rows["get by key", "p50 µs", "goal"]["peer_value"] == storage.GET_GOAL_US
    assert said[-1] == "round 2 of 2"
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


def test_it_is_one_of_the_benchmarks() -> None:
    assert "storage" in BENCHMARKS


def test_rows_that_were_lost_on_the_way_are_noticed() -> None:
    table = storage._table(10)
    with pytest.raises(BenchmarkFailed, match="9 rows were read and 10 written"):
        storage._check(table.slice(1), table)
