"""`trimtab get`, `put` and `scan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.typing_commands import Typist
from tests.unit.client.fake_cluster import fails

from trimtab.rows import protocol
from trimtab.tablets.consistency import Level


@pytest.fixture
def shop(typist: Typist) -> Typist:
    typist.cluster.create("shop.users", "id bigint, name text, score double, tags list<text>", "id")
    typist.cluster.create("shop.visits", "page text, at bigint, who text", "page", "at")
    return typist


def test_a_row_is_put_and_shown(shop: Typist) -> None:
    code, out, _ = shop("put", "shop.users", "id=1", "name=Ada = x", "score=0.5", 'tags=["a", "b"]')
    assert code == 0 and out.startswith("1 row written (timestamp ")
    row = {"id": 1, "name": "Ada = x", "score": 0.5, "tags": ["a", "b"]}
    assert shop.json("get", "shop.users", "id=1") == row
    assert shop.json("get", "shop.users", "id=1", "--columns", "name, id") == {"name": "Ada = x", "id": 1}
    shown = shop("get", "shop.users", "id=1")[1]
    assert "Ada = x" in shown and "score" in shown
    assert (
        shop.json("put", "shop.users", "id=1", "--null", "name", "--ttl", "60", "--timestamp", "2000000")[
            "timestamp_us"
        ]
        == 2_000_000
    )
    found = shop.json("get", "shop.users", "id=1", "--with-meta")
    assert found["row"]["name"] is None and "score" in found["writetime"] and found["stale"] is False


def test_a_row_that_is_not_there_is_exit_code_one(shop: Typist) -> None:
    assert "shop.users has no row with id=9" in shop.refused("get", "shop.users", "id=9")


def test_the_beginning_of_a_key_shows_all_rows_that_have_it(shop: Typist) -> None:
    lines = "\n".join(json.dumps({"page": "p", "at": at, "who": f"u{at}"}) for at in range(5))
    assert shop("put", "shop.visits", "-", stdin=lines)[1] == "5 rows written.\n"
    code, out, _ = shop("get", "shop.visits", "page=p", "--json")
    assert code == 0 and [json.loads(line)["at"] for line in out.splitlines()] == [0, 1, 2, 3, 4]
    assert shop("get", "shop.visits", "page=p", "--limit", "2", "--json")[1].count("\n") == 2
    assert "u3" in shop("get", "shop.visits", "page=p")[1]
    assert shop.json("get", "shop.visits", "page=p", "at=3")["who"] == "u3"


def test_json_lines_go_in_and_come_out(shop: Typist, tmp_path: Path) -> None:
    rows = [{"id": each, "name": f"n{each}", "score": None, "tags": None} for each in range(150)]
    lines = "\n".join(map(json.dumps, rows)) + "\n\n"
    assert shop.json("put", "shop.users", "-", stdin=lines) == {"rows": 150}
    assert shop("put", "shop.users", "--json", "-", stdin=lines)[1] == '{"rows": 150}\n'
    (tmp_path / "rows.jsonl").write_text(lines)
    assert shop.json("put", "shop.users", f"@{tmp_path / 'rows.jsonl'}") == {"rows": 150}
    code, out, err = shop("scan", "shop.users", "--json")
    assert code == 0 and not err
    assert sorted((json.loads(line) for line in out.splitlines()), key=lambda row: row["id"]) == rows
    code, out, err = shop("scan", "shop.users", "--columns", "id")
    assert len(out.splitlines()) == 102 and "only the first 100 rows are shown" in err
    assert len(shop("scan", "shop.users", "--limit", "7", "--json")[1].splitlines()) == 7
    assert not shop("scan", "shop.users", "--limit", "7")[2]


def test_levels_are_asked_for_and_refusals_explained(shop: Typist) -> None:
    shop("put", "shop.users", "id=1", "--consistency", "all")
    assert shop.cluster.of(protocol.PUT)[-1].level is Level.ALL
    text = "QUORUM needs 2 replicas of 3, but only 1 can answer now; nothing was done"
    shop.cluster.script(protocol.PUT, *[fails("unavailable", text)] * 9)
    assert shop.refused("put", "shop.users", "id=1") == f"trimtab: {text}.\n"
    assert "ANY" in shop.refused("get", "shop.users", "id=1", "--consistency", "ANY")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("get", "shop.users"), "COLUMN=VALUE"),
        (("get", "shop.users", "1"), "write NAME=VALUE, such as id=1"),
        (("get", "shop.users", "=1"), "write NAME=VALUE"),
        (("get", "shop.users", "id=1", "id=2"), "id is given twice"),
        (("get", "shop.users", "id=1", "--columns", "a,,b"), "is no list of columns"),
        (("get", "shop.users", "id=1", "--consistency", "MOST"), "--consistency"),
        (("put", "shop.users"), "COLUMN=VALUE"),
        (("put", "shop.users", "id"), "write NAME=VALUE, such as name=Ada"),
        (("put", "shop.users", "id=1", "--ttl", "soon"), "--ttl"),
        (("put", "shop.users", "id=1", "name=x", "--null", "name"), "has a value and is to be null"),
        (("put", "shop.users", "-", "--null", "name"), "in JSON lines write null"),
        (("scan", "shop.users", "--columns", ""), "is no list of columns"),
        (("scan", "shop.users", "--limit", "-1"), "--limit"),
    ],
)
def test_wrong_usage_is_named(shop: Typist, arguments: tuple[str, ...], said: str) -> None:
    assert said in shop.refused(*arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("get", "shop.nothing", "id=1"), "there is no table shop.nothing"),
        (("get", "users", "id=1"), "write KEYSPACE.TABLE"),
        (("get", "shop.users", "id=one"), "shop.users.id is of type bigint"),
        (("get", "shop.users", "name=Ada"), "name is not part of the primary key"),
        (("get", "shop.users", "nmae=Ada"), "did you mean name?"),
        (("get", "shop.visits", "at=3"), "a key begins with page"),
        (("get", "shop.users", "id=1", "--columns", "nme"), "no column 'nme'"),
        (("put", "shop.users", "name=Ada"), "the row has no id"),
        (("put", "shop.users", "id=1", "score=high"), "shop.users.score is of type double"),
        (("put", "shop.users", "id=1", "tags=a,b"), "shop.users.tags is of type list<text>"),
        (("put", "shop.users", "id=1", "--null", "colour"), "no column 'colour'"),
        (("put", "shop.users", "@/nowhere/rows.jsonl"), "can't read the rows"),
        (("scan", "shop.nothing"), "there is no table shop.nothing"),
        (("scan", "shop.users", "--columns", "nme"), "did you mean 'name'?"),
    ],
)
def test_what_is_wrong_with_a_row_is_named(shop: Typist, arguments: tuple[str, ...], said: str) -> None:
    assert said in shop.refused(*arguments)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is no JSON"),
        ("[1]", "line 2 is no JSON object"),
        ('{"id": "x"}', "line 2: shop.users.id is of type bigint"),
        ('{"id": 1, "colour": 2}', "line 2: shop.users has no column colour"),
        ('{"name": "x"}', "line 2: shop.users: the row has no id"),
        ('{"id": 9223372036854775808}', "line 2: shop.users.id is of type bigint"),
        ('{"id": 2, "score": 1e400}', "line 2 is no JSON: the number 1e400 is too large for one"),
        ('{"id": 2, "score": -1e400}', "line 2 is no JSON: the number -1e400 is too large for one"),
        (f'{{"id": 2, "score": 1{"0" * 400}}}', "line 2: shop.users.score is of type double: expected a number that"),
        ('{"id": 2, "score": "1e400"}', "line 2: shop.users.score is of type double: expected a number that fits"),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_what_came_before_it_is_written(
    shop: Typist, line: str, said: str
) -> None:
    error = shop.refused("put", "shop.users", "-", stdin=f'{{"id": 1}}\n{line}\n{{"id": 3}}\n')
    assert said in error and error.endswith("; 1 row before that was written.\n")
    assert shop.json("get", "shop.users", "id=1")["id"] == 1
    shop.refused("get", "shop.users", "id=3")


def test_how_many_rows_were_written_before_a_wrong_line_is_told(shop: Typist, tmp_path: Path) -> None:
    lines = "".join(f'{{"id": {each}}}\n' for each in range(300))
    assert "line 301 is no JSON" in (error := shop.refused("put", "shop.users", "-", stdin=lines + "{\n"))
    assert error.endswith("; 300 rows before that were written.\n")
    assert len(shop("scan", "shop.users", "--json")[1].splitlines()) == 300
    (tmp_path / "rows.jsonl").write_bytes(lines.encode() * 50 + b"\xff\n")
    error = shop.refused("put", "shop.users", f"@{tmp_path / 'rows.jsonl'}")
    assert "can't be read: 'utf-8' codec" in error and "rows before that were written" in error
    assert shop.refused("put", "shop.users", "-", stdin="{\n").endswith("; no row was written.\n")


def test_infinity_is_written_only_where_it_is_meant(shop: Typist) -> None:
    assert "fits a double" in shop.refused("put", "shop.users", "id=1", "score=1e400")
    assert shop("put", "shop.users", "id=1", "score=Infinity")[0] == 0
    assert shop.json("get", "shop.users", "id=1")["score"] == "Infinity"
