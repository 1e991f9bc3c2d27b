"""The columns of files that are loaded together: none is lost without a word, wherever it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.rows import tables
from tests.unit.spark.read_files import read

from trimtab.client.errors import InvalidRequest
from trimtab.rows.layout import RowLayout
from trimtab.spark.file_columns import guessed, look, schemas
from trimtab.spark.file_splits import FileOptions, find
from trimtab.spark.load_plan import LoadFailed

PARQUET, CSV, JSON = FileOptions("parquet"), FileOptions("csv"), FileOptions("json")
COLUMNS = {"id": "bigint", "v": "text", "g": "int", "w": "double"}
# p0 bigint, v0 double, v1 text, v2 int
LAYOUT = RowLayout(tables.table(["bigint"], [], ["double", "text", "int"]), tables.USER_TYPES)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """As the format of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows]), path)
    elif path.suffix == ".csv":
        lines = [",".join("" if row.get(name) is None else str(row[name]) for name in names) for row in rows]
        path.write_text("\n".join([",".join(names), *lines]))
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))


def guess(path: Path, options: FileOptions) -> dict[str, str]:
    found = guessed(look(find([str(path)]), options), options)
    return {field.name: str(field.type) for field in found}


def check(path: Path, options: FileOptions) -> list[Any]:
    return schemas(look(find([str(path)]), options), options, LAYOUT)


# Fields of JSON


def test_a_field_that_only_later_lines_have_is_loaded(tmp_path: Path) -> None:
    """Spark leaves out what is null."""
    rows = [{"id": n} | ({"v": "x"} if n > 1500 else {}) for n in range(2000)]
    write(tmp_path / "a.json", rows)
    write(tmp_path / "b.json", [{"id": 5000, "w": 1.5}])
    found = read(tmp_path, JSON, 3, columns=COLUMNS)
    assert sum(row["v"] == "x" for row in found) == 499 and [row["id"] for row in found if row["w"] == 1.5] == [5000]
    assert guess(tmp_path, JSON) == {"id": "int64", "v": "string", "w": "double"}


@pytest.mark.parametrize("policy", [None, lambda _table: None])
@pytest.mark.parametrize("other", [{"nick": 1}, {"nick": None}, {"m": {}, "nick": "x"}])
def test_a_field_that_the_table_does_not_have_fails_the_load(
    tmp_path: Path, policy: Any, other: dict[str, Any]
) -> None:
    """Whatever happens to bad lines: it is no matter of one line."""
    path = tmp_path / "a.json"
    write(path, [{"id": 1}, {"id": 2, "nick": 7}, {"id": 3} | other])
    columns = COLUMNS | ({"m": "map<text, text>"} if "m" in other else {})
    with pytest.raises(LoadFailed, match=r"a.json has the field nick, and the table has no such column; it has id, v"):
        read(path, JSON, 1, policy, columns)
    only = FileOptions("json", ("id",))
    assert read(path, only, columns=columns) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_lines_that_are_no_json_suggest_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"id":1}\nwhat\n{"id":2.5,"v":"2024-01-01"}\n[1]\n{"v":"x"}')
    assert guess(path, JSON) == {"id": "double", "v": "string"}
    path.write_text("what\n")
    with pytest.raises(InvalidRequest, match=r"a.json has no lines of JSON objects"):
        guess(path, JSON)


def test_objects_have_all_fields_that_any_of_them_has(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [{"o": [{"x": 1}], "n": {"a": None, "b": []}}])
    write(tmp_path / "b.json", [{"o": [{"y": "z"}, {"x": 1.5}], "n": None}])
    found = guess(tmp_path, JSON)
    assert found["o"] == "list<item: struct<x: double, y: string>>"
    assert found["n"] == "struct<a: string, b: list<item: string>>"


def test_lines_of_one_file_that_differ_are_told_with_its_name_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"id":"x"}\n{"id":1}\n')
    with pytest.raises(InvalidRequest, match=r"column id is string in some lines of [^ ]*a.json and int64 in others; "):
        guess(path, JSON)


