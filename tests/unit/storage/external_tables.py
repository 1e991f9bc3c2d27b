"""Tables as loads write them: they say what their first and last key are, so that a store can be made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trimtab.rows.ragged import from_list
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_store import RocksStore
from trimtab.storage.sst_writing import TableWriter

Pairs = Sequence[tuple[bytes, bytes]]


def write_external(
    disk: RocksDisk, name: str, pairs: Pairs, *, batch: int = 1000, writer: type[TableWriter] = TableWriter
) -> Path:
    path = disk.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with writer(path, block_bytes=1024) as table:
        for start in range(0, len(pairs), batch):
            some = pairs[start : start + batch]
            table.add([from_list([key for key, _ in some])], from_list([value for _, value in some]))
        table.finish(durable=False)
    return path


def numbered(numbers: range, value: bytes) -> dict[bytes, bytes]:
    return {b"key %04d" % number: value for number in numbers}


def two_tables(disk: RocksDisk) -> list[str]:
    write_external(disk, "staging/one", sorted(numbered(range(60), b"one").items()))
    write_external(disk, "staging/two", sorted(numbered(range(40, 100), b"two").items()))
    return ["staging/one", "staging/two"]


def composed(disk: RocksDisk, name: str, tables: Sequence[Mapping[bytes, bytes]], own: Mapping[bytes, bytes]) -> None:
    """Stage these tables and make a store of them, and of what is its own."""
    staged = [f"staging/{name}/{number}" for number in range(len(tables))]
    for table, pairs in zip(staged, tables, strict=True):
        write_external(disk, table, sorted(pairs.items()))
    assert disk.compose(name, staged, sorted(own.items()))


def union(tables: Iterable[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """What is in any of them, later ones first."""
    found: dict[bytes, bytes] = {}
    for table in tables:
        found |= table
    return found


def tables_in(path: Path) -> set[str]:
    return {each.name for each in path.glob("*.sst")}


def write(store: RocksStore, pairs: dict[bytes, bytes | None]) -> None:
    batch = store.batch()
    for key, value in pairs.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    store.write(batch)
