"""What becomes of a micro batch: rows one by one, files, or nothing at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from trimtab.loads.records import STREAM, LoadKind, LoadRecord, LoadState
from trimtab.spark import streaming
from trimtab.spark.direct import NotDirect
from trimtab.spark.streaming import BatchMessage, StreamSink, batch_name
from trimtab.spark.write_options import write_options

OPTIONS = write_options({"peer": "127.0.0.1:4100", "table": "shop.users"})


@pytest.mark.parametrize(("kind", "loads"), [(LoadKind.APPEND, 0), (LoadKind.OVERWRITE, 1)])
def test_a_batch_without_rows_empties_a_table_that_it_overwrites_and_adds_nothing_to_others(
    monkeypatch: pytest.MonkeyPatch, kind: LoadKind, loads: int
) -> None:
    begun: list[tuple[Any, ...]] = []
    monkeypatch.setattr(streaming, "cluster_for", lambda _connection: None)
    monkeypatch.setattr(StreamSink, "_done_before", lambda *_: False)
    monkeypatch.setattr(StreamSink, "_commit_files", lambda _self, *what: begun.append(what))
    sink = StreamSink(OPTIONS, kind is LoadKind.OVERWRITE)
    sink.commit([BatchMessage("b1"), None, BatchMessage("b1")], 7)
    assert begun == [(None, "b1", [], [])] * loads


def test_batches_of_a_query_have_names_of_their_own_and_are_known_as_its_own() -> None:
    names = {(query, number): batch_name(query, number) for query in ("q1", "q2") for number in ("0", "1")}
    assert len(set(names.values())) == 4
    sink = StreamSink(OPTIONS, False)
    who = {key: sink._request(f"{name}-d").who for key, name in names.items()}
    assert who["q1", "0"] == who["q1", "1"] != who["q2", "0"] == who["q2", "1"]
    assert all(each.startswith(STREAM) for each in who.values())


@pytest.mark.parametrize("suffix", ["d", "f", "f-1"])
def test_a_batch_is_not_run_again_once_it_counted_though_it_was_rolled_back_since(suffix: str) -> None:
    sink = StreamSink(OPTIONS, False)
    records = {"b-f": LoadState.ABORTED}

    def show(table: int, id: str) -> LoadRecord | None:
        return LoadRecord(id, table, LoadKind.APPEND, records[id], 999) if id in records else None

    cluster: Any = SimpleNamespace(table=lambda _name: (SimpleNamespace(id=7), {}), show=show)
    assert not sink._done_before(cluster, "b")
    for state in (LoadState.COMMITTED, LoadState.PUBLISHED, LoadState.ROLLED_BACK):
        records[f"b-{suffix}"] = state
        assert sink._done_before(cluster, "b")


def rows(count: int, text_bytes: int = 1) -> Any:
    return pa.record_batch({"id": list(range(count)), "text": ["x" * text_bytes] * count})


@pytest.mark.parametrize(
    ("batches", "few"),
    [
        ([rows(10), rows(10)], True),
        ([rows(10), rows(11)], False),
        ([rows(2, streaming.DIRECT_BYTES // 4)], True),
        ([rows(2, streaming.DIRECT_BYTES // 4)] * 2, False),
    ],
)
def test_few_rows_are_few_in_number_and_in_bytes(batches: list[Any], few: bool) -> None:
    held, rest = streaming._first_rows([*batches, rows(0)], 20)
    assert (rest is None) == few
    assert sum(each.num_rows for each in (*held, *(rest or ()))) == sum(each.num_rows for each in batches)


@pytest.mark.parametrize(("text_bytes", "files"), [(1, 0), (streaming.DIRECT_BYTES // 8, 1)])
def test_a_batch_of_many_bytes_becomes_files_though_each_task_had_few(
    monkeypatch: pytest.MonkeyPatch, text_bytes: int, files: int
) -> None:
    done: list[str] = []
    monkeypatch.setattr(streaming, "cluster_for", lambda _connection: None)
    monkeypatch.setattr(StreamSink, "_done_before", lambda *_: False)
    monkeypatch.setattr(StreamSink, "_commit_files", lambda *_: done.append("files"))
    monkeypatch.setattr(streaming, "write_directly", lambda *_: done.append("rows"))
    told = BatchMessage("b1", 5, streaming._packed([rows(5, text_bytes)]))
    StreamSink(OPTIONS, False).commit([told, told], 7)
    assert done == (["files"] if files else ["rows"])


def test_a_batch_that_can_not_be_written_without_files_becomes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def refuse(_cluster: Any, request: Any, _rows: Any) -> None:
        done.append(request.id)
        raise NotDirect("too much of one partition")

    monkeypatch.setattr(streaming, "cluster_for", lambda _connection: None)
    monkeypatch.setattr(StreamSink, "_done_before", lambda *_: False)
    monkeypatch.setattr(StreamSink, "_commit_files", lambda _self, _cluster, *what: done.append(what))
    monkeypatch.setattr(streaming, "write_directly", refuse)
    few = rows(5)
    StreamSink(OPTIONS, False).commit([BatchMessage("b1", 5, streaming._packed([few]))], 7)
    assert done == ["b1-d", ("b1", [], [few])]
