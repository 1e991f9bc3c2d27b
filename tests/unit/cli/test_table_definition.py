"""Tables as people type them."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.cli.errors import WrongUsage
from trimtab.cli.table_definition import Definition, parse


@pytest.mark.parametrize(
    ("text", "columns", "key"),
    [
        ("id bigint primary key, name text", {"id": "bigint", "name": "text"}, [["id"]]),
        ("id bigint, name text, primary key (id)", {"id": "bigint", "name": "text"}, [["id"]]),
        ("a int, b int, PRIMARY KEY (a, b)", {"a": "int", "b": "int"}, [["a"], ("b", "asc")]),
        (
            "(a int, b int, c int, primary key ((a, b), c desc))",
            dict.fromkeys("abc", "int"),
            [["a", "b"], ("c", "desc")],
        ),
        (
            "a map<text, frozen<list<int>>>, b int primary  key",
            {"a": "map<text, frozen<list<int>>>", "b": "int"},
            [["b"]],
        ),
        (
            '"My Id" bigint, b int, primary key ("My Id", b DESC)',
            {"My Id": "bigint", "b": "int"},
            [["My Id"], ("b", "desc")],
        ),
    ],
)
def test_definitions(text: str, columns: dict[str, str], key: Any) -> None:
    found = parse(text)
    assert found.columns == columns and found.primary_key == key


def test_static_columns_and_keys_given_apart() -> None:
    found = Definition()
    for each in ("page text", "at bigint", "title text static"):
        found.add_column(each)
    found.set_key("page, at desc")
    assert found.static == ["title"] and found.columns["title"] == "text"
    assert found.primary_key == [["page"], ("at", "desc")]
    alone = Definition()
    alone.set_key("(a, b), c")
    assert alone.primary_key == [["a", "b"], ("c", "asc")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "write NAME TYPE"),
        ("id bigint,", "empty column"),
        (", id bigint", "empty column"),
        ("id bigint primary key, name text primary key", "two primary keys"),
        ("id bigint, id text", "there twice"),
        ("id map<text, int", "not closed"),
        ("id bigint, primary key ((id)", "not closed"),
        ("id bigint, primary key ()", "is no primary key"),
        ("id bigint, primary key ((), id)", "a column's name is missing"),
        ('"id bigint', "not closed"),
        ("id bigint primary key now", "nothing comes after"),
    ],
)
def test_what_is_no_definition_is_wrong_usage(text: str, said: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parse(text)
    assert said in str(caught.value)
