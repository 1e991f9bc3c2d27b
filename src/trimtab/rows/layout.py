"""A table as its rows see it: codecs of its key columns, and the shape of every value ever written to it.

A `RowLayout` is made once per version of a table (`Layouts` keeps them) and holds all that can be computed ahead, so
that reading or writing a row looks nothing up by name. It never changes what is stored: old values keep the layout they
were written in, and a `Shape` says for each of their columns where it lies and whether the table still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, TypeVar

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.schema import Column, ColumnKind, Layout, Table, UserType
from trimtab.catalog.types import parse
from trimtab.rows.errors import BadRequest, UnknownLayout
from trimtab.rows.ordered import Codec, Decode, Encode, codec

T = TypeVar("T")

MAX_KEY_BYTES = 64 * 1024
MAX_CELL_BYTES = 16 * 1024 * 1024
MAX_PLANS = 256  # ways of asking for columns that one layout remembers

# Kinds whose cells are right as soon as they are as wide as they should be.
_WIDTH_IS_ALL = frozenset(
    (
        Kind.TINYINT,
        Kind.SMALLINT,
        Kind.INT,
        Kind.BIGINT,
        Kind.COUNTER,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.TIMESTAMP,
        Kind.DATE,
        Kind.UUID,
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumn:
    """`validate`, `encode` and `decode` are those of type and codec, one step nearer."""

    id: int
    name: str
    type: Type
    codec: Codec
    validate: Callable[[bytes], None]
    encode: Encode
    decode: Decode
    descending: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ValueColumn:
    """`width` None: it lies in the variable part. `used` False: dropped since; its cells are passed over.

    `validate` is None where nothing but the width can be wrong. `path` encodes the keys of a multi-cell set or map.
    """

    id: int
    name: str
    type: Type
    width: int | None
    used: bool = True
    path: Codec | None = None

    @property
    def multicell(self) -> bool:
        return self.type.multicell

    @property
    def validates(self) -> bool:
        return self.type.kind not in _WIDTH_IS_ALL and self.type.kind is not Kind.BLOB


@dataclass(slots=True, eq=False)
class Shape:
    """One layout's regular or static columns, and where each of them lies in a value."""

    number: int
    columns: tuple[ValueColumn, ...]
    latest: bool
    number_bytes: bytes = field(init=False)
    presence_bytes: int = field(init=False)
    all_given: int = field(init=False)  # the presence bits of a value with a plain cell in every column
    full: bytes = field(init=False)  # how the value of a whole row begins: with a marker and all columns, of one stamp
    fixed: tuple[int, ...] = field(init=False)  # columns, by index
    variable: tuple[int, ...] = field(init=False)
    fixed_bytes: int = field(init=False)
    cells: Struct = field(init=False)  # the fixed cells and the ends of the variable ones, where no cell has a stamp
    fixed_cells: Struct = field(init=False)
    ends: Struct = field(init=False)
    multicell: bool = field(init=False)
    # Of the columns that are still used: id, bits to shift the presence by, place in what `cells` unpacks, and for
    # variable ones the place of the end before it (-1: there is none), for fixed ones -2.
    places: tuple[tuple[int, int, int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.columns)
        self.number_bytes = self.number.to_bytes(2, "big")
        self.presence_bytes = (2 * count + 7) // 8
        self.all_given = sum(1 << 2 * at for at in range(count))
        self.full = b"\x01" + self.number_bytes + self.all_given.to_bytes(self.presence_bytes, "little")
        self.fixed = tuple(at for at, column in enumerate(self.columns) if column.width is not None)
        self.variable = tuple(at for at, column in enumerate(self.columns) if column.width is None)
        fixed = "".join(f"{self.columns[at].width}s" for at in self.fixed)
        ends = "I" * len(self.variable)
        self.cells, self.fixed_cells, self.ends = Struct(">" + fixed + ends), Struct(">" + fixed), Struct(">" + ends)
        self.fixed_bytes = self.fixed_cells.size
        self.multicell = any(column.multicell for column in self.columns)
        first = len(self.fixed)
        places = {at: (place, -2) for place, at in enumerate(self.fixed)}
        places |= {at: (first + nth, first + nth - 1 if nth else -1) for nth, at in enumerate(self.variable)}
        self.places = tuple((each.id, 2 * at, *places[at]) for at, each in enumerate(self.columns) if each.used)


class RowLayout:
    """Everything about one version of a table that its rows need. `regular` and `static` are the newest shapes."""

    def __init__(self, table: Table, udts: Mapping[str, UserType] | None = None) -> None:
        self.table = table
        self.udts = udts or {}
        self.name = table.full_name
        self.partition = tuple(self._key_column(each, exact=True) for each in table.of_kind(ColumnKind.PARTITION))
        self.clustering = tuple(self._key_column(each, exact=False) for each in table.of_kind(ColumnKind.CLUSTERING))
        self.columns = {column.id: column for column in table.columns}
        self._value_columns = {
            each.id: self._value_column(each, used)
            for used, columns in ((False, table.dropped), (True, table.columns))
            for each in columns
            if each.kind in (ColumnKind.REGULAR, ColumnKind.STATIC)
        }
        newest = table.layout.number
        self._regular = {each.number: self._shape(each, each.regular, newest) for each in table.layouts}
        self._static = {each.number: self._shape(each, each.static, newest) for each in table.layouts}
        self.regular = self._regular[newest]
        self.static = self._static[newest]
        self.has_static = any(self._static[each.number].columns for each in table.layouts)
        widths = [each.codec.width for each in self.partition]
        # Where the section byte lies, if that is the same in every key.
        self.partition_end = None if None in widths else 8 + sum(width or 0 for width in widths)
        self.located: dict[bytes, tuple[bytes, int]] = {}  # see `keys.locate`
        self.plans: dict[Any, Any] = {}  # made by those who write and read rows; see `remember`

    def _key_column(self, column: Column, *, exact: bool) -> KeyColumn:
        found = parse(column.type, self.udts)
        made = codec(found, descending=column.descending, exact=exact)
        return KeyColumn(
            column.id, column.name, found, made, found.validate, made.encode, made.decode, column.descending
        )

    def _value_column(self, column: Column, used: bool) -> ValueColumn:
        found = parse(column.type, self.udts)
        path = codec(found.elements[0], exact=True) if found.multicell and found.kind is not Kind.LIST else None
        return ValueColumn(column.id, column.name, found, found.fixed_width, used, path)

    def _shape(self, layout: Layout, ids: tuple[int, ...], newest: int) -> Shape:
        return Shape(layout.number, tuple(self._value_columns[each] for each in ids), layout.number == newest)

    def shape(self, number: int, static: bool) -> Shape:
        found = (self._static if static else self._regular).get(number)
        if found is None:
            raise UnknownLayout(
                f"a value of {self.name} in layout {number}, where version {self.table.version} of the table has "
                f"layouts up to {self.table.layout.number}: this schema is behind, or the value is damaged"
            )
        return found

    def remember(self, key: Any, plan: T) -> T:
        """Keep what was computed for one way of using the table; a caller with too many ways starts over."""
        if len(self.plans) >= MAX_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        return plan

    def column_name(self, id: int) -> str:
        found = self.columns.get(id)
        return f"column {id}" if found is None else f"column {found.name}"

    def refuse(self, why: str) -> BadRequest:
        return BadRequest(f"{self.name}: {why}")


class Layouts:
    """The row layouts of a catalog's tables. A table's is made anew when the table, or a user type, changes."""

    def __init__(self) -> None:
        self._made: dict[int, RowLayout] = {}

    def of(self, table: Table, udts: Mapping[str, UserType] | None = None) -> RowLayout:
        known = self._made.get(table.id)
        if known is not None and known.table is table and (known.udts is udts or known.udts == (udts or {})):
            return known
        made = self._made[table.id] = RowLayout(table, udts)
        return made

    def keep_only(self, tables: Mapping[int, Any]) -> None:
        """Forget tables that are gone."""
        for gone in [id for id in self._made if id not in tables]:
            del self._made[gone]
