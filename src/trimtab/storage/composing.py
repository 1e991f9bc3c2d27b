"""A RocksDB database of tables that were written elsewhere, made without RocksDB: links to them, and a manifest.

RocksDB would make an empty database, take the tables over and write its manifest, options and log, with a sync for
each, and keep the interpreter all the while. What comes out is the same: each table is at level 0 with a sequence
number of its own, later ones before earlier ones, as if they had been ingested one after the other.

The manifest is one record, whose fields `manifest` describes. The tables have to say what their first and last key are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.storage.log_framing import framed
from trimtab.storage.manifest import COMPARATOR, END_OF_NEW, LAST_SEQUENCE, LOG, NEW, NEXT_FILE
from trimtab.storage.sst_file import COMPARATOR as BYTEWISE
from trimtab.storage.sst_packing import varint_bytes

_MANIFEST = "MANIFEST-000001"
_FIRST_TABLE = 2  # files have numbers, and the manifest has the first
_PUT = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A table, and what lies in it."""

    path: Path
    first: bytes
    last: bytes
    bytes: int


def compose(directory: Path, parts: Sequence[Part]) -> None:
    """Fill an empty directory; of what is in several tables the last counts. Its files are durable then; its names are
    not. OSError: whoever asked removes what there is.
    """
    for number, part in enumerate(parts, start=_FIRST_TABLE):
        os.link(part.path, directory / f"{number:06}.sst")
    _write(directory / _MANIFEST, framed([_record(parts)]))
    _write(directory / "CURRENT", f"{_MANIFEST}\n".encode())


def _record(parts: Sequence[Part]) -> bytes:
    next_file = _FIRST_TABLE + len(parts)
    record = varint_bytes(COMPARATOR) + _string(BYTEWISE)
    for tag, number in ((LOG, 0), (NEXT_FILE, next_file), (LAST_SEQUENCE, len(parts))):
        record += varint_bytes(tag) + varint_bytes(number)
    for sequence, part in enumerate(parts, start=1):
        number = _FIRST_TABLE + sequence - 1
        record += b"".join(map(varint_bytes, (NEW, 0, number, part.bytes)))
        record += _string(part.first + _tail(sequence)) + _string(part.last + _tail(sequence))
        record += b"".join(map(varint_bytes, (sequence, sequence, END_OF_NEW)))
    return record


def _tail(sequence: int) -> bytes:
    """What comes after a key within RocksDB."""
    return (sequence << 8 | _PUT).to_bytes(8, "little")


def _string(value: bytes) -> bytes:
    return varint_bytes(len(value)) + value


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
