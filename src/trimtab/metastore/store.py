"""The little that the metastore asks of a store: ordered keys, and batches that are written whole or not at all.

The core may not import engines, so the port is declared here by shape; every store of the storage ring fits it. Two
promises carry everything above: `write` is atomic, and after a crash what is left is a prefix of the batches in the
order in which they were written. Durability is not asked for: the Raft log replays what a crash took.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class StoreBatch(Protocol):
    """Changes that become visible together; of two changes to one key the later wins."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...


class OrderedStore(Protocol):
    """An ordered key-value store. Reads see every batch written so far."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with low <= key < high (None: to the end), as they were when the iteration began."""
        ...

    # What a store makes it must also take; a store is free to make batches of its own kind, hence Any.
    def batch(self) -> Any: ...

    def write(self, batch: Any) -> None:
        """Apply the whole batch, or raise and apply nothing."""
        ...
