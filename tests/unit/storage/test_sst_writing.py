"""Files written from columns: RocksDB finds in them what it finds in those that it wrote itself, and every damage."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import rocksdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.rows.keys import PUT, tail
from trimtab.rows.ragged import Ragged, fixed, from_list
from trimtab.storage import sst_columns
from trimtab.storage.port import Corrupt
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.sst import table_options
from trimtab.storage.sst_blocks import BlockMaker, varint_strings
from trimtab.storage.sst_file import (
    FIRST_KEY,
    LAST_KEY,
    LZ4,
    TRAILER_BYTES,
    Unreadable,
    _entries,
    _handle,
    open_table,
    varint,
)
from trimtab.storage.sst_packing import shape_of, varint_bytes
from trimtab.storage.sst_writing import MOST_BLOCKS, OutOfOrder, TableWriter, block_bytes_of, separators

Pairs = list[tuple[bytes, bytes]]


def write(path: Path, pairs: Pairs, *, batch: int = 1000, block_bytes: int = 4096) -> Path:
    with TableWriter(path, block_bytes=block_bytes) as writer:
        for start in range(0, len(pairs), batch):
            some = pairs[start : start + batch]
            writer.add([from_list([key for key, _ in some])], from_list([value for _, value in some]))
        assert writer.finish(durable=False) == path.stat().st_size
    assert (writer.rows, writer.first, writer.last) == (len(pairs), pairs[0][0], pairs[-1][0])
    return path


def write_by_rocksdb(path: Path, pairs: Pairs) -> Path:
    writer = rocksdict.SstFileWriter(table_options())
    writer.open(str(path))
    for key, value in pairs:
        writer[key] = value
    writer.finish()
    return path


def without_rocksdb(path: Path) -> Pairs:
    batches = sst_columns.batches(open_table(path), verify=True)
    return [pair for keys, values in batches for pair in zip(keys.to_list(), values.to_list(), strict=True)]


def by_rocksdb(folder: Path, *files: Path) -> Pairs:
    """What a new database holds that took these files over, one after the other. An iterator's end may be damage."""
    database = rocksdict.Rdict(str(folder), table_options())
    try:
        for file in files:
            database.ingest_external_file([str(file)])
        found, places = [], database.iter()
        places.seek_to_first()
        while places.valid():
            found.append((places.key(), places.value()))
            places.next()
        places.status()
        return found
    finally:
        database.close()


def properties_of(path: Path) -> dict[bytes, bytes]:
    data = path.read_bytes()
    meta_bytes = int.from_bytes(data[-40:-36], "little")
    meta = dict(_entries(data[-53 - TRAILER_BYTES - meta_bytes : -53 - TRAILER_BYTES]))
    offset, size = _handle(meta[b"rocksdb.properties"])
    return dict(_entries(data[offset : offset + size]))


def rows(rng: random.Random, count: int, *, alike: bool) -> Pairs:
    """Pairs as tablets hold them."""
    found = {}
    for _ in range(count):
        key = rng.randbytes(8) + b"\x40" + (b"" if alike else b"abc" * rng.randrange(60))
        value = b"\x00\x00\x00\x07" + rng.randbytes(9) + bytes(6) if alike else rng.randbytes(3) * rng.randrange(200)
        found[key + tail(7, PUT, value)] = value
    return sorted(found.items())


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", [1, 2, 44, 5000])
def test_rocksdb_and_we_read_what_was_written(tmp_path: Path, alike: bool, count: int) -> None:
    pairs = rows(random.Random(count), count, alike=alike)
    ours, theirs = write(tmp_path / "ours.sst", pairs), write_by_rocksdb(tmp_path / "theirs.sst", pairs)
    assert by_rocksdb(tmp_path / "one", ours) == by_rocksdb(tmp_path / "other", theirs) == pairs
    assert without_rocksdb(ours) == pairs
    assert open_table(ours).rows == count


