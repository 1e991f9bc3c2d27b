"""What may be begun, committed and aborted, and with which words it is refused."""

from __future__ import annotations

import pytest
from tests.unit.loads.ledger import NOW_MS, ORDERS, USERS, Ledger

from trimtab.loads import publishing, rules
from trimtab.loads.protocol import CommitRequest
from trimtab.loads.records import (
    LoadKind,
    LoadState,
    SessionKind,
    epoch_key,
    is_load_stamp,
    load_key,
    session_key,
)
from trimtab.loads.situation import LoadChange, LoadRefused
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import (
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    TransitionKind,
    rebalance_key,
    transition_key,
)
from trimtab.tablets.transitions import encode as encode_transition
from trimtab.topology.grades import Grade

OVERWRITE = LoadKind.OVERWRITE


def refusal(error: pytest.ExceptionInfo[LoadRefused]) -> tuple[str, str]:
    return error.value.code, str(error.value)


def test_a_load_begins_with_a_stamp_that_no_write_can_have_and_an_open_session() -> None:
    ledger = Ledger()
    load = ledger.begin("a", version=2)
    assert load.state is LoadState.STAGING and load.generation == 1 and load.epoch == 0
    assert is_load_stamp(load.stamp_us) and NOW_MS * 1000 <= load.stamp_us < NOW_MS * 1000 + 1000
    session = ledger.loads.sessions["a"]
    assert (session.kind, session.table, session.lease_ms) == (SessionKind.LOAD, USERS, 60_000)
    assert ledger.loads.visible(USERS) == 0 and ledger.loads.hidden(USERS, 0) == frozenset()


def test_the_same_id_again_is_the_same_load() -> None:
    ledger = Ledger()
    first = ledger.begin("a")
    ledger.now_ms += 5_000
    revision = ledger.revision
    assert ledger.begin("a") == first and ledger.revision == revision
    ledger.commit("a", 1, 2, 3)
    assert ledger.begin("a").state is LoadState.COMMITTED
    with pytest.raises(LoadRefused, match="of another kind"):
        ledger.begin("a", OVERWRITE)


def test_two_loads_at_once_have_different_stamps_and_each_becomes_visible_in_its_turn() -> None:
    ledger = Ledger()
    first, second = ledger.begin("a"), ledger.begin("b")
    assert second.stamp_us == first.stamp_us + 1000
    assert ledger.commit("b", 1, 2, 3).epoch == 1
    assert ledger.commit("a", 1, 2, 3).epoch == 2
    assert ledger.loads.hidden(USERS, 0) == {first.stamp_us, second.stamp_us}
    ledger.adopt("b", 1, 2, 3)
    assert ledger.loads.visible(USERS) == 1 and ledger.loads.hidden(USERS, 1) == {first.stamp_us}


