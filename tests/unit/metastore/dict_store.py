"""The smallest store that fits the metastore's port, for tests: a dict, with a write that can be told to fail."""

from __future__ import annotations

from collections.abc import Iterator


class DictBatch:
    def __init__(self) -> None:
        self.operations: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        assert type(key) is bytes and type(value) is bytes
        self.operations.append((key, value))

    def delete(self, key: bytes) -> None:
        self.operations.append((key, None))


class WriteFailed(Exception):
    pass


class DictStore:
    def __init__(self, data: dict[bytes, bytes] | None = None) -> None:
        self.data = dict(data or {})
        self.fail_writes = 0
        self.writes = 0

    def get(self, key: bytes) -> bytes | None:
        return self.data.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        keys = sorted((k for k in self.data if low <= k and (high is None or k < high)), reverse=reverse)
        return iter([(key, self.data[key]) for key in keys])

    def batch(self) -> DictBatch:
        return DictBatch()

    def write(self, batch: DictBatch) -> None:
        if self.fail_writes:
            self.fail_writes -= 1
            raise WriteFailed("the disk is full, says the test")
        self.writes += 1
        for key, value in batch.operations:
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value

    def copy(self) -> DictStore:
        return DictStore(self.data)
