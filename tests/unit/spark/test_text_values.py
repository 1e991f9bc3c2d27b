"""Every type of CQL in text files: what the CLI shows of a value can be loaded again, and what Spark writes of it."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.spark.read_files import read

from trimtab.catalog.text_forms import to_json, to_text
from trimtab.catalog.types import parse
from trimtab.catalog.values import UUID, Duration
from trimtab.rows import arrow_cells
from trimtab.spark import text_files
from trimtab.spark.checking import wrong_type
from trimtab.spark.file_splits import FileOptions, Piece, read_piece
from trimtab.spark.load_plan import LoadFailed
from trimtab.spark.text_values import column_type
from trimtab.spark.types import from_spark

# A type, a value of it, and what Spark writes for it in JSON where that is something else.
VALUES: list[tuple[str, Any, Any]] = [
    ("date", dt.date(2024, 1, 1), None),
    ("date", dt.date(1403, 12, 31), None),
    ("time", dt.time(12, 30, 0, 123456), 45_000_123_456_000),
    ("timestamp", dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC), "2024-05-01T12:30:00.000Z"),
    ("map<text, int>", {"a": 1, "b": 2}, None),
    ("map<date, frozen<list<double>>>", {dt.date(2024, 1, 1): [1.5, -2.0]}, None),
    ("list<date>", [dt.date(2024, 1, 1)], None),
    ("list<int>", [1, 2], None),
    ("set<text>", {"x", "y"}, None),
    ("set<uuid>", {UUID(int=5)}, None),
    ("tuple<int, text>", (1, "x"), {"0": 1, "1": "x"}),
    ("blob", b"\x00\xff", None),
    ("duration", Duration(14, 3, 5 * 10**9), {"months": 14, "days": 3, "nanoseconds": 5 * 10**9}),
    ("varint", 12345678901234567890123, None),
    ("decimal", Decimal("12.50"), 12.5),
    ("double", float("inf"), "Infinity"),
    ("bigint", -(1 << 63), None),
    ("boolean", True, None),
    ("inet", "127.0.0.1", None),
    ("text", "0xff", None),
]


def cells(kind: Any, batch: Any) -> list[bytes]:
    return arrow_cells.encode(kind, from_spark(kind, batch.column("v"))).strings.to_list()


def loaded(path: Path, format: str, kind: Any) -> list[bytes]:
    assert not wrong_type(kind, column_type(kind)), "what is read can be written"
    schema = pa.schema([("id", pa.int64()), ("v", column_type(kind))])
    piece = Piece(str(path), path.stat().st_size, stop=path.stat().st_size, header=("id", "v"))
    kinds = {"id": parse("bigint"), "v": kind}
    (batch,) = read_piece(str(path), piece, schema, FileOptions(format), kinds, None)
    assert batch.schema == schema
    return cells(kind, batch)


@pytest.mark.parametrize(("name", "value", "spark"), VALUES)
def test_what_is_shown_of_a_value_is_read_as_it(tmp_path: Path, name: str, value: Any, spark: Any) -> None:
    kind = parse(name)
    wanted = kind.serialize(value)
    path = tmp_path / "a.json"
    shown = [to_json(kind, value), *([] if spark is None else [spark])]
    for each in shown:
        path.write_text(json.dumps({"id": 1, "v": each}) + '\n{"id": 2}\n')
        found = loaded(path, "json", kind)
        assert kind.deserialize(found[0]) == kind.deserialize(wanted)
        assert not found[1].strip(b"\0")
    text = to_text(kind, value).replace('"', '""')
    path = tmp_path / "a.csv"
    path.write_text(f'id,v\n1,"{text}"\n2,\n')
    assert kind.deserialize(loaded(path, "csv", kind)[0]) == kind.deserialize(wanted)


def test_dates_of_json_are_read_by_the_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(text_files._Json, "_by_line")
    path = tmp_path / "a.json"
    path.write_text('{"id":1,"d":"2024-01-01","t":"12:30:00"}\n{"id":2}\n')
    assert read(path, FileOptions("json"), columns={"id": "bigint", "d": "date", "t": "time"}) == [
        {"id": 1, "d": dt.date(2024, 1, 1), "t": dt.time(12, 30)},
        {"id": 2, "d": None, "t": None},
    ]


def test_text_that_is_no_blob_is_told(tmp_path: Path) -> None:
    columns = {"id": "bigint", "v": "blob"}
    path = tmp_path / "a.csv"
    path.write_text(f"id,v\n1,0xff\n2,{base64.b64encode(b'what Spark writes').decode()}\n")
    with pytest.raises(LoadFailed, match="hexadecimal digits after 0x"):
        read(path, FileOptions("csv"), columns=columns)
    aside: list[Any] = []
    assert read(path, FileOptions("csv"), 1, aside.append, columns) == [{"id": 1, "v": b"\xff"}]


def test_a_value_that_does_not_fit_is_told_by_line_and_column(tmp_path: Path) -> None:
    columns = {"id": "bigint", "m": "map<text, tinyint>", "d": "varint"}
    path = tmp_path / "a.json"
    lines = ['{"id":1,"m":{"a":1}}', '{"id":2,"m":{"a":300}}', '{"id":3,"d":1e3}', '{"id":4,"id":5}', "6"]
    path.write_text("\n".join([*lines, f'{{"id":7,"d":{"9" * 50}}}']))
    aside: list[Any] = []
    assert read(path, FileOptions("json"), 1, aside.append, columns) == [{"id": 1, "m": [("a", 1)], "d": None}]
    reasons = [table.column("_reason")[0].as_py() for table in aside]
    assert "column m (map<text, tinyint>): " in reasons[0] and "column d (varint): " in reasons[1]
    assert reasons[2:4] == ["a field is there twice", "an object of JSON is expected"] and "fit" in reasons[4]
