"""The decisions of the supervisor, path by path."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.node.supervision import (
    WORD_LIMIT_BYTES,
    BadWord,
    Begin,
    Decision,
    DropDatabase,
    Errand,
    Exit,
    Exited,
    Fatal,
    ForwardSignal,
    KillAfter,
    Online,
    Patience,
    Phase,
    Ready,
    Rebootstrap,
    Said,
    Start,
    StartDriver,
    Started,
    Supervision,
    Told,
    WantDriver,
    Word,
    decode_word,
    encode_word,
)

KILL_AFTER_LIMIT = KillAfter(20.0)


def started(patience: Patience | None = None) -> Supervision:
    """One whose first child runs."""
    supervision = Supervision(patience)
    assert supervision.handle(Begin()) == [Start(Phase.DISCOVER)]
    assert supervision.handle(Started()) == []
    return supervision


def waits(supervision: Supervision, exits: list[Exited]) -> list[float]:
    """How long each restart waits."""
    found = []
    for end in exits:
        (decision,) = supervision.handle(end)
        assert isinstance(decision, Start)
        found.append(decision.after_s)
        supervision.handle(Started())
    return found


def test_a_crashed_child_is_started_again_with_a_backoff_that_doubles_to_ten_seconds() -> None:
    supervision = started()
    assert waits(supervision, [Exited(1, 0.5)] * 8) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_long_life_forgets_the_failures_before_it() -> None:
    supervision = started()
    assert waits(supervision, [Exited(1, 1), Exited(1, 29.9), Exited(1, 30), Exited(1, 1)]) == [0.2, 0.4, 0.2, 0.4]


def test_the_reason_of_a_restart_is_told() -> None:
    (decision,) = started().handle(Exited(-signal.SIGSEGV, 1))
    assert decision == Start(Phase.DISCOVER, 0.2, "it was ended by SIGSEGV")
    (decision,) = started().handle(Exited(3, 1))
    assert decision == Start(Phase.DISCOVER, 0.2, "it ended with code 3")
    (decision,) = started().handle(Exited(-250, 1))
    assert decision == Start(Phase.DISCOVER, 0.2, "it was ended by signal 250")


def test_a_child_that_ends_well_without_being_told_to_is_started_again() -> None:
    assert started().handle(Exited(0, 1)) == [Start(Phase.DISCOVER, 0.2, "it ended with code 0")]


def test_a_thousand_crashes_still_wait_ten_seconds() -> None:
    assert waits(started(), [Exited(1, 0)] * 1000)[-1] == 10.0


def test_after_discovery_the_database_is_dropped_and_the_next_phase_starts_at_once() -> None:
    supervision = started()
    assert supervision.handle(Said(Rebootstrap(Phase.BOOT, drop=True))) == [KILL_AFTER_LIMIT]
    assert supervision.handle(Exited(0, 0.3)) == [DropDatabase(), Start(Phase.BOOT)]


def test_a_rebootstrap_may_keep_the_database() -> None:
    supervision = started()
    supervision.handle(Said(Rebootstrap(Phase.JOIN, drop=False)))
    assert supervision.handle(Exited(0, 0.3)) == [Start(Phase.JOIN)]


def test_a_child_that_crashes_in_a_phase_begins_there_again() -> None:
    supervision = started()
    supervision.handle(Said(Rebootstrap(Phase.JOIN)))
    supervision.handle(Exited(0, 0.3))
    supervision.handle(Started())
    assert supervision.handle(Exited(-signal.SIGKILL, 0.1)) == [Start(Phase.JOIN, 0.2, "it was ended by SIGKILL")]


def rebootstrap(supervision: Supervision) -> float:
    """Let the child ask for a fresh start; how long it has to wait for it."""
    supervision.handle(Said(Rebootstrap(Phase.JOIN)))
    drop, start = supervision.handle(Exited(0, 0.1))
    assert drop == DropDatabase() and isinstance(start, Start)
    supervision.handle(Started())
    return start.after_s


def test_a_child_that_asks_for_fresh_starts_for_ever_is_slowed_down() -> None:
    supervision = started()
    assert [rebootstrap(supervision) for _ in range(5)] == [0, 0, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("word", [Ready(), Online()])
def test_a_child_that_became_ready_may_ask_for_a_fresh_start_at_once(word: Word) -> None:
    supervision = started()
    assert [rebootstrap(supervision) for _ in range(2)] == [0, 0]
    assert supervision.handle(Said(word)) == []
    assert rebootstrap(supervision) == 0


def test_a_fatal_word_ends_the_supervisor_with_its_reason_and_no_restart() -> None:
    supervision = started()
    assert supervision.handle(Said(Fatal("the port is taken", 1))) == [KILL_AFTER_LIMIT]
    assert supervision.handle(Exited(-signal.SIGKILL, 5)) == [Exit(1, "the port is taken")]


def test_the_first_reason_to_end_counts() -> None:
    supervision = started()
    supervision.handle(Said(Fatal("expelled", 1)))
    assert supervision.handle(Said(Rebootstrap(Phase.JOIN))) == []
    assert supervision.handle(Exited(0, 1)) == [Exit(1, "expelled")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("status", [0, -signal.SIGTERM, -signal.SIGINT])
def test_told_to_stop_it_tells_the_child_and_ends_with_code_zero(number: int, status: int) -> None:
    supervision = started()
    assert supervision.handle(Told(number)) == [ForwardSignal(number), KILL_AFTER_LIMIT]
    assert supervision.handle(Exited(status, 1)) == [Exit(0)]


def test_told_twice_it_tells_the_child_once() -> None:
    supervision = started()
    supervision.handle(Told(signal.SIGTERM))
    assert supervision.handle(Told(signal.SIGINT)) == []


def test_a_child_that_had_to_be_killed_is_a_failure_with_a_reason() -> None:
    supervision = started(Patience(ending_s=2))
    assert supervision.handle(Told(signal.SIGTERM)) == [ForwardSignal(signal.SIGTERM), KillAfter(2)]
    assert supervision.handle(Exited(-signal.SIGKILL, 9)) == [
        Exit(1, "it did not end within 2 s of being told to, and was killed")
    ]


def test_a_child_that_fails_while_it_stops_is_a_failure_with_a_reason() -> None:
    supervision = started()
    supervision.handle(Told(signal.SIGTERM))
    assert supervision.handle(Exited(7, 1)) == [Exit(1, "it was told to stop and ended with code 7")]


def test_a_fatal_word_is_told_also_when_it_was_told_to_stop() -> None:
    supervision = started()
    supervision.handle(Told(signal.SIGTERM))
    supervision.handle(Said(Fatal("the disk failed", 1)))
    assert supervision.handle(Exited(1, 1)) == [Exit(1, "the disk failed")]


def test_told_to_stop_it_does_not_bootstrap_again() -> None:
    supervision = started()
    supervision.handle(Said(Rebootstrap(Phase.BOOT)))
    supervision.handle(Told(signal.SIGTERM))
    assert supervision.handle(Exited(0, 1)) == [Exit(0)]


def test_told_to_stop_between_two_children_it_ends_at_once() -> None:
    supervision = started()
    supervision.handle(Exited(1, 1))
    assert supervision.handle(Told(signal.SIGINT)) == [Exit(0)]


def test_told_to_stop_before_the_first_child_it_ends_at_once() -> None:
    supervision = Supervision()
    supervision.handle(Begin())
    assert supervision.handle(Told(signal.SIGTERM)) == [Exit(0)]


WORDS = st.one_of(
    st.builds(Ready),
    st.builds(Online),
    st.builds(Rebootstrap, st.sampled_from(Phase), st.booleans()),
    st.builds(Fatal, st.text(max_size=100), st.integers(0, 255)),
)


@given(WORDS)
def test_a_word_survives_the_pipe(word: Word) -> None:
    line = encode_word(word)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode_word(line) == word


@pytest.mark.parametrize("text", ["x" * 100_000, "ß" * 100_000, "\U0001f980" * 100_000, '"' * 100_000])
def test_a_long_reason_is_cut_so_that_the_pipe_takes_it_in_one_piece(text: str) -> None:
    line = encode_word(Fatal(text, 1))
    assert len(line) <= WORD_LIMIT_BYTES
    word = decode_word(line)
    assert isinstance(word, Fatal) and text.startswith(word.text) and len(word.text) >= 200


@given(st.one_of(st.binary(max_size=200), st.recursive(st.none(), st.lists).map(repr).map(str.encode)))
def test_anything_else_is_a_bad_word_and_no_crash(line: bytes) -> None:
    with pytest.raises(BadWord):
        decode_word(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"word": "hello"}',
        b'{"word": ["ready"]}',
        b'{"word": "rebootstrap", "phase": "sleep", "drop": true}',
        b'{"word": "rebootstrap"}',
        b'{"word": "fatal", "text": "x", "code": "many"}',
        b'{"word": "fatal", "text": "x", "code": null}',
        b'{"word": "fatal", "text": "x", "code": 1e999}',
        b"[" * 100_000,
    ],
)
def test_a_word_with_the_wrong_fields_is_a_bad_word(line: bytes) -> None:
    with pytest.raises(BadWord):
        decode_word(line)


EVENTS = st.lists(
    st.one_of(WORDS.map(Said), st.builds(Exited, st.integers(-15, 5), st.floats(0, 100)), st.just(Told(15))),
    max_size=40,
)


@given(EVENTS)
def test_whatever_happens_it_always_runs_a_child_waits_for_one_or_has_ended(events: list[object]) -> None:
    """The driver below does what the real one does, with children that start at once."""
    supervision = Supervision()
    running = ended = False

    def do(decisions: list[Decision]) -> None:
        nonlocal running, ended
        for decision in decisions:
            assert not ended, "nothing is decided after the end"
            if isinstance(decision, Start):
                assert not running and 0 <= decision.after_s <= 10
                running = True
                do(supervision.handle(Started()))
            elif isinstance(decision, DropDatabase):
                assert not running, "the database is never dropped under a child"
            elif isinstance(decision, Exit):
                assert not running
                ended = True

    do(supervision.handle(Begin()))
    for event in events:
        if isinstance(event, Exited):
            running = False
        do(supervision.handle(event))  # type: ignore[arg-type]
        if ended:
            return
        assert running


# The driver of jobs


def test_a_driver_is_started_when_it_is_wanted_and_only_once() -> None:
    errand = Errand()
    assert errand.node_said(Ready()) == []
    assert errand.node_said(WantDriver()) == [StartDriver()]
    assert errand.node_said(WantDriver()) == []
    assert errand.exited(Exited(0, 1.0)) == []
    assert errand.node_said(WantDriver()) == [StartDriver()]


def test_a_driver_that_ends_badly_is_started_again_only_after_a_rest_that_grows() -> None:
    errand = Errand(Patience(first_backoff_s=0.5, longest_backoff_s=10))
    rests = []
    for _ in range(7):
        (start,) = errand.node_said(WantDriver())
        rests.append(start.after_s)
        errand.exited(Exited(1, 2.0))
    assert rests == [0.0, 3.0, 6.0, 12.0, 24.0, 48.0, 60.0]
    errand.node_said(WantDriver())
    errand.exited(Exited(-9, 100.0))
    assert errand.node_said(WantDriver()) == [StartDriver()]


def test_no_driver_is_started_when_everything_ends() -> None:
    errand = Errand()
    errand.leave_off()
    assert errand.node_said(WantDriver()) == []


def test_that_a_driver_is_wanted_says_nothing_about_the_node() -> None:
    assert decode_word(encode_word(WantDriver())) == WantDriver()
    supervision = Supervision()
    supervision.handle(Begin())
    supervision.handle(Started())
    assert supervision.handle(Said(WantDriver())) == []