def test_what_a_file_says_of_itself_is_what_rocksdb_would_say(tmp_path: Path) -> None:
    pairs = rows(random.Random(0), 3000, alike=False)
    ours = properties_of(write(tmp_path / "ours.sst", pairs))
    theirs = properties_of(write_by_rocksdb(tmp_path / "theirs.sst", pairs))
    of_their_machine = {b"rocksdb.creating.host.identity", b"rocksdb.compression_options"}
    of_where_blocks_end = {b"rocksdb." + each for each in (b"data.size", b"index.size", b"num.data.blocks")}
    of_where_blocks_end |= {b"rocksdb.tail.start.offset"}
    assert ours.pop(FIRST_KEY) == pairs[0][0] and ours.pop(LAST_KEY) == pairs[-1][0]
    assert set(theirs) - set(ours) == of_their_machine and set(ours) <= set(theirs)
    others = {name for name in ours if ours[name] != theirs[name]}
    assert others <= {b"rocksdb.creating.session.identity"} | of_where_blocks_end
    assert list(ours) == sorted(ours)
    blocks = open_table(tmp_path / "ours.sst")
    assert varint(ours[b"rocksdb.num.data.blocks"], 0)[0] == len(blocks.sizes)
    assert varint(ours[b"rocksdb.data.size"], 0)[0] == int(blocks.offsets[-1] + blocks.sizes[-1] + TRAILER_BYTES)
    again = properties_of(write(tmp_path / "again.sst", pairs))
    assert again[b"rocksdb.creating.session.identity"] != ours[b"rocksdb.creating.session.identity"]


strings = st.binary(max_size=40) | st.integers(0, 600).map(lambda size: b"ab" * size)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(strings.filter(bool), strings, min_size=1, max_size=120),
    st.sampled_from([64, 300, 4096]),
    st.sampled_from([1, 7, 1000]),
)
def test_any_pairs(tmp_path_factory: Any, held: dict[bytes, bytes], block_bytes: int, batch: int) -> None:
    folder, pairs = tmp_path_factory.mktemp("any"), sorted(held.items())
    path = write(folder / "ours.sst", pairs, batch=batch, block_bytes=block_bytes)
    assert without_rocksdb(path) == pairs
    assert by_rocksdb(folder / "store", path) == pairs


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rows_that_repeat_each_other_unpack_to_what_they_were(data: st.DataObject) -> None:
    """Rows with any bytes in common; `shape_of` is asked for blocks of any size."""
    parts = data.draw(st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=6), label="parts")
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    count = data.draw(st.integers(4, 60), label="rows")
    columns = [rng.integers(0, 256, (1 if same else count, width), dtype=np.uint8) for width, same in parts]
    entries = np.concatenate([np.broadcast_to(each, (count, each.shape[1])) for each in columns], axis=1)
    shape = shape_of(entries, count, np.zeros(entries.shape[1], bool))
    if shape is None:
        assert all(width < 4 or not same for width, same in parts)
        return
    each = data.draw(st.integers(2, count), label="rows of a block")
    blocks = count // each
    contents = entries[: blocks * each].reshape(blocks, -1)
    restarts = rng.integers(0, 256, 4 * each + 4, dtype=np.uint8).tobytes()
    packed = shape.pack(contents, restarts)
    for content, block in zip(contents, packed, strict=True):
        size, at = varint(block.tobytes(), 0)
        assert size == len(content) + len(restarts) and block[-TRAILER_BYTES] == LZ4
        unpacked = pa.Codec("lz4_raw").decompress(block[at:-TRAILER_BYTES].tobytes(), size, asbytes=True)
        assert unpacked == content.tobytes() + restarts


def alike_pairs(columns: Sequence[np.ndarray[Any, Any]]) -> Ragged:
    return fixed(np.concatenate([each.view(np.uint8).reshape(len(each), -1) for each in columns], axis=1))


