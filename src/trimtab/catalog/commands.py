"""What can be asked of the catalog. A command says what is wanted; `planning.plan` decides what it comes to.

Commands come over the wire from anybody, so decoding bounds their size, and a bulk holds no further bulk. Fields are
only ever added, with a default. Everything that a person may have got wrong is plain text here and judged by the plan,
which knows what there is and can say what to do.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab.catalog.limits import MAX_BULK_COMMANDS, MAX_COMMAND_BYTES
from trimtab.catalog.schema import Mode

FORMAT = 1
Option = str | int | dict[str, str]


class CreateKeyspace(msgspec.Struct, frozen=True, tag_field="command", tag="create_keyspace", omit_defaults=True):
    """`replication`: replicas by data centre; a number means the only data centre there is."""

    name: str
    replication: dict[str, int] | int
    mode: str = Mode.EVENTUAL.value
    if_not_exists: bool = False


class AlterKeyspace(msgspec.Struct, frozen=True, tag_field="command", tag="alter_keyspace", omit_defaults=True):
    name: str
    replication: dict[str, int] | int


class DropKeyspace(msgspec.Struct, frozen=True, tag_field="command", tag="drop_keyspace", omit_defaults=True):
    """With everything in it."""

    name: str
    if_exists: bool = False


class ColumnSpec(msgspec.Struct, frozen=True, array_like=True):
    name: str
    type: str
    static: bool = False


class CreateTable(msgspec.Struct, frozen=True, tag_field="command", tag="create_table", omit_defaults=True):
    """`partition` and `clustering` name columns; of clustering ones with whether they descend. 0 `tablets`: choose."""

    keyspace: str
    name: str
    columns: list[ColumnSpec]
    partition: list[str]
    clustering: list[tuple[str, bool]] = []
    options: dict[str, Option] = {}
    tablets: int = 0
    if_not_exists: bool = False


class AlterTable(msgspec.Struct, frozen=True, tag_field="command", tag="alter_table", omit_defaults=True):
    """In this order: `rename` key columns (old, new), `drop` columns, `add` columns, change `options`."""

    keyspace: str
    name: str
    add: list[ColumnSpec] = []
    drop: list[str] = []
    rename: list[tuple[str, str]] = []
    options: dict[str, Option] = {}


class DropTable(msgspec.Struct, frozen=True, tag_field="command", tag="drop_table", omit_defaults=True):
    keyspace: str
    name: str
    if_exists: bool = False


class CreateType(msgspec.Struct, frozen=True, tag_field="command", tag="create_type", omit_defaults=True):
    keyspace: str
    name: str
    fields: list[tuple[str, str]]  # name, type
    if_not_exists: bool = False


class AlterType(msgspec.Struct, frozen=True, tag_field="command", tag="alter_type", omit_defaults=True):
    keyspace: str
    name: str
    rename: list[tuple[str, str]] = []  # old, new
    add: list[tuple[str, str]] = []  # name, type


class DropType(msgspec.Struct, frozen=True, tag_field="command", tag="drop_type", omit_defaults=True):
    keyspace: str
    name: str
    if_exists: bool = False


Single = (
    CreateKeyspace
    | AlterKeyspace
    | DropKeyspace
    | CreateTable
    | AlterTable
    | DropTable
    | CreateType
    | AlterType
    | DropType
)


class Bulk(msgspec.Struct, frozen=True, tag_field="command", tag="bulk"):
    """Several commands that become one version: all of them, or none."""

    commands: list[Single]


Command = Single | Bulk


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    command: Command


class _Header(msgspec.Struct, frozen=True):
    format: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)
_header = msgspec.msgpack.Decoder(_Header)


def encode(command: Command) -> bytes:
    """ValueError if the command is too large for anybody to take."""
    encoded = _encoder.encode(_Envelope(FORMAT, command))
    _check_size(len(encoded), command)
    return encoded


def decode(encoded: bytes) -> Command:
    """ValueError on anything that is no command."""
    _check_size(len(encoded), None)
    try:
        written_as = _header.decode(encoded).format
        if written_as != FORMAT:
            raise ValueError(f"a command of format {written_as}; this release knows {FORMAT}: ask a newer instance")
        command: Command = _decoder.decode(encoded).command
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not a command to change the schema: {error}") from None
    _check_size(0, command)
    return command


def _check_size(size_bytes: int, command: Any) -> None:
    if size_bytes > MAX_COMMAND_BYTES:
        raise ValueError(
            f"a command to change the schema has at most {MAX_COMMAND_BYTES} bytes, not {size_bytes}; split it"
        )
    if isinstance(command, Bulk) and len(command.commands) > MAX_BULK_COMMANDS:
        raise ValueError(
            f"a bulk command has at most {MAX_BULK_COMMANDS} commands, not {len(command.commands)}; split it"
        )
