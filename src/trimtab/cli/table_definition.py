"""A table as people type it: `id bigint primary key, name text`, or CQL's own way with the key at the end.

    id bigint, at timestamp, name text static, primary key ((id), at desc)

Names and types are taken as they are written; what they mean is for the catalog to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trimtab.cli.errors import WrongUsage

_PRIMARY = re.compile(r"primary\s+key", re.IGNORECASE)
_STATIC = re.compile(r"\s+static$", re.IGNORECASE)
_ORDER = re.compile(r"(.*?)\s+(asc|desc)$", re.IGNORECASE)
_OPENS, _CLOSES = "<([{", ">)]}"


@dataclass
class Definition:
    """Columns with their types; the partition key's, and the clustering ones with their order."""

    columns: dict[str, str] = field(default_factory=dict)
    static: list[str] = field(default_factory=list)
    partition: list[str] = field(default_factory=list)
    clustering: list[tuple[str, str]] = field(default_factory=list)

    @property
    def primary_key(self) -> list[list[str] | tuple[str, str]]:
        return [self.partition, *self.clustering]

    def add_column(self, text: str) -> None:
        """`name type`, `name type static` or `name type primary key`."""
        alone = _PRIMARY.search(text)
        if alone is not None and text[alone.end() :].strip():
            raise WrongUsage(f"'{text}' is no column: nothing comes after PRIMARY KEY.")
        rest = text[: alone.start()].rstrip() if alone is not None else text.strip()
        static = _STATIC.search(rest)
        if static is not None:
            rest = rest[: static.start()]
        name, type_ = _split_column(rest)
        if name in self.columns:
            raise WrongUsage(f"the column {name} is there twice.")
        self.columns[name] = type_
        if static is not None:
            self.static.append(name)
        if alone is not None:
            if self.partition:
                raise WrongUsage("there are two primary keys; give one.")
            self.partition = [name]

    def set_key(self, text: str) -> None:
        """`id`, `id, at desc` (partition key id) or `(a, b), c` (partition key a and b)."""
        if self.partition:
            raise WrongUsage("there are two primary keys; give one.")
        inner = text.strip()
        # The whole of it may be in parentheses, as CQL writes it.
        if inner.startswith("(") and _closing(inner) == len(inner) - 1:
            inner = inner[1:-1].strip()
        parts = [part.strip() for part in split(inner)]
        if not parts or not all(parts):
            raise WrongUsage(f"'{text}' is no primary key: write id, or id, at desc, or (a, b), c.")
        first, rest = parts[0], parts[1:]
        if first.startswith("("):
            if not first.endswith(")"):
                raise WrongUsage(f"'{text}' is no primary key: a parenthesis is not closed.")
            self.partition = [_unquoted(name.strip()) for name in split(first[1:-1])]
        else:
            self.partition = [_unquoted(first)]
        for part in rest:
            ordered = _ORDER.fullmatch(part)
            name, word = (ordered[1], ordered[2].lower()) if ordered else (part, "asc")
            self.clustering.append((_unquoted(name), word))
        if not all(self.partition):
            raise WrongUsage(f"'{text}' is no primary key: a column's name is missing.")


def parse(text: str) -> Definition:
    """A whole definition; WrongUsage, with how to write one, for anything else."""
    found = Definition()
    inner = text.strip()
    if inner.startswith("(") and _closing(inner) == len(inner) - 1:
        inner = inner[1:-1]
    for part in split(inner):
        part = part.strip()
        if not part:
            raise WrongUsage(f"'{text}' has an empty column; write COLUMN TYPE, with commas between them.")
        key = _PRIMARY.match(part)
        if key is not None and part[key.end() :].lstrip().startswith("("):
            found.set_key(part[key.end() :])
        else:
            found.add_column(part)
    return found


def split(text: str) -> Iterator[str]:
    """At the commas that are in no brackets and no quotes."""
    depth, begin, quoted = 0, 0, False
    for at, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in _OPENS:
            depth += 1
        elif letter in _CLOSES:
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
        if depth < 0:
            break
    if depth or quoted:
        raise WrongUsage(f"'{text}' has brackets or quotes that are not closed.")
    yield text[begin:]


def _closing(text: str) -> int:
    """Where the bracket that a text begins with is closed."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in _OPENS) - (letter in _CLOSES)
        if depth == 0:
            return at
    return -1


def _split_column(text: str) -> tuple[str, str]:
    quoted = re.match(r'"((?:[^"]|"")+)"\s+(.+)', text, re.DOTALL)
    if quoted is not None:
        return quoted[1].replace('""', '"'), quoted[2].strip()
    name, _, type_ = text.partition(" ")
    if not name or not type_.strip():
        raise WrongUsage(f"'{text}' is no column: write NAME TYPE, such as id bigint.")
    return name, type_.strip()


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name
