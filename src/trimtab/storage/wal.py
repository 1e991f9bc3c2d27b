"""Reading RocksDB's write-ahead log, to tell a torn tail from lost data before RocksDB opens it.

RocksDB alone can't be trusted with this decision. In its strict mode it refuses a log whose last record is merely
incomplete, which every power cut may leave; in its lenient modes it drops whatever follows the first damage without
a word; and a record type with one flipped bit (1 -> 5, "recycled") makes it spin for ever inside `open`. So we look
first:

- **torn tail**: the log ends in bytes that are no complete record, and no record begins after them. Nothing there
  was ever acknowledged, because a sync covers everything before it. The tail is cut off and reported.
- **damage in the middle**: a valid record begins after the damage, in this file or in a newer one. What is damaged
  may have been acknowledged: nothing is changed, and the store does not open.

Framing: blocks of 32 KiB; in them fragments of [masked crc32c u32, length u16, type u8, payload], little endian; a
fragment never crosses a block, and fewer than 7 bytes at a block's end are padding. A record is one FULL fragment,
or FIRST, any MIDDLE, LAST. The checksum covers type and payload. A record's payload begins with the sequence
number (u64) and the count (u32) of the batch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

_BATCH_HEADER_BYTES = 12
# A valid record after the damage continues the sequence. A gap this large is not a gap but noise.
_SEQUENCE_GAP = 1 << 40
_MASK_DELTA = 0xA282EAD8
_FRAGMENT = struct.Struct("<IHB")
_WAL_NAME = re.compile(r"^(\d{6,})\.log$")
# Tags at the front of a manifest record that we can step over. Others (files) come after the ones we look for.
_TAG_LOG_NUMBER, _TAG_MIN_LOG_TO_KEEP = 2, 10
_NUMBER_TAGS = frozenset({_TAG_LOG_NUMBER, 3, 4, 9, _TAG_MIN_LOG_TO_KEEP})
_STRING_TAGS = frozenset({1, 8193, 8201})


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli). About 10 MB/s: used only once damage is known or suspected."""
    table = _CRC_TABLE
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc(type_and_payload: bytes) -> int:
    crc = crc32c(type_and_payload)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Damage:
    """The first record that is not whole. `offset` is where that record begins, `found_at` where it was noticed."""

    offset: int
    found_at: int
    file_bytes: int
    why: str
    last_sequence: int

    @property
    def tail_bytes(self) -> int:
        return self.file_bytes - self.offset


def find_damage(data: bytes, *, checksums: bool) -> Damage | None:
    """The first damage in a log file. Without checksums only the framing is checked, which takes milliseconds."""
    size = len(data)
    unpack = _FRAGMENT.unpack_from
    offset = 0
    record = 0
    inside = False
    sequence = 0

    def damage(why: str) -> Damage:
        return Damage(record if inside else offset, offset, size, why, sequence)

    while offset < size:
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < HEADER_BYTES:
            if any(data[offset : offset + left]):
                return damage("the padding at a block's end is not zero")
            offset += left
            continue
        if size - offset < HEADER_BYTES:
            return damage("a record's header is incomplete")
        crc, length, kind = unpack(data, offset)
        if not FULL <= kind <= LAST:
            if kind == 0 and length == 0 and crc == 0 and not any(data[offset:]):
                return damage("the file ends in zeros")
            return damage(f"unknown record type {kind}")
        if length > left - HEADER_BYTES:
            return damage(f"a record of {length} bytes does not fit into its block")
        start = offset + HEADER_BYTES
        if start + length > size:
            return damage(f"a record of {length} bytes is incomplete")
        if (kind in (FULL, FIRST)) == inside:
            return damage("a record begins inside another" if inside else "a record without its beginning")
        if checksums and masked_crc(data[offset + 6 : start + length]) != crc:
            return damage("checksum mismatch")
        if not inside:
            record = offset
            if kind == FULL and length < _BATCH_HEADER_BYTES:
                return damage(f"a batch of {length} bytes is too short")
            if length >= _BATCH_HEADER_BYTES:
                sequence = int.from_bytes(data[start : start + 8], "little")
        inside = kind in (FIRST, MIDDLE)
        offset = start + length
    return damage("the last record is incomplete") if inside else None


