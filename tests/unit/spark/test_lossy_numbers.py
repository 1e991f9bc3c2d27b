"""A number that is too large for its type is a bad value, and never becomes infinite on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark.read_files import read

from trimtab.spark.file_splits import FileOptions
from trimtab.spark.load_plan import LoadFailed

INFINITE = float("inf")
CSV, JSON = FileOptions("csv"), FileOptions("json")


@pytest.mark.parametrize(
    ("kind", "text"), [("float", "1e39"), ("float", "-1e39"), ("double", "1e400"), ("double", "9" * 400)]
)
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_what_is_too_large_is_a_bad_line(tmp_path: Path, kind: str, text: str, ending: str) -> None:
    path, options, columns = tmp_path / f"a.{ending}", FileOptions(ending), {"id": "bigint", "v": kind}
    values = ["1.5"] * 400 + [text] + ["2.5"] * 400
    lines = (f"{n},{each}" if ending == "csv" else f'{{"id":{n},"v":{each}}}' for n, each in enumerate(values))
    path.write_text("\n".join(["id,v", *lines] if ending == "csv" else lines) + "\n")
    with pytest.raises(LoadFailed, match=rf"a.{ending}: the line .* can't be read: column v \({kind}\): .* fits"):
        read(path, options, columns=columns)
    aside: list[Any] = []
    found = read(path, options, 1, aside.append, columns)
    assert [row["id"] for row in found] == [n for n in range(801) if n != 400]
    assert [text in table.column("_line")[0].as_py() for table in aside] == [True]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_text_that_says_infinity_is_infinite(tmp_path: Path, kind: str) -> None:
    columns = {"id": "bigint", "v": kind}
    (tmp_path / "a.csv").write_text('id,v\n1,inf\n2,-Infinity\n3,"INF"\n4,\n')
    wanted = [INFINITE, -INFINITE, INFINITE, None]
    assert [row["v"] for row in read(tmp_path / "a.csv", CSV, columns=columns)] == wanted
    (tmp_path / "a.json").write_text(
        '{"id":1,"v":Infinity}\n{"id":2,"v":-Infinity}\n{"id":3,"v":"Infinity"}\n{"id":4}\n'
    )
    assert [row["v"] for row in read(tmp_path / "a.json", JSON, columns=columns)] == wanted


@pytest.mark.parametrize(
    ("ending", "text"), [("csv", 'id,v\n1,"[0.5, 1e39]"\n'), ("json", '{"id":1,"v":[0.5,1e39]}\n')]
)
def test_what_is_within_a_list_counts_too(tmp_path: Path, ending: str, text: str) -> None:
    (tmp_path / f"a.{ending}").write_text(text)
    with pytest.raises(LoadFailed, match="a number that fits float, got"):
        read(tmp_path, FileOptions(ending), columns={"id": "bigint", "v": "list<float>"})