@pytest.mark.parametrize(
    ("id", "fields", "code", "said"),
    [
        ("a", {"table": 9}, "not_found", "no table with the id 9"),
        ("a", {"version": 7}, "version_mismatch", "at version 2 .* for version 7"),
        ("", {}, "invalid", "is no id"),
        ("../x", {}, "invalid", "is no id"),
        ("-x", {}, "invalid", "is no id"),
        ("a" * 65, {}, "invalid", "is no id"),
        ("a\n", {}, "invalid", "is no id"),
        ("a", {"lease_ms": 10}, "invalid", "a lease of 10 ms"),
        ("a", {"lease_ms": 10**9}, "invalid", "a lease of"),
        ("a", {"timestamp_us": -1}, "invalid", "lies before 1970"),
        ("a", {"direct": True, "kind": OVERWRITE}, "invalid", "can only append"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    id: str, fields: dict[str, object], code: str, said: str
) -> None:
    ledger = Ledger()
    revision = ledger.revision
    with pytest.raises(LoadRefused, match=said) as error:
        ledger.begin(id, **fields)  # type: ignore[arg-type]
    assert error.value.code == code and ledger.revision == revision


def test_no_load_begins_that_could_not_be_committed() -> None:
    ledger = Ledger()
    ledger.grade(1, Grade.OFFLINE)
    ledger.begin("one-down-is-no-matter")
    ledger.silent = {2}
    with pytest.raises(LoadRefused) as error:
        ledger.begin("a")
    code, said = refusal(error)
    assert code == "unavailable" and "needs 2 of 3 replicas" in said and "1 alive" in said


def test_a_quorum_is_needed_in_every_data_centre() -> None:
    ledger = Ledger(((1, 2, 3),), instances=3, dcs={1: "dc1", 2: "dc1", 3: "dc2"})
    ledger.begin("a")
    ledger.grade(3, Grade.OFFLINE)
    with pytest.raises(LoadRefused, match="data centre dc2"):
        ledger.begin("b")
    with pytest.raises(LoadRefused, match="data centre dc2") as error:
        ledger.commit("a", 1, 2)
    assert error.value.code == "unavailable"


def test_too_many_open_loads_are_refused_by_table_and_by_cluster() -> None:
    ledger = Ledger()
    for number in range(rules.MAX_OPEN_OF_TABLE):
        ledger.begin(f"a{number}")
    with pytest.raises(LoadRefused, match=r"16 loads of shop\.users are open") as error:
        ledger.begin("b")
    assert error.value.code == "too_many_loads"
    ledger.begin("b", table=ORDERS)
    ledger.abort("a0")
    ledger.begin("c")


def test_a_timestamp_is_rounded_and_belongs_to_one_load_of_the_table() -> None:
    ledger = Ledger()
    given = NOW_MS * 1000 - 123
    load = ledger.begin("a", timestamp_us=given)
    assert is_load_stamp(load.stamp_us) and load.stamp_us == given - given % 1000 + 999
    with pytest.raises(LoadRefused, match=r"load a .* has the timestamp"):
        ledger.begin("b", timestamp_us=given + 5)
    ledger.begin("b", timestamp_us=given + 5, table=ORDERS)
    ledger.abort("a")
    assert ledger.begin("c", timestamp_us=given).stamp_us == load.stamp_us


def test_a_session_of_something_else_keeps_its_name() -> None:
    ledger = Ledger()
    ledger.begin("a")
    with pytest.raises(LoadRefused, match="a session a is open"):
        ledger.begin("a", table=ORDERS)


def test_a_commit_needs_every_holder_that_is_up_and_names_those_that_are_missing() -> None:
    ledger = Ledger(((1, 2, 3), (2, 3, 4)))
    ledger.begin("a")
    with pytest.raises(LoadRefused) as error:
        ledger.commit("a", 1, 2)
    assert error.value.code == "moved" and error.value.missing == (3, 4) and "i3, i4" in str(error.value)
    ledger.grade(4, Grade.OFFLINE)
    load = ledger.commit("a", 1, 2, 3, 9)
    assert (load.state, load.epoch) == (LoadState.COMMITTED, 1)
    assert (load.sealed, load.missed, load.rows) == ((1, 2, 3), (4,), 10)
    assert ledger.loads.epochs[USERS].committed == 1 and ledger.loads.visible(USERS) == 0
    assert ledger.loads.sessions["a"]


def test_a_commit_needs_a_quorum_of_every_tablet() -> None:
    ledger = Ledger(((1, 2, 3), (2, 3, 4)))
    ledger.begin("a")
    ledger.grade(3, Grade.OFFLINE)
    ledger.grade(4, Grade.OFFLINE)
    with pytest.raises(LoadRefused, match=r"tablet 1 .* needs 2 of 3 replicas.*1 sealed"):
        ledger.commit("a", 1, 2)


def test_a_commit_is_not_written_when_replicas_moved_meanwhile() -> None:
    ledger = Ledger()
    ledger.begin("a")
    decided = rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3)))
    assert isinstance(decided, LoadChange)
    ledger.move(USERS, ((1, 2, 4), *((1, 2, 3),) * 3))
    assert not ledger.write(decided)
    with pytest.raises(LoadRefused) as error:
        ledger.commit("a", 1, 2, 3)
    assert error.value.missing == (4,)


