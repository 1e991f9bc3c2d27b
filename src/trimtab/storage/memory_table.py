"""The sorted table behind the model's stores: a dict and a sorted list of its keys, shared until written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from trimtab.storage.port import Batch, StorageError, check_bytes

# (key, value) puts, (key, None) deletes, (low, high, True) deletes a range.
Operation = tuple[bytes, bytes | None] | tuple[bytes, bytes, bool]
KEY_OVERHEAD_BYTES = 16


class MemoryBatch:
    __slots__ = ("_operations", "bytes")

    def __init__(self) -> None:
        self._operations: list[Operation] | None = []
        self.bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        if type(key) is not bytes or type(value) is not bytes:
            check_bytes(key, "a key")
            check_bytes(value, "a value")
        self._add((key, value))
        self.bytes += len(key) + len(value) + KEY_OVERHEAD_BYTES

    def delete(self, key: bytes) -> None:
        if type(key) is not bytes:
            check_bytes(key, "a key")
        self._add((key, None))

    def delete_range(self, low: bytes, high: bytes) -> None:
        if check_bytes(low, "a key") < check_bytes(high, "a key"):
            self._add((low, high, True))

    def __len__(self) -> int:
        return len(self._pending())

    def take(self) -> list[Operation]:
        """The operations, once: a batch is used up by a write."""
        operations = self._pending()
        self._operations = None
        return operations

    def _add(self, operation: Operation) -> None:
        self._pending().append(operation)

    def _pending(self) -> list[Operation]:
        if self._operations is None:
            raise StorageError("this batch was written already; make a new one")
        return self._operations


def add_to(batch: Batch, operations: Sequence[Operation]) -> None:
    """The same operations, in a batch of another store."""
    for operation in operations:
        if len(operation) == 3:
            batch.delete_range(operation[0], operation[1])
        elif operation[1] is None:
            batch.delete(operation[0])
        else:
            batch.put(operation[0], operation[1])


class Undo:
    """The way back over one batch: what its keys held before."""

    __slots__ = ("before", "bytes")

    def __init__(self, before: dict[bytes, bytes | None], batch_bytes: int) -> None:
        self.before = before
        self.bytes = batch_bytes

    def apply(self, table: Table) -> int:
        for key, value in self.before.items():
            if value is None:
                table.delete(key)
            else:
                table.put(key, value)
        return self.bytes


class Table:
    """Sorted keys and their values. Only an owner whose table is not shared may change it."""

    __slots__ = ("bytes", "holders", "keys", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.bytes = 0
        self.holders = 1

    @property
    def shared(self) -> bool:
        return self.holders > 1

    def share(self) -> Table:
        self.holders += 1
        return self

    def release(self) -> None:
        self.holders -= 1

    def copy(self) -> Table:
        """A table of one's own, in place of the share held before."""
        self.holders -= 1
        other = Table()
        other.values = self.values.copy()
        other.keys = self.keys.copy()
        other.bytes = self.bytes
        return other

    def put(self, key: bytes, value: bytes) -> None:
        old = self.values.get(key)
        if old is None:
            keys = self.keys
            if not keys or key > keys[-1]:
                keys.append(key)
            else:
                keys.insert(bisect_left(keys, key), key)
            self.bytes += len(key) + len(value) + KEY_OVERHEAD_BYTES
        else:
            self.bytes += len(value) - len(old)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        old = self.values.pop(key, None)
        if old is not None:
            del self.keys[bisect_left(self.keys, key)]
            self.bytes -= len(key) + len(old) + KEY_OVERHEAD_BYTES

    def apply(self, operations: list[Operation], batch_bytes: int) -> Undo:
        """Change the table; what is returned takes the change back."""
        before: dict[bytes, bytes | None] = {}
        values = self.values
        for operation in operations:
            if len(operation) == 3:
                low, high = operation[0], operation[1]
                start, end = bisect_left(self.keys, low), bisect_left(self.keys, high)
                for key in self.keys[start:end]:
                    old = values.pop(key)
                    before.setdefault(key, old)
                    self.bytes -= len(key) + len(old) + KEY_OVERHEAD_BYTES
                del self.keys[start:end]
                continue
            key, value = operation
            if key not in before:
                before[key] = values.get(key)
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)
        return Undo(before, batch_bytes)
