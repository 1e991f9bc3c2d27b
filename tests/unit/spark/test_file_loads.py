"""Loads of files from the look at them to what their tasks stage, without Spark and without a cluster."""

from __future__ import annotations

import gzip
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.spark.plans import FakeServers, plan, users

from trimtab.client.errors import InvalidRequest
from trimtab.pipeline import loads
from trimtab.pipeline.hearing import Done
from trimtab.rows.layout import RowLayout
from trimtab.spark import files, sending, tasks, text_files
from trimtab.spark.files import FileLoad, stage_piece
from trimtab.spark.load_plan import REJECT, LoadFailed, StagedPart
from trimtab.spark.loading import LoadRun
from trimtab.spark.options import Connection
from trimtab.spark.staging import stage
from trimtab.spark.write_options import WriteOptions

Begin = Callable[..., FileLoad]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins a load into p0 bigint, v0 double, v1 text, v2 int; its tasks run here."""
    sending._lost_until.clear()
    servers = FakeServers(tmp_path / "servers")
    table = users()
    ended: list[Any] = []
    changes: dict[str, Any] = {}
    attempts = iter(range(1000))

    def run(_door: Any, _request: Any) -> Any:
        return SimpleNamespace(plan=plan(table, **changes), abort=ended.append, commit=lambda parts: parts)

    def run_task(of: Any, read: Any, *, trusted: bool, renews: bool) -> StagedPart:
        assert not renews
        name = f"a{next(attempts)}"
        return stage(of, read, name, trusted=trusted, connect=servers.connect)

    monkeypatch.setattr(LoadRun, "begin_again", run)
    monkeypatch.setattr(tasks, "run_task", run_task)

    def begun(path: Path, reading: dict[str, str] | None = None, make: Any = None, **given: Any) -> FileLoad:
        changes.update(given)
        cluster: Any = SimpleNamespace(table=lambda _name: (table, plan().types))
        options = WriteOptions(Connection("127.0.0.1:1"), table.full_name)
        return FileLoad.begin([str(path)], "", options, reading=reading, cores=8, cluster=cluster, make=make)

    return begun


def staged(load: FileLoad) -> list[StagedPart]:
    return [stage_piece(task) for task in load.tasks]


# Tasks


def test_a_small_load_is_one_task_so_rows_of_one_key_are_found(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("p0,v2\n1,1\n2,2\n1,3\n")
    (part,) = staged(begin(path))
    assert "2 rows of the load have the key p0=1 and are not the same" in part.failed


def test_small_files_share_a_task(begin: Begin, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02d}.csv").write_text(f"p0,v2\n{number % 29},{number}\n")
    load = begin(folder)
    assert [len(task.pieces) for task in load.tasks] == [30]
    assert "2 rows of the load have the key p0=0" in staged(load)[0].failed
    assert 3 <= len(begin(folder, {"tasks": "3"}).tasks) <= 4


def test_large_files_are_for_all_cores(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LEAST_TASK_BYTES", 1000)
    path = tmp_path / "a.csv"
    path.write_text("p0,v2\n" + "".join(f"{n},{n}\n" for n in range(3000)))
    load = begin(path)
    assert 14 <= len(load.tasks) <= 18
    assert sum(part.rows for part in staged(load)) == 3000


def test_files_with_different_columns_are_read_each_with_its_own(begin: Begin, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    pq.write_table(pa.table({"p0": [1], "v2": [1]}), folder / "a.parquet")
    pq.write_table(pa.table({"p0": [2], "v1": ["x"]}), folder / "b.parquet")
    pq.write_table(pa.table({"p0": [3], "v2": [3]}), folder / "c.parquet")
    load = begin(folder)
    assert [[Path(piece.path).name for _, piece in task.pieces] for task in load.tasks] == [
        ["a.parquet", "c.parquet"],
        ["b.parquet"],
    ]
    assert [part.rows for part in staged(load)] == [2, 1]


def test_a_table_is_made_for_files_only_when_they_were_looked_at_and_go_into_it(begin: Begin, tmp_path: Path) -> None:
    made: list[str] = []

    def make(check: Callable[[RowLayout], None]) -> None:
        check(RowLayout(users(), plan().types))
        made.append("table")

    path = tmp_path / "a.csv"
    path.write_text("p0,nick\n1,x\n")
    with pytest.raises(InvalidRequest, match="nick"):
        begin(path, make=make)
    with pytest.raises(InvalidRequest, match="no files"):
        begin(tmp_path / "nothing.csv", make=make)
    assert not made
    path.write_text("p0,v2\n1,1\n")
    begin(path, make=make)
    assert made == ["table"]


# Rows of one key in several tasks


def in_two(tmp_path: Path, second: str) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("p0,v2\n" + "".join(f"{n},{n}\n" for n in range(100)) + second)
    return path


def test_rows_of_one_key_in_several_tasks_are_found_if_asked_for(begin: Begin, tmp_path: Path) -> None:
    path = in_two(tmp_path, "7,8\n9,9\n")
    load = begin(path, {"tasks": "2"})
    load.finish(staged(load))
    load = begin(path, {"tasks": "2", "duplicates": "check"})
    parts = staged(load)
    assert [part.failed for part in parts] == ["", ""]
    with pytest.raises(LoadFailed, match=r"a key has different rows in the load, p0=7, in .*a.csv\. Corr"):
        load.finish(parts)
    assert not load.run.plan.compare_rows, "it is for tasks alone"


def test_rows_that_are_the_same_are_one_wherever_they_are(begin: Begin, tmp_path: Path) -> None:
    load = begin(in_two(tmp_path, "7,7\n9,9\n"), {"tasks": "2", "duplicates": "check"})
    committed: Any = load.finish(staged(load))
    assert len(committed) == 2 and not any(part.prints for part in committed)


def test_rows_of_files_with_other_columns_are_compared_as_well(begin: Begin, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "a.csv").write_text("p0,v2\n1,5\n2,\n")
    (folder / "b.csv").write_text("p0,v1\n1,x\n2,\n")
    load = begin(folder, {"duplicates": "check"})
    with pytest.raises(LoadFailed, match=r"a key has different .*, p0=1, in .*a.csv, .*b.csv"):
        load.finish(staged(load))


def test_more_rows_than_can_be_compared_fail_the_load(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_COMPARED_ROWS", 50)
    load = begin(in_two(tmp_path, ""), {"tasks": "2", "duplicates": "check"})
    assert "too many rows for duplicates=check" in staged(load)[0].failed


def test_the_option_duplicates_is_checked(begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="option duplicates: one of task, check is expected, not 'all'"):
        begin(in_two(tmp_path, ""), {"duplicates": "all"})


# What is told meanwhile


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet", "a.csv.gz"])
def test_bytes_are_told_while_a_piece_is_staged(
    begin: Begin, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1000)
    rows, path = range(3000), tmp_path / name
    table = "p0,v1\n" + "".join(f"{n},{random.Random(n).randbytes(60).hex()}\n" for n in rows)
    if name == "a.parquet":
        pq.write_table(pa.table({"p0": rows, "v2": rows}), path, row_group_size=500)
    elif name == "a.json":
        path.write_text("".join(f'{{"p0":{n},"v2":{n}}}\n' for n in rows))
    else:
        path.write_bytes(gzip.compress(table.encode()) if name.endswith("gz") else table.encode())
    (task,) = begin(path).tasks
    seen: list[tuple[int, int]] = []

    class Heard(Done):
        def add(self, bytes: int = 0, rows: int = 0) -> None:
            super().add(bytes, rows)
            seen.append((self.bytes, self.rows))

    done = Heard(_lock=threading.Lock())
    part = loads.stage(task, done)
    assert (part.failed, done.rows, done.bytes) == ("", 3000, task.size_bytes)
    assert len({rows for _, rows in seen}) > 4, "rows as they are read"
    assert len({bytes for bytes, _ in seen}) > (2 if name.endswith("gz") else 4), "and bytes"
    assert all(bytes <= task.size_bytes for bytes, _ in seen)


def test_rejected_lines_and_rows_are_not_counted_as_loaded(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"p0":1}\n{"p0":"x"}\n{"v2":5}\n{"p0":"4"}\n')
    (task,) = begin(path, on_error=REJECT, rejected=str(tmp_path / "rejected")).tasks
    done = Done()
    part = loads.stage(replace(task), done)
    assert (part.failed, part.rows, part.rejected, done.rows) == ("", 2, 2, 2)
