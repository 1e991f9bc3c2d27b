"""Files cut into pieces, and pieces read: every row once, wherever the cuts are."""

from __future__ import annotations

import datetime as dt
import gzip
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.spark.read_files import read

from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.spark import file_splits, text_files
from trimtab.spark.file_columns import look
from trimtab.spark.file_splits import FileOptions, find, pieces
from trimtab.spark.files import reading_options
from trimtab.spark.load_plan import LoadFailed


def write_parquet(path: Path, start: int, stop: int, group: int = 100) -> None:
    numbers = range(start, stop)
    table = pa.table({"id": numbers, "name": [f"n{n}" for n in numbers]})
    pq.write_table(table, path, row_group_size=group)


def test_parquet_is_cut_by_row_groups(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 0, 1000)
    write_parquet(tmp_path / "b.parquet", 1000, 1100)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.parquet").write_bytes(b"nothing")
    options = FileOptions("parquet")
    looked = look(find([str(tmp_path)]), options)
    size_bytes = sum(each.file.size_bytes for each in looked)
    assert len(pieces(looked, options, size_bytes // 4)) > 3
    assert [len(piece.groups) for _, piece in pieces(looked, options, size_bytes)] == [10, 1]
    assert sorted(row["id"] for row in read(tmp_path, options, 4)) == list(range(1100))


def test_some_columns_are_read_and_others_missed_by_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 0, 3)
    assert read(tmp_path, FileOptions("parquet", ("id",))) == [{"id": 0}, {"id": 1}, {"id": 2}]
    with pytest.raises(InvalidRequest, match=r"a.parquet has no column age; it has id, name"):
        read(tmp_path, FileOptions("parquet", ("age",)))


def test_half_a_parquet_file_is_told_with_its_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", 0, 1000)
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidRequest, match=r"b.parquet is no parquet file: Parquet magic bytes"):
        read(tmp_path, FileOptions("parquet"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_line_is_read_once_wherever_the_cuts_are(
    tmp_path: Path, seed: int, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", rng.choice([7, 64, 1000]))
    rows = [(n, "x" * rng.choice([0, 1, 5, 90])) for n in range(rng.choice([1, 2, 200]))]
    lines = ["id,name", *(f'{n},"{text}"' for n, text in rows)]
    path = tmp_path / "a.csv"
    path.write_bytes((ending.join(lines) + rng.choice(["", ending])).encode())
    for wanted in (1, 2, 3, 10, 57):
        found = read(path, FileOptions("csv"), wanted)
        assert sorted((row["id"], row["name"]) for row in found) == sorted(rows)


def test_lines_of_json_are_read_with_the_types_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"id": 1, "at": "2025-06-01T12:00:00Z"}\n{"id": 2, "score": 1, "at": "2025-06-01 12:00:00"}\n')
    moment = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
    assert read(path, FileOptions("json", ("id", "at", "score")), 2) == [
        {"id": 1, "at": moment, "score": None},
        {"id": 2, "at": moment, "score": 1.0},
    ]


def test_packed_text_is_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"id\tname\n1\tone\n2\t\n"))
    options, _ = reading_options(find([str(path)]), "", {"delimiter": "\t"})
    assert read(path, options, 8) == [{"id": 1, "name": "one"}, {"id": 2, "name": None}]


@pytest.mark.parametrize("name", ["a.csv.GZ", "a.CSV.gz", "a.TSV.Gz"])
def test_endings_count_in_whatever_case(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    between = b"\t" if "TSV" in name else b","
    path.write_bytes(gzip.compress(b"id%bname\n1%bone\n" % (between, between)))
    options, _ = reading_options(find([str(path)]), "", {})
    assert read(path, options, 8) == [{"id": 1, "name": "one"}]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delimiter": "||"}, r"option delimiter: one ASCII character is expected that ends no line, not '\|\|'"),
        ({"delimiter": "§"}, "option delimiter: one ASCII character is expected"),
        ({"delimiter": "\n"}, "option delimiter: one ASCII character is expected"),
        ({"quote": "„"}, "option quote: one ASCII character is expected"),
        ({"quote": ""}, "option quote: one ASCII character is expected"),
        ({"quote": ","}, "options delimiter and quote are both ','"),
    ],
)
def test_characters_that_can_t_part_values_are_refused(tmp_path: Path, given: dict[str, str], why: str) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(InvalidRequest, match=why):
        reading_options(find([str(tmp_path)]), "", given)


