"""From the commit to being seen: in the order of epochs, and not before enough have taken a load over."""

from __future__ import annotations

import pytest
from tests.unit.loads.ledger import USERS, Ledger

from trimtab.loads import publishing
from trimtab.loads.records import LoadKind, LoadState
from trimtab.topology.grades import Grade


def test_a_load_is_seen_when_all_living_holders_have_taken_it_over_and_not_before() -> None:
    ledger = Ledger()
    stamp = ledger.begin("a").stamp_us
    ledger.commit("a", 1, 2, 3)
    assert publishing.to_adopt(ledger.situation(), ledger.load("a")) == {1, 2, 3}
    half = ledger.adopt("a", 1, 3, 4)
    assert half.state is LoadState.COMMITTED and half.adopted == (1, 3)
    assert ledger.loads.visible(USERS) == 0 and ledger.loads.hidden(USERS, 0) == {stamp} and ledger.loads.sessions
    assert publishing.keeps_hidden(ledger.situation(), half) == "i2 has yet to take it over"
    load = ledger.adopt("a", 2)
    assert load.state is LoadState.PUBLISHED and load.published_ms == load.ended_ms == ledger.now_ms
    assert ledger.loads.visible(USERS) == 1 and ledger.loads.hidden(USERS, 1) == frozenset()
    assert ledger.loads.hidden(USERS, 0) == {stamp} and not ledger.loads.sessions
    assert ledger.texts[-1] == "load a of shop.users can be seen, from epoch 1 on: 10 rows"


def test_nobody_waits_for_a_holder_that_is_down_but_for_a_quorum_of_each_tablet() -> None:
    ledger = Ledger()
    ledger.begin("a")
    ledger.commit("a", 1, 2, 3)
    ledger.grade(2, Grade.OFFLINE)
    ledger.grade(3, Grade.OFFLINE)
    load = ledger.adopt("a", 1)
    assert load.state is LoadState.COMMITTED
    assert "needs 2 of 3 replicas" in publishing.keeps_hidden(ledger.situation(), load)
    ledger.grade(3, Grade.ONLINE)
    assert publishing.to_adopt(ledger.situation(), load) == {3}
    assert ledger.adopt("a", 3).state is LoadState.PUBLISHED


def test_a_load_is_not_seen_if_one_that_was_down_comes_back_at_that_moment() -> None:
    ledger = Ledger()
    ledger.begin("a")
    ledger.commit("a", 1, 2, 3)
    ledger.grade(3, Grade.OFFLINE)
    change = publishing.adopted(ledger.situation(), ledger.load("a"), (1, 2))
    ledger.grade(3, Grade.RAFT_SYNCED)
    assert not ledger.write(change)
    assert ledger.adopt("a", 1, 2).state is LoadState.COMMITTED


def test_whose_turn_it_is_goes_by_epochs() -> None:
    ledger = Ledger()
    for id in ("a", "b"):
        ledger.begin(id)
    for id in ("b", "a"):
        ledger.commit(id, 1, 2, 3)
    first = publishing.next_load(ledger.loads, USERS)
    assert first is not None and first.id == "b" and publishing.tables_with_committed(ledger.loads) == [USERS]
    with pytest.raises(AssertionError, match="in their order"):
        publishing.adopted(ledger.situation(), ledger.load("a"), (1, 2, 3))
    ledger.adopt("b", 1, 2, 3)
    second = publishing.next_load(ledger.loads, USERS)
    assert second is not None and second.id == "a"
    ledger.adopt("a", 1, 2, 3)
    assert publishing.next_load(ledger.loads, USERS) is None and not publishing.tables_with_committed(ledger.loads)


def test_an_overwrite_swaps_the_generation_and_keeps_the_one_before() -> None:
    ledger = Ledger()
    ledger.publish("a")
    ledger.begin("b", LoadKind.OVERWRITE)
    ledger.commit("b", 1, 2, 3)
    assert ledger.loads.generation(USERS) == 1 and ledger.loads.generations(USERS) == {1, 2}
    ledger.adopt("b", 1, 2, 3)
    assert ledger.loads.generation(USERS) == 2 and ledger.loads.generations(USERS) == {1, 2}
    assert ledger.loads.generation(USERS, 1) == 1 and ledger.loads.generation(USERS, 2) == 2
    ledger.publish("c", LoadKind.OVERWRITE)
    assert ledger.loads.generations(USERS) == {2, 3}
    assert not ledger.loads.readable(USERS, 1, ledger.now_ms) and ledger.loads.readable(USERS, 2, ledger.now_ms)
