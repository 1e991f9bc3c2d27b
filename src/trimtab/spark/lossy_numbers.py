"""Numbers of text that Arrow's parsers change without a word: those that are too large for their type become infinite,
and whole ones of more than 53 bits are rounded where a column is guessed to be double.

Columns are looked at as a whole; texts only of those that have such values, which are few.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.text_forms import from_text

MAX_WHOLE = 1 << 53  # up to here a double holds every whole number
_ITEM = "[]"
_FLOATS = frozenset((Kind.FLOAT, Kind.DOUBLE))
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_LONG = re.compile(rb"[0-9]{16}")

Path = tuple[str, ...]  # a column, and fields of structs and items of lists in it
Texts = Callable[[str], Any]  # a column of a CSV as it is written


def check_csv(kind: Type, name: str, column: Any, texts: Texts) -> None:
    """ValueError: a number of this column of a CSV became infinite. Text that says so itself is fine."""
    import pyarrow.compute as pc

    if kind.kind not in _FLOATS:
        return
    infinite = pc.is_inf(column)
    if not pc.any(infinite).as_py():
        return
    for text in pc.unique(texts(name).filter(infinite)).to_pylist():
        try:
            kind.serialize(from_text(kind, text))
        except ValueError as error:
            raise ValueError(f"column {name} ({kind.name}): {error}") from None


def check_json(table: Any) -> None:
    """ValueError: a number of JSON may have become infinite, or says so; the lines have to be read one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for path, leaf in _leaves(table):
        if pa.types.is_floating(leaf.type) and pc.any(pc.is_inf(leaf)).as_py():
            raise ValueError(f"column {shown(path)}: a number that fits {leaf.type} is expected")


def long_in_csv(table: Any, texts: Texts) -> set[Path]:
    """Columns with whole numbers that a double can't hold, in a table whose types are guesses."""
    import pyarrow.compute as pc

    long, doubtful = _long(table)
    for path in doubtful:
        large = pc.greater_equal(pc.abs(table.column(path[0])), MAX_WHOLE)
        found = pc.unique(texts(path[0]).filter(large)).to_pylist()
        if any(_WHOLE.fullmatch(text) and (len(text) > 40 or abs(int(text)) > MAX_WHOLE) for text in found):
            long.add(path)
    return long


def long_in_json(table: Any, data: bytes) -> set[Path]:
    """The same of lines of JSON."""
    long, doubtful = _long(table)
    for line in data.split(b"\n") if doubtful else ():
        if _LONG.search(line):
            try:
                found = doubtful & set(_long_in(json.loads(line), ()))
            except (ValueError, RecursionError):
                continue  # it is told when it is loaded
            long |= found
            doubtful -= found
            if not doubtful:
                break
    return long


def type_at(kind: Any, path: Path) -> Any:
    """What a type has at a place within it; None: nothing."""
    import pyarrow as pa

    for part in path:
        if pa.types.is_list(kind) and part == _ITEM:
            kind = kind.value_type
        elif pa.types.is_struct(kind) and kind.get_field_index(part) >= 0:
            kind = kind.field(part).type
        else:
            return None
    return kind


def shown(path: Path) -> str:
    return ".".join(path).replace(f".{_ITEM}", _ITEM)


def _long(table: Any) -> tuple[set[Path], set[Path]]:
    """Where whole numbers are too long for a double, and where doubles are so large that they may have been such."""
    import pyarrow as pa
    import pyarrow.compute as pc

    long: set[Path] = set()
    doubtful: set[Path] = set()
    for path, leaf in _leaves(table):
        whole = pa.types.is_integer(leaf.type)
        if not whole and not pa.types.is_floating(leaf.type):
            continue
        ends = [abs(end) for end in pc.min_max(leaf).as_py().values() if end is not None]
        if whole and any(end > MAX_WHOLE for end in ends):
            long.add(path)
        elif not whole and any(end >= MAX_WHOLE for end in ends):
            doubtful.add(path)
    return long, doubtful


def _long_in(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _long_in(each, (*path, name))
    elif isinstance(value, list):
        for each in value:
            yield from _long_in(each, (*path, _ITEM))
    elif isinstance(value, int) and abs(value) > MAX_WHOLE:
        yield path


def _leaves(table: Any) -> Iterator[tuple[Path, Any]]:
    """The values of all columns, without the lists and structs that they are in."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        for chunk in column.chunks:
            yield from _within((name,), chunk)


def _within(path: Path, array: Any) -> Iterator[tuple[Path, Any]]:
    import pyarrow as pa

    if pa.types.is_list(array.type):
        yield from _within((*path, _ITEM), array.flatten())
    elif pa.types.is_struct(array.type):
        for at, field in enumerate(array.type):
            yield from _within((*path, field.name), array.field(at))
    else:
        yield path, array
