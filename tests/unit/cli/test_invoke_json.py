"""Conditional commands written as JSON: what they mean, and where they are wrong."""

import json
from typing import Any

import pytest

from trimtab.cli.invoke_json import InvalidInvoke, parse_invoke
from trimtab.metastore.commands import Actions, Branch, Delete, Put, encode
from trimtab.metastore.conditions import And, Compare, Exists, Not, NotExists, Or, Revision, Tombstone, Value


def test_a_nested_invoke_means_what_it_says() -> None:
    text = """
    {"if": {"and": [{"exists": "a"}, {"or": [{"not_exists": "b"}, {"tombstone": "c"}]}, {"not": {"exists": "d"}}]},
     "then": [{"put": ["x", "1"]}, {"delete": "a"}],
     "else": {"if": {"revision": ["a", ">=", 7]}, "then": {"do": [], "yield": "newer"}, "else": []}}
    """
    body = parse_invoke(text).body
    assert body == Branch(
        And((Exists(b"a"), Or((NotExists(b"b"), Tombstone(b"c"))), Not(Exists(b"d")))),
        Actions((Put(b"x", b"1"), Delete(b"a")), True),
        Branch(Revision(b"a", Compare.GE, 7), Actions((), b"newer"), Actions((), False)),
    )


def test_what_is_not_text_is_written_as_hex() -> None:
    body = parse_invoke('{"if": {"value": ["k", "!=", {"hex": "00ff"}]}, "then": [{"put": ["k", {"hex": ""}]}]}').body
    assert isinstance(body, Branch)
    assert body.condition == Value(b"k", Compare.NE, b"\x00\xff")
    assert body.then == Actions((Put(b"k", b""),), True)


def test_a_plain_list_is_a_command_without_a_condition() -> None:
    command = parse_invoke('[{"put": ["k", "v"]}]')
    assert command.body == Actions((Put(b"k", b"v"),), True)
    assert encode(command)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("not json", "not JSON"),
        (5, r"\$: expected a list"),
        ({}, r"\$: expected a list"),
        ([5], r"\$\[0\]: expected an object"),
        ([{"put": ["k"]}], r"\$\[0\]\.put: expected a list of 2"),
        ([{"put": ["k", 5]}], r"\$\[0\]\.put\[1\]: expected text"),
        ([{"move": "k"}], r"'move' is no operation"),
        ({"if": {"exists": "a"}, "than": []}, r"unknown than"),
        ({"if": {"grows": "a"}, "then": []}, r"'grows' is no condition"),
        ({"if": {"value": ["a", "~", "b"]}, "then": []}, r"'~' is no comparison"),
        ({"if": {"value": ["a", ["=="], "b"]}, "then": []}, r"is no comparison"),
        ({"if": {"revision": ["a", "==", -1]}, "then": []}, r"whole number"),
        ({"if": {"revision": ["a", "==", True]}, "then": []}, r"whole number"),
        ({"if": {"and": []}, "then": []}, r"expected a list of conditions"),
        ([{"put": [{"hex": "0g"}, "v"]}], r"\$\[0\]\.put\[0\]"),
        ({"do": "x"}, r"expected a list of operations"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(InvalidInvoke, match=where):
        parse_invoke(value if value == "not json" else json.dumps(value))


def test_nesting_without_end_is_refused() -> None:
    condition: dict[str, Any] = {"exists": "a"}
    for _ in range(50):
        condition = {"not": condition}
    with pytest.raises(InvalidInvoke, match="nested deeper"):
        parse_invoke(json.dumps({"if": condition, "then": []}))
    with pytest.raises(InvalidInvoke):
        parse_invoke("[" * 100_000)
