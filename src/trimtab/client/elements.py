"""Changes of single elements of a collection, in the place of a whole new value.

    users.update({"id": 1, "tags": Add({"new"}), "phones": Remove({"home"}), "log": Prepend(["first"])})

Elements of sets, of maps (by their keys) and the ends of lists can be changed so, without reading them first; the
collection must not be frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.nested import set_of
from trimtab.client.errors import InvalidRequest
from trimtab.rows.protocol import Cell, Way


@dataclass(frozen=True, slots=True)
class ElementChange:
    """`elements`: a set, a map or a list, like the collection itself; to remove from a map, the keys."""

    elements: Any
    way: ClassVar[Way]


class Add(ElementChange):
    """Put elements into a set or a map, or at the end of a list."""

    __slots__ = ()
    way = Way.ADD


class Remove(ElementChange):
    """Take elements out of a set, or keys out of a map."""

    __slots__ = ()
    way = Way.REMOVE


class Prepend(ElementChange):
    """Put elements at the beginning of a list."""

    __slots__ = ()
    way = Way.PREPEND


class HasChanges(InvalidRequest):
    """The row changes elements, which takes a request of its own."""


# What can be done with a collection of each kind.
_WAYS = {
    Kind.SET: (Way.ADD, Way.REMOVE),
    Kind.MAP: (Way.ADD, Way.REMOVE),
    Kind.LIST: (Way.ADD, Way.PREPEND),
}


def element_cells(table: str, types: Mapping[str, Type], row: Mapping[str, Any]) -> tuple[list[Cell], list[Way]]:
    """The cells of a row that changes elements, and how each is to be written; InvalidRequest names what is wrong."""
    cells: list[Cell] = []
    ways: list[Way] = []
    for name, value in row.items():
        type_ = types[name]
        change = value if isinstance(value, ElementChange) else None
        if change is not None and (not type_.multicell or change.way not in _WAYS.get(type_.kind, ())):
            what = type(change).__name__
            raise InvalidRequest(
                f"{table}.{name} is of type {type_}: {what} is for {_fitting(change.way)} that are not frozen"
            )
        try:
            if change is None:
                cells.append(None if value is None else type_.serialize(value))
            elif type_.kind is Kind.MAP and change.way is Way.REMOVE:
                cells.append(set_of(type_.elements[0], True).serialize(set(change.elements)))
            else:
                cells.append(type_.serialize(change.elements))
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"{table}.{name} is of type {type_}: {error}") from error
        ways.append(Way.WHOLE if change is None else change.way)
    return cells, ways


def _fitting(way: Way) -> str:
    return " and ".join(f"{kind.value}s" for kind, ways in _WAYS.items() if way in ways)
