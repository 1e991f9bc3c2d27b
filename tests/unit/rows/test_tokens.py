"""Tokens are the CQL driver's, and keys sort like them."""

from __future__ import annotations

import struct

import pytest
from cassandra.metadata import Murmur3Token
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows.tables import table

from trimtab.rows import hashing, keys, tokens
from trimtab.rows.layout import RowLayout

ANY_TOKEN = st.integers(tokens.MIN_TOKEN + 1, tokens.MAX_TOKEN)


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=80))
def test_the_token_of_one_column_is_the_drivers(cell: bytes) -> None:
    layout = RowLayout(table(["blob"]))
    assert keys.token_of(layout, [cell]) == Murmur3Token.from_key(cell).value


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_token_of_several_columns_is_that_of_the_drivers_composite(one: bytes, other: bytes) -> None:
    layout = RowLayout(table(["blob", "blob"]))
    composite = b"".join(struct.pack(f">H{len(each)}sB", len(each), each, 0) for each in (one, other))
    assert keys.token_of(layout, [one, other]) == Murmur3Token.from_key(composite).value


def test_the_least_number_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "murmur3_of", lambda: lambda _: tokens.MIN_TOKEN)
    assert hashing.token_of_bytes(b"x") == tokens.MAX_TOKEN


@given(ANY_TOKEN, ANY_TOKEN)
def test_keys_begin_with_tokens_in_their_order(one: int, other: int) -> None:
    assert (tokens.token_bytes(one) < tokens.token_bytes(other)) == (one < other)
    assert tokens.token_of_key(tokens.token_bytes(one) + b"rest") == one


@given(ANY_TOKEN, ANY_TOKEN, ANY_TOKEN)
def test_ranges_leave_the_first_token_out_and_hold_the_last(first: int, last: int, token: int) -> None:
    low, high = tokens.keys_between(first, last)
    key = tokens.token_bytes(token) + b"\x80\x00\x00\x01\x40"
    assert (low <= key < high) == (first < token <= last)
    low, high = tokens.keys_between(None, None)
    assert low <= key < high
    low, high = tokens.keys_between(tokens.MAX_TOKEN, None)
    assert not low <= tokens.token_bytes(tokens.MAX_TOKEN) + b"\x80" < high
