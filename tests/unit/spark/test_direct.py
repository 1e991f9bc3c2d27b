"""Rows of Spark as the client takes them, and which it can't take."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.rows import tables
from tests.unit.spark import plans

from trimtab.catalog.schema import Table
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.rows.layout import RowLayout
from trimtab.spark import direct
from trimtab.spark.direct import PARTITION_BYTES, NotDirect, python_rows, write_directly
from trimtab.spark.loading import LoadRequest

ID = "123e4567-e89b-12d3-a456-426614174000"


def test_values_are_those_that_a_client_would_write_and_nulls_are_left_out() -> None:
    regular = ["timestamp", "varint", "set<int>", "frozen<place>", "text", "duration"]
    layout = RowLayout(tables.table(["uuid"], [], regular), tables.USER_TYPES)
    moment = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "p0": [ID, ID],
            "v0": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "v1": [decimal.Decimal(7), None],
            "v2": [[2, 1, 2], None],
            "v3": [{"name": "here", "at": 0.5}, None],
            "v4": [None, "x"],
            "v5": pa.array(
                [{"months": 1, "days": 2, "nanoseconds": 3}, None],
                pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())]),
            ),
        }
    )
    first, second = python_rows(layout, rows)
    assert (first["p0"], first["v0"], first["v1"], set(first["v2"])) == (uuid.UUID(ID), moment, 7, {1, 2})
    assert first["v3"] == {"name": "here", "at": 0.5}
    assert tuple(first["v5"]) == (1, 2, 3)
    assert "v4" not in first
    assert second == {"p0": uuid.UUID(ID), "v4": "x"}


class FakeCluster:
    """Takes any load, and writes what `put_many` is given."""

    def __init__(self, table: Table) -> None:
        self.name, self.done, self.written = table.full_name, [], []  # type: tuple[str, list[str], list[Any]]
        self._table = table
        put = SimpleNamespace(put_many=lambda rows, **_: self.written.extend(rows))
        self.db = SimpleNamespace(table=lambda _name: put)

    def table(self, _name: str) -> Any:
        return self._table, tables.USER_TYPES

    def begin(self, request: Any) -> LoadRecord:
        return LoadRecord(request.id, request.table, LoadKind.APPEND, LoadState.STAGING, plans.STAMP_US)

    def commit(self, request: Any) -> LoadRecord:
        self.done.append("committed")
        return LoadRecord(request.id, request.table, LoadKind.APPEND, LoadState.PUBLISHED, plans.STAMP_US)

    def abort(self, _table: int, _id: str, reason: str) -> None:
        self.done.append(f"aborted: {reason}")


HALF = "x" * (PARTITION_BYTES // 2)


@pytest.mark.parametrize(
    ("partitions", "texts", "fits"),
    [
        ([1], ["x"], True),
        ([1], [HALF + HALF], False),
        ([1, 1], [HALF, HALF], False),
        ([1, 2, 3], [HALF, HALF, HALF], True),
    ],
)
def test_rows_of_which_a_partition_has_too_much_for_a_request_are_left_to_files(
    monkeypatch: pytest.MonkeyPatch, partitions: list[int], texts: list[str], fits: bool
) -> None:
    """One value of a megabyte in a small batch ended a stream for good, with "send less at a time"."""
    table = tables.table(["bigint"], ["int"], ["text"])
    monkeypatch.setattr(direct, "plan_of", lambda *_: plans.plan(table))
    cluster: Any = FakeCluster(table)
    rows = pa.table({"p0": partitions, "c0": pa.array(range(len(texts)), pa.int32()), "v0": texts})
    if fits:
        assert write_directly(cluster, LoadRequest(cluster.name, "b-d"), rows).state is LoadState.PUBLISHED
        assert (cluster.done, len(cluster.written)) == (["committed"], len(texts))
        return
    for _ in range(2):  # and so again, where the batch is
        with pytest.raises(NotDirect, match="bytes of one partition"):
            write_directly(cluster, LoadRequest(cluster.name, "b-d"), rows)
    assert not cluster.written
    assert [each.partition(":")[0] for each in cluster.done] == ["aborted"] * 2


def test_rows_that_are_merged_do_not_make_a_large_one_seem_small(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.table(["bigint"], ["int"], ["text"], ["text"])
    monkeypatch.setattr(direct, "plan_of", lambda *_: plans.plan(table))
    count = 20
    rows = pa.table(
        {
            "p0": [1] * count,
            "c0": pa.array(range(count), pa.int32()),
            "s0": ["of all"] * count,
            "v0": ["x" * 700_000] + ["small"] * (count - 1),
        }
    )
    with pytest.raises(NotDirect):
        write_directly(FakeCluster(table), LoadRequest(table.full_name, "b-d"), rows)  # type: ignore[arg-type]


def test_a_collection_is_measured_by_what_its_elements_take_when_they_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each element has a key of its own there: a request of a quarter of the limit may become more than it."""
    table = tables.table(["bigint"], [], ["list<tinyint>"])
    monkeypatch.setattr(direct, "plan_of", lambda *_: plans.plan(table))
    elements = pa.array([[1] * 40_000], pa.list_(pa.int8()))
    with pytest.raises(NotDirect):
        write_directly(FakeCluster(table), LoadRequest(table.full_name, "b-d"), pa.table({"p0": [1], "v0": elements}))  # type: ignore[arg-type]
