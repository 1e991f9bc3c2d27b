"""The two hashes of a row, both the Murmur3 of CQL's drivers: its token, and the content hash that ends its key.

The token decides where a row lives and must equal what every CQL driver computes. The content hash only keeps apart
versions of one row with the same timestamp; it is Murmur3 as well because that is the one good 64-bit hash which is
both C for a single row and numpy for whole columns (`column_hashing`), and both must agree. A cryptographic hash a row
took longer than everything else that is done to write it.

The driver's module costs 80 ms to import, so that happens at the first row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

HASH_BYTES = 8
MIN_TOKEN = -(2**63)
MAX_TOKEN = 2**63 - 1


@cache
def murmur3_of() -> Callable[[bytes], int]:
    """The driver's own function, for a signed number."""
    from cassandra.cmurmur3 import murmur3

    found: Callable[[bytes], int] = murmur3
    return found


def token_of_bytes(partition_key: bytes) -> int:
    """The token of a serialised partition key. The least number is no token: it means "before all others"."""
    token = murmur3_of()(partition_key)
    return MAX_TOKEN if token == MIN_TOKEN else token


def content_hash(value: bytes) -> bytes:
    """The last eight bytes of a version's key."""
    return murmur3_of()(value).to_bytes(HASH_BYTES, "big", signed=True)
