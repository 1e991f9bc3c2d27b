"""A table's options as they are asked for: by our names or CQL's, checked one by one.

An option that nobody knows is refused, not kept: it would look as if it did something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from trimtab.catalog.errors import SchemaError
from trimtab.catalog.limits import MAX_EXTENSIONS, MAX_OPTION_CHARACTERS
from trimtab.catalog.schema import TableOptions
from trimtab.catalog.values import shown

MAX_TTL_S = 20 * 365 * 86_400  # as in CQL
MAX_GRACE_S = 10 * 365 * 86_400
MAX_HISTORY_S = 30 * 86_400
# CQL's names for what has a unit in its name here.
ALIASES = {"default_time_to_live": "default_ttl_s", "gc_grace_seconds": "gc_grace_s"}
_PERCENTILE = re.compile(r"(?:p([0-9]{1,2}(?:\.[0-9]{1,3})?)|([0-9]{1,2}(?:\.[0-9]{1,3})?)p(?:ercentile)?)", re.ASCII)
_WAIT = re.compile(r"([0-9]{1,6})(?:\.0*)?ms", re.ASCII)


def options_after(before: TableOptions, asked: Mapping[str, Any], table: str) -> TableOptions:
    """The options with what is asked for; SchemaError for what can't be."""
    fields: dict[str, Any] = {}
    for given, value in asked.items():
        name = ALIASES.get(given, given)
        check = _CHECKS.get(name)
        if check is None:
            raise SchemaError(
                f"{table}: there is no option '{given[:80]}'; there are {', '.join(sorted((*_CHECKS, *ALIASES)))}"
            )
        if name in fields:
            raise SchemaError(f"{table}: the option {name} is there twice")
        try:
            fields[name] = check(value)
        except ValueError as error:
            raise SchemaError(f"{table}: the option {given} {error}, not {shown(value)}") from None
    return replace(before, **fields)


def _seconds(largest_s: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
            value = int(value)  # as it comes from a command line
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest_s:
            raise ValueError(f"is 0 to {largest_s} seconds")
        return value

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_OPTION_CHARACTERS:
        raise ValueError(f"is text of at most {MAX_OPTION_CHARACTERS} characters")
    return value


def _retry(value: Any) -> str:
    """`none`, `always`, `p99` or `50ms`; CQL's ways to write them are understood too."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in ("none", "always"):
        return text
    if found := _PERCENTILE.fullmatch(text):
        number = (found[1] or found[2]).lstrip("0") or "0"
        number = number.rstrip("0").rstrip(".") if "." in number else number
        if float(number) > 0:
            return f"p{number if not number.startswith('.') else '0' + number}"
    if (found := _WAIT.fullmatch(text)) and int(found[1]) > 0:
        return f"{int(found[1])}ms"
    raise ValueError("is none, always, a percentile such as p99, or a time such as 50ms")


def _extensions(value: Any) -> dict[str, str]:
    fine = isinstance(value, dict) and len(value) <= MAX_EXTENSIONS
    if not fine or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise ValueError(f"is at most {MAX_EXTENSIONS} pairs of text")
    if any(len(each) > MAX_OPTION_CHARACTERS for pair in value.items() for each in pair):
        raise ValueError(f"has texts of at most {MAX_OPTION_CHARACTERS} characters")
    return {key: value[key] for key in sorted(value)}


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "comment": _text,
    "default_ttl_s": _seconds(MAX_TTL_S),
    "gc_grace_s": _seconds(MAX_GRACE_S),
    "history_s": _seconds(MAX_HISTORY_S),
    "speculative_retry": _retry,
    "extensions": _extensions,
}
