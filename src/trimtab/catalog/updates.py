"""How one version of the catalog becomes the next: what changed and nothing else.

Updates are the catalog's history in the metastore, one record a version, written once. They say what came out of a
command, with every choice made (ids, numbers of tablets, replication spelled out), so applying them needs no rules, and
gives the same on every instance whatever it knows otherwise.

Values are JSON, so that `trimtab metastore get` shows them as they are. Every record says its format. A record that
can't be read stops whoever reads it at the version before: guessing would let two instances have two schemas.
"""

from __future__ import annotations

import msgspec

from trimtab.catalog.limits import MAX_UPDATE_BYTES
from trimtab.catalog.schema import Column, Mode, TableOptions

FORMAT = 1


class KeyspaceAdded(msgspec.Struct, frozen=True, tag_field="change", tag="keyspace_added", omit_defaults=True):
    keyspace: str
    replication: dict[str, int]
    mode: Mode = Mode.EVENTUAL


class ReplicationChanged(msgspec.Struct, frozen=True, tag_field="change", tag="replication_changed"):
    keyspace: str
    replication: dict[str, int]


class KeyspaceDropped(msgspec.Struct, frozen=True, tag_field="change", tag="keyspace_dropped"):
    """It is empty: what it held was dropped by changes before this one."""

    keyspace: str


class TypeAdded(msgspec.Struct, frozen=True, tag_field="change", tag="type_added"):
    keyspace: str
    type: str
    fields: tuple[tuple[str, str], ...]


class FieldAdded(msgspec.Struct, frozen=True, tag_field="change", tag="field_added"):
    keyspace: str
    type: str
    field: str
    field_type: str


class FieldRenamed(msgspec.Struct, frozen=True, tag_field="change", tag="field_renamed"):
    keyspace: str
    type: str
    field: str
    to: str


class TypeDropped(msgspec.Struct, frozen=True, tag_field="change", tag="type_dropped"):
    keyspace: str
    type: str


class TableAdded(msgspec.Struct, frozen=True, tag_field="change", tag="table_added", omit_defaults=True):
    id: int
    keyspace: str
    table: str
    columns: tuple[Column, ...]
    tablets: int
    options: TableOptions = TableOptions()


class ColumnAdded(msgspec.Struct, frozen=True, tag_field="change", tag="column_added"):
    table: int
    column: Column


class ColumnDropped(msgspec.Struct, frozen=True, tag_field="change", tag="column_dropped"):
    """`kept_type`: the column's type without user types, which may go while old values still hold such cells."""

    table: int
    column: int
    kept_type: str


class ColumnRenamed(msgspec.Struct, frozen=True, tag_field="change", tag="column_renamed"):
    table: int
    column: int
    to: str


class OptionsChanged(msgspec.Struct, frozen=True, tag_field="change", tag="options_changed"):
    table: int
    options: TableOptions


class TableDropped(msgspec.Struct, frozen=True, tag_field="change", tag="table_dropped"):
    table: int


Change = (
    KeyspaceAdded
    | ReplicationChanged
    | KeyspaceDropped
    | TypeAdded
    | FieldAdded
    | FieldRenamed
    | TypeDropped
    | TableAdded
    | ColumnAdded
    | ColumnDropped
    | ColumnRenamed
    | OptionsChanged
    | TableDropped
)


class Update(msgspec.Struct, frozen=True):
    """`activation_ms`: from when on the version counts; later than that of every version before.

    `request` is the id of the request that made it, so that asking again makes no second version.
    """

    version: int
    activation_ms: int
    changes: tuple[Change, ...]
    format: int = FORMAT
    request: str = ""

    def tables_added(self) -> list[int]:
        return [change.id for change in self.changes if isinstance(change, TableAdded)]

    def tables_dropped(self) -> list[int]:
        return [change.table for change in self.changes if isinstance(change, TableDropped)]


class _Header(msgspec.Struct, frozen=True):
    format: int = 0
    version: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Update)
_header = msgspec.json.Decoder(_Header)


def encode(update: Update) -> bytes:
    """ValueError where it does not fit one value of the metastore."""
    encoded = _encoder.encode(update)
    if len(encoded) > MAX_UPDATE_BYTES:
        raise ValueError(
            f"this change of the schema takes {len(encoded)} bytes, over the limit of {MAX_UPDATE_BYTES} of one "
            "version; split it"
        )
    return encoded


def decode(encoded: bytes) -> Update:
    """ValueError, with what to do, on anything that this release can't read for certain."""
    try:
        header = _header.decode(encoded)
        if header.format != FORMAT:
            raise ValueError(
                f"the schema update {header.version} has format {header.format}, and this release reads {FORMAT}; "
                "run the release that wrote it"
            )
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(
            f"a schema update that can't be read ({error}); if a newer release wrote it, run that release"
        ) from None
