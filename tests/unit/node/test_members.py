"""Addresses come from settings, records and hellos; none of them can make a member dial without bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trimtab.net.hello import Hello
from trimtab.net.limits import Limits as NetLimits
from trimtab.node.members import MAX_ADDRESSES, MAX_STRANGERS, Members
from trimtab.sim.world import World
from trimtab.topology.records import instance_key, parse_instance


class Book:
    """The address book of member 1."""

    def __init__(self) -> None:
        self.links: dict[int, Any] = {}
        self.members = Members(
            1,
            Hello(),
            random.Random(1),
            NetLimits(),
            tls=None,
            links=self.links,
            check=lambda _raft_id, _hello: None,
            on_down=lambda _raft_id, _reason, _refused: None,
            on_up=lambda _raft_id: None,
            parcel_bytes=1_000,
        )


@contextmanager
def inside_a_loop() -> Iterator[None]:
    with World(1) as world:
        process = world.process("p", "10.0.0.1")
        asyncio._set_running_loop(process.start())
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


@pytest.fixture
def book() -> Iterator[Book]:
    with inside_a_loop():
        yield Book()


def test_a_known_member_is_not_moved_by_a_hello(book: Book) -> None:
    book.members.update([(2, "10.0.0.2:1")])
    book.members.answer_at(2, "10.9.9.9:1")
    assert book.members.addresses[2] == "10.0.0.2:1"


def test_only_the_latest_strangers_are_known_and_dialled(book: Book) -> None:
    book.members.update([(2, "10.0.0.2:1")])
    for number in range(100, 200):
        book.members.answer_at(number, f"10.0.1.{number}:1")
    assert sorted(book.links) == [2, *range(200 - MAX_STRANGERS, 200)]
    assert sorted(book.members.addresses) == sorted(book.links)


def test_a_stranger_that_gets_a_record_stays(book: Book) -> None:
    book.members.answer_at(4, "10.0.0.4:1")
    book.members.update([(4, "10.0.0.4:1")])
    for number in range(100, 200):
        book.members.answer_at(number, f"10.0.1.{number}:1")
    assert 4 in book.links


def test_records_are_bounded_too(book: Book) -> None:
    with pytest.raises(ValueError, match="one too many"):
        book.members.update((number, "10.0.0.2:1") for number in range(2, MAX_ADDRESSES + 3))
    assert len(book.members.addresses) == MAX_ADDRESSES


@pytest.mark.parametrize("address", ["10.0.0.4:0", "nowhere", ""])
def test_a_bad_address_leaves_what_was_known(book: Book, address: str) -> None:
    book.members.update([(4, "10.0.0.4:1")])
    before = book.links[4]
    with pytest.raises(ValueError, match="HOST:PORT"):
        book.members.update([(4, address)])
    assert book.members.addresses[4] == "10.0.0.4:1" and book.links[4] is before


def test_an_older_address_never_overwrites_a_newer_one(book: Book) -> None:
    book.members.update([(4, "10.0.0.9:1")], marked=20)
    book.members.update([(4, "10.0.0.4:1")], marked=7)
    assert book.members.addresses[4] == "10.0.0.9:1"
    book.members.update([(4, "10.0.0.5:1")], marked=21)
    assert book.members.addresses[4] == "10.0.0.5:1"


def test_the_same_address_heard_again_is_as_new_as_the_news(book: Book) -> None:
    book.members.update([(4, "10.0.0.4:1")], marked=7)
    book.members.update([(4, "10.0.0.4:1")], marked=20)
    book.members.update([(4, "10.0.0.9:1")], marked=10)
    assert book.members.addresses[4] == "10.0.0.4:1"


def test_a_member_that_left_is_forgotten(book: Book) -> None:
    book.members.update([(4, "10.0.0.4:1")])
    book.members.forget(4)
    assert book.links == {} and book.members.addresses == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"instances/x", b'{"instance_id": "i4", "address": "h:1"}'),
        (b"instances/" + b"9" * 5_000, b'{"instance_id": "i4", "address": "h:1"}'),
        (b"instances/0", b'{"instance_id": "i4", "address": "h:1"}'),
        (b"instances/-1", b'{"instance_id": "i4", "address": "h:1"}'),
        (instance_key(1 << 63), b'{"instance_id": "i4", "address": "h:1"}'),
        (instance_key(4), b"\xff"),
        (instance_key(4), b"{}"),
        (instance_key(4), b'{"instance_id": "\xff", "address": "h:1"}'),
    ],
)
def test_what_is_no_instance_record_is_a_value_error(key: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="metastore key"):
        parse_instance(key, value)