def test_a_holder_that_has_sealed_may_hold_more_by_the_time_of_the_commit() -> None:
    ledger = Ledger(((1, 2), (3, 4)))
    ledger.begin("a")
    sealed_at = ledger.tables.map(USERS).digest()
    # Everybody has sealed, but instance 1 only what it held then.
    ledger.move(USERS, ((1, 2), (3, 1)))
    asked = CommitRequest(USERS, "a", (1, 2, 3, 4), places=sealed_at)
    with pytest.raises(LoadRefused, match="changed places") as error:
        rules.commit(ledger.situation(), asked)
    assert error.value.code == "moved"
    again = CommitRequest(USERS, "a", (1, 2, 3), places=ledger.tables.map(USERS).digest())
    assert isinstance(rules.commit(ledger.situation(), again), LoadChange)


def test_a_commit_is_not_written_when_a_replica_that_was_down_is_back() -> None:
    ledger = Ledger()
    ledger.begin("a")
    ledger.grade(3, Grade.OFFLINE)
    decided = rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2)))
    assert isinstance(decided, LoadChange)
    ledger.grade(3, Grade.RAFT_SYNCED)
    assert not ledger.write(decided)


def test_a_commit_is_not_written_when_the_session_is_closed_or_the_table_dropped() -> None:
    ledger = Ledger()
    ledger.begin("a")
    decided = rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3)))
    assert isinstance(decided, LoadChange)
    ledger.put({}, [session_key("a")])
    assert not ledger.write(decided)
    with pytest.raises(LoadRefused, match="session of load a is closed") as error:
        ledger.commit("a", 1, 2, 3)
    assert error.value.code == "ended"
    ledger.begin("b")
    decided = rules.commit(ledger.situation(), CommitRequest(USERS, "b", (1, 2, 3)))
    assert isinstance(decided, LoadChange)
    ledger.drop(USERS)
    assert not ledger.write(decided)
    with pytest.raises(LoadRefused, match="was it dropped") as error:
        ledger.commit("b", 1, 2, 3)
    assert error.value.code == "not_found"


def test_committing_again_answers_what_became_of_the_load() -> None:
    ledger = Ledger()
    ledger.begin("a")
    first = ledger.commit("a", 1, 2, 3)
    assert ledger.commit("a") == first
    ledger.adopt("a", 1, 2, 3)
    assert ledger.commit("a", 1).state is LoadState.PUBLISHED
    with pytest.raises(LoadRefused, match="there is no load z"):
        ledger.commit("z", 1, 2, 3)


def test_a_commit_says_which_of_the_sealed_lists_counts() -> None:
    ledger = Ledger()
    ledger.begin("a")
    for nonce in ("a/b", "..", "é", "x" * 65):
        with pytest.raises(LoadRefused, match="is no nonce") as refused:
            rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3), nonce=nonce))
        assert refused.value.code == "invalid"
    ledger.done(rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3), nonce="first")))
    late = rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3), nonce="second"))
    assert late == ledger.load("a") and ledger.load("a").nonce == "first"


def test_counts_that_are_none_are_refused() -> None:
    ledger = Ledger()
    ledger.begin("a")
    with pytest.raises(LoadRefused, match="-1 is no number"):
        ledger.commit("a", 1, 2, 3, rows=-1)


