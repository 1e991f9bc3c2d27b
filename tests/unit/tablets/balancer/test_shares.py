from __future__ import annotations

import numpy as np
import pytest

from trimtab.tablets.balancer.shares import rack_limits, shares


def of(number: int, capacity: list[float], host: list[int] | None = None, rack: list[int] | None = None) -> list[float]:
    every = np.arange(len(capacity))
    found = shares(
        number,
        np.array(capacity, float),
        every if host is None else np.array(host),
        np.zeros(len(capacity), int) if rack is None else np.array(rack),
        *((0.0, 1e9) if rack is None else (1.0, 1.0)),
    )
    return np.round(found, 6).tolist()


def test_shares_are_in_proportion_to_capacity() -> None:
    assert of(1, [1, 2, 1]) == [0.25, 0.5, 0.25]


def test_no_host_has_more_than_one_replica_of_a_tablet() -> None:
    assert of(2, [8, 1, 1]) == [1.0, 0.5, 0.5]
    assert of(2, [1, 1, 1], host=[0, 0, 1]) == [0.5, 0.5, 1.0]


def test_racks_that_bind_are_filled_by_themselves() -> None:
    assert of(2, [1, 1, 1], rack=[0, 0, 1]) == [0.5, 0.5, 1.0]


def test_fewer_hosts_than_replicas_hold_one_each() -> None:
    assert of(5, [1, 3]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("number", "hosts", "least", "most"),
    [(3, [2, 2, 2], [1, 1, 1], [1, 1, 1]), (3, [4, 4], [1, 1], [2, 2]), (2, [1, 1, 1], [0, 0, 0], [1, 1, 1])],
)
def test_racks_hold_as_equal_numbers_as_they_can(
    number: int, hosts: list[int], least: list[int], most: list[int]
) -> None:
    found = rack_limits(number, np.array(hosts))
    assert found[0].tolist() == least and found[1].tolist() == most
