"""What is declared: keyspaces, user types, tables and their columns, as values.

A column keeps its id for life. A column that was dropped and added again is another column with another id, so old data
never shows through. Every change of a table's columns gives it a new *layout*: the columns, by id and in order, that
values written under it hold. Layouts stay known for as long as the table exists, because values of any age may lie in
its files. `Table.version` is the catalog version of the table's last change; requests name the one they were made for.
"""

from __future__ import annotations

import enum

import msgspec

DEFAULT_DATACENTER = "dc1"  # of instances whose failure domain names none


class ColumnKind(enum.Enum):
    PARTITION = "partition_key"
    CLUSTERING = "clustering"
    STATIC = "static"
    REGULAR = "regular"


class Mode(enum.Enum):
    EVENTUAL = "eventual"
    STRONG = "strong"


class Column(msgspec.Struct, frozen=True, array_like=True):
    """`type` is CQL's text in canonical form (`list<text>`). `position` orders the columns of one kind."""

    id: int
    name: str
    type: str
    kind: ColumnKind
    position: int
    descending: bool = False


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """The columns that a stored value holds, in its order: regular ones in `regular`, static ones in `static`."""

    number: int
    regular: tuple[int, ...]
    static: tuple[int, ...] = ()


class TableOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may be said about a table. `default_ttl_s` 0: none. `history_s`: how far back reads at a timestamp go."""

    comment: str = ""
    default_ttl_s: int = 0
    gc_grace_s: int = 864_000
    history_s: int = 600
    speculative_retry: str = "p99"  # none, always, pNN, or NNms
    extensions: dict[str, str] = {}


class Table(msgspec.Struct, frozen=True, array_like=True):
    """`columns` are those that can be used; `dropped` those that old layouts still name."""

    id: int
    keyspace: str
    name: str
    version: int
    columns: tuple[Column, ...]
    layouts: tuple[Layout, ...]
    tablets: int  # a power of two
    generation: int = 1
    options: TableOptions = TableOptions()
    dropped: tuple[Column, ...] = ()
    next_column: int = 1

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def layout(self) -> Layout:
        """The newest: what is written now."""
        return self.layouts[-1]

    def of_kind(self, kind: ColumnKind) -> tuple[Column, ...]:
        return tuple(sorted((each for each in self.columns if each.kind is kind), key=lambda each: each.position))


class UserType(msgspec.Struct, frozen=True, array_like=True):
    keyspace: str
    name: str
    fields: tuple[tuple[str, str], ...]  # name, type
    version: int = 0


class Keyspace(msgspec.Struct, frozen=True, array_like=True):
    """`replication` is replicas by data centre, always spelled out."""

    name: str
    replication: dict[str, int]
    mode: Mode = Mode.EVENTUAL
    version: int = 0
