"""Bytes on disk: their order, and that they do not change unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metastore.dict_store import DictStore
from tests.unit.metastore.driver import Driver

from trimtab.metastore.commands import compact, delete, put, put_all
from trimtab.metastore.errors import DamagedStore, UnknownFormat
from trimtab.metastore.layout import (
    FORMAT_KEY,
    STATE_KEY,
    State,
    history_key,
    history_prefix,
    pack_revision,
    pack_state,
    prefix_end,
    split_history_key,
    unpack_revision,
    unpack_state,
)
from trimtab.metastore.machine import Metastore

KEYS = st.lists(st.sampled_from([0, 1, 2, 0xFE, 0xFF]), min_size=1, max_size=6).map(bytes)
REVISIONS = st.integers(0, 2**63 - 1)


@given(KEYS, REVISIONS, KEYS, REVISIONS)
def test_history_is_ordered_by_key_then_revision_whatever_bytes_a_key_has(a: bytes, m: int, b: bytes, n: int) -> None:
    assert (history_key(a, m) < history_key(b, n)) == ((a, m) < (b, n))


@given(KEYS, REVISIONS, KEYS)
def test_a_keys_history_is_exactly_its_prefix(key: bytes, revision: int, other: bytes) -> None:
    assert split_history_key(history_key(key, revision)) == (key, revision)
    assert history_key(other, revision).startswith(history_prefix(key)) == (key == other)


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_the_end_of_a_prefix_is_the_first_key_after_it(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    assert key.startswith(prefix) == (prefix <= key and (end is None or key < end))


@given(st.binary(min_size=8, max_size=8), st.lists(st.tuples(st.binary(max_size=9), REVISIONS), max_size=5))
def test_a_revision_record_comes_back(checksum: bytes, changes: list[tuple[bytes, int]]) -> None:
    assert unpack_revision(pack_revision(checksum, changes)) == (checksum, changes)


def test_a_state_record_comes_back() -> None:
    for state in (State(), State(1, 2, 3, 4, 5, 6, b"12345678", b"abcdefgh", b"\x01" * 32)):
        assert unpack_state(pack_state(state)) == state
    with pytest.raises(DamagedStore, match="the state record has 3 bytes"):
        unpack_state(b"abc")


def test_a_cut_revision_record_is_damage() -> None:
    with pytest.raises(DamagedStore, match="ends in the middle"):
        unpack_revision(pack_revision(b"12345678", [(b"key", 1)])[:-1])


def test_the_format_of_version_1_is_what_it_was() -> None:
    """Fails when the layout changes: then raise the format version, and say how old data is read."""
    driver = Driver()
    driver(put(b"a\x00", b"1", id=(1000).to_bytes(8, "big") + b"c" * 16 + (1).to_bytes(8, "big")), now_ms=1000)
    driver(put_all({b"a\x00": b"2", b"b": b"3"}))
    driver(delete(b"b"))
    driver(compact(1))
    found = {key.hex(): value.hex() for key, value in driver.store.scan(b"", None)}
    assert found == GOLDEN


GOLDEN: dict[str, str] = {
    "686100ff00010000000000000001": ("00000000000000020000000000000001000000000000000100000000000000010031"),
    "686200010000000000000002": ("00000000000000030000000000000002000000000000000200000000000000010033"),
    "6900000000000003e8636363636363636363636363636363630000000000000001": ("940101c301"),
    "6b6100": ("0000000000000001000000000000000200000000000000020032"),
    "6b62": ("00000000000000000000000000000003000000000000000001"),
    "6d20666f726d6174": ("7472696d746162206d65746173746f726501"),
    "6d207374617465": (
        "000000000000000400000000000000010000000000000003000000000000000100000000000003e80000000000000001"
        "00000000000000000000000000000000bbe90604d53018b924d745bf153f630b00000000000000000000000000000000"
        "0000000000000000000000000000000000"
    ),
    "720000000000000001": ("97b5a6334089a308000000000000000000026100"),
    "720000000000000002": ("d6513bd9fd01bc8a0000000000000001000261000000000000000000000162"),
    "720000000000000003": ("24d745bf153f630b0000000000000002000162"),
}


def test_a_store_of_another_format_is_refused_with_a_reason() -> None:
    with pytest.raises(UnknownFormat, match=r"has format 9, this version reads format 1; run the version"):
        Metastore(DictStore({FORMAT_KEY: b"trimtab metastore\x09"}))
    with pytest.raises(UnknownFormat, match="unknown format"):
        Metastore(DictStore({FORMAT_KEY: b"something"}))
    with pytest.raises(UnknownFormat, match="holds data but no metastore"):
        Metastore(DictStore({b"x": b"y"}))


def test_a_store_without_its_state_is_damaged() -> None:
    driver = Driver()
    driver(put(b"k", b"v"))
    del driver.store.data[STATE_KEY]
    with pytest.raises(DamagedStore, match="state record is missing"):
        driver.reopen()
