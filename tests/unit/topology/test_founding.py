"""Founding: the first write, read back as any other."""

from __future__ import annotations

import pytest

from trimtab.topology.founding import founder_record, founding_records
from trimtab.topology.grades import Grades
from trimtab.topology.records import SYSTEM_PREFIXES
from trimtab.topology.states import NodeState
from trimtab.topology.view import View


def read(records: dict[bytes, bytes]) -> View:
    view = View()
    view.load((key, value, 1) for key, value in records.items())
    assert not view.unreadable
    return view


def test_the_founder_is_a_normal_member_that_is_offline_until_it_says_it_runs() -> None:
    founder = founder_record("i1", "h:1", uuid="u", failure_domain={"Rack": "A"}, release="0.1.0", now_ms=7)
    view = read(founding_records(founder, "demo", "genesis", 7))
    row = view.instances[1]
    assert (row.state, row.grades, row.weight) == (NodeState.NORMAL, Grades(), 0.0)
    assert (row.uuid, row.failure_domain, row.joined_ms) == ("u", {"rack": "A"}, 7)
    assert (view.version, view.fence, view.transition) == (1, 0, None)
    assert view.events[1].text == "i1 founded the cluster 'demo' (genesis)"
    assert view.events[1].instances == ["i1"]
    assert view.next_raft_id() == 2


def test_everything_is_the_systems() -> None:
    records = founding_records(founder_record("i1", "h:1"), "demo", "g", 0)
    assert all(key.startswith(SYSTEM_PREFIXES) for key in records)


def test_several_may_found_where_a_simulation_wants_that() -> None:
    founders = {raft_id: founder_record(f"i{raft_id}", f"h:{raft_id}") for raft_id in (1, 2, 3)}
    assert sorted(read(founding_records(founders, "demo", "g", 0)).instances) == [1, 2, 3]


def test_the_same_founding_is_the_same_bytes() -> None:
    founder = founder_record("i1", "h:1", failure_domain={"b": "1", "a": "2"})
    other = founder_record("i1", "h:1", failure_domain={"a": "2", "b": "1"})
    assert founding_records(founder, "demo", "g", 5) == founding_records(other, "demo", "g", 5)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"instance_id": ""}, "instance id"),
        ({"address": "0.0.0.0:1"}, "--advertise"),
        ({"failure_domain": {"rack": ""}}, "failure domain"),
        ({"http_address": "x"}, "HOST:PORT"),
    ],
)
def test_a_founder_is_checked_like_everybody_else(fields: dict[str, object], word: str) -> None:
    wanted: dict[str, object] = {"instance_id": "i1", "address": "h:1"}
    with pytest.raises(ValueError, match=word):
        founder_record(**(wanted | fields))  # type: ignore[arg-type]


def test_raft_ids_begin_at_one_and_names_differ() -> None:
    founder = founder_record("i1", "h:1")
    for wrong in ({}, {0: founder}, {-1: founder}):
        with pytest.raises(ValueError, match="raft ids from 1 on"):
            founding_records(wrong, "demo", "g", 0)
    with pytest.raises(ValueError, match="same instance id"):
        founding_records({1: founder, 2: founder}, "demo", "g", 0)
