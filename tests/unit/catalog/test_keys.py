"""Where the catalog is kept."""

from __future__ import annotations

import pytest
from tests.unit.catalog.schemas import shop

from trimtab.catalog import keys
from trimtab.catalog.limits import SNAPSHOT_CHUNK_BYTES
from trimtab.metastore.limits import MAX_VALUE_BYTES


def test_keys_of_updates_sort_like_their_versions() -> None:
    found = [keys.update_key(version) for version in (1, 9, 10, 12_345_678_901)]
    assert found == sorted(found)
    assert [keys.version_of(key) for key in found] == [1, 9, 10, 12_345_678_901]


@pytest.mark.parametrize("key", [b"catalog/update/", b"catalog/update/x", b"catalog/version", keys.update_key(0)])
def test_a_key_without_a_version_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="holds no catalog version"):
        keys.version_of(key)


def test_the_version_is_a_number() -> None:
    assert keys.parse_version(keys.version_value(42)) == 42
    for value in (b"", b"x", b"-1", b"9" * 20, "٣".encode()):
        with pytest.raises(ValueError, match="not a number"):
            keys.parse_version(value)


def test_a_snapshot_of_any_size_fits_the_metastore() -> None:
    for snapshot in (shop().catalog.snapshot(), b"x" * (SNAPSHOT_CHUNK_BYTES * 2), b"y" * (SNAPSHOT_CHUNK_BYTES + 1)):
        entries = keys.snapshot_entries(snapshot)
        assert all(len(value) <= MAX_VALUE_BYTES for value in entries.values())
        assert keys.joined_snapshot(dict(reversed(entries.items()))) == snapshot
    assert keys.joined_snapshot({}) == b""
    del entries[keys.snapshot_key(0)]
    with pytest.raises(ValueError, match="lacks the metastore key"):
        keys.joined_snapshot(entries)
