"""Digests of merged rows: equal for equal histories, whatever order they came in and whatever was folded since."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import pack

from trimtab.rows.protocol import Pairs

DIGEST_BYTES = 16


def digest_of(pairs: Pairs, end: bytes = b"") -> bytes:
    """The digest of canonical pairs; `end`: where they were cut off, if they were."""
    return blake2b(
        b"".join([pack(f">{len(pairs) + 1}I", len(end), *map(len, pairs)), end, *pairs]), digest_size=DIGEST_BYTES
    ).digest()


def digest_of_parts(parts: Iterable[Pairs]) -> bytes:
    """The digest of many canonical pairs that are not held at once. How they are divided into parts does not matter."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    empty = True
    for pairs in parts:
        for part in pairs:
            digest.update(len(part).to_bytes(4, "big"))
            digest.update(part)
            empty = False
    return b"" if empty else digest.digest()
