"""What RocksDB's manifest says: which tables a database consists of, and which logs it needs.

It only grows, by records that each change the set of tables, and whatever its beginning speaks of was in files before:
so the records up to some point, and the tables that they leave, are the database as it was then. A record (see
`log_framing`) is a sequence of fields, each a tag and what belongs to it; those of tables are

    new     103  level, number, bytes, smallest key, largest key, two sequence numbers, then (tag, bytes)* and tag 1
    gone      6  level, number
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trimtab.storage.log_framing import BLOCK_BYTES, FIRST, FULL, HEADER_BYTES, LAST, fragments, masked_crc

COMPARATOR, LOG, NEXT_FILE, LAST_SEQUENCE = 1, 2, 3, 4
NEW, END_OF_NEW = 103, 1
_GONE, _OLDEST_LOG = 6, 10
# What else records speak of: how many numbers come after the tag, and then how many strings.
_OTHERS = {
    COMPARATOR: (0, 1),
    LOG: (1, 0),
    NEXT_FILE: (1, 0),
    LAST_SEQUENCE: (1, 0),
    5: (1, 1),  # where merging goes on
    9: (1, 0),  # log before
    _OLDEST_LOG: (1, 0),
    203: (1, 0),  # highest column family
}
# From here on tags have one string, and RocksDB itself passes over those that it does not know: ids, logs. Four of them
# have a form of their own, and are not written any more.
_MAY_BE_IGNORED, _OF_OLD = 1 << 13, range(8194, 8198)
# Of a new table's own tags these change what it is: it may lie elsewhere.
_MUST_BE_KNOWN = 1 << 6


class NotUnderstood(Exception):
    """Of this manifest, or from here on, nothing can be said."""


def manifest_of(directory: Path) -> Path | None:
    """The manifest CURRENT points to, if both are there."""
    try:
        manifest = directory / (directory / "CURRENT").read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return manifest if manifest.is_file() else None


def framing_trouble(manifest: Path) -> tuple[int, str] | None:
    """Where, and what, would make RocksDB spin. An incomplete end is RocksDB's to drop."""
    for offset, kind, _ in fragments(manifest.read_bytes()):
        if kind > LAST:
            return offset, f"unknown record type {kind}"
    return None


def oldest_live_log(directory: Path) -> int:
    """The number of the oldest log whose data is not in tables yet; 0: nothing is known."""
    manifest, oldest = manifest_of(directory), 0
    if manifest is not None:
        for _, kind, payload in fragments(manifest.read_bytes()):
            if kind in (FULL, FIRST):
                with suppress(NotUnderstood):  # of a long record this is the beginning, which has what we look for
                    for tag, numbers in _fields(payload):
                        if tag in (LOG, _OLDEST_LOG):
                            oldest = max(oldest, *numbers)
    return oldest


def live_tables(data: bytes) -> tuple[set[int], int]:
    """Numbers of the tables that the whole records leave, and how many bytes these are; NotUnderstood."""
    live: set[int] = set()
    end = 0
    for record, end in _records(data):  # noqa: B007
        apply_record(record, live)
    return live, end


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each whole record and where it ends. The last may be just being written."""
    parts: list[bytes] = []
    inside = False
    for offset, kind, payload in fragments(data):
        length = int.from_bytes(data[offset + 4 : offset + 6], "little")
        end = offset + HEADER_BYTES + length
        if (
            kind < FULL
            or kind > LAST
            or (kind in (FULL, FIRST)) == inside
            or offset // BLOCK_BYTES < (end - 1) // BLOCK_BYTES
        ):
            raise NotUnderstood(f"fragment of type {kind} at byte {offset}")
        if end > len(data):
            return
        if end == len(data) and masked_crc(data[offset + 6 : end]) != int.from_bytes(
            data[offset : offset + 4], "little"
        ):
            raise NotUnderstood(f"checksum at byte {offset}")  # it is the only one that may be just being written
        parts.append(payload)
        inside = kind not in (FULL, LAST)
        if not inside:
            yield b"".join(parts), end
            parts.clear()


def apply_record(record: bytes, live: set[int]) -> None:
    """It may move a table to another level: gone from one, new at the other."""
    new, gone = set(), set()
    for tag, numbers in _fields(record):
        if tag == NEW:
            new.add(numbers[1])
        elif tag == _GONE:
            gone.add(numbers[1])
    if not gone <= live:
        raise NotUnderstood("a table goes that was not there")
    live -= gone
    live |= new


def _fields(record: bytes) -> Iterator[tuple[int, list[int]]]:
    """Each tag with the numbers that come first after it."""
    position = 0
    while position < len(record):
        (tag,), position = _numbers(record, position, 1)
        if tag == _GONE:
            numbers, position = _numbers(record, position, 2)
        elif tag == NEW:
            numbers, position = _numbers(record, position, 3)
            position = _past_table(record, position)
        elif tag in _OTHERS:
            count, strings = _OTHERS[tag]
            numbers, position = _numbers(record, position, count)
            for _ in range(strings):
                position = _past_string(record, position)
        elif tag >= _MAY_BE_IGNORED and tag not in _OF_OLD:
            numbers, position = [], _past_string(record, position)
        else:
            raise NotUnderstood(f"field {tag}")
        if position > len(record):
            raise NotUnderstood("a record that ends too early")
        yield tag, numbers


def _past_table(record: bytes, position: int) -> int:
    position = _past_string(record, _past_string(record, position))
    _, position = _numbers(record, position, 2)
    while True:
        (tag,), position = _numbers(record, position, 1)
        if tag == END_OF_NEW:
            return position
        if tag & _MUST_BE_KNOWN:
            raise NotUnderstood(f"field {tag} of a table")
        position = _past_string(record, position)


def _numbers(record: bytes, position: int, count: int) -> tuple[list[int], int]:
    found = []
    for _ in range(count):
        value = shift = 0
        while True:
            if position >= len(record):
                raise NotUnderstood("a record that ends too early")
            byte = record[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(value)
    return found, position


def _past_string(record: bytes, position: int) -> int:
    (length,), position = _numbers(record, position, 1)
    return position + length
