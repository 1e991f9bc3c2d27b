import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.metastore.limits import MAX_COMMAND_BYTES, MAX_VALUE_BYTES
from trimtab.tablets.records import CHUNK_TABLETS, MAX_REPLICAS, Chunk, chunk_key, chunk_keys, chunk_of, entries, pack
from trimtab.tablets.ring import MAX_TABLETS
from trimtab.tablets.tablet_map import TabletMap

raft_ids = st.one_of(st.integers(1, 9), st.integers(1, 2**63 - 1))
replicas = st.lists(raft_ids, min_size=1, max_size=7, unique=True).map(tuple)


@given(st.lists(replicas, min_size=1, max_size=40))
def test_replicas_come_back_as_they_were_packed(tablets: list[tuple[int, ...]]) -> None:
    chunk = Chunk(pack(tablets))
    assert chunk.count == len(tablets)
    assert list(chunk) == tablets
    assert [chunk.replicas(number) for number in range(len(tablets))] == tablets


def test_a_table_of_many_tablets_has_several_keys_that_sort_like_numbers() -> None:
    tablets = [(1 + number % 5, 6 + number % 7) for number in range(4096)]
    keys = entries(7, tablets)
    assert list(keys) == sorted(keys) == chunk_keys(7, 4096) and len(keys) == 4
    whole = TabletMap.unpacked(list(keys.values()))
    assert whole.count == 4096
    assert [found for _, found in whole] == tablets
    assert whole.replicas(CHUNK_TABLETS + 3) == tablets[CHUNK_TABLETS + 3]
    assert whole.of(6) == [number for number in range(4096) if number % 7 == 0]
    assert whole.of(99) == []
    assert whole.packed() == list(keys.values())
    for unknown in (4096, 10_000, -1):
        with pytest.raises(KeyError):
            whole.replicas(unknown)


def test_the_largest_table_fits_into_one_command() -> None:
    rare = [tuple(range(60_000, 60_000 + 9))] * MAX_TABLETS
    values = entries(1, rare).values()
    assert max(map(len, values)) <= MAX_VALUE_BYTES and sum(map(len, values)) < MAX_COMMAND_BYTES // 2
    widest = [tuple(range(2**62, 2**62 + MAX_REPLICAS))] * CHUNK_TABLETS
    assert len(pack(widest)) > MAX_VALUE_BYTES, "so whoever writes has to look at the size"


def test_few_bytes_hold_a_tablet() -> None:
    tablets = [(300, 2, 17)] * 1000
    assert len(pack(tablets)) <= 6 * 1000 + 10


def test_a_key_names_table_and_chunk() -> None:
    assert chunk_of(chunk_key(12, 3)) == (12, 3)
    for wrong in (b"tablets/1/2", b"tablets/", chunk_key(1, 0)[:-1], chunk_key(1, 0) + b"0", chunk_key(0, 0)):
        with pytest.raises(ValueError, match="names no tablets"):
            chunk_of(wrong)
    with pytest.raises(ValueError):
        chunk_of(chunk_key(1, 400_000))


GOOD = pack([(1, 2, 3), (2, 3, 4)])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x02" + GOOD[1:],
        GOOD[:-1],
        GOOD + b"\x01",
        GOOD[:1] + b"\x03" + GOOD[2:],
        GOOD[:2] + b"\x00" + GOOD[3:],
        GOOD[:3] + b"\x00\x00",
        GOOD[:-3] + b"\x00\x00\x00",
        GOOD[:-3] + b"\x02\x00\x04",
        GOOD[:-3] + b"\x02\x02\x04",
    ],
)
def test_bytes_that_are_no_replicas_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Chunk(data)


@given(st.binary(max_size=40))
def test_any_bytes_are_replicas_or_refused(data: bytes) -> None:
    try:
        chunk = Chunk(data)
    except ValueError:
        return
    assert all(len(set(found)) == len(found) > 0 for found in chunk)