# Directories


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_directories_are_columns(tmp_path: Path, ending: str) -> None:
    options = FileOptions(ending)
    for number, folder in enumerate(["v=a%20b%2Fc/g=1", "v=__HIVE_DEFAULT_PARTITION__/g=02"]):
        write(tmp_path / folder / f"part.{ending}", [{"id": number}])
    wanted = [{"id": 0, "v": "a b/c", "g": 1}, {"id": 1, "v": None, "g": 2}]
    chosen = FileOptions(ending, ("id", "v", "g"))
    assert sorted(read(tmp_path, chosen, 4, columns=COLUMNS), key=lambda row: row["id"]) == wanted
    assert len(read(f"{tmp_path}/*/g=1", chosen, columns=COLUMNS)) == 1
    # One that is named itself counts as well.
    assert read(tmp_path / "v=a%20b%2Fc" / "g=1" / f"part.{ending}", chosen, columns=COLUMNS) == wanted[:1]
    assert read(tmp_path, FileOptions(ending, ("id",)), columns=COLUMNS) == [{"id": 1}, {"id": 0}]
    assert guess(tmp_path, options) == {"id": "int64", "g": "int64", "v": "string"}


def test_a_directory_counts_in_place_of_what_its_files_say(tmp_path: Path) -> None:
    for ending in ("parquet", "csv", "json"):
        write(tmp_path / ending / "g=5" / f"a.{ending}", [{"id": 1, "g": 6}])
        options = FileOptions(ending)
        assert [row["g"] for row in read(tmp_path / ending, options, columns={"id": "bigint", "g": "int"})] == [5]


def test_a_file_without_header_has_columns_of_its_directories(tmp_path: Path) -> None:
    (tmp_path / "g=3").mkdir()
    (tmp_path / "g=3" / "a.csv").write_text("1,x\n2,y\n")
    found = read(tmp_path, FileOptions("csv", ("id", "v"), header=False), columns=COLUMNS)
    assert found == [{"id": 1, "v": "x", "g": 3}, {"id": 2, "v": "y", "g": 3}]


def test_directories_that_don_t_go_together_are_told(tmp_path: Path) -> None:
    write(tmp_path / "v2=1" / "a.csv", [{"p0": 1}])
    write(tmp_path / "b.csv", [{"p0": 1}])
    with pytest.raises(InvalidRequest, match=r"b.csv is in directories of no such name and .*a.csv in those of v2=…"):
        look(find([str(tmp_path)]), CSV)
    (tmp_path / "b.csv").unlink()
    assert [field.name for field in check(tmp_path, CSV)[0]] == ["p0", "v2"]
    write(tmp_path / "v2=x" / "a.csv", [{"p0": 1}])
    with pytest.raises(InvalidRequest, match=r"v2=x/a.csv: the directory v2=x: "):
        check(tmp_path, CSV)
    check(tmp_path, FileOptions("csv", ("p0",)))
    write(tmp_path / "twice" / "v2=1" / "v2=2" / "a.csv", [{"p0": 1}])
    with pytest.raises(InvalidRequest, match=r"is in two directories that are called v2="):
        check(tmp_path / "twice", CSV)
    write(tmp_path / "other" / "h=1" / "a.csv", [{"p0": 1}])
    with pytest.raises(InvalidRequest, match=r"h=1/a.csv can't be loaded into .*the table has no column h"):
        check(tmp_path / "other", CSV)


# Several files


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_a_column_that_only_later_files_have_is_loaded(tmp_path: Path, ending: str) -> None:
    options = FileOptions(ending)
    write(tmp_path / f"a.{ending}", [{"p0": 1, "v2": 5}])
    write(tmp_path / f"b.{ending}", [{"p0": 2, "v1": "x"}])
    columns = {"p0": "bigint", "v0": "double", "v1": "text", "v2": "int"}
    found = read(tmp_path, options, columns=columns)
    assert [(row["p0"], row.get("v1"), row.get("v2")) for row in found] == [(1, None, 5), (2, "x", None)]
    check(tmp_path, options)
    assert guess(tmp_path, options) == {"p0": "int64", "v2": "int64", "v1": "string"}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_file_that_does_not_go_into_the_table_is_named(tmp_path: Path, ending: str) -> None:
    options = FileOptions(ending)
    write(tmp_path / f"a.{ending}", [{"p0": 1, "v2": 5}])
    write(tmp_path / f"b.{ending}", [{"p0": 2, "nick": "x"}])
    with pytest.raises(InvalidRequest, match=rf"b.{ending} can't be loaded into .*the table has no column nick"):
        check(tmp_path, options)
    assert [each.names for each in check(tmp_path, FileOptions(ending, ("p0", "v2")))] == [["p0", "v2"], ["p0"]]
    write(tmp_path / f"b.{ending}", [{"v2": 2}])
    with pytest.raises(InvalidRequest, match=rf"b.{ending} can't be loaded into .*key column p0 is missing"):
        check(tmp_path, options)
    with pytest.raises(InvalidRequest, match=rf"a.{ending} has no column age; it has p0, v2"):
        check(tmp_path, FileOptions(ending, ("p0", "age")))


