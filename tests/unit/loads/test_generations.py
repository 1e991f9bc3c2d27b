"""Going back before an overwrite, and what is kept of loads that are over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.loads.ledger import ORDERS, USERS, Ledger

from trimtab.loads import generations
from trimtab.loads.protocol import RollbackRequest
from trimtab.loads.records import KEEP_GENERATION_MS, SCAN_LIFE_MS, STREAM, EpochRecord, LoadKind, LoadState
from trimtab.loads.situation import LoadRefused

OVERWRITE = LoadKind.OVERWRITE


def test_a_rollback_serves_the_generation_before_and_tells_all_that_goes() -> None:
    ledger = Ledger()
    ledger.publish("a")
    overwrite = ledger.publish("b", OVERWRITE)
    ledger.publish("c")
    ledger.begin("d", direct=True)
    ledger.commit("d")
    staging = ledger.begin("e")
    _change, said = generations.rollback(ledger.situation(), RollbackRequest(USERS, "b"))
    assert said.load == overwrite and [load.id for load in said.also] == ["c", "d"]
    assert (said.generation, said.published_ms, said.applied) == (1, overwrite.published_ms, False)
    ledger.rollback("b")
    loads = ledger.loads
    assert loads.visible(USERS) == 4 and loads.epochs[USERS].committed == 4
    assert loads.generation(USERS) == 1 and loads.generation(USERS, 3) == 2 and loads.generation(USERS, 1) == 1
    assert [ledger.load(id).state for id in "bcd"] == [LoadState.ROLLED_BACK] * 3
    assert ledger.load("c").reason == "overwrite b was rolled back" and ledger.load("a").state is LoadState.PUBLISHED
    assert ledger.load("e") == staging and ledger.commit("e", 1, 2, 3).generation == 1
    assert "overwrite b, 2 later loads and all writes since are dropped" in ledger.texts[-2]


def test_replicas_can_answer_after_a_rollback_with_what_they_had_before_the_overwrite() -> None:
    ledger = Ledger()
    ledger.publish("a")
    ledger.publish("b", OVERWRITE)
    ledger.publish("c")
    ledger.rollback("b")
    needed = ledger.loads.needed
    assert [needed(USERS, epoch) for epoch in (1, 2, 3, 4)] == [1, 2, 3, 1]
    ledger.publish("d")
    assert needed(USERS, 5) == 5 and needed(USERS, 4) == 1
    ledger.publish("e", OVERWRITE)
    ledger.rollback("e")
    assert ledger.loads.visible(USERS) == 7 and needed(USERS, 7) == 5


def test_only_the_newest_overwrite_is_rolled_back_and_only_while_something_is_left_to_go_back_to() -> None:
    ledger = Ledger()
    ledger.publish("a")
    with pytest.raises(LoadRefused, match="is an append that is published"):
        ledger.rollback("a")
    ledger.publish("b", OVERWRITE)
    ledger.publish("c", OVERWRITE)
    with pytest.raises(LoadRefused, match="only the newest"):
        ledger.rollback("b")
    ledger.rollback("c")
    with pytest.raises(LoadRefused, match="rolled_back"):
        ledger.rollback("c")
    with pytest.raises(LoadRefused, match="serves overwrite b because a later one was rolled back"):
        ledger.rollback("b")
    with pytest.raises(LoadRefused, match="no load z"):
        ledger.rollback("z")


def test_a_rollback_waits_for_loads_that_are_being_published() -> None:
    ledger = Ledger()
    ledger.publish("b", OVERWRITE)
    ledger.begin("c")
    ledger.commit("c", 1, 2, 3)
    with pytest.raises(LoadRefused, match=r"1 committed loads .* yet to become visible") as error:
        ledger.rollback("b")
    assert error.value.code == "not_ready"


def test_while_a_rollback_is_announced_another_generation_may_be_served_at_any_time() -> None:
    ledger = Ledger()
    ledger.publish("b", OVERWRITE)
    request = RollbackRequest(USERS, "b", apply=True)
    assert not ledger.loads.swapping(USERS) and generations.withdraw(ledger.situation(), USERS) is None
    ledger.done(generations.announce(ledger.situation(), request))
    assert ledger.loads.swapping(USERS) and ledger.loads.generation(USERS) == 2
    assert generations.announce(ledger.situation(), request) == ledger.load("b"), "it is said already"
    ledger.rollback("b")
    assert not ledger.loads.swapping(USERS)
    assert generations.announce(ledger.situation(), request) == ledger.load("b"), "it is done already"
    with pytest.raises(LoadRefused, match="no load z"):
        generations.announce(ledger.situation(), RollbackRequest(USERS, "z"))


def test_an_announcement_that_came_to_nothing_is_withdrawn_after_a_while() -> None:
    ledger = Ledger()
    ledger.publish("b", OVERWRITE)
    ledger.done(generations.announce(ledger.situation(), RollbackRequest(USERS, "b")))
    ledger.now_ms += generations.ANNOUNCED_MS - 1
    assert generations.withdraw(ledger.situation(), USERS, older_ms=generations.ANNOUNCED_MS) is None
    ledger.now_ms += 1
    change = generations.withdraw(ledger.situation(), USERS, older_ms=generations.ANNOUNCED_MS)
    assert change is not None and ledger.write(change)
    assert not ledger.loads.swapping(USERS) and ledger.load("b").state is LoadState.PUBLISHED


def test_the_generation_before_is_kept_for_a_day() -> None:
    ledger = Ledger()
    ledger.publish("a", OVERWRITE)
    assert generations.trim(ledger.situation(), USERS) is None
    ledger.now_ms += KEEP_GENERATION_MS
    change = generations.trim(ledger.situation(), USERS)
    assert change is not None and ledger.write(change)
    assert ledger.loads.generations(USERS) == {2} and ledger.loads.generation(USERS) == 2
    assert generations.trim(ledger.situation(), USERS) is None
    with pytest.raises(LoadRefused, match="is gone: it is kept for 24 hours"):
        ledger.rollback("a")


def test_a_generation_that_was_rolled_back_goes_when_no_scan_can_be_reading_it() -> None:
    ledger = Ledger()
    ledger.publish("a")
    ledger.publish("b", OVERWRITE)
    ledger.now_ms += 1_000
    ledger.rollback("b")
    assert ledger.loads.generations(USERS) == {1, 2} and ledger.loads.readable(USERS, 2, ledger.now_ms)
    ledger.now_ms += SCAN_LIFE_MS
    assert not ledger.loads.readable(USERS, 2, ledger.now_ms)
    change = generations.trim(ledger.situation(), USERS)
    assert change is not None and ledger.write(change)
    assert ledger.loads.generations(USERS) == {1} and ledger.loads.visible(USERS) == 3
    assert ledger.loads.needed(USERS, 3) == 1


def test_records_stay_as_long_as_a_reader_or_a_rollback_needs_them_and_the_newest_longer() -> None:
    ledger = Ledger()
    ledger.publish("b", OVERWRITE)
    for number in range(generations.KEEP_ENDED + 30):
        ledger.publish(f"a{number}")
    assert generations.forgettable(ledger.situation(), USERS) == []
    ledger.now_ms += generations.KEEP_ENDED_MS
    old = generations.forgettable(ledger.situation(), USERS)
    assert [load.id for load in old] == [f"a{number}" for number in range(30)]
    assert generations.forgettable(ledger.situation(), ORDERS) == []


def test_the_last_batch_of_a_stream_is_remembered_for_days_whatever_else_is_loaded() -> None:
    ledger = Ledger()

    def batch(id: str, who: str) -> None:
        ledger.begin(id, direct=True, who=who)
        ledger.commit(id)
        ledger.now_ms += 1

    for number in range(3):
        batch(f"a{number}", f"{STREAM} a")
    for number in range(generations.KEEP_ENDED + 20):
        batch(f"b{number}", f"{STREAM} b")
    old = generations.forgettable(ledger.situation(), USERS)
    assert [load.id for load in old] == ["a0", "a1", *(f"b{number}" for number in range(19))]
    ledger.now_ms += generations.KEEP_STREAM_MS
    old = generations.forgettable(ledger.situation(), USERS)
    assert [load.id for load in old[:3]] == ["a0", "a1", "a2"]


def test_an_attempt_that_was_aborted_is_remembered_as_long_as_the_one_that_followed() -> None:
    """Whoever looks for the load looks for its first attempt first; were that unknown, the load would begin anew."""
    ledger = Ledger()
    for id in ("b-f", "b-f-1"):
        ledger.begin(id, who=f"{STREAM} b")
        ledger.abort(id)
        ledger.now_ms += 1
    ledger.publish("b-f-2", who=f"{STREAM} b")
    ledger.begin("other")
    ledger.abort("other")
    ledger.now_ms += generations.KEEP_ENDED_MS
    for number in range(generations.KEEP_ENDED + 20):
        ledger.begin(f"n{number}", direct=True)
        ledger.commit(f"n{number}")
        ledger.now_ms += 1
    old = {load.id for load in generations.forgettable(ledger.situation(), USERS)}
    assert "other" in old and not old & {"b-f", "b-f-1", "b-f-2"}
    ledger.now_ms += generations.KEEP_STREAM_MS
    old = {load.id for load in generations.forgettable(ledger.situation(), USERS)}
    assert old >= {"b-f", "b-f-1", "b-f-2"}


def test_a_batch_that_was_rolled_back_is_still_the_last_of_its_stream() -> None:
    ledger = Ledger()
    ledger.publish("b0-f", OVERWRITE, who=f"{STREAM} b")
    ledger.publish("b1-f", OVERWRITE, who=f"{STREAM} b")
    ledger.rollback("b1-f")
    ledger.now_ms += generations.KEEP_ENDED_MS
    for number in range(generations.KEEP_ENDED + 20):
        ledger.begin(f"n{number}", direct=True)
        ledger.commit(f"n{number}")
        ledger.now_ms += 1
    old = {load.id for load in generations.forgettable(ledger.situation(), USERS)}
    assert old and "b1-f" not in old


def test_loads_of_a_dropped_table_are_forgotten_a_while_after_they_ended() -> None:
    ledger = Ledger()
    ledger.publish("a")
    ledger.begin("b")
    ledger.drop(USERS)
    assert generations.dropped(ledger.situation(), USERS) and not generations.dropped(ledger.situation(), ORDERS)
    assert generations.forget_table(ledger.situation(), USERS) is None
    ledger.abort("b")
    assert generations.forget_table(ledger.situation(), USERS) is None
    ledger.now_ms += generations.KEEP_ENDED_MS
    change = generations.forget_table(ledger.situation(), USERS)
    assert change is not None and ledger.write(change)
    assert not ledger.loads.loads and not ledger.loads.epochs and USERS not in ledger.loads.tables


def test_a_schema_that_is_behind_says_nothing_about_dropped_tables() -> None:
    ledger = Ledger()
    ledger.drop(USERS)
    ledger.tables.announced += 1
    assert not generations.dropped(ledger.situation(), USERS)


def test_a_generation_that_was_served_before_is_told_from_one_that_is_only_coming() -> None:
    new = EpochRecord(next_generation=3)
    assert not new.has_served(1), "a new table, of which an overwrite has begun at once"
    # Two overwrites at once: the first is committed, and everybody makes its generation, while the second goes on.
    both = EpochRecord(committed=2, visible=1, next_generation=4)
    assert not both.has_served(2)
    assert both.has_served(1)
    # The first was rolled back; then what nobody needs was dropped.
    back = EpochRecord(committed=3, visible=3, generations=((0, 1), (2, 2), (3, 1)), next_generation=3)
    assert back.has_served(1)
    assert replace(back, generations=((3, 1),)).has_served(1)
    assert not EpochRecord(committed=2, visible=2, generations=((0, 1), (2, 2)), next_generation=3).has_served(2)
