"""Rows of Spark as the client takes them."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import pyarrow as pa
from tests.unit.rows import tables

from trimtab.rows.layout import RowLayout
from trimtab.spark.direct import python_rows

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
