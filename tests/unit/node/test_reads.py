"""Linearizable reads share rounds, and none uses a round that began before it."""

from trimtab.node.reads import ReadRounds


class Reads:
    """Callbacks that remember who was answered, and how."""

    def __init__(self) -> None:
        self.answers: dict[str, Exception | None] = {}

    def reader(self, name: str):  # type: ignore[no-untyped-def]
        def done(error: Exception | None) -> None:
            assert name not in self.answers, f"{name} was answered twice"
            self.answers[name] = error

        return done


def test_reads_that_wait_together_share_one_round() -> None:
    reads, rounds = Reads(), ReadRounds(0)
    rounds.add(reads.reader("a"))
    rounds.add(reads.reader("b"))
    context = rounds.next_round(0.0, 1.0)
    assert context is not None
    assert rounds.next_round(0.0, 1.0) is None
    rounds.confirm(context, 7)
    rounds.release(6)
    assert reads.answers == {}
    rounds.release(7)
    assert reads.answers == {"a": None, "b": None}


def test_a_read_that_comes_during_a_round_waits_for_the_next_one() -> None:
    reads, rounds = Reads(), ReadRounds(0)
    rounds.add(reads.reader("early"))
    first = rounds.next_round(0.0, 1.0)
    assert first is not None
    rounds.add(reads.reader("late"))
    rounds.confirm(first, 1)
    rounds.release(1)
    assert reads.answers == {"early": None}
    second = rounds.next_round(0.1, 1.0)
    assert second is not None and second != first
    rounds.confirm(second, 1)
    rounds.release(1)
    assert reads.answers == {"early": None, "late": None}


def test_a_round_without_an_answer_is_asked_again_and_its_old_answer_is_ignored() -> None:
    reads, rounds = Reads(), ReadRounds(0)
    rounds.add(reads.reader("a"))
    lost = rounds.next_round(0.0, 0.5)
    assert rounds.next_round(0.4, 0.5) is None
    again = rounds.next_round(0.6, 0.5)
    assert lost is not None and again is not None and again != lost
    rounds.confirm(lost, 3)
    rounds.release(100)
    assert reads.answers == {}
    rounds.confirm(again, 4)
    rounds.release(4)
    assert reads.answers == {"a": None}


def test_a_new_leader_is_asked_at_once_and_the_old_ones_answer_no_longer_counts() -> None:
    reads, rounds = Reads(), ReadRounds(0)
    rounds.add(reads.reader("a"))
    old = rounds.next_round(0.0, 0.5)
    rounds.ask_again()
    new = rounds.next_round(0.01, 0.5)
    assert old is not None and new is not None and new != old
    rounds.confirm(old, 1)
    rounds.release(1)
    assert reads.answers == {}
    rounds.confirm(new, 2)
    rounds.release(2)
    assert reads.answers == {"a": None}


def test_an_answer_to_nothing_is_ignored() -> None:
    rounds = ReadRounds(0)
    rounds.confirm(b"\0" * 8, 5)
    rounds.release(10)
    assert len(rounds) == 0


def test_when_the_instance_stops_every_read_is_told() -> None:
    reads, rounds = Reads(), ReadRounds(0)
    rounds.add(reads.reader("confirmed"))
    context = rounds.next_round(0.0, 1.0)
    assert context is not None
    rounds.confirm(context, 9)
    rounds.add(reads.reader("asked"))
    assert rounds.next_round(0.0, 1.0) is not None
    rounds.add(reads.reader("waiting"))
    error = RuntimeError("stopping")
    rounds.fail(error)
    assert reads.answers == {"confirmed": error, "asked": error, "waiting": error}
    assert len(rounds) == 0