def test_a_shape_that_no_longer_holds_is_left(tmp_path: Path) -> None:
    """What rows have in common changes within a file, and so does which way to pack them is best."""
    count, rng = 3000, np.random.default_rng(0)
    pairs: Pairs = []
    with TableWriter(tmp_path / "ours.sst") as writer:
        for batch in range(6):
            numbers = np.arange(batch * count, (batch + 1) * count, dtype=">u8")
            noise = rng.integers(0, 1 << 62, count, dtype=np.int64)
            same = np.full(count, batch // 2, np.int64)
            texts = rng.integers(0, 3, count, dtype=np.int64)
            kinds = [
                [same, same, noise],
                [noise, same, noise],
                [noise] * 3,
                [texts] * 3,
                [same] * 3,
                [same, noise, same],
            ]
            values, key = alike_pairs(kinds[batch]), fixed(numbers.view(np.uint8).reshape(-1, 8))
            writer.add([key, b"tail of key"], values)
            pairs += zip((each + b"tail of key" for each in key.to_list()), values.to_list(), strict=True)
        writer.finish(durable=False)
    assert without_rocksdb(tmp_path / "ours.sst") == pairs
    assert by_rocksdb(tmp_path / "store", tmp_path / "ours.sst") == pairs


def test_packing_by_shape_is_chosen_only_where_it_is_nearly_as_good() -> None:
    rng, count = np.random.default_rng(0), 2000
    keys = fixed(np.sort(rng.integers(0, 1 << 62, count)).astype(">u8").view(np.uint8).reshape(-1, 8))
    lz4 = pa.Codec("lz4_raw")
    noise, few = rng.integers(0, 1 << 62, (count, 3)), rng.integers(0, 2, (count, 3))
    for numbers, within in ((noise, 1.1), (few, 1.01)):
        values = alike_pairs(list(numbers.T.copy()))
        made = BlockMaker(4096).make([keys], values)
        plain = b"".join(a + b for a, b in zip(keys.to_list(), values.to_list(), strict=True))
        assert len(made.data) < within * (len(lz4.compress(plain, asbytes=True)) + count * 12)


def test_values_of_megabytes_and_none(tmp_path: Path) -> None:
    rng = random.Random(1)
    values = [b"", rng.randbytes(3_000_000), b"abc" * 2_000_000, b"x", bytes(17_000_000), b"", rng.randbytes(5_000_000)]
    pairs = [(b"%08d" % at + bytes(at * 1000) + b"!", value) for at, value in enumerate(values)]
    path = write(tmp_path / "ours.sst", pairs, batch=2)
    assert by_rocksdb(tmp_path / "store", path) == pairs
    assert without_rocksdb(path) == pairs


def test_a_million_rows_in_little_memory(tmp_path: Path) -> None:
    count, some = 1_000_000, 16_384
    path, rng = tmp_path / "ours.sst", np.random.default_rng(0)
    write(tmp_path / "first.sst", rows(random.Random(0), 100, alike=True))  # imports need memory, too
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with TableWriter(path) as writer:
            for start in range(0, count, some):
                numbers = np.arange(start, min(start + some, count), dtype=np.int64)
                keys = fixed((numbers << 40).astype(">u8").view(np.uint8).reshape(-1, 8))
                values = alike_pairs([numbers, rng.integers(0, 1 << 62, (len(numbers), 6)), numbers * 0])
                writer.add([keys, b"stamp of all"], values)
                assert pa.total_allocated_bytes() - arrow_before < 16 * 1024 * 1024
            writer.finish(durable=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 1024 * 1024 and path.stat().st_size > 60_000_000
    table, found = open_table(path), 0
    assert table.rows == count
    for keys, values in sst_columns.batches(table, verify=True):
        at = np.arange(found, found + len(keys))
        assert np.array_equal(keys.numbers(0, ">u8") >> 40, at) and np.array_equal(values.numbers(0, "<i8"), at)
        found += len(keys)
    database = rocksdict.Rdict(str(tmp_path / "store"), table_options())
    database.ingest_external_file([str(path)])
    for at in random.Random(0).sample(range(count), 300):
        assert database[(at << 40).to_bytes(8, "big") + b"stamp of all"][:8] == at.to_bytes(8, "little")
    assert (12345 << 40).to_bytes(8, "big") + b"stamp of any" not in database
    assert sum(1 for _ in database.items()) == count
    database.close()


def test_a_store_with_data_takes_a_file_over_compacts_and_copies_it(tmp_path: Path) -> None:
    disk = RocksDisk(tmp_path / "disk")
    store = disk.open("tablet", wal=False, small=True)
    rng = random.Random(5)
    before, loaded = rows(rng, 2000, alike=True), rows(rng, 3000, alike=True)
    again = before[::3]
    database = store._db
    for key, value in before:
        database[key] = value
    write(disk.path / "run.sst", sorted(loaded + [(key, b"newer") for key, _ in again]))
    store.ingest(["run.sst"])
    held = dict(before) | dict(loaded) | {key: b"newer" for key, _ in again}
    assert dict(database.items()) == held
    after = dict.fromkeys(list(held)[::5], b"newest")
    for key, value in after.items():
        database[key] = value
    store.checkpoint("copy")
    database.compact_range(None, None)
    assert dict(database.items()) == held | after
    for key in rng.sample(sorted(held), 200):
        assert database[key] == (held | after)[key]
    disk.close()
    copy = rocksdict.Rdict(str(disk.path / "copy"), table_options())
    assert dict(copy.items()) == held | after
    copy.close()


def test_files_are_not_taken_for_each_other_in_a_shared_cache(tmp_path: Path) -> None:
    disk = RocksDisk(tmp_path / "disk")
    stores = []
    for number in range(4):
        pairs = [(b"key%05d" % at, b"%d of %d" % (at, number)) for at in range(500)]
        write(disk.path / f"{number}.sst", pairs)
        store = disk.open(f"tablet-{number}", wal=False, small=True)
        store.ingest([f"{number}.sst"])
        stores.append((store, pairs))
    for _ in range(2):
        for store, pairs in stores:
            assert list(store._db.items()) == pairs
    disk.close()


@pytest.mark.parametrize("alike", [True, False])
def test_a_damaged_byte_is_found_wherever_it_is(tmp_path: Path, alike: bool) -> None:
    pairs = rows(random.Random(2), 60, alike=alike)
    content = write(tmp_path / "ours.sst", pairs, block_bytes=1500).read_bytes()
    # A store may have set the sequence number; RocksDB takes whatever is there for zero when it checks the block.
    name = content.index(b"rocksdb.external_sst_file.global_seqno")
    number = range(name + 38, name + 46)
    rng = random.Random(3)
    tail_begins = int(open_table(tmp_path / "ours.sst").offsets[-1])
    places = [*rng.sample(range(tail_begins), 40), *rng.sample(range(tail_begins, len(content)), 80)]
    places += range(len(content) - 53, len(content), 4)
    for place in places:
        if place in number:
            continue
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{place}.sst"
        path.write_bytes(damaged)
        if place < len(content) - 53:
            with pytest.raises((Corrupt, Unreadable)):
                without_rocksdb(path)
        try:
            found = by_rocksdb(tmp_path / f"store-{place}", path)
        except Exception:
            continue
        pytest.fail(f"byte {place} of {len(content)} was damaged; {found == pairs} that all was read as it should be")


def test_a_block_that_was_moved_is_damage(tmp_path: Path) -> None:
    pairs = [(b"key%07d" % at, b"value") for at in range(4000)]
    path = write(tmp_path / "ours.sst", pairs)
    table, content = open_table(path), bytearray(path.read_bytes())
    one, other = (slice(int(table.offsets[at]), int(table.offsets[at + 1])) for at in (1, 2))
    assert one.stop - one.start == other.stop - other.start
    content[one], content[other] = content[other], content[one]
    path.write_bytes(content)
    with pytest.raises(Exception, match="checksum"):
        by_rocksdb(tmp_path / "store", path)


def test_keys_have_to_ascend(tmp_path: Path) -> None:
    for number, keys in enumerate(
        (
            [b"aaaaaaaa2", b"aaaaaaaa1"],
            [b"aaaaaaaa", b"aaaaaaaa"],
            [b"b", b"a"],
            [b"a", b"a"],
            [b"aaaaaaaab", b"aaaaaaaa"],
        )
    ):
        for batch in (1, 2):
            with pytest.raises(OutOfOrder, match="is not greater"):
                write(tmp_path / f"{number}-{batch}.sst", [(key, b"") for key in keys], batch=batch)


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=2, max_size=30, unique=True), st.booleans())
def test_a_separator_lies_between_two_keys(keys: list[bytes], alike: bool) -> None:
    ascending = sorted({key.ljust(4, b"\x00") for key in keys} if alike else keys)
    found = separators(from_list(ascending[:-1]), from_list(ascending[1:])).to_list()
    assert len(found) == len(ascending) - 1
    assert all(one <= between < other for one, between, other in zip(ascending, found, ascending[1:], strict=False))


@given(st.lists(st.integers(0, (1 << 62) - 1) | st.integers(0, 300), min_size=1))
def test_numbers_are_written_as_they_are_read(numbers: list[int]) -> None:
    found = varint_strings(np.asarray(numbers, np.int64)).to_list()
    assert found == [varint_bytes(number) for number in numbers]
    assert [varint(each, 0) for each in found] == [(n, len(each)) for n, each in zip(numbers, found, strict=True)]


def test_the_index_of_a_large_file_stays_small() -> None:
    assert block_bytes_of(0) == block_bytes_of(100_000_000) == 8192
    for size in (200_000_000, 450_000_000, 1_500_000_000):
        assert size / block_bytes_of(size) <= MOST_BLOCKS
    assert block_bytes_of(1 << 40) == 65_536
