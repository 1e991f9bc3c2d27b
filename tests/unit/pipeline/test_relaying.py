"""Files that pass from one bulk server to another: all bytes, with their checksum, and nothing on a disk between."""

from __future__ import annotations

import random
import threading
from typing import cast

import pytest

from trimtab.bulk.client import BulkClient, BulkError
from trimtab.pipeline import relaying
from trimtab.pipeline.relaying import Budget, fetched
from trimtab.storage.file_sums import sum_of


class Source:
    address = "a:1"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[int] = []

    def fetch(self, path: str, ticket: bytes, *, offset: int, length: int) -> bytes:
        self.asked.append(offset)
        return self.content[offset : offset + length]


def read(source: Source, size_bytes: int) -> tuple[bytes, int]:
    with fetched(cast(BulkClient, source), "snapshots/x/1", size_bytes, b"in") as (path, checksum):
        return path.read_bytes(), checksum


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_all_bytes_pass_piece_by_piece(monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    monkeypatch.setattr(relaying, "PIECE_BYTES", 1000)
    monkeypatch.setattr(relaying, "MEMORY_BYTES", memory_bytes)
    content = random.Random(1).randbytes(3500)
    source = Source(content)
    assert read(source, len(content)) == (content, sum_of(content))
    assert source.asked == [0, 1000, 2000, 3000]


def test_an_empty_file_passes_too() -> None:
    assert read(Source(b""), 0) == (b"", sum_of(b""))


def test_a_file_that_became_shorter_is_no_copy() -> None:
    with pytest.raises(BulkError, match="shorter"):
        read(Source(b"abc"), 5)


def test_as_much_passes_at_once_as_the_budget_allows_and_what_is_larger_goes_alone() -> None:
    budget = Budget(100)
    inside, most, over = threading.Semaphore(0), [0, 0], threading.Event()
    lock = threading.Lock()

    def go(size_bytes: int) -> None:
        with budget.taking(size_bytes):
            with lock:
                most[0] += size_bytes
                most[1] = max(most)
            inside.release()
            over.wait(60)
            with lock:
                most[0] -= size_bytes

    threads = [threading.Thread(target=go, args=(60,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=60) and not inside.acquire(timeout=0.05)
    over.set()
    for thread in threads:
        thread.join(60)
    assert most == [0, 60]
    with budget.taking(1000):
        pass
