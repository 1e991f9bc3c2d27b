"""The checker agrees with trying every order, and says why when there is none."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.sim.linearizability import UNKNOWN_RESULT, Budget, Model, Operation, Verdict, check
from trimtab.sim.models import Delete, Get, KeyValue, Put, PutIf, Read, Register, Swap, Write


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


def _keeps_time(order: Sequence[Operation]) -> bool:
    return not any(
        later.ret is not None and later.ret <= operation.call
        for position, operation in enumerate(order)
        for later in order[position + 1 :]
    )


def _is_order(order: Sequence[Operation], model: Model) -> bool:
    state: Any = model.init()
    for operation in order:
        fits, state = model.step(state, operation.op, operation.result)
        if not fits:
            return False
    return _keeps_time(order)


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
    st.tuples(st.builds(Put, st.just(K), st.sampled_from([b"a", b"b", b"c"])), st.integers(1, 4)),
    st.tuples(st.just(Delete(K)), st.integers(0, 4)),
    st.tuples(
        st.builds(PutIf, st.just(K), st.integers(0, 4), st.sampled_from([b"a", b"b"])),
        st.one_of(st.none(), st.integers(1, 4)),
    ),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.tuples(KEY_OPS, TIMES), max_size=5))
def test_the_search_agrees_with_brute_force_on_keys(raw: list[Any]) -> None:
    history = [
        op(number, call, call + length if seen else None, what, result)
        for number, ((what, result), (call, length, seen)) in enumerate(raw)
    ]
    linearizable = verdict(history, KeyValue()) is Verdict.LINEARIZABLE
    assert linearizable == by_brute_force(KeyValue().infer(history), KeyValue())
    # What the model infers takes away no history of a real key, and lets no more pass than the model alone would.
    if by_every_revision(history):
        assert linearizable
    if linearizable:
        assert by_brute_force(history, KeyValue())


def by_every_revision(history: Sequence[Operation]) -> bool:
    """By brute force on a real key: an unknown write makes a revision too, any that is named or one nobody names."""
    named = {o.result[1] if type(o.op) is Get else o.result for o in history if o.known and o.result is not None}
    named |= {o.op.expected for o in history if type(o.op) is PutIf}
    known = [o for o in history if o.known]
    unknown = [o for o in history if not o.known]
    return any(
        _explains(order, named)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *chosen])
        if _keeps_time(order)
    )


def _explains(order: Sequence[Operation], named: set[int]) -> bool:
    states: set[Any] = {KeyValue().init()}
    for operation in order:
        following: set[Any] = set()
        for state in states:
            fits, after = KeyValue().step(state, operation.op, operation.result)
            if fits and after.exact:
                following.add(after)
            elif fits:
                # The lowest that nobody names leaves the most room for what comes later.
                revisions = {state.revision + Fraction(1, 1000)} | {r for r in named if r > state.revision}
                following |= {after._replace(revision=revision, exact=True) for revision in revisions}
        states = following
    return bool(states)


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


def test_a_swap_refused_at_the_revision_that_a_lost_put_turned_out_to_have_made_is_found() -> None:
    lost = op(1, 0, None, Put(K, b"a"))
    there = op(2, 1, 2, PutIf(K, 0, b"b"), None)  # so the put has happened
    refused = op(2, 3, 4, PutIf(K, 7, b"c"), None)
    read = op(2, 5, 6, Get(K), (b"a", 7))
    assert verdict([lost, there, refused, read], KeyValue()) is Verdict.NOT_LINEARIZABLE
    # Another lost put may have been in the way of the first swap, and the one that was read come after the second.
    assert verdict([lost, there, refused, read, op(3, 0, None, Put(K, b"d"))], KeyValue()) is Verdict.LINEARIZABLE


def test_revisions_that_run_against_time_are_explained_by_the_answer_left_behind() -> None:
    explanation = check([op(1, 0, 1, Put(K, b"a"), 5), op(2, 2, 3, Put(K, b"b"), 3)], KeyValue()).explanation
    assert explanation is not None
    assert [step.operation.op for step in explanation.placed] == [Put(K, b"a")]
    assert [o.op for o in explanation.stuck] == [Put(K, b"b")]


def test_an_explanation_shows_what_clients_asked_and_not_what_was_inferred() -> None:
    lost = op(1, 0, None, Put(K, b"a"))
    refused = op(2, 1, 2, PutIf(K, 0, b"b"), None)
    explanation = check([lost, refused, op(2, 3, 4, Get(K), (b"z", 9))], KeyValue()).explanation
    assert explanation is not None
    assert [step.operation for step in explanation.placed] == [lost, refused]


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


def _run_of_a_real_key(rng: random.Random, operations: int, processes: int, lost: float) -> list[Operation]:
    """Linearizable by construction. Each client swaps on the revision it last read, and writes values of its own."""
    pending: list[tuple[float, float, float | None, int, Any]] = []
    clock = [0.0] * processes
    for number in range(operations):
        process = min(range(processes), key=lambda p: clock[p])
        call = clock[process] + rng.random()
        effect = call + rng.random() * 3
        ret = effect + rng.random() * 3
        value = b"%d" % number
        what = rng.choice([Get(K), Get(K), Put(K, value), Put(K, value), PutIf(K, 0, value), Delete(K)])
        # A lost answer may belong to an operation that takes effect much later.
        gone = type(what) is not Get and rng.random() < lost
        pending.append((effect + rng.random() * 40 if gone else effect, call, None if gone else ret, process, what))
        clock[process] = ret
    history: list[Operation] = []
    state, revision = KeyValue().init(), 0
    read = [0] * processes
    for _, call, end, process, what in sorted(pending, key=lambda p: p[0]):
        deed, result = what, None
        if type(what) is Get:
            result = None if state.value is None else (state.value, state.revision)
            read[process] = state.revision if state.value is not None else 0
        else:
            if type(what) is PutIf:
                deed = what._replace(expected=read[process])
            at = 0 if state.value is None else state.revision
            if type(deed) is Put or (type(deed) is PutIf and deed.expected == at) or (type(deed) is Delete and at):
                revision += 1
                state = state._replace(value=None if type(deed) is Delete else deed.value, revision=revision)
                result = revision
            elif type(deed) is Delete:
                result = revision
        history.append(op(process, call, end, deed, result))
    return history


def test_a_key_with_many_lost_writes_is_judged_in_a_few_steps() -> None:
    # Simulated runs with dozens of lost writes on one key once spent 200,000 steps without an answer.
    for seed in range(20):
        history = _run_of_a_real_key(random.Random(seed), operations=500, processes=8, lost=0.4)
        report = check(history, KeyValue(), Budget(20_000))
        assert report.verdict is Verdict.LINEARIZABLE, f"seed {seed}: {report}"


def test_a_lost_update_among_many_lost_answers_is_found() -> None:
    history = _run_of_a_real_key(random.Random(3), operations=500, processes=8, lost=0.4)
    reads = [n for n, o in enumerate(history) if n > 400 and type(o.op) is Get and o.result is not None]
    at, old = reads[-1], next(o for o in history if type(o.op) is Get and o.result is not None)
    history[at] = op(0, history[at].call, history[at].ret, Get(K), old.result)
    assert check(history, KeyValue(), Budget(20_000)).verdict is Verdict.NOT_LINEARIZABLE
