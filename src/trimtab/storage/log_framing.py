"""How RocksDB frames the records of its write-ahead logs and of its manifest.

Blocks of 32 KiB; in them fragments of [masked crc32c u32, length u16, type u8, payload], little endian; a fragment
never crosses a block, and fewer than 7 bytes at a block's end are padding. A record is one FULL fragment, or FIRST,
any MIDDLE, LAST. The checksum covers type and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
FRAGMENT = struct.Struct("<IHB")

_MASK_DELTA = 0xA282EAD8


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


def fragments(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Offset, type and payload of each fragment as the lengths have it, unchecked; the last may be incomplete."""
    offset = 0
    while offset + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < HEADER_BYTES:
            offset += left
            continue
        _, length, kind = FRAGMENT.unpack_from(data, offset)
        start = offset + HEADER_BYTES
        yield offset, kind, data[start : start + length]
        offset = start + length


def framed(records: Iterable[bytes]) -> bytes:
    """A log that consists of these records."""
    found = bytearray()
    for record in records:
        rest, first = memoryview(record), True
        while first or rest:
            left = BLOCK_BYTES - len(found) % BLOCK_BYTES
            if left < HEADER_BYTES:
                found += bytes(left)
                left = BLOCK_BYTES
            part, rest = rest[: left - HEADER_BYTES], rest[left - HEADER_BYTES :]
            kind = (FIRST if rest else FULL) if first else (MIDDLE if rest else LAST)
            total = masked_crc(bytes([kind]) + part)
            found += FRAGMENT.pack(total, len(part), kind) + part
            first = False
    return bytes(found)
