"""The checker agrees with trying every order, and says why when there is none."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.sim.linearizability import (
    UNKNOWN_RESULT,
    Budget,
    Delete,
    Get,
    KeyValue,
    Model,
    Operation,
    Put,
    PutIf,
    Read,
    Register,
    Swap,
    Verdict,
    Write,
    check,
)


def op(process: int, call: float, ret: float | None, what: Any, result: Any = True) -> Operation:
    return Operation(process, call, ret, what, UNKNOWN_RESULT if ret is None else result)


def verdict(history: Sequence[Operation], model: Model | None = None) -> Verdict:
    return check(history, model or Register()).verdict


def by_brute_force(history: Sequence[Operation], model: Model) -> bool:
    """Every order of every choice of unknown operations: for a handful of operations only."""
    known = [o for o in history if o.known]
    unknown = [o for o in history if not o.known]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if _is_order(order, model):
                    return True
    return False


def _is_order(order: Sequence[Operation], model: Model) -> bool:
    state: Any = model.init()
    for position, operation in enumerate(order):
        if any(later.ret is not None and later.ret <= operation.call for later in order[position + 1 :]):
            return False
        fits, state = model.step(state, operation.op, operation.result)
        if not fits:
            return False
    return True


def test_an_empty_history_is_linearizable() -> None:
    assert verdict([]) is Verdict.LINEARIZABLE


def test_a_read_of_an_older_value_is_found_and_explained() -> None:
    report = check([op(1, 0, 1, Write(1)), op(1, 2, 3, Write(2)), op(2, 4, 5, Read(), 1)], Register())
    assert report.verdict is Verdict.NOT_LINEARIZABLE
    assert report.explanation is not None
    assert [step.operation.op for step in report.explanation.placed] == [Write(1), Write(2)]
    assert [o.op for o in report.explanation.stuck] == [Read()]
    assert "in state 2 none of these fits" in str(report)


def test_the_explanation_stops_at_the_first_bad_return() -> None:
    bad = [op(1, 0, 1, Write(1)), op(2, 2, 3, Read(), 9)]
    later = [op(3, 10 + n, 10.5 + n, Write(n)) for n in range(50)]
    explanation = check([*bad, *later], Register()).explanation
    assert explanation is not None
    assert [step.operation.op for step in explanation.placed] == [Write(1)]


def test_reads_beside_a_write_may_see_old_then_new_and_not_new_then_old() -> None:
    write = op(1, 0, 10, Write(1))
    assert verdict([write, op(2, 1, 2, Read(), None), op(2, 3, 4, Read(), 1)]) is Verdict.LINEARIZABLE
    assert verdict([write, op(2, 1, 2, Read(), 1), op(2, 3, 4, Read(), None)]) is Verdict.NOT_LINEARIZABLE


def test_a_write_of_unknown_outcome_may_happen_late_or_never_but_not_early() -> None:
    assert (
        verdict([op(1, 0, None, Write(1)), op(2, 5, 6, Read(), None), op(2, 7, 8, Read(), 1)]) is Verdict.LINEARIZABLE
    )
    assert verdict([op(1, 0, None, Write(1)), op(2, 5, 6, Read(), None)]) is Verdict.LINEARIZABLE
    assert verdict([op(2, 0, 1, Read(), 1), op(1, 2, None, Write(1))]) is Verdict.NOT_LINEARIZABLE


def test_a_write_of_unknown_outcome_happens_at_most_once() -> None:
    history = [
        op(1, 0, None, Write(1)),
        op(2, 1, 2, Read(), 1),
        op(2, 3, 4, Write(2)),
        op(2, 5, 6, Read(), 1),
    ]
    assert verdict(history) is Verdict.NOT_LINEARIZABLE
    assert verdict([*history, op(3, 2.5, None, Write(1))]) is Verdict.LINEARIZABLE


def test_a_swap_says_what_it_saw() -> None:
    assert (
        verdict([op(1, 0, 1, Write(1)), op(1, 2, 3, Swap(1, 2), True), op(1, 4, 5, Read(), 2)]) is Verdict.LINEARIZABLE
    )
    assert verdict([op(1, 0, 1, Write(1)), op(1, 2, 3, Swap(1, 2), False)]) is Verdict.NOT_LINEARIZABLE
    assert verdict([op(1, 0, 1, Write(1)), op(1, 2, 3, Swap(3, 2), True)]) is Verdict.NOT_LINEARIZABLE


def test_an_answer_at_the_moment_of_the_next_call_comes_before_it() -> None:
    assert verdict([op(1, 0, 1, Write(1)), op(1, 1, 2, Read(), None)]) is Verdict.NOT_LINEARIZABLE
    assert verdict([op(1, 0, 0, Write(1)), op(1, 0.5, 0.5, Read(), 1)]) is Verdict.LINEARIZABLE


def test_a_write_of_the_present_value_may_be_needed_later() -> None:
    # Placing the second Write(1) where it changes nothing would leave nobody to bring 1 back after Write(2).
    history = [
        op(1, 0, 1, Write(1)),
        op(2, 2, 20, Write(1)),
        op(3, 3, 20, Write(2)),
        op(4, 4, 5, Read(), 1),
        op(4, 6, 7, Read(), 2),
        op(4, 8, 9, Read(), 1),
    ]
    assert verdict(history) is Verdict.LINEARIZABLE


def test_keys_are_judged_apart() -> None:
    fine = [op(1, n, n + 0.5, Write(n, key="a")) for n in range(100)]
    bad = [op(2, 0, 1, Write(1, key="b")), op(2, 2, 3, Read(key="b"), 7)]
    report = check([*fine, *bad], Register())
    assert report.verdict is Verdict.NOT_LINEARIZABLE
    assert report.explanation is not None and report.explanation.partition == "b"


def test_a_spent_budget_is_said_and_not_guessed() -> None:
    history = [op(n, 0, 100, Write(n)) for n in range(12)] + [op(99, 101, 102, Read(), -1)]
    assert check(history, Register(), Budget(50)).verdict is Verdict.UNKNOWN
    asked: list[int] = []

    def out_of_time() -> bool:
        asked.append(1)
        return True

    assert check(history, Register(), Budget(10_000_000, out_of_time)).verdict is Verdict.UNKNOWN
    assert len(asked) == 1


def test_a_violation_decides_even_if_another_part_is_too_hard() -> None:
    hard = [op(n, 0, 100, Write(n, key="hard")) for n in range(12)] + [op(99, 101, 102, Read(key="hard"), -1)]
    bad = [op(1, 0, 1, Read(key="bad"), 5)]
    assert check([*hard, *bad], Register(), Budget(100)).verdict is Verdict.NOT_LINEARIZABLE


REGISTER_OPS = st.one_of(
    st.tuples(st.just(Read()), st.one_of(st.none(), st.integers(0, 2))),
    st.tuples(st.integers(0, 2).map(Write), st.just(True)),
    st.tuples(st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda pair: Swap(*pair)), st.booleans()),
)
TIMES = st.tuples(st.integers(0, 12), st.integers(1, 6), st.booleans())


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(REGISTER_OPS, TIMES), max_size=6))
def test_the_search_agrees_with_brute_force_on_registers(raw: list[Any]) -> None:
    history = [
        op(number, call, call + length if seen else None, what, result)
        for number, ((what, result), (call, length, seen)) in enumerate(raw)
    ]
    expected = Verdict.LINEARIZABLE if by_brute_force(history, Register()) else Verdict.NOT_LINEARIZABLE
    assert verdict(history) is expected


K = b"k"
KEY_OPS = st.one_of(
    st.tuples(st.just(Get(K)), st.one_of(st.none(), st.tuples(st.sampled_from([b"a", b"b"]), st.integers(1, 4)))),
    st.tuples(st.builds(Put, st.just(K), st.sampled_from([b"a", b"b"])), st.integers(1, 4)),
    st.tuples(st.just(Delete(K)), st.integers(0, 4)),
    st.tuples(
        st.builds(PutIf, st.just(K), st.integers(0, 4), st.sampled_from([b"a", b"b"])),
        st.one_of(st.none(), st.integers(1, 4)),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(KEY_OPS, TIMES), max_size=5))
def test_the_search_agrees_with_brute_force_on_keys(raw: list[Any]) -> None:
    history = [
        op(number, call, call + length if seen else None, what, result)
        for number, ((what, result), (call, length, seen)) in enumerate(raw)
    ]
    expected = Verdict.LINEARIZABLE if by_brute_force(history, KeyValue()) else Verdict.NOT_LINEARIZABLE
    assert verdict(history, KeyValue()) is expected


def test_a_key_goes_through_its_revisions() -> None:
    history = [
        op(1, 0, 1, Put(K, b"a"), 5),
        op(1, 2, 3, Get(K), (b"a", 5)),
        op(1, 4, 5, PutIf(K, 5, b"b"), 8),
        op(1, 6, 7, PutIf(K, 5, b"c"), None),
        op(1, 8, 9, Delete(K), 9),
        op(1, 10, 11, Get(K), None),
        op(1, 12, 13, PutIf(K, 0, b"d"), 12),
    ]
    assert verdict(history, KeyValue()) is Verdict.LINEARIZABLE
    stale = [*history, op(2, 14, 15, Get(K), (b"b", 8))]
    assert verdict(stale, KeyValue()) is Verdict.NOT_LINEARIZABLE
    backwards = [*history, op(2, 14, 15, Put(K, b"x"), 11)]
    assert verdict(backwards, KeyValue()) is Verdict.NOT_LINEARIZABLE


def test_the_revision_of_a_put_of_unknown_outcome_is_learnt_once() -> None:
    unknown = op(1, 0, None, Put(K, b"a"))
    assert verdict([unknown, op(2, 1, 2, Get(K), (b"a", 7)), op(2, 3, 4, Get(K), (b"a", 7))], KeyValue()) is (
        Verdict.LINEARIZABLE
    )
    assert verdict([unknown, op(2, 1, 2, Get(K), (b"a", 7)), op(2, 3, 4, Get(K), (b"a", 8))], KeyValue()) is (
        Verdict.NOT_LINEARIZABLE
    )


def test_unknown_operations_of_different_kinds_on_one_key_are_not_mistaken_for_each_other() -> None:
    # Get(K) == Delete(K), as tuples: the delete was once hidden behind the get.
    history = [
        op(1, 0, 4, Put(K, b"a"), 2),
        op(2, 1, None, Get(K)),
        op(3, 3, None, Delete(K)),
        op(4, 6, 11, Get(K), None),
    ]
    assert verdict(history, KeyValue()) is Verdict.LINEARIZABLE


def _run_of_a_real_register(rng: random.Random, operations: int, processes: int, lost: float) -> list[Operation]:
    """Linearizable by construction: each operation takes effect at a moment between its call and its return."""
    history: list[Operation] = []
    pending: list[tuple[float, float, float | None, int, Any]] = []
    clock = [0.0] * processes
    for _ in range(operations):
        process = min(range(processes), key=lambda p: clock[p])
        call = clock[process] + rng.random()
        effect = call + rng.random() * 3
        ret = effect + rng.random() * 3
        what = rng.choice([Read(), Write(rng.randrange(5)), Swap(rng.randrange(5), rng.randrange(5))])
        pending.append((effect, call, None if rng.random() < lost else ret, process, what))
        clock[process] = ret
    state: Any = None
    for effect, call, end, process, what in sorted(pending, key=lambda p: p[0]):
        if type(what) is Read:
            result: Any = state
        elif type(what) is Write:
            state, result = what.value, True
        else:
            result = state == what.expected
            state = what.value if result else state
        assert call <= effect
        history.append(op(process, call, end, what, result))
    return history


def test_long_histories_with_many_lost_answers_are_judged_within_the_budget() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        history = _run_of_a_real_register(rng, operations=400, processes=8, lost=0.15)
        assert check(history, Register()).verdict is Verdict.LINEARIZABLE


def test_a_value_out_of_nowhere_in_a_long_history_is_found() -> None:
    rng = random.Random(11)
    history = _run_of_a_real_register(rng, operations=300, processes=6, lost=0.1)
    at = next(n for n, o in enumerate(history) if n > 200 and type(o.op) is Read and o.known)
    broken = history[at]
    history[at] = op(0, broken.call, broken.ret, broken.op, 77)
    assert check(history, Register()).verdict is Verdict.NOT_LINEARIZABLE