def find_record(data: bytes, after: int, last_sequence: int) -> int | None:
    """The offset of a valid record that begins past `after`, or None.

    Lengths can't be trusted here, so every byte may be a beginning; a plausible sequence number and the checksum
    leave no room for chance.
    """
    size = len(data)
    unpack = _FRAGMENT.unpack_from
    for offset in range(after, size - HEADER_BYTES - _BATCH_HEADER_BYTES + 1):
        kind = data[offset + 6]
        if kind != FULL and kind != FIRST:
            continue
        crc, length, _ = unpack(data, offset)
        end = offset + HEADER_BYTES + length
        if length < _BATCH_HEADER_BYTES or end > size:
            continue
        if HEADER_BYTES + length > BLOCK_BYTES - offset % BLOCK_BYTES:
            continue
        sequence = int.from_bytes(data[offset + HEADER_BYTES : offset + HEADER_BYTES + 8], "little")
        if last_sequence < sequence < last_sequence + _SEQUENCE_GAP and masked_crc(data[offset + 6 : end]) == crc:
            return offset
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a store's logs. `lost` says where valid data follows the damage; None: a torn tail."""

    file: Path
    damage: Damage
    lost: str | None


def judge(directory: Path, *, checksums: bool) -> Verdict | None:
    """Look at every log that RocksDB would replay, oldest first. None when all is well."""
    logs = live_logs(directory)
    for position, path in enumerate(logs):
        data = path.read_bytes()
        damage = find_damage(data, checksums=checksums)
        if damage is None:
            continue
        if not checksums:
            # A damaged length misleads the walk; only checksums tell which record was the first bad one.
            damage = find_damage(data, checksums=True) or damage
        found = find_record(data, damage.found_at + 1, damage.last_sequence)
        if found is not None:
            return Verdict(path, damage, f"a valid record follows at byte {found}")
        for newer in logs[position + 1 :]:
            if find_record(newer.read_bytes(), 0, damage.last_sequence) is not None:
                return Verdict(path, damage, f"{newer.name} holds valid records that were written later")
        return Verdict(path, damage, None)
    return None


def live_logs(directory: Path) -> list[Path]:
    """Log files with data that is not in tables yet, oldest first. Older ones may lie around after a crash."""
    oldest = _oldest_live_log(directory)
    numbered = []
    for path in directory.iterdir():
        match = _WAL_NAME.match(path.name)
        if match and int(match[1]) >= oldest:
            numbered.append((int(match[1]), path))
    return [path for _, path in sorted(numbered)]


def manifest_of(directory: Path) -> Path | None:
    """The manifest CURRENT points to, if both are there."""
    try:
        manifest = directory / (directory / "CURRENT").read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return manifest if manifest.is_file() else None


def manifest_trouble(directory: Path) -> Damage | None:
    """Framing damage in the manifest that would make RocksDB spin. An incomplete end is RocksDB's to drop."""
    manifest = manifest_of(directory)
    if manifest is None:
        return None
    data = manifest.read_bytes()
    for offset, kind, _ in _fragments(data):
        if kind > LAST:
            return Damage(offset, offset, len(data), f"unknown record type {kind}", 0)
    return None


def _oldest_live_log(directory: Path) -> int:
    manifest = manifest_of(directory)
    if manifest is None:
        return 0
    fragments = _fragments(manifest.read_bytes())
    return max((_log_number(payload) for _, kind, payload in fragments if kind in (FULL, FIRST)), default=0)


def _fragments(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Offset, type and payload of each fragment as the lengths have it, unchecked; the last may be incomplete."""
    offset = 0
    while offset + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < HEADER_BYTES:
            offset += left
            continue
        _, length, kind = _FRAGMENT.unpack_from(data, offset)
        start = offset + HEADER_BYTES
        yield offset, kind, data[start : start + length]
        offset = start + length


def _log_number(edit: bytes) -> int:
    """The highest log number that one manifest record declares obsolete-below; 0 when it names none."""
    oldest = 0
    position = 0
    while position < len(edit):
        tag, position = _varint(edit, position)
        if tag in _STRING_TAGS:
            length, position = _varint(edit, position)
            position += length
        elif tag in _NUMBER_TAGS:
            number, position = _varint(edit, position)
            if tag in (_TAG_LOG_NUMBER, _TAG_MIN_LOG_TO_KEEP):
                oldest = max(oldest, number)
        else:
            break
    return oldest


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, position
