"""Ids: never twice, in order of time, whatever the clock does."""

from __future__ import annotations

import random

import pytest

from trimtab.metastore.command_ids import CommandIds, issue_time_ms
from trimtab.metastore.errors import InvalidRequest


def test_ids_are_unique_and_ascending_even_if_the_clock_goes_back() -> None:
    clock = [5000]
    ids = CommandIds(lambda: clock[0], random.Random(1).randbytes)
    made = []
    for now in (5000, 5000, 4000, -7, 6000, 5500):
        clock[0] = now
        made.append(ids.next())
    assert made == sorted(set(made))
    assert [issue_time_ms(i) for i in made] == [5000, 5000, 5000, 5000, 6000, 6000]
    assert [(i[8:24], int.from_bytes(i[24:], "big")) for i in made] == [(made[0][8:24], n) for n in range(1, 7)]


def test_two_clients_never_share_an_id() -> None:
    rng = random.Random(1)
    a, b = CommandIds(lambda: 1, rng.randbytes), CommandIds(lambda: 1, rng.randbytes)
    assert {a.next() for _ in range(50)}.isdisjoint({b.next() for _ in range(50)})


def test_a_lagging_clock_learns_the_clusters_time() -> None:
    ids = CommandIds(lambda: 1000, random.Random(1).randbytes)
    ids.observe(9000)
    ids.observe(2000)
    assert issue_time_ms(ids.next()) == 9000


def test_a_client_needs_enough_randomness() -> None:
    with pytest.raises(InvalidRequest, match="16 random bytes, not 3"):
        CommandIds(lambda: 1, lambda count: b"abc")