def test_an_abort_closes_the_session_and_comes_too_late_after_the_commit() -> None:
    ledger = Ledger()
    ledger.begin("a")
    load = ledger.abort("a", "the job was cancelled")
    assert load.state is LoadState.ABORTED and load.reason == "the job was cancelled"
    assert not ledger.loads.sessions and load.ended_ms == NOW_MS
    assert ledger.abort("a", "again") == load
    with pytest.raises(LoadRefused, match="was aborted: the job was cancelled") as error:
        ledger.commit("a", 1, 2, 3)
    assert error.value.code == "ended"
    with pytest.raises(LoadRefused, match="was aborted"):
        ledger.begin("a")
    ledger.begin("b")
    ledger.commit("b", 1, 2, 3)
    with pytest.raises(LoadRefused, match="is committed; it is too late"):
        ledger.abort("b")


def test_an_abort_and_a_commit_at_the_same_time_are_one_of_them() -> None:
    ledger = Ledger()
    ledger.begin("a")
    commit = rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3)))
    abort = rules.abort(ledger.situation(), USERS, "a", "")
    assert isinstance(commit, LoadChange) and isinstance(abort, LoadChange)
    assert ledger.write(commit) and not ledger.write(abort)


def test_a_direct_load_is_done_with_its_commit_and_has_no_epoch() -> None:
    ledger = Ledger()
    ledger.begin("a", direct=True)
    load = ledger.commit("a")
    assert load.state is LoadState.PUBLISHED and load.epoch == 0 and not ledger.loads.sessions
    assert ledger.begin("a", direct=True) == load
    assert ledger.loads.hidden(USERS, 0) == frozenset() and ledger.loads.visible(USERS) == 0


def test_a_direct_load_that_was_aborted_goes_on_with_the_same_stamp() -> None:
    ledger = Ledger()
    first = ledger.begin("a", direct=True)
    ledger.abort("a", "its driver was not heard from")
    ledger.now_ms += 3_600_000
    again = ledger.begin("a", direct=True)
    assert again.state is LoadState.STAGING and again.stamp_us == first.stamp_us and ledger.loads.sessions["a"]
    assert ledger.commit("a").state is LoadState.PUBLISHED


def test_a_direct_load_that_was_overwritten_meanwhile_has_to_write_again() -> None:
    ledger = Ledger()
    first = ledger.begin("a", direct=True)
    ledger.publish("new", OVERWRITE)
    with pytest.raises(LoadRefused, match="was overwritten") as error:
        ledger.commit("a")
    assert error.value.code == "swapped"
    again = ledger.begin("a", direct=True)
    assert again.stamp_us == first.stamp_us and again.generation == 2
    assert ledger.commit("a").state is LoadState.PUBLISHED


def test_an_append_belongs_to_the_generation_of_the_overwrite_committed_before_it() -> None:
    ledger = Ledger()
    ledger.begin("append")
    assert ledger.begin("one", OVERWRITE).generation == 2
    assert ledger.begin("two", OVERWRITE).generation == 3
    ledger.commit("two", 1, 2, 3)
    assert ledger.commit("append", 1, 2, 3).generation == 3
    assert ledger.commit("one", 1, 2, 3).generation == 2
    for id in ("two", "append", "one"):
        ledger.adopt(id, 1, 2, 3)
    assert ledger.loads.generation(USERS) == 2 and ledger.loads.visible(USERS) == 3


def test_nothing_is_decided_on_records_that_cannot_be_read() -> None:
    ledger = Ledger()
    ledger.begin("a")
    for key in (epoch_key(USERS), load_key(USERS, "new")):
        ledger.put({key: b"{"})
        for decide in (lambda: ledger.begin("b"), lambda: ledger.commit("a", 1, 2, 3), lambda: ledger.abort("a")):
            with pytest.raises(LoadRefused, match="let an instance of the newest release lead") as error:
                decide()
            assert error.value.code == "not_ready"
        ledger.put({}, [key])
    ledger.begin("b", table=ORDERS)
    assert ledger.commit("a", 1, 2, 3).epoch == 1


