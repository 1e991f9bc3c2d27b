"""What sessions are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.spark import sessions
from trimtab.spark.java import chooses_collector, options_given
from trimtab.spark.sessions import counted_rows

_GIB = 1 << 30
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.mark.parametrize(
    ("master", "memory_gib", "rows"),
    [
        ("local[2,4]", 24, "2048"),
        ("local[*]", 32, "2048"),
        ("local[*]", 8, "1365"),
        ("local", 3, "1024"),
        ("local[8]", 16, "682"),
        ("local[8]", 12, "512"),
    ],
)
def test_rows_are_counted_where_so_many_wide_ones_fit(master: str, memory_gib: int, rows: str) -> None:
    assert counted_rows(master, 2, memory_gib * _GIB) == {_BYTES: "2147483647", _ROWS: rows}


@pytest.mark.parametrize("master", ["local[8]", "local[*]", "spark://other:7077", "local-cluster[2,2,1024]", "yarn"])
def test_they_are_measured_where_they_might_not_and_on_other_machines(master: str) -> None:
    assert counted_rows(master, 8, 8 * _GIB) == {}


def test_a_container_has_the_memory_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(sessions, "_CGROUP_LIMIT", limit)
    whole = sessions._memory_bytes()
    for said, expected in (("max\n", whole), (f"{_GIB}\n", min(whole, _GIB)), (f"{whole * 2}\n", whole)):
        limit.write_text(said)
        assert sessions._memory_bytes() == expected


@pytest.mark.parametrize(
    ("variables", "conf"),
    [
        ({"PYSPARK_SUBMIT_ARGS": "--driver-java-options -XX:+UseZGC pyspark-shell"}, {}),
        ({}, {"spark.driver.defaultJavaOptions": "-XX:+UseG1GC"}),
        ({}, {"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseG1GC"}),
    ],
)
def test_a_collector_is_found_wherever_it_is_chosen(variables: dict[str, str], conf: dict[str, str]) -> None:
    assert chooses_collector(options_given(variables, conf))


def test_threads_of_a_collector_choose_none() -> None:
    assert not chooses_collector(options_given({"JAVA_TOOL_OPTIONS": "-XX:ParallelGCThreads=2"}, {}))


def test_what_the_package_calls_session_is_the_function_whatever_was_imported_before() -> None:
    import trimtab.spark

    assert callable(trimtab.spark.session)
