"""Where records of a CSV end: what a quote means depends on all that is before it, and no wrong row may come of it."""

from __future__ import annotations

import csv
import io
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from tests.unit.spark.read_files import read

from trimtab.client.errors import InvalidRequest
from trimtab.spark import text_files
from trimtab.spark.csv_records import AFTER_QUOTE, NOT_CLOSED, split
from trimtab.spark.file_columns import look
from trimtab.spark.file_splits import FileOptions, find
from trimtab.spark.load_plan import LoadFailed

COLUMNS = {"id": "bigint", "v": "text"}
OPTIONS = FileOptions("csv")


def records(text: str) -> list[str]:
    found = split(text.encode(), b",", b'"')
    bounds = found.records.bounds()
    return [found.records.data[a:b].decode() for a, b in pairwise(bounds)]


def test_a_line_end_in_quotes_belongs_to_its_value(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,v\n1,"a\n2,b"\n3,c\n')
    for wanted in (1, 2, 8):
        assert read(path, OPTIONS, wanted, columns=COLUMNS) == [{"id": 1, "v": "a\n2,b"}, {"id": 3, "v": "c"}]


def test_quotes_that_are_no_edges_of_values_are_read_one_by_one() -> None:
    assert records('1,5" x\n2,"b\nc"\n3,"d""\n"""\n') == ['1,5" x\n', '2,"b\nc"\n', '3,"d""\n"""\n']
    # Each line by itself has an even number of quotes.
    assert records('1,5" x,"abc\nde",6" y\n2,\n') == ['1,5" x,"abc\nde",6" y\n', "2,\n"]
    assert split(b'1,"a\n2,b\n', b",", b'"').open_at == 2


@pytest.mark.parametrize("seed", range(40))
def test_records_end_where_the_csv_module_sees_it(seed: int) -> None:
    rng = random.Random(seed)
    parts = ['"', "\n", ",", "x", "\r\n", ""]
    rows = [["".join(rng.choices(parts, k=rng.randrange(6))) for _ in range(3)] for _ in range(9)]
    text = io.StringIO()
    csv.writer(text, lineterminator=rng.choice(["\n", "\r\n"]), quoting=rng.choice([0, 1])).writerows(rows)
    found = records(text.getvalue())
    assert [next(csv.reader(io.StringIO(each, ""))) for each in found] == rows
    assert not split(text.getvalue().encode(), b",", b'"').records.wrong


@pytest.mark.parametrize("seed", range(10))
def test_rows_with_line_ends_are_read_right_or_not_at_all(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the file is cut, and whatever the policy is."""
    rng = random.Random(seed)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", rng.choice([16, 64, 1000]))
    monkeypatch.setattr("trimtab.spark.file_columns.HEAD_BYTES", 20)
    rows = [(n, rng.choice(["x", 'a"b', "c\n7,d", 'e,"\n8,f"\n', "y" * 30])) for n in range(60)]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("id", "v"), (100, "no line end in here"), *rows])
    wanted = [{"id": 100, "v": "no line end in here"}, *({"id": n, "v": text} for n, text in rows)]
    outcomes = set()
    for count in (1, 2, 3, 7, 40):
        aside: list[Any] = []
        try:
            found = read(path, OPTIONS, count, aside.append, COLUMNS)
        except LoadFailed as error:
            assert "option tasks=1" in str(error)
            outcomes.add("refused")
        else:
            assert sorted(found, key=lambda row: row["id"]) == sorted(wanted, key=lambda row: row["id"]) and not aside
            outcomes.add("read")
    assert outcomes == {"read", "refused"}, "one piece is always read, and of forty some begin in a value"


def test_a_file_that_shows_line_ends_in_values_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,v\n1,"a\nb"\n')
    (tmp_path / "b.csv").write_text('id,v\n1,"a"\n2,"not ended as the file is cut here')
    assert [each.whole for each in look(find([str(tmp_path)]), OPTIONS)] == [True, False]


def test_wrong_quotes_are_told_or_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,v\n1,a\n2,"say \\"hi\\""\n3,c\n4,"d\n5,e\n')
    with pytest.raises(LoadFailed, match=r"the line '2,\"say .*text after a closing quote; a quote inside"):
        read(path, OPTIONS, columns=COLUMNS)
    aside: list[Any] = []
    assert [row["id"] for row in read(path, OPTIONS, 1, aside.append, COLUMNS)] == [1, 3]
    told = [(table.column("_line")[0].as_py(), table.column("_reason")[0].as_py()) for table in aside]
    assert told == [('2,"say \\"hi\\""', AFTER_QUOTE), ('4,"d\n5,e', NOT_CLOSED)]


def test_the_last_line_is_looked_at_as_all_are_though_nothing_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,v\n1,a\n2,"b"x')
    with pytest.raises(LoadFailed, match="text after a closing quote"):
        read(path, OPTIONS, columns=COLUMNS)


@pytest.mark.parametrize("header", [True, False])
def test_a_mark_before_the_first_line_is_passed_over(tmp_path: Path, header: bool) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (b'"v",id\n' if header else b"") + b'"a\nb",1\n')
    options = FileOptions("csv", () if header else ("v", "id"), header=header)
    assert read(path, options, 3, columns=COLUMNS) == [{"v": "a\nb", "id": 1}]


def test_a_header_may_have_quotes_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,"first\nname"\n1,x\n')
    assert read(path, OPTIONS, columns={"id": "bigint", "first\nname": "text"}) == [{"id": 1, "first\nname": "x"}]


def test_lines_that_end_with_carriage_returns_are_not_taken_for_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,v\r1,x\r2,y\r")
    with pytest.raises(InvalidRequest, match=r"a.csv is no csv file: its lines end with a carriage return alone"):
        read(path, OPTIONS, columns=COLUMNS)


def test_records_are_those_of_arrow_whatever_the_text_is() -> None:
    """Read one by one they are the rows of all of them together, wrong ones included."""

    def rows(text: bytes) -> list[str]:
        found: list[str] = []
        parse = arrow_csv.ParseOptions(
            newlines_in_values=True, invalid_row_handler=lambda row: found.append(row.text) or "skip"
        )
        read = arrow_csv.ReadOptions(column_names=["a", "b"], use_threads=False, block_size=len(text))
        convert = arrow_csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()})
        table = arrow_csv.read_csv(pa.BufferReader(text), read, parse, convert)
        return [*found, *map(str, table.to_pylist())]

    rng = random.Random(5)
    for _ in range(2000):
        text = "".join(rng.choices('a",\n\r', [6, 6, 4, 4, 1], k=rng.randrange(25))).encode() + b"\n"
        found = split(text, b",", b'"')
        parts = [found.records.data[a:b] for a, b in pairwise(found.records.bounds())]
        one_by_one = [row for part in (*parts, found.rest) if part for row in rows(part)]
        assert sorted(one_by_one) == sorted(rows(text)), text
        assert (found.open_at is not None) <= bool(found.rest), text
