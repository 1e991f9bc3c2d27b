"""A type of CQL: its canonical name, how wide its cells are, and the functions between values and cells.

The functions are plain callables, made once per type: `type.serialize` in a loop costs what the conversion costs.
All of them raise ValueError, with what was expected and what came, and nothing else on wrong input.

Cells of one value are one string of bytes: sets and maps are sorted in CQL's order of their elements, and numbers of
variable width are as short as can be. `validate` refuses what is not; `canonical` puts it right, for doors that take
cells from strangers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Kind(enum.Enum):
    """What a type is made as. The values are CQL's words, except for user types, which bring their own name."""

    ASCII = "ascii"
    BIGINT = "bigint"
    BLOB = "blob"
    BOOLEAN = "boolean"
    COUNTER = "counter"
    DATE = "date"
    DECIMAL = "decimal"
    DOUBLE = "double"
    DURATION = "duration"
    FLOAT = "float"
    INET = "inet"
    INT = "int"
    SMALLINT = "smallint"
    TEXT = "text"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMEUUID = "timeuuid"
    TINYINT = "tinyint"
    UUID = "uuid"
    VARINT = "varint"
    LIST = "list"
    SET = "set"
    MAP = "map"
    TUPLE = "tuple"
    USER = "user type"


NESTED = frozenset((Kind.LIST, Kind.SET, Kind.MAP, Kind.TUPLE, Kind.USER))
COLLECTIONS = frozenset((Kind.LIST, Kind.SET, Kind.MAP))


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """`elements`: of a list or set one, of a map key and value, of a tuple or user type all, `fields` naming them.

    `multicell`: a collection that is not frozen, whose elements are written and deleted one by one. `order` gives
    for a cell what sorts like CQL sorts its value. `hashable` is `deserialize` in a form that can be in a set.
    """

    name: str
    kind: Kind
    fixed_width: int | None
    serialize: Callable[[Any], bytes] = field(repr=False)
    deserialize: Callable[[bytes], Any] = field(repr=False)
    validate: Callable[[bytes], None] = field(repr=False)
    canonical: Callable[[bytes], bytes] = field(repr=False)
    order: Callable[[bytes], Any] = field(repr=False)
    hashable: Callable[[bytes], Any] = field(repr=False)
    multicell: bool = False
    elements: tuple[Type, ...] = ()
    fields: tuple[str, ...] = ()
    # Of everything it is made of, itself included. Kept, because user types may share parts many times over, and a walk
    # through all of them would take for ever.
    kinds: frozenset[Kind] = field(init=False, repr=False)
    user_types: frozenset[str] = field(init=False, repr=False)  # by plain name
    depth: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = {self.user_name} if self.kind is Kind.USER else set[str]()
        store = object.__setattr__
        store(self, "kinds", frozenset({self.kind}).union(*(element.kinds for element in self.elements)))
        store(self, "user_types", frozenset(own).union(*(element.user_types for element in self.elements)))
        store(self, "depth", 1 + max((element.depth for element in self.elements), default=0))

    def __str__(self) -> str:
        return self.name

    def serializer(self) -> Callable[[Any], bytes]:
        return self.serialize

    def deserializer(self) -> Callable[[bytes], Any]:
        return self.deserialize

    @property
    def user_name(self) -> str:
        """Of a user type: its plain name, without `frozen` and quotes."""
        if self.kind is not Kind.USER:
            raise ValueError(f"{self.name} is no user type")
        inner = self.name.removeprefix("frozen<").removesuffix(">")
        return inner[1:-1].replace('""', '"') if inner.startswith('"') else inner

    # For people: imported when used, because a serving node never does.

    def to_json(self, value: Any) -> Any:
        """A value as something JSON can say; the way back is `from_json`."""
        from trimtab.catalog import text_forms

        return text_forms.to_json(self, value)

    def from_json(self, data: Any) -> Any:
        from trimtab.catalog import text_forms

        return text_forms.from_json(self, data)

    def to_text(self, value: Any) -> str:
        """As it is typed on a command line: plain words for simple types, JSON for those made of others."""
        from trimtab.catalog import text_forms

        return text_forms.to_text(self, value)

    def from_text(self, text: str) -> Any:
        from trimtab.catalog import text_forms

        return text_forms.from_text(self, text)
