"""Updates of a row: taken from its own directory only, once, and never from one that left."""

from __future__ import annotations

import pytest
from tests.unit.topology.clusters import gone, member, view_of

from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import UpdateRequest
from trimtab.topology.updates import UpdateRefused, update


def asked(raft_id: int = 1, target: Grade | None = None, **fields: str) -> UpdateRequest:
    return UpdateRequest(raft_id, fields.pop("uuid", f"uuid-{raft_id}"), target, **fields)  # type: ignore[arg-type]


def test_online_always_raises_the_incarnation() -> None:
    view = view_of(member(1))
    record = update(view, asked(target=Grade.ONLINE, reason="it started"))
    assert record.grades.target == Standing(Grade.ONLINE, 2)
    assert record.grades.must_climb
    assert record.reason == "it started"


def test_a_life_that_is_announced_brings_its_timing_and_nothing_else_does() -> None:
    def timed(target: Grade | None, lease_ms: int) -> UpdateRequest:
        return UpdateRequest(1, "uuid-1", target, lease_ms=lease_ms, election_max_ms=400)

    row = update(view_of(member(1)), timed(Grade.ONLINE, 20_000))
    assert (row.lease_ms, row.election_max_ms) == (20_000, 400)
    assert update(view_of(row), timed(None, 3_000)) == row
    assert update(view_of(row), timed(Grade.OFFLINE, 3_000)).lease_ms == 20_000
    with pytest.raises(UpdateRefused, match="must be between 0 and 600000"):
        update(view_of(row), timed(Grade.ONLINE, 10**9))


def test_a_capacity_is_what_was_said_last_and_saying_none_leaves_it() -> None:
    def sized(capacity_bytes: int) -> UpdateRequest:
        return UpdateRequest(1, "uuid-1", capacity_bytes=capacity_bytes)

    row = update(view_of(member(1)), sized(500))
    assert row.capacity_bytes == 500
    assert update(view_of(row), sized(0)) == row
    assert update(view_of(row), sized(300)).capacity_bytes == 300
    with pytest.raises(UpdateRefused, match="below zero"):
        update(view_of(row), sized(-1))


def test_offline_copies_the_incarnation_and_twice_is_once() -> None:
    view = view_of(member(1))
    down = update(view, asked(target=Grade.OFFLINE, reason="shutting down"))
    assert down.grades.target == Standing(Grade.OFFLINE, 1)
    again = update(view_of(down), asked(target=Grade.OFFLINE, reason="another word"))
    assert again == down


def test_nothing_asked_changes_nothing() -> None:
    view = view_of(member(1))
    assert update(view, asked()) is view.instances[1]
    same = asked(address=view.instances[1].address, release=view.instances[1].release)
    assert update(view, same) is view.instances[1]


def test_an_instance_may_move_and_be_upgraded() -> None:
    record = update(view_of(member(1)), asked(address="h:1", http_address="h:3", release="0.2.0"))
    assert (record.address, record.http_address, record.release) == ("h:1", "h:3", "0.2.0")
    assert record.grades == member(1).grades


def test_two_that_change_places_take_the_addresses_that_each_other_had() -> None:
    down = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))
    first, second = member(1, grades=down), member(2, grades=down)
    moved = update(view_of(first, second), asked(1, Grade.ONLINE, address=second.address))
    assert moved.address == second.address
    back = update(view_of(moved, second), asked(2, Grade.ONLINE, address=first.address))
    assert back.address == first.address
    with pytest.raises(UpdateRefused, match="is the address of i2"):
        update(view_of(first, member(2)), asked(1, Grade.ONLINE, address=second.address))


@pytest.mark.parametrize(
    ("request_", "code", "word"),
    [
        (asked(7), "unknown", "no instance with raft id 7"),
        (asked(uuid="other"), "wrong_uuid", "belongs to the data directory uuid-1, not to other"),
        (asked(3, Grade.ONLINE), "left", "has left the cluster for good: expelled by Ada"),
        (asked(address="x"), "bad_request", "HOST:PORT"),
        (asked(address="127.0.0.1:3311"), "bad_request", "is the address of i2"),
        (asked(http_address="x"), "bad_request", "HOST:PORT"),
        (asked(release="0.7.0"), "bad_request", "adjacent minor"),
        (asked(target=Grade.EXPELLED), "bad_request", "trimtab expel i1"),
        (asked(target=Grade.REPLICATED), "bad_request", "no target"),
    ],
)
def test_refusals_say_what_to_do(request_: UpdateRequest, code: str, word: str) -> None:
    view = view_of(member(1), member(2), gone(3, reason="expelled by Ada"))
    with pytest.raises(UpdateRefused) as refusal:
        update(view, request_)
    assert refusal.value.code == code
    assert word in str(refusal.value)


def test_one_that_is_being_expelled_can_not_come_back() -> None:
    grades = Grades(Standing(Grade.ONLINE, 1), Standing(Grade.EXPELLED, 1))
    with pytest.raises(UpdateRefused) as refusal:
        update(view_of(member(1, grades=grades)), asked(target=Grade.ONLINE))
    assert refusal.value.code == "left"
