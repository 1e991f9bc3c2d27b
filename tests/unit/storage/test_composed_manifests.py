"""The manifests of stores that were made without RocksDB, and how they are framed: as RocksDB does it itself."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.external_tables import (
    tables_in,
    two_tables,
    write,
    write_external,
)

from trimtab.storage import manifest, rocks
from trimtab.storage.log_framing import (
    BLOCK_BYTES,
    FIRST,
    FRAGMENT,
    FULL,
    HEADER_BYTES,
    LAST,
    MIDDLE,
    fragments,
    framed,
    masked_crc,
)
from trimtab.storage.manifest import (
    COMPARATOR,
    LAST_SEQUENCE,
    LOG,
    NEW,
    NEXT_FILE,
    framing_trouble,
    live_tables,
    manifest_of,
    oldest_live_log,
)
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.sst_file import (
    bounds_of,
)


def test_its_manifest_is_understood(disk: RocksDisk) -> None:
    assert disk.compose("store", two_tables(disk), [(b"own", b"pair")])
    path = disk.path / "store"
    found = manifest_of(path)
    assert found is not None and framing_trouble(found) is None and oldest_live_log(path) == 0
    data = found.read_bytes()
    assert live_tables(data) == ({2, 3, 4}, len(data))
    assert {each.name for each in path.iterdir()} == {"CURRENT", found.name} | tables_in(path)
    assert disk.recovery_bytes("store") == rocks._OPEN_OVERHEAD_BYTES, "it has no logs"


def test_its_manifest_says_which_numbers_are_taken(disk: RocksDisk) -> None:
    """Each table has a sequence number of its own, and its keys have it too; the next file has the number after."""
    assert disk.compose("store", two_tables(disk), [(b"own", b"pair")])
    (record,) = records_of((disk.path / "store" / "MANIFEST-000001").read_bytes())
    fields = [(tag, numbers) for tag, numbers in manifest._fields(record) if tag != NEW]
    assert fields == [(COMPARATOR, []), (LOG, [0]), (NEXT_FILE, [5]), (LAST_SEQUENCE, [3])]
    bounds = [(b"key 0000", b"key 0059"), (b"key 0040", b"key 0099"), (b"own", b"own")]
    for sequence, each in enumerate(bounds, start=1):
        tail = bytes([1, sequence]) + bytes(6)
        first, last = (bytes([len(key) + 8]) + key + tail for key in each)
        assert first + last + bytes([sequence, sequence]) in record


def test_rocksdb_says_of_its_tables_what_it_would_say_had_it_taken_them_over(disk: RocksDisk) -> None:
    staged = two_tables(disk)
    assert disk.compose("composed", staged, [(b"own", b"pair")])
    disk.write_table("staging/own", [(b"own", b"pair")])
    taking = disk.open("taking", wal=False, small=True, coming=5)
    for name in [*staged, "staging/own"]:
        taking.ingest([name])
    made = disk.open("composed", wal=False, small=True, coming=5)
    told: list[list[tuple[object, ...]]] = []
    for store in (taking, made):
        files = sorted(store._db.live_files(), key=lambda file: str(file["name"]))
        told.append([(file["start_key"], file["end_key"], file["size"]) for file in files])
    assert told[0] == told[1] and len(told[0]) == 3
    assert [file["level"] for file in made._db.live_files()] == [0] * 3
    assert made._db.latest_sequence_number() == 3


sizes = st.integers(0, 300) | st.integers(-20, 20).map(lambda more: BLOCK_BYTES + more)
sizes |= st.integers(-20, 20).map(lambda more: 2 * BLOCK_BYTES - 2 * HEADER_BYTES + more)


def records_of(data: bytes) -> list[bytes]:
    """What was framed, every rule of it checked."""
    found, parts, end = [], list[bytes](), 0
    for offset, kind, payload in fragments(data):
        assert offset == end or (not any(data[end:offset]) and offset - end < HEADER_BYTES and not offset % BLOCK_BYTES)
        end = offset + HEADER_BYTES + len(payload)
        assert offset // BLOCK_BYTES == (end - 1) // BLOCK_BYTES, "none crosses a block"
        total, length, _ = FRAGMENT.unpack_from(data, offset)
        assert length == len(payload) and total == masked_crc(bytes([kind]) + payload)
        assert kind in ((MIDDLE, LAST) if parts else (FULL, FIRST))
        parts.append(payload)
        if kind in (FULL, LAST):
            found.append(b"".join(parts))
            parts.clear()
    assert not parts and end == len(data)
    return found


@settings(max_examples=40)
@given(st.lists(sizes, max_size=5))
def test_records_of_any_size_come_out_as_they_were_framed(sizes: list[int]) -> None:
    rng = random.Random(5)
    records = [rng.randbytes(size) for size in sizes]
    assert records_of(framed(records)) == records


@pytest.mark.parametrize("left", range(HEADER_BYTES + 2))
@pytest.mark.parametrize("size", [0, 1, 9, BLOCK_BYTES])
def test_a_record_that_begins_where_little_is_left_of_a_block(left: int, size: int) -> None:
    records = [bytes(BLOCK_BYTES - HEADER_BYTES - left), b"x" * size, b"after it"]
    data = framed(records)
    assert records_of(data) == records
    offsets = [offset for offset, _, _ in fragments(data)]
    assert offsets[1] == (BLOCK_BYTES if left < HEADER_BYTES else BLOCK_BYTES - left)


def test_a_log_of_rocksdb_is_framed_in_the_same_way_byte_by_byte(disk: RocksDisk) -> None:
    store = disk.open("store", wal=True)
    rng = random.Random(3)
    for size in (10, 20_000, 12_000, 700, 70_000, *(rng.randrange(3000) for _ in range(20))):
        write(store, {b"key": rng.randbytes(size)})
    store.sync_blocking()
    (log,) = store.path.glob("*.log")
    data = log.read_bytes()
    records = records_of(data)
    assert len(records) == 25 and len(data) > 3 * BLOCK_BYTES
    assert framed(records) == data


def test_tables_say_what_lies_in_them(disk: RocksDisk) -> None:
    """However many batches they were written in; long keys too."""
    rng = random.Random(4)
    held = sorted({rng.randbytes(rng.randrange(1, 30)) * rng.randrange(1, 100): b"v" for _ in range(200)}.items())
    for batch in (1, 17, 1000):
        path = write_external(disk, f"{batch}", held, batch=batch)
        assert bounds_of(path) == (held[0][0], held[-1][0], path.stat().st_size)
    single = write_external(disk, "single", held[:1])
    assert bounds_of(single)[:2] == (held[0][0], held[0][0])
    assert all(one < other for (one, _), (other, _) in pairwise(held))