def test_a_direct_load_can_not_go_on_under_a_session_of_another_table() -> None:
    ledger = Ledger()
    ledger.begin("a", direct=True)
    ledger.abort("a")
    ledger.begin("a", table=ORDERS)
    with pytest.raises(LoadRefused, match="a session a is open"):
        ledger.begin("a", direct=True)


# Tablets that move


def begin_move(ledger: Ledger, stage: Stage, *pending: int, tablet: int = 0, locked: bool = False) -> None:
    record = TabletTransition(pending, TransitionKind.REBUILD, stage, session="s", locked=locked)
    ledger.put(
        {
            transition_key(USERS, tablet): encode_transition(record),
            rebalance_key(USERS): encode_transition(RebalanceRecord(RebalanceState.RUNNING)),
        }
    )


def test_a_load_is_sealed_by_those_that_get_a_replica_too() -> None:
    ledger = Ledger()
    ledger.begin("a")
    begin_move(ledger, Stage.ALLOW_WRITE_BOTH_READ_OLD, 1, 2, 4)
    assert ledger.situation().holders(USERS) == {1, 2, 3, 4}
    with pytest.raises(LoadRefused) as error:
        ledger.commit("a", 1, 2, 3)
    assert error.value.code == "moved" and error.value.missing == (4,)
    assert ledger.commit("a", 1, 2, 3, 4).sealed == (1, 2, 3, 4)


def test_no_move_slips_in_between_a_commit_and_its_write() -> None:
    ledger = Ledger()
    ledger.begin("a")
    decided = rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3)))
    assert isinstance(decided, LoadChange)
    begin_move(ledger, Stage.ALLOW_WRITE_BOTH_READ_OLD, 1, 2, 4)
    assert not ledger.write(decided)


def test_a_commit_needs_a_quorum_of_both_sets_whatever_other_tablets_of_the_same_replicas_have() -> None:
    ledger = Ledger(((1, 2, 3), (1, 2, 3)), instances=6)
    ledger.begin("a")
    begin_move(ledger, Stage.STREAMING, 4, 5, 6, tablet=1)
    for raft_id in (5, 6):
        ledger.grade(raft_id, Grade.OFFLINE)
    with pytest.raises(LoadRefused, match=r"tablet 1 .* needs 2 of 3 replicas.*1 sealed"):
        ledger.commit("a", 1, 2, 3, 4)


def test_a_list_that_was_sealed_before_a_move_began_does_not_count() -> None:
    ledger = Ledger(((1, 2), (3, 4)))
    ledger.begin("a")
    sealed_at = ledger.tables.held(USERS).digest()
    begin_move(ledger, Stage.STREAMING, 1, 3)
    with pytest.raises(LoadRefused, match="changed places"):
        rules.commit(ledger.situation(), CommitRequest(USERS, "a", (1, 2, 3, 4), places=sealed_at))
    again = CommitRequest(USERS, "a", (1, 2, 3, 4), places=ledger.tables.held(USERS).digest())
    assert isinstance(rules.commit(ledger.situation(), again), LoadChange)


def test_a_load_becomes_visible_although_its_replicas_have_moved_since() -> None:
    """The only replica of a tablet goes elsewhere between commit and publication: the rows come with the copy."""
    ledger = Ledger(((1,), (2,)))
    ledger.begin("a")
    ledger.commit("a", 1, 2)
    begin_move(ledger, Stage.STREAMING, 3)
    assert publishing.keeps_hidden(ledger.situation(), ledger.load("a")) == "i1, i2 have yet to take it over"
    half = ledger.adopt("a", 1)
    assert half.state is LoadState.COMMITTED
    begin_move(ledger, Stage.USE_NEW, 3, locked=True)
    assert publishing.keeps_hidden(ledger.situation(), half) == "i2 has yet to take it over"
    ledger.put({}, [transition_key(USERS, 0)])
    ledger.move(USERS, ((3,), (2,)))
    assert ledger.adopt("a", 2).state is LoadState.PUBLISHED
