"""CQL's order of values, told from their cells: what a cell is turned into compares like the value does.

Sets and maps are stored in this order, so that equal ones are equal bytes. Where CQL takes two different values for
equal in order (1.0 and 1.00), whoever sorts by it breaks the tie by the cells.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_FLOAT_BITS = {"f": "i", "d": "q"}


def plain_bytes(cell: bytes) -> bytes:
    return cell


def number(code: str) -> Callable[[bytes], int]:
    unpack = struct.Struct(">" + code).unpack

    def order(cell: bytes) -> int:
        try:
            value: int = unpack(cell)[0]
        except struct.error:
            raise ValueError(f"a cell of {len(cell)} bytes is not a number of {struct.calcsize(code)}") from None
        return value

    return order


def floating(code: str) -> Callable[[bytes], int]:
    """Java's order: -0.0 before 0.0, and all that is no number after everything else."""
    bits_of = number(_FLOAT_BITS[code])
    unpack = struct.Struct(">" + code).unpack
    magnitude = (1 << 8 * struct.calcsize(code) - 1) - 1

    def order(cell: bytes) -> int:
        bits = bits_of(cell)
        value = unpack(cell)[0]
        if value != value:
            return magnitude
        return bits if bits >= 0 else bits ^ magnitude

    return order


def _made_at(cell: bytes) -> bytes:
    """The time in a uuid of version 1, the most significant byte first."""
    return cell[6:8] + cell[4:6] + cell[:4]


def uuid(cell: bytes) -> tuple[int, bytes, bytes]:
    """By version; those with a time in them by that time."""
    _sixteen(cell)
    version = cell[6] >> 4
    return version, _made_at(cell) if version == 1 else cell[:8], cell[8:]


_FLIPPED = bytes(byte ^ 0x80 for byte in range(256))


def timeuuid(cell: bytes) -> tuple[bytes, bytes]:
    """By time; what is left compares as signed bytes, for as long as there has been CQL."""
    _sixteen(cell)
    return _made_at(cell), cell[8:].translate(_FLIPPED)


def _sixteen(cell: bytes) -> None:
    if len(cell) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(cell)}")


def sequence(element: Callable[[bytes], Any]) -> Callable[[list[bytes]], tuple[Any, ...]]:
    """Element by element; of two that begin alike the shorter one is first."""

    def order(cells: list[bytes]) -> tuple[Any, ...]:
        return tuple([element(cell) for cell in cells])

    return order


def components(orders: tuple[Callable[[bytes], Any], ...]) -> Callable[[list[bytes | None]], tuple[Any, ...]]:
    """One by one, what is absent first."""

    def order(cells: list[bytes | None]) -> tuple[Any, ...]:
        return tuple([(0,) if cell is None else (1, each(cell)) for each, cell in zip(orders, cells, strict=True)])

    return order