def test_types_that_differ_between_files_go_by_the_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p0": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"p0": pa.array([1], pa.int64()), "v1": ["x"]}), tmp_path / "b.parquet")
    assert len(check(tmp_path, PARQUET)) == 2
    assert guess(tmp_path, PARQUET) == {"p0": "int64", "v1": "string"}
    pq.write_table(pa.table({"p0": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(InvalidRequest, match=r"c.parquet can't be loaded into .*column p0 \(bigint\)"):
        check(tmp_path, PARQUET)
    with pytest.raises(InvalidRequest, match=r"column p0 is int64 in .*b.parquet and string in .*c.parquet"):
        guess(tmp_path, PARQUET)


def test_types_of_text_that_differ_between_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("p0,v0\n1,\n")
    (tmp_path / "b.csv").write_text("p0,v0\n2.5,x\n")
    assert guess(tmp_path, CSV) == {"p0": "double", "v0": "string"}
    (tmp_path / "c.csv").write_text("p0,v0\nNA,\n")
    with pytest.raises(InvalidRequest, match=r"column p0 is double in .*b.csv and string in .*c.csv"):
        guess(tmp_path, CSV)


# Names


@pytest.mark.parametrize(
    ("header", "why"),
    [("id,a,a", "a.csv: column a is there twice"), ("id,a,", "a.csv: column 3 has no name; give it one, or name")],
)
def test_columns_without_a_name_of_their_own_are_refused_at_once(tmp_path: Path, header: str, why: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,2,3\n")
    with pytest.raises(InvalidRequest, match=why):
        look(find([str(tmp_path)]), CSV)
    assert read(tmp_path, FileOptions("csv", ("id",)), columns={"id": "bigint"}) == [{"id": 1}]
    assert guess(tmp_path, FileOptions("csv", ("id",))) == {"id": "int64"}


def test_columns_of_parquet_and_of_the_option_may_be_there_once(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(InvalidRequest, match=r"a.parquet: column a is there twice"):
        look(find([str(tmp_path)]), PARQUET)
    (tmp_path / "b.csv").write_text("1,2\n")
    with pytest.raises(InvalidRequest, match=r"b.csv: column a is there twice"):
        look(find([str(tmp_path / "b.csv")]), FileOptions("csv", ("a", "a"), header=False))


# Whole numbers that a double would round

LONG = 2**53 + 1


@pytest.mark.parametrize(
    ("one", "other", "column"),
    [
        ([LONG, 1.5], [1], "v"),
        ([LONG], [1.5], "v"),
        ([1.5], [-LONG], "v"),
        ([2**63], [1], "v"),
        ([10**30], [1.5], "v"),
        ([[1, LONG], [0.5]], [None], r"v\[\]"),
        ([{"x": [LONG]}], [{"x": [0.5]}], r"v\.x\[\]"),
    ],
)
def test_no_type_is_guessed_that_rounds_whole_numbers(
    tmp_path: Path, one: list[Any], other: list[Any], column: str
) -> None:
    nested = isinstance(one[0], list | dict)
    for ending in ("json",) if nested else ("json", "csv"):
        folder = tmp_path / ending
        write(folder / f"a.{ending}", [{"id": 1, "v": each} for each in one])
        write(folder / f"b.{ending}", [{"id": 1, "v": each} for each in other])
        file = "b" if other == [-LONG] else "a"
        why = rf"column {column} has whole numbers beyond 2\^53 in .*{file}.{ending}, .*with varint, decimal or double"
        with pytest.raises(InvalidRequest, match=why):
            guess(folder, FileOptions(ending))
        assert guess(folder, FileOptions(ending, ("id",))) == {"id": "int64"}


@pytest.mark.parametrize("values", [[2**53, 1.5, -(2**53)], [1e300, 1.5, "9007199254740993.5"], [LONG, 1, 2]])
def test_numbers_that_a_double_or_a_bigint_holds_are_guessed_as_before(tmp_path: Path, values: list[Any]) -> None:
    wanted = "int64" if LONG in values else "double"
    (tmp_path / "a.csv").write_text("v\n" + "".join(f"{each}\n" for each in values))
    (tmp_path / "a.json").write_text("".join(f'{{"v":{each}}}\n' for each in values))
    assert guess(tmp_path / "a.csv", CSV) == {"v": wanted}
    assert guess(tmp_path / "a.json", JSON) == {"v": wanted}
