"""Names, and when CQL quotes them."""

from __future__ import annotations

import pytest

from trimtab.catalog import names


@pytest.mark.parametrize(
    ("name", "written"),
    [("id", "id"), ("Id", '"Id"'), ("select", '"select"'), ("1a", '"1a"'), ('a"b', '"a""b"'), ("a b", '"a b"')],
)
def test_names_are_quoted_where_cql_needs_it(name: str, written: str) -> None:
    assert names.quoted(name) == written


def test_a_table_is_named_with_its_keyspace() -> None:
    assert names.split_table("shop.users") == ("shop", "users")
    for wrong in ("users", "shop.", ".users", "a.b.c", "a b.c"):
        with pytest.raises(ValueError, match=r"write KEYSPACE\.TABLE"):
            names.split_table(wrong)


def test_system_keyspaces_are_known_whatever_their_case() -> None:
    assert all(map(names.is_system, ("system", "SYSTEM_auth", "trimtab", "trimtab_meta")))
    assert not any(map(names.is_system, ("systems", "shop", "my_system")))
