"""The view: what the metastore says, key by key, and nothing it can't read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.topology.clusters import gone, member, view_of

from trimtab.topology.records import (
    FENCE_KEY,
    INSTANCES,
    TRANSITION_KEY,
    VERSION_KEY,
    EventRecord,
    RequestKind,
    RequestRecord,
    TransitionRecord,
    encode,
    event_key,
    instance_key,
    number_of,
    parse_instance,
    request_key,
)
from trimtab.topology.states import TransitionState
from trimtab.topology.view import View


def test_changes_are_taken_in_with_their_revisions() -> None:
    view = View()
    view.change(instance_key(1), encode(member(1)), 5)
    view.change(request_key(3), encode(RequestRecord(RequestKind.LEAVE, raft_id=1)), 6)
    view.change(VERSION_KEY, b"7", 6)
    view.change(FENCE_KEY, b"4", 6)
    view.change(event_key(9), encode(EventRecord(1, "online", "i1 is Online")), 6)
    transition = TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.LEAVE, [3])
    view.change(TRANSITION_KEY, encode(transition), 8)
    assert view.instances == {1: member(1)}
    assert (view.version, view.fence, view.transition) == (7, 4, transition)
    assert (view.next_raft_id(), view.next_request(), view.next_event()) == (2, 4, 10)
    assert view.revisions[instance_key(1)] == 5
    assert view.revisions[TRANSITION_KEY] == 8
    view.change(TRANSITION_KEY, None, 9)
    assert view.transition is None
    assert TRANSITION_KEY not in view.revisions


def test_a_record_that_can_not_be_read_is_left_as_it_was_and_shown() -> None:
    view = view_of(member(1))
    view.change(instance_key(1), b"{}", 50)
    assert view.instances[1] == member(1)
    assert "instance_id" in view.unreadable[instance_key(1)]
    assert view.revisions[instance_key(1)] == 50, "so that whoever had decided on the one before knows"
    view.change(instance_key(1), encode(member(1, address="h:9")), 51)
    assert view.unreadable == {}
    assert view.instances[1].address == "h:9"


def test_keys_of_others_are_none_of_its_business() -> None:
    view = View()
    view.change(b"mine", b"x", 1)
    view.change(b"topology/other", b"x", 1)
    assert view == View() or view.unreadable == {}


def test_loading_begins_anew() -> None:
    view = view_of(member(1), member(2))
    view.load([(instance_key(7), encode(member(7)), 1)])
    assert list(view.instances) == [7]
    assert view.version == 0


def test_a_name_means_the_member_and_else_the_last_that_had_it() -> None:
    view = view_of(gone(1, instance_id="a"), member(2, instance_id="a"), gone(3, instance_id="a"), gone(4))
    found = view.named("a")
    assert found is not None
    assert found[0] == 2
    assert view.named("i4") is not None
    assert view.named("nobody") is None
    view = view_of(gone(1, instance_id="a"), gone(2, instance_id="a"))
    found = view.named("a")
    assert found is not None
    assert found[0] == 2


def test_ids_of_those_that_left_are_never_given_again() -> None:
    view = view_of(member(1), gone(2))
    assert view.next_raft_id() == 3
    assert list(view.members()) == [1]


@given(st.lists(st.integers(1, (1 << 63) - 1), unique=True, min_size=2))
def test_keys_sort_like_numbers(numbers: list[int]) -> None:
    keys = [instance_key(number) for number in numbers]
    assert [number_of(key, INSTANCES) for key in sorted(keys)] == sorted(numbers)


@pytest.mark.parametrize("key", [b"instances/", b"instances/x", b"instances/0", b"instances/-1", b"instances/9" * 9])
def test_a_key_without_a_number_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="instances"):
        parse_instance(key, encode(member(1)))


@given(st.binary(max_size=60))
def test_no_value_breaks_the_view(value: bytes) -> None:
    view = view_of(member(1))
    for key in (instance_key(1), request_key(1), event_key(1), VERSION_KEY, FENCE_KEY, TRANSITION_KEY):
        view.change(key, value, 9)
    assert view.instances[1]


def test_the_numbers_of_records_that_can_not_be_read_are_not_given_again() -> None:
    """Otherwise every write with such a number is outdated, for ever."""
    view = view_of(member(1))
    view.change(instance_key(7), b"{", 50)
    view.change(request_key(3), b"{", 51)
    view.change(event_key(9), b"{", 52)
    view.change(b"instances/x", b"{", 53)
    assert (view.next_raft_id(), view.next_request(), view.next_event()) == (8, 4, 10)
    view.change(instance_key(7), None, 54)
    assert view.next_raft_id() == 2 and instance_key(7) not in view.unreadable
