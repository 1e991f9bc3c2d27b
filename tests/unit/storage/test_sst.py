"""Runs of sorted rows, and snapshots read in batches: with RocksDB and without, what was written is what comes back."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import rocksdict
from tests.unit.rows.tables import table as table_of

from trimtab.rows.column_reading import ColumnReader
from trimtab.rows.columns import encode_table
from trimtab.rows.keys import PUT, tail
from trimtab.rows.layout import RowLayout
from trimtab.rows.ragged import from_list
from trimtab.rows.sorted_rows import SortedRows
from trimtab.rows.tokens import AFTER_ALL
from trimtab.storage import sst_columns
from trimtab.storage.port import Corrupt, StorageError
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.sorted_streams import merged
from trimtab.storage.sst import Run, Snapshot, small_batches, table_options, write_run, write_runs
from trimtab.storage.sst_file import Unreadable, open_table

Pairs = list[tuple[bytes, bytes]]


def pairs_of(rng: random.Random, count: int, *, alike: bool) -> Pairs:
    """Keys that end with the hash of their value, as those of rows do."""
    found = {}
    for _ in range(count):
        row = (
            rng.randbytes(8)
            + b"\x40"
            + (b"" if alike else rng.choice([b"", b"abc", b"abcabcabc" * rng.randint(1, 20)]))
        )
        value = rng.randbytes(20) if alike else rng.choice([b"", b"x", rng.randbytes(rng.randrange(300))])
        found[row + tail(rng.randrange(1000), PUT, value)] = value
    return sorted(found.items())


def write_file(path: Path, pairs: Pairs, options: rocksdict.Options | None = None) -> None:
    writer = rocksdict.SstFileWriter(options or table_options())
    writer.open(str(path))
    for key, value in pairs:
        writer[key] = value
    writer.finish()


def read_file(path: Path, **how: bool) -> Pairs:
    table = open_table(path)
    found = [
        pair
        for keys, values in sst_columns.batches(table, **how)
        for pair in zip(keys.to_list(), values.to_list(), strict=True)
    ]
    assert table.rows == len(found)
    return found


def everything(snapshot: Snapshot, **how: int) -> Pairs:
    return [
        pair for keys, values in snapshot.batches(**how) for pair in zip(keys.to_list(), values.to_list(), strict=True)
    ]


def by_rocksdb(snapshot: Snapshot, rows: int = 100) -> Pairs:
    return [
        pair
        for keys, values in snapshot._iterate(bytes(8), AFTER_ALL, rows)
        for pair in zip(keys.to_list(), values.to_list(), strict=True)
    ]


@pytest.fixture
def disk(tmp_path: Path) -> RocksDisk:
    return RocksDisk(tmp_path / "disk")


def options_with(*, restarts: int = 1, block_bytes: int = 4096, compression: str = "lz4") -> rocksdict.Options:
    options = table_options()
    block = rocksdict.BlockBasedOptions()
    block.set_block_restart_interval(restarts)
    block.set_block_size(block_bytes)
    options.set_block_based_table_factory(block)
    options.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    return options


@pytest.mark.parametrize("compression", ["lz4", "none"])
@pytest.mark.parametrize("restarts", [1, 2, 16])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("block_bytes", [300, 4096, 100_000])
def test_a_file_is_read_as_it_was_written_however_it_is_laid_out(
    tmp_path: Path, compression: str, restarts: int, alike: bool, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sst_columns, "READ_BYTES", 30_000)
    pairs = pairs_of(random.Random(restarts), 1500, alike=alike)
    options = options_with(restarts=restarts, block_bytes=block_bytes, compression=compression)
    write_file(tmp_path / "one.sst", pairs, options)
    assert read_file(tmp_path / "one.sst") == pairs


def test_a_file_of_one_pair(tmp_path: Path) -> None:
    pairs = pairs_of(random.Random(0), 1, alike=False)
    write_file(tmp_path / "one.sst", pairs)
    assert read_file(tmp_path / "one.sst") == pairs


def test_keys_that_share_most_of_their_bytes(tmp_path: Path) -> None:
    value = b"same"
    pairs = sorted((b"partition " * 5 + b"%06d" % n + tail(1, PUT, value), value) for n in range(3000))
    write_file(tmp_path / "one.sst", pairs, options_with(restarts=16))
    assert read_file(tmp_path / "one.sst") == pairs


def test_values_and_keys_of_more_than_a_hundred_bytes(tmp_path: Path) -> None:
    rng = random.Random(3)
    pairs = []
    for n in range(200):
        value = rng.randbytes(1000)
        pairs.append((b"%05d" % n + bytes(200) + tail(1, PUT, value), value))
    for restarts in (1, 16):
        write_file(tmp_path / f"{restarts}.sst", pairs, options_with(restarts=restarts))
        assert read_file(tmp_path / f"{restarts}.sst") == pairs


def test_large_values_come_a_few_at_a_time(tmp_path: Path) -> None:
    pairs = []
    for n in range(60):
        value = bytes([n]) * 1_500_000
        pairs.append((b"%08d" % n + tail(1, PUT, value), value))
    write_file(tmp_path / "one.sst", pairs)
    batches = [(keys.to_list(), values.size) for keys, values in sst_columns.batches(open_table(tmp_path / "one.sst"))]
    assert [key for keys, _ in batches for key in keys] == [key for key, _ in pairs]
    assert max(size for _, size in batches) <= 33_000_000
    database = rocksdict.Rdict(str(tmp_path / "store"), table_options())
    database.ingest_external_file([str(tmp_path / "one.sst")])
    database.close()
    with Snapshot(tmp_path / "store") as snapshot:
        sizes = [values.size for _, values in snapshot._iterate(bytes(8), AFTER_ALL, 1000)]
    assert sum(sizes) == 60 * 1_500_000 and max(sizes) < 200_000_000


def test_files_with_deletions_or_of_other_kinds_are_left_to_rocksdb(tmp_path: Path) -> None:
    pairs = pairs_of(random.Random(0), 10, alike=True)
    writer = rocksdict.SstFileWriter(table_options())
    writer.open(str(tmp_path / "deleted.sst"))
    writer[pairs[0][0]] = pairs[0][1]
    del writer[pairs[1][0]]
    writer.finish()
    with pytest.raises(Unreadable, match=r"deleted\.keys is 1"):
        open_table(tmp_path / "deleted.sst")
    write_file(tmp_path / "zstd.sst", pairs_of(random.Random(0), 500, alike=True), options_with(compression="zstd"))
    with pytest.raises((Unreadable, Corrupt), match="compression 7"):
        read_file(tmp_path / "zstd.sst")
    (tmp_path / "short.sst").write_bytes(b"x")
    (tmp_path / "other.sst").write_bytes(bytes(1000))
    for name in ("short.sst", "other.sst"):
        with pytest.raises(Unreadable):
            open_table(tmp_path / name)


def test_every_flipped_byte_of_the_data_is_found_or_changes_no_value(tmp_path: Path) -> None:
    pairs = pairs_of(random.Random(1), 40, alike=True)
    write_file(tmp_path / "one.sst", pairs)
    whole = (tmp_path / "one.sst").read_bytes()
    table = open_table(tmp_path / "one.sst")
    end = int(table.offsets[-1] + table.sizes[-1])
    found = 0
    for at in range(0, end, 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        (tmp_path / "one.sst").write_bytes(damaged)
        try:
            assert [value for _, value in read_file(tmp_path / "one.sst")] == [value for _, value in pairs]
        except Corrupt as error:
            assert "one.sst" in str(error)
            found += 1
    assert found > end / 7 / 2


def numbers(count: int, stamp_us: int = 5, seed: int = 0) -> tuple[RowLayout, SortedRows, pa.Table]:
    layout = RowLayout(table_of(["bigint"], [], ["double", "text", "int"]))
    rng = np.random.default_rng(seed)
    table = pa.table(
        {
            "p0": rng.permutation(count),
            "v0": rng.random(count),
            "v1": [f"{n:020}" for n in range(count)],
            "v2": rng.integers(0, 9, count, dtype=np.int32),
        }
    )
    return layout, encode_table(layout, table, timestamp_us=stamp_us, now_ms=1000), table


def test_rows_written_elsewhere_are_ingested_by_a_tablet_and_read_from_its_snapshot(disk: RocksDisk) -> None:
    layout, rows, table = numbers(5000)
    run = write_run(disk.path / "run.sst", rows)
    assert (run.rows, run.file_bytes) == (5000, run.path.stat().st_size)
    expected = list(rows.pairs())
    assert (run.first, run.last) == (expected[0][0], expected[-1][0])
    store = disk.open("tablet", wal=False, small=True)
    store.ingest(["run.sst"])
    batch = store.batch()
    batch.put(b"\x00", b"position")
    batch.put(b"\x00\x00", b"meta")
    store.write(batch)
    store._db.flush()
    store.checkpoint("snapshot")
    assert list(store.scan(bytes(8), None)) == expected
    with Snapshot(disk.path / "snapshot") as snapshot:
        assert snapshot._files() is not None
        assert everything(snapshot) == by_rocksdb(snapshot) == expected
        reader = ColumnReader(layout, now_s=0)
        found = pa.Table.from_batches(list(reader.read(snapshot.batches())), schema=reader.schema)
    assert found.sort_by("p0").equals(table.sort_by("p0"))
    disk.close()


def test_levels_that_overlap_are_merged_and_what_is_in_two_of_them_comes_once(tmp_path: Path) -> None:
    rng = random.Random(5)
    pairs = pairs_of(rng, 3000, alike=False)
    options = table_options()
    options.set_disable_auto_compactions(True)
    database = rocksdict.Rdict(str(tmp_path / "store"), options)
    for _ in range(4):
        write_file(tmp_path / "some.sst", sorted(rng.sample(pairs, 900)))
        database.ingest_external_file([str(tmp_path / "some.sst")])
    for key, value in rng.sample(pairs, 300):
        database[key] = value
    database.flush()
    expected = [(key, value) for key, value in database.items() if len(key) > 8]
    database.close()
    for log in (tmp_path / "store").glob("*.log"):
        log.write_bytes(b"")
    with Snapshot(tmp_path / "store") as snapshot:
        assert len(snapshot._files() or []) > 1
        assert everything(snapshot) == by_rocksdb(snapshot) == expected


def test_a_small_checkpoint_is_read_without_rocksdb_if_its_files_are_all_there_is(tmp_path: Path) -> None:
    pairs = pairs_of(random.Random(7), 300, alike=False)
    database = rocksdict.Rdict(str(tmp_path / "store"), table_options())
    database[b"\x00\x00"] = b"of the replica itself"
    for start in (0, 150):
        for key, value in pairs[start : start + 150]:
            database[key] = value
        database.flush()
    rocksdict.Checkpoint(database).create_checkpoint(str(tmp_path / "some"))
    del database[pairs[0][0]]
    database.flush()
    rocksdict.Checkpoint(database).create_checkpoint(str(tmp_path / "deleted"))
    database.close()
    batches = small_batches(tmp_path / "some")
    assert batches is not None
    assert [pair for keys, values in batches for pair in zip(keys.to_list(), values.to_list(), strict=True)] == sorted(
        pairs
    )
    assert small_batches(tmp_path / "deleted") is None, "what was deleted would come back"
    assert small_batches(tmp_path / "nowhere") is None


def test_deleted_pairs_do_not_come_back(tmp_path: Path) -> None:
    pairs = pairs_of(random.Random(6), 500, alike=True)
    database = rocksdict.Rdict(str(tmp_path / "store"), table_options())
    for key, value in pairs:
        database[key] = value
    database.flush()
    for key, _ in pairs[::2]:
        del database[key]
    database.flush()
    database.close()
    with Snapshot(tmp_path / "store") as snapshot:
        assert everything(snapshot) == pairs[1::2]


def test_a_snapshot_with_a_log_is_left_to_rocksdb(tmp_path: Path) -> None:
    pairs = pairs_of(random.Random(6), 50, alike=True)
    database = rocksdict.Rdict(str(tmp_path / "store"), table_options())
    for key, value in pairs:
        database[key] = value
    database.flush_wal(True)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (tmp_path / "store").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    database.close()
    with Snapshot(copy) as snapshot:
        assert snapshot._files() is None
        assert everything(snapshot) == pairs


@pytest.mark.parametrize("alike", [True, False])
def test_any_part_of_a_snapshot_is_read_as_it_was_written(tmp_path: Path, alike: bool) -> None:
    """Bounds are keys, beginnings of keys, and keys with something behind them: the ends of blocks are such too."""
    rng = random.Random(5)
    pairs = pairs_of(rng, 6000, alike=alike)
    database = rocksdict.Rdict(str(tmp_path / "store"), table_options())
    for some in (pairs[::2], pairs[1::2]):
        write_file(tmp_path / "some.sst", some)
        database.ingest_external_file([str(tmp_path / "some.sst")])
    database.close()
    for log in (tmp_path / "store").glob("*.log"):
        log.write_bytes(b"")
    keys = [key for key, _ in pairs]
    with Snapshot(tmp_path / "store") as snapshot:
        assert all(len(table.offsets) > 5 for level in snapshot._files() or [] for table in level)
        for _ in range(100):
            low, high = sorted(
                rng.choice([key, key[: rng.randrange(1, len(key))], key + b"\x00"]) for key in rng.sample(keys, 2)
            )
            found = [
                pair
                for some, values in snapshot.batches(low, high)
                for pair in zip(some.to_list(), values.to_list(), strict=True)
            ]
            assert found == [pair for pair in pairs if low <= pair[0] < high]


def test_a_part_of_a_snapshot(disk: RocksDisk) -> None:
    _, rows, _ = numbers(1000)
    write_run(disk.path / "run.sst", rows, durable=False)
    store = disk.open("tablet", wal=False, small=True)
    store.ingest(["run.sst"])
    store.checkpoint("snapshot")
    expected = list(rows.pairs())
    low, high = expected[100][0], expected[900][0]
    with Snapshot(disk.path / "snapshot") as snapshot:
        found = [
            pair
            for keys, values in snapshot.batches(low, high, rows=70)
            for pair in zip(keys.to_list(), values.to_list(), strict=True)
        ]
    assert found == expected[100:900]
    disk.close()


def test_one_run_a_tablet(tmp_path: Path) -> None:
    _, rows, _ = numbers(2000)
    runs = write_runs(tmp_path, rows, 4, "load-1", durable=False)
    assert [run.path.name for run in runs.values()] == [f"{n}.load-1.sst" for n in range(4)]
    assert sum(run.rows for run in runs.values()) == 2000
    assert [pair for run in runs.values() for pair in read_file(run.path)] == list(rows.pairs())


def test_what_can_not_be_written_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    _, rows, _ = numbers(10)
    made: Run = write_run(tmp_path / "run.sst", rows)
    with pytest.raises(StorageError, match="the name is taken"):
        write_run(made.path, rows)
    with pytest.raises(StorageError, match="there are no rows"):
        write_run(tmp_path / "none.sst", rows.slice(0, 0))
    with pytest.raises(StorageError, match="writing"):
        write_run(tmp_path / "missing" / "run.sst", rows)
    backwards = SortedRows(rows.rows, rows.values, rows.order[::-1].copy(), rows.stamp_us)
    with pytest.raises(StorageError, match=r"backwards\.sst"):
        write_run(tmp_path / "backwards.sst", backwards)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sst"]


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no snapshot"):
        Snapshot(tmp_path)


def test_a_closed_snapshot_says_so(tmp_path: Path) -> None:
    rocksdict.Rdict(str(tmp_path / "store"), table_options()).close()
    snapshot = Snapshot(tmp_path / "store")
    assert everything(snapshot) == []
    snapshot.close()
    snapshot.close()
    with pytest.raises(StorageError, match="was closed"):
        snapshot.batches()


def test_damage_is_named_whoever_reads(disk: RocksDisk) -> None:
    _, rows, _ = numbers(3000)
    write_run(disk.path / "run.sst", rows)
    store = disk.open("tablet", wal=False, small=True)
    store.ingest(["run.sst"])
    store.checkpoint("snapshot")
    disk.close()
    (path,) = (disk.path / "snapshot").glob("*.sst")
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 3] ^= 0x40
    path.unlink()
    path.write_bytes(whole)
    for read in (everything, by_rocksdb):
        with Snapshot(disk.path / "snapshot") as snapshot, pytest.raises(Corrupt) as raised:
            read(snapshot)
        assert path.name in str(raised.value)


def test_streams_of_any_batches_are_merged() -> None:
    rng = random.Random(8)
    pairs = pairs_of(rng, 400, alike=False)
    for _ in range(20):
        streams = []
        for _ in range(rng.randint(0, 4)):
            some, batches = sorted(rng.sample(pairs, rng.randrange(300))), []
            while some:
                size = rng.choice([1, 5, 60])
                batches.append(
                    (from_list([key for key, _ in some[:size]]), from_list([value for _, value in some[:size]]))
                )
                some = some[size:]
            streams.append(batches)
        expected = sorted(
            {
                pair
                for stream in streams
                for keys, values in stream
                for pair in zip(keys.to_list(), values.to_list(), strict=True)
            }
        )
        found = [
            pair for keys, values in merged(streams) for pair in zip(keys.to_list(), values.to_list(), strict=True)
        ]
        assert found == expected
