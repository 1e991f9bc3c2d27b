"""User types for the structs of a new table: fields keep their names, so later frames may have them in any order.

A type is called after its table, its column and, of a struct within a struct, the field: `users_position`. Where that
name is taken by a type with other fields it gets a number (`users_position_2`); one with the same fields, left by a
table that was dropped, say, is used again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trimtab.catalog.limits import MAX_NAME_CHARACTERS, MAX_TYPES
from trimtab.catalog.names import quoted
from trimtab.catalog.schema import UserType
from trimtab.catalog.types import parse
from trimtab.client.errors import SchemaError


class StructTypes:
    """`made`: the types that have to be made, each after those it is made of. `there`: those the keyspace has."""

    def __init__(self, keyspace: str, table: str, there: Mapping[str, UserType]) -> None:
        self.made: list[UserType] = []
        self._keyspace, self._table = keyspace, table
        self._known = dict(there)

    def name(self, path: Sequence[str], fields: Sequence[tuple[str, str]]) -> str:
        """CQL's name of the type with these fields (name, type) for what is at `path`: a column, fields in it."""
        try:
            wanted = tuple((field, parse(kind, self._known).name) for field, kind in fields)
        except ValueError as error:
            raise SchemaError(f"column {path[0]}: {error}") from None
        for name in self._candidates(path):
            known = self._known.get(name)
            if known is None:
                self._known[name] = UserType(self._keyspace, name, wanted)
                self.made.append(self._known[name])
            elif known.fields != wanted:
                continue
            return f"frozen<{quoted(name)}>"
        raise SchemaError(f"column {path[0]}: no name is left for its type in {self._keyspace}; drop types there")

    def _candidates(self, path: Sequence[str]) -> list[str]:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", "_".join((self._table, *path)))
        endings = ["", *(f"_{number}" for number in range(2, MAX_TYPES + 2))]
        return [plain[: MAX_NAME_CHARACTERS - len(ending)] + ending for ending in endings]