def test_files_of_several_formats_are_not_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.json").write_text('{"id": 2}\n')
    (tmp_path / "notes").write_text("id\n3\n")
    found = find([str(tmp_path)])
    with pytest.raises(InvalidRequest, match=r"a.csv is csv and .*b.json is json, by their names"):
        reading_options(found, "", {})
    assert reading_options(found, "json", {})[0].format == "json"


def test_a_file_without_header_has_its_columns_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,one\n2,two\n")
    with pytest.raises(InvalidRequest, match="option columns has to name its columns"):
        read(path, FileOptions("csv", header=False))
    assert read(path, FileOptions("csv", ("id", "name"), header=False), 2)[1] == {"id": 2, "name": "two"}


def test_bad_lines_are_told_or_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,name\n" + "\n".join(f"{n},n{n}" for n in range(50)) + "\nfifty,n\n51,n,too many\n52,n52\n")
    with pytest.raises(LoadFailed, match=r"a.csv: the line 'fifty,n' can't be read: column id: .*onError=reject"):
        read(path, FileOptions("csv"))
    aside: list[Any] = []
    assert [row["id"] for row in read(path, FileOptions("csv"), 3, aside.append)] == [*range(50), 52]
    assert [table.column("_line")[0].as_py() for table in aside] == ["fifty,n", "51,n,too many"]
    assert aside[0].column("_reason")[0].as_py() == "column id: CSV conversion error to int64: invalid value 'fifty'"


def test_bad_lines_of_json_are_put_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"id": 1}\n{"id": "two"}\nthree\n{"id": 4}\n')
    aside: list[Any] = []
    assert [row["id"] for row in read(path, FileOptions("json"), 1, aside.append)] == [1, 4]
    assert [table.column("_line")[0].as_py() for table in aside] == ['{"id": "two"}', "three"]


def test_paths_may_hold_stars_and_must_hold_files(tmp_path: Path) -> None:
    for day in ("d1", "d2", "other"):
        (tmp_path / day).mkdir()
        write_parquet(tmp_path / day / "a.parquet", 0, 10)
    assert len(find([f"{tmp_path}/d*/*.parquet"])[0].files) == 2
    assert len(find([f"file://{tmp_path}"])[0].files) == 3
    with pytest.raises(NotFound, match=r"no files to load at .*/nothing"):
        find([f"{tmp_path}/nothing"])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("[ab].csv", "ab"),
        ("[!ab].csv", "c"),
        ("[b-c].csv", "bc"),
        ("{a,c}.csv", "ac"),
        ("[^ab].csv", "c"),
        ("?.{csv,tsv}", "abc"),
        ("{[a]*,c*}.csv", "ac"),
        ("*.csv", "abc"),
    ],
)
def test_patterns_are_those_of_a_shell(pattern: str, names: str, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("id\n1\n")
    files = find([f"{tmp_path}/{pattern}"])[0].files
    assert [Path(each.path).stem for each in files] == list(names)


def test_a_file_may_be_called_like_a_pattern(tmp_path: Path) -> None:
    for name in ("[1].csv", "{x,y}.csv"):
        (tmp_path / name).write_text("id\n1\n")
        assert [Path(each.path).name for each in find([str(tmp_path / name)])[0].files] == [name]


def test_a_directory_may_be_called_like_a_pattern(tmp_path: Path) -> None:
    for name in ("d[1]", "d1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("id\n1\n")
    (tmp_path / "d1" / "a.csv").unlink()
    assert [Path(each.path).parent.name for each in find([f"{tmp_path}/d[1]/*.csv"])[0].files] == ["d[1]"]


def test_a_pattern_that_means_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no pattern"):
        find([f"{tmp_path}/[z-a].csv"])


def test_the_format_is_that_of_the_name_unless_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x")
    (tmp_path / "a.what").write_text("x")
    options, tasks = reading_options(find([str(tmp_path / "a.tsv")]), "", {"tasks": "7"})
    assert (options.format, options.delimiter, tasks) == ("csv", "\t", 7)
    with pytest.raises(InvalidRequest, match="not known by the name"):
        reading_options(find([str(tmp_path / "a.what")]), "", {})
    with pytest.raises(InvalidRequest, match="no format 'xml'"):
        reading_options(find([str(tmp_path / "a.what")]), "xml", {})
    with pytest.raises(InvalidRequest, match="no option delimeter"):
        reading_options(find([str(tmp_path / "a.tsv")]), "", {"delimeter": ";"})


def test_a_piece_is_about_as_large_as_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "12345\n" * 1000)
    options = FileOptions("csv")
    looked = look(find([str(tmp_path)]), options)
    assert 9 <= len(pieces(looked, options, looked[0].file.size_bytes // 10)) <= 11
    assert file_splits.FORMATS == ("parquet", "csv", "json")
