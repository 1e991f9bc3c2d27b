"""Updates in the metastore: readable by people, and never guessed at."""

from __future__ import annotations

import pytest
from tests.unit.catalog.schemas import clustered, shop

from trimtab.catalog import updates
from trimtab.catalog.commands import DropKeyspace
from trimtab.catalog.updates import KeyspaceAdded, Update


def test_an_update_is_json_that_says_its_format() -> None:
    encoded = updates.encode(Update(1, 5, (KeyspaceAdded("shop", {"dc1": 3}),)))
    assert b'{"change":"keyspace_added","keyspace":"shop","replication":{"dc1":3}}' in encoded
    assert b'"format":1' in encoded


def test_updates_come_back_as_they_were_written() -> None:
    schema = clustered()
    schema.do(DropKeyspace("shop"))
    for update in schema.updates:
        assert updates.decode(updates.encode(update)) == update


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (b"", "can't be read"),
        (b"{}", "format 0"),
        (b'{"version":7,"format":2,"changes":[{"change":"index_added"}]}', "update 7 has format 2"),
        (b'{"version":7,"activation_ms":1,"format":1,"changes":[{"change":"index_added"}]}', "index_added"),
        (b'{"version":7,"activation_ms":1,"format":1,"changes":[{"change":"table_dropped"}]}', "table"),
        (updates.encode(shop().updates[1])[:-5], "can't be read"),
    ],
)
def test_what_can_not_be_read_for_certain_is_refused_with_what_to_do(encoded: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        updates.decode(encoded)
    assert "release" in str(caught.value)
