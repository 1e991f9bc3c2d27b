"""Tokens of partition keys: what CQL's drivers compute, and how they lie in front of every key.

The token is the Murmur3 of the serialised partition key. One column is serialised as its cell; several as length (2
bytes), cell and a zero, one after the other. In a key a token is 8 bytes, big endian with the sign flipped, so that
keys sort like tokens do.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from trimtab.rows.hashing import MAX_TOKEN, MIN_TOKEN, token_of_bytes

__all__ = ["MAX_TOKEN", "MIN_TOKEN", "TOKEN_BYTES", "partition_bytes", "token_bytes", "token_of_cells", "token_of_key"]

TOKEN_BYTES = 8
_SIGN = 1 << 63
_U16 = Struct(">H").pack
AFTER_ALL = b"\xff" * 32  # above every key


def partition_bytes(cells: Sequence[bytes]) -> bytes:
    """The serialised partition key."""
    if len(cells) == 1:
        return cells[0]
    return b"".join([part for cell in cells for part in (_U16(len(cell)), cell, b"\x00")])


def token_of_cells(cells: Sequence[bytes]) -> int:
    return token_of_bytes(partition_bytes(cells))


def token_bytes(token: int) -> bytes:
    """How keys of this token begin."""
    return (token + _SIGN).to_bytes(TOKEN_BYTES, "big")


def token_of_key(key: bytes) -> int:
    return int.from_bytes(key[:TOKEN_BYTES], "big") - _SIGN


def keys_between(first: int | None, last: int | None) -> tuple[bytes, bytes]:
    """low <= key < high for the tokens after `first` (None: all from the beginning) and up to `last`."""
    low = bytes(TOKEN_BYTES) if first is None else AFTER_ALL if first >= MAX_TOKEN else token_bytes(first + 1)
    high = AFTER_ALL if last is None or last >= MAX_TOKEN else token_bytes(last + 1)
    return low, high
