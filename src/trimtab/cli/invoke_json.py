"""Conditional commands as people write them: JSON with the operators' words, turned into a command of the metastore.

    {"if": {"and": [{"exists": "a"}, {"value": ["b", "==", "1"]}]},
     "then": [{"put": ["c", "2"]}, {"delete": "a"}],
     "else": {"if": {"revision": ["b", ">", 7]}, "then": [], "else": [{"put": ["c", "3"]}], "yield": "older"}}

Conditions: exists, not_exists, tombstone, value, revision, and, or, not. Comparisons: == != < <= > >=. A leaf is a list
of operations, or an object with `do` and `yield` to choose the answer. Text is UTF-8; {"hex": "00ff"} stands for other
bytes. What can't be understood is refused with the path to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from trimtab.metastore.commands import Actions, Branch, Command, Delete, Operation, Put, Tree
from trimtab.metastore.conditions import And, Compare, Condition, Exists, Not, NotExists, Or, Revision, Tombstone, Value
from trimtab.metastore.limits import MAX_DEPTH

COMPARISONS = {
    "==": Compare.EQ,
    "!=": Compare.NE,
    "<": Compare.LT,
    "<=": Compare.LE,
    ">": Compare.GT,
    ">=": Compare.GE,
}
ON_ONE_KEY: dict[str, Callable[[bytes], Condition]] = {
    "exists": Exists,
    "not_exists": NotExists,
    "tombstone": Tombstone,
}


class InvalidInvoke(ValueError):
    """The JSON is not an invoke; the text says where and what was expected."""


def parse_invoke(text: str) -> Command:
    """The command that the JSON describes."""
    try:
        tree = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInvoke(f"this is not JSON: {error}") from error
    return Command(b"", _tree(tree, "$", True, 1))


def _tree(value: Any, where: str, answer: bool, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise InvalidInvoke(f"{where}: nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return Actions(_operations(value, where), answer)
    if isinstance(value, dict) and "if" in value:
        _only(value, {"if", "then", "else"}, where)
        return Branch(
            _condition(value["if"], f"{where}.if", 1),
            _tree(value.get("then", []), f"{where}.then", True, depth + 1),
            _tree(value.get("else", []), f"{where}.else", False, depth + 1),
        )
    if isinstance(value, dict) and "do" in value:
        _only(value, {"do", "yield"}, where)
        yields = value.get("yield", answer)
        return Actions(
            _operations(value["do"], f"{where}.do"),
            yields if isinstance(yields, bool) else _bytes(yields, f"{where}.yield"),
        )
    raise InvalidInvoke(f"{where}: expected a list of operations, or an object with 'if' or with 'do'")


def _operations(value: Any, where: str) -> tuple[Operation, ...]:
    if not isinstance(value, list):
        raise InvalidInvoke(f"{where}: expected a list of operations")
    return tuple(_operation(item, f"{where}[{place}]") for place, item in enumerate(value))


def _operation(value: Any, where: str) -> Operation:
    name, argument = _single(value, where)
    if name == "put":
        key, new = _items(argument, 2, f"{where}.put")
        return Put(_bytes(key, f"{where}.put[0]"), _bytes(new, f"{where}.put[1]"))
    if name == "delete":
        return Delete(_bytes(argument, f"{where}.delete"))
    raise InvalidInvoke(f"{where}: {name!r} is no operation; use put or delete")


def _condition(value: Any, where: str, depth: int) -> Condition:
    if depth > MAX_DEPTH:
        raise InvalidInvoke(f"{where}: nested deeper than {MAX_DEPTH}")
    name, argument = _single(value, where)
    at = f"{where}.{name}"
    if name in ON_ONE_KEY:
        return ON_ONE_KEY[name](_bytes(argument, at))
    if name in ("and", "or"):
        if not isinstance(argument, list) or not argument:
            raise InvalidInvoke(f"{at}: expected a list of conditions")
        parts = tuple(_condition(item, f"{at}[{place}]", depth + 1) for place, item in enumerate(argument))
        return And(parts) if name == "and" else Or(parts)
    if name == "not":
        return Not(_condition(argument, at, depth + 1))
    if name in ("value", "revision"):
        key, comparison, operand = _items(argument, 3, at)
        if not isinstance(comparison, str) or comparison not in COMPARISONS:
            raise InvalidInvoke(f"{at}[1]: {comparison!r} is no comparison; use one of {' '.join(COMPARISONS)}")
        if name == "value":
            return Value(_bytes(key, f"{at}[0]"), COMPARISONS[comparison], _bytes(operand, f"{at}[2]"))
        if isinstance(operand, bool) or not isinstance(operand, int) or operand < 0:
            raise InvalidInvoke(f"{at}[2]: a revision is a whole number from 0, not {operand!r}")
        return Revision(_bytes(key, f"{at}[0]"), COMPARISONS[comparison], operand)
    raise InvalidInvoke(
        f"{where}: {name!r} is no condition; use exists, not_exists, tombstone, value, revision, and, or, not"
    )


def _single(value: Any, where: str) -> tuple[str, Any]:
    if not isinstance(value, dict) or len(value) != 1:
        raise InvalidInvoke(f'{where}: expected an object with one key, such as {{"put": ["key", "value"]}}')
    return next(iter(value.items()))


def _items(value: Any, count: int, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        raise InvalidInvoke(f"{where}: expected a list of {count}")
    return value


def _only(value: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(value) - known):
        raise InvalidInvoke(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")


def _bytes(value: Any, where: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["hex"] and isinstance(value["hex"], str):
        try:
            return bytes.fromhex(value["hex"])
        except ValueError as error:
            raise InvalidInvoke(f"{where}: {error}") from error
    raise InvalidInvoke(f'{where}: expected text, or {{"hex": "…"}} for other bytes')
