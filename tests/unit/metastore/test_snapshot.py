"""A snapshot arrives whole or not at all."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metastore.dict_store import DictStore, WriteFailed
from tests.unit.metastore.driver import Driver
from tests.unit.metastore.test_machine import a_log

from trimtab.metastore.commands import compact, put
from trimtab.metastore.errors import MetastoreError, SnapshotRefused, UnknownFormat
from trimtab.metastore.limits import MAX_VALUE_BYTES
from trimtab.metastore.machine import Metastore
from trimtab.metastore.snapshot import SnapshotExport, SnapshotImport


def a_driver(values: int = 30) -> Driver:
    driver = Driver()
    driver.machine.bootstrap(1, 1, b"the configuration")
    driver.many(*(put(b"k%d" % (n % 20), b"v" * n) for n in range(values)))
    driver(compact(values // 2))
    return driver


def chunks_of(driver: Driver, chunk_bytes: int = 256, nonce: bytes = b"") -> list[bytes]:
    return list(SnapshotExport(driver.store, chunk_bytes=chunk_bytes, nonce=nonce))


def receive(chunks: list[bytes], store: DictStore | None = None) -> DictStore:
    store = store or DictStore()
    receiving = SnapshotImport(store)
    for chunk in chunks:
        receiving.accept(chunk)
    assert receiving.done
    return store


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120), st.integers(64, 2000), st.integers(0, 30))
def test_after_an_import_the_state_is_equal(seed: int, length: int, chunk_bytes: int, purged: int) -> None:
    driver = Driver()
    driver.machine.bootstrap(1, 1, b"conf", meta=b"meta")
    log = [(index + 1, term, data) for index, term, data in a_log(seed, length)]
    driver.machine.apply(log)
    driver.machine.compact_step(purged)
    chunks = list(SnapshotExport(driver.store, chunk_bytes=chunk_bytes))
    assert all(len(chunk) <= chunk_bytes for chunk in chunks[1:-1])
    store = receive(chunks)
    assert store.data == driver.store.data
    copy = Metastore(store)
    more = [(index + len(log) + 1, term, data) for index, term, data in a_log(seed + 1, 40)]
    assert copy.apply(more) == driver.machine.apply(more)
    assert store.data == driver.store.data and copy.checksum == driver.machine.checksum
    assert (copy.conf, copy.meta) == (b"conf", b"meta")


def test_values_at_the_limit_and_pairs_larger_than_a_chunk_go_through() -> None:
    driver = Driver()
    rng = random.Random(1)
    for number in range(4):
        driver(put(b"big%d" % (number % 2), rng.randbytes(MAX_VALUE_BYTES)))
    chunks = list(SnapshotExport(driver.store))
    assert max(map(len, chunks)) <= 256 * 1024 and len(chunks) > 6
    assert receive(chunks).data == driver.store.data


def test_the_header_says_what_is_coming() -> None:
    driver = a_driver()
    receiving = SnapshotImport(DictStore())
    assert receiving.header is None
    receiving.accept(chunks_of(driver)[0])
    header = receiving.header
    assert header is not None
    assert (header.applied_index, header.applied_term) == (driver.machine.applied_index, 1)
    assert (header.revision, header.checksum) == (driver.machine.revision, driver.machine.checksum)
    assert header.conf == b"the configuration"


def test_a_chunk_may_be_asked_for_again_and_is_the_same() -> None:
    driver = a_driver()
    export = SnapshotExport(driver.store, chunk_bytes=200)
    chunks = chunks_of(driver, 200)
    order = [0, 0, 1, 2, 2, 5, 3, 0, len(chunks) - 1]
    assert [export.chunk(n) for n in order] == [chunks[n] for n in order]
    assert export.chunk(len(chunks)) is None


def test_every_flipped_bit_and_every_cut_is_noticed_and_the_good_chunk_still_fits() -> None:
    chunks = chunks_of(a_driver())
    rng = random.Random(3)
    receiving = SnapshotImport(store := DictStore())
    for chunk in chunks:
        before = dict(store.data)
        for _ in range(12):
            damaged = bytearray(chunk)
            damaged[rng.randrange(len(chunk))] ^= 1 << rng.randrange(8)
            with pytest.raises(SnapshotRefused):
                receiving.accept(bytes(damaged))
            with pytest.raises(SnapshotRefused):
                receiving.accept(chunk[: rng.randrange(len(chunk))])
        assert store.data == before
        receiving.accept(chunk)
    assert receiving.done


def test_chunks_out_of_order_are_refused_and_named() -> None:
    chunks = chunks_of(a_driver())
    receiving = SnapshotImport(DictStore())
    with pytest.raises(SnapshotRefused, match="chunk 1 arrived where chunk 0 was expected"):
        receiving.accept(chunks[1])
    receiving.accept(chunks[0])
    receiving.accept(chunks[1])
    for wrong in (0, 1, 3):
        with pytest.raises(SnapshotRefused, match=f"chunk {wrong} arrived where chunk 2 was expected") as caught:
            receiving.accept(chunks[wrong])
        assert caught.value.restart is False
    assert receiving.next_sequence == 2


def test_an_import_goes_on_after_a_restart_from_its_last_good_chunk() -> None:
    driver = a_driver()
    driver(put(b"large", b"x" * 5000))
    export = SnapshotExport(driver.store, chunk_bytes=150)
    store = DictStore()
    asked: list[int] = []
    while True:
        receiving = SnapshotImport(store)
        asked.append(receiving.next_sequence)
        chunk = export.chunk(receiving.next_sequence)
        assert chunk is not None
        if receiving.accept(chunk):
            break
        with pytest.raises(UnknownFormat, match="not received completely"):
            Metastore(store)
    assert all(b == a + 1 for a, b in pairwise(asked))
    assert store.data == driver.store.data


def test_a_chunk_that_can_not_be_written_is_taken_again_later() -> None:
    chunks = chunks_of(a_driver())
    receiving = SnapshotImport(store := DictStore())
    for chunk in chunks:
        before = receiving.next_sequence
        store.fail_writes = 1
        with pytest.raises(WriteFailed):
            receiving.accept(chunk)
        assert receiving.next_sequence == before and not receiving.done
        receiving.accept(chunk)
    assert receiving.done and Metastore(store).revision == 30


def test_chunks_of_two_snapshots_do_not_mix() -> None:
    one, other = a_driver(), a_driver(31)
    receiving = SnapshotImport(DictStore())
    receiving.accept(chunks_of(one)[0])
    with pytest.raises(SnapshotRefused, match="chunk 1 belongs to another snapshot") as caught:
        receiving.accept(chunks_of(other)[1])
    assert caught.value.restart is True


def test_two_exports_of_one_state_do_not_mix_either() -> None:
    one = a_driver()
    one(compact(25))
    purged = Driver(one.store.copy())
    while purged.machine.compact_step():
        pass
    assert one.machine.checksum == purged.machine.checksum
    receiving = SnapshotImport(DictStore())
    receiving.accept(chunks_of(one, nonce=b"a")[0])
    with pytest.raises(SnapshotRefused, match="belongs to another snapshot"):
        receiving.accept(chunks_of(purged, nonce=b"b")[1])
    # And without a nonce the trailer finds it.
    mixed = SnapshotImport(DictStore())
    for chunk in chunks_of(one)[:3]:
        mixed.accept(chunk)
    with pytest.raises(SnapshotRefused):
        for chunk in chunks_of(purged)[3:]:
            mixed.accept(chunk)
    assert not mixed.done


def test_only_an_empty_store_receives() -> None:
    with pytest.raises(SnapshotRefused, match="not empty"):
        SnapshotImport(a_driver().store)


def test_a_complete_snapshot_takes_no_more() -> None:
    chunks = chunks_of(a_driver())
    receiving = SnapshotImport(DictStore())
    for chunk in chunks:
        receiving.accept(chunk)
    with pytest.raises(SnapshotRefused, match="complete already"):
        receiving.accept(chunks[-1])


def test_an_empty_store_and_silly_chunk_sizes_are_refused() -> None:
    with pytest.raises(MetastoreError, match="no snapshot of an empty store"):
        SnapshotExport(DictStore())
    with pytest.raises(MetastoreError, match="chunks have"):
        SnapshotExport(a_driver().store, chunk_bytes=10)


def test_retries_are_harmless_across_a_snapshot() -> None:
    driver = a_driver()
    command_id = (1).to_bytes(8, "big") + b"c" * 16 + bytes(8)
    first = driver(put(b"once", b"1", id=command_id), now_ms=1)
    copy = Driver(receive(chunks_of(driver)))
    assert copy(put(b"once", b"1", id=command_id), now_ms=2) == first
    entry = copy.machine.get(b"once")
    assert entry is not None and entry.version == 1


def test_a_golden_header_chunk_keeps_its_bytes() -> None:
    """Fails when the snapshot format changes: then raise its version."""
    driver = Driver()
    driver.machine.bootstrap(3, 2, b"c")
    first, *_, last = chunks_of(driver)
    assert first.hex() == GOLDEN_HEADER
    assert last.hex() == GOLDEN_TRAILER


GOLDEN_HEADER = "010093082a141b04af4d00000000ae645bc89801cd0100030200c4080000000000000000c40163c400"
GOLDEN_TRAILER = "010293082a141b04af4d00000002d6cdd99d9303ccb1ceb85f645b"
