"""Reading RocksDB's write-ahead log, to tell a torn tail from lost data before RocksDB opens it.

RocksDB alone can't be trusted with this decision. In its strict mode it refuses a log whose last record is merely
incomplete, which every power cut may leave; in its lenient modes it drops whatever follows the first damage without
a word; and a record type with one flipped bit (1 -> 5, "recycled") makes it spin for ever inside `open`. So we look
first:

- **torn tail**: the log ends in bytes that are no complete record, and no record begins after them. Nothing there
  was ever acknowledged, because a sync covers everything before it. The tail is cut off and reported.
- **damage in the middle**: a valid record begins after the damage, in this file or in a newer one. What is damaged
  may have been acknowledged: nothing is changed, and the store does not open.

A record (`log_framing`) begins with the sequence number (u64) and the count (u32) of its batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trimtab.storage.log_framing import BLOCK_BYTES, FIRST, FRAGMENT, FULL, HEADER_BYTES, LAST, MIDDLE, masked_crc
from trimtab.storage.manifest import oldest_live_log

_BATCH_HEADER_BYTES = 12
# A valid record after the damage continues the sequence. A gap this large is not a gap but noise.
_SEQUENCE_GAP = 1 << 40
_WAL_NAME = re.compile(r"^(\d{6,})\.log$")


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
    unpack = FRAGMENT.unpack_from
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
    unpack = FRAGMENT.unpack_from
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
    oldest = oldest_live_log(directory)
    numbered = []
    for path in directory.iterdir():
        match = _WAL_NAME.match(path.name)
        if match and int(match[1]) >= oldest:
            numbered.append((int(match[1]), path))
    return [path for _, path in sorted(numbered)]
