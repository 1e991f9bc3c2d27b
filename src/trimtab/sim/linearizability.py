"""Is a history of concurrent operations explained by one order of them? A search after Wing, Gong and Lowe.

An operation takes effect at one moment between its call and its return. The search builds an order from the front: any
operation that was called before the first return among those not yet placed may come next, if the model allows its
result in the state so far. A configuration (which operations are placed, and the state) that was met before is not
tried again. Histories are split by the model's partition (usually the key) first: each part is judged by itself.

What keeps it small:

- An operation that only observes, such as a read or a failed swap, is placed as soon as it fits, without a choice: any
  order that has it later is still an order when it is moved here. That a write happens to leave the state as it is does
  not make it one of these: later it may be needed to bring its value back.
- An operation of *unknown* outcome may take effect at any moment after its call, or never. It is only placed where it
  changes the state. Of equal ones the first called is used first: it can stand wherever the others can.
- A configuration that used more unknown operations than one that was tried before, with the rest equal, has fewer
  choices left and is not tried.
- A model may know how far a state has come, on a scale that never goes back, and how far is too far for an answer. An
  order that leaves such an operation behind is given up at once, not when its return comes up.
- A model may tell from the whole history what became of an operation of unknown outcome, before the search begins.

The answer is LINEARIZABLE, NOT_LINEARIZABLE with an explanation, or UNKNOWN when the budget is spent: never a guess.
There is no clock here: a caller that wants a deadline passes a function.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol


class _Unknown(enum.Enum):
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "?"


UNKNOWN_RESULT = _Unknown.UNKNOWN  # the result of an operation whose outcome nobody saw
NEVER_TOO_LATE = float("inf")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a client. Times are any numbers that order calls and returns; nobody knows the return of an
    operation of unknown outcome, so it has none and its result is UNKNOWN_RESULT."""

    process: object
    call: float
    ret: float | None
    op: Hashable
    result: Any

    @property
    def known(self) -> bool:
        return self.result is not UNKNOWN_RESULT and self.ret is not None

    def __str__(self) -> str:
        until = "?" if self.ret is None else f"{self.ret:g}"
        return f"process {self.process} [{self.call:g}..{until}] {self.op} -> {self.result!r}"


class Model(Protocol):
    """A sequential object. States are immutable and hashable, and `step` is a function."""

    def partition(self, op: Any) -> Hashable:
        """Operations with different answers here have nothing to do with each other."""
        ...

    def init(self) -> Hashable: ...

    def step(self, state: Any, op: Any, result: Any) -> tuple[bool, Hashable]:
        """Whether `op` may answer `result` in this state, and the state after it. UNKNOWN_RESULT always may."""
        ...

    def observes(self, op: Any, result: Any) -> bool:
        """Whether `op` with this result changes nothing in *any* state it fits in, beyond what is known of it."""
        ...

    def progress(self, state: Any) -> float:
        """How far this state has come. No operation may lower it."""
        ...

    def latest(self, op: Any, result: Any) -> float:
        """The progress past which `op` can't answer `result` any more, or NEVER_TOO_LATE."""
        ...

    def infer(self, part: Sequence[Operation]) -> Sequence[Operation]:
        """The operations of one part, in the same places, with what all of them together tell about each: only what
        follows from the answers, so that a history of the real object has an order before and after."""
        ...


class Verdict(enum.Enum):
    LINEARIZABLE = "linearizable"
    NOT_LINEARIZABLE = "not linearizable"
    UNKNOWN = "unknown"


class Placed(NamedTuple):
    """A step of a partial order: the operation and the state after it."""

    operation: Operation
    state: Hashable


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part of a history has no order: the longest one that was found, and what could not come after it."""

    partition: Hashable
    placed: tuple[Placed, ...]
    state: Hashable
    stuck: tuple[Operation, ...]  # could come next by time, or was left behind; the model refuses their results
    deadline: Operation | None  # the one that had returned by then, and so can't be put off

    def __str__(self) -> str:
        lines = [f"part {self.partition!r} has no order; the longest found places {len(self.placed)} operations:"]
        shown = self.placed[-20:]
        if len(shown) < len(self.placed):
            lines.append(f"  ... {len(self.placed) - len(shown)} before these")
        lines += [f"  {step.operation}   then the state is {step.state!r}" for step in shown]
        lines.append(f"in state {self.state!r} none of these fits:")
        lines += [f"  {operation}" for operation in self.stuck]
        if self.deadline is not None:
            lines.append(f"and {self.deadline} has returned: whatever comes later is too late for it")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    verdict: Verdict
    steps: int
    explanation: Explanation | None = None

    def __str__(self) -> str:
        text = f"{self.verdict.value} after {self.steps} steps"
        return text if self.explanation is None else f"{text}\n{self.explanation}"


class Budget:
    """How much work may be spent, over all parts of a history. `out_of_time` is asked now and then."""

    def __init__(self, max_steps: int = 2_000_000, out_of_time: Callable[[], bool] | None = None) -> None:
        self.left = max_steps
        self.spent = 0
        self._out_of_time = out_of_time

    def spend(self) -> bool:
        """Whether there was a step left to take."""
        if self.left <= 0:
            return False
        self.left -= 1
        self.spent += 1
        if self._out_of_time is not None and not self.spent & 0x3FF and self._out_of_time():
            self.left = 0
        return True


def check(history: Iterable[Operation], model: Model, budget: Budget | None = None) -> Report:
    """Judge a whole history. A part that has no order decides, even if another one could not be finished."""
    budget = budget or Budget()
    parts: dict[Hashable, list[Operation]] = {}
    for operation in history:
        parts.setdefault(model.partition(operation.op), []).append(operation)
    unfinished = False
    # Short parts first: they are cheap, and a violation there makes the best story.
    for key, part in sorted(parts.items(), key=lambda item: len(item[1])):
        verdict, explanation = _Search(key, part, model, budget).run()
        if verdict is Verdict.NOT_LINEARIZABLE:
            return Report(verdict, budget.spent, _shortest(key, part, model, explanation))
        unfinished = unfinished or verdict is Verdict.UNKNOWN
    return Report(Verdict.UNKNOWN if unfinished else Verdict.LINEARIZABLE, budget.spent)


def _shortest(
    key: Hashable, part: list[Operation], model: Model, explanation: Explanation | None
) -> Explanation | None:
    """The explanation of the shortest beginning of the history that has no order.

    A beginning of a history that has an order has one too, so the first bad return is found by halving. What had not
    returned by then counts as unknown.
    """
    returns = sorted(operation.ret for operation in part if operation.known and operation.ret is not None)
    good, bad = -1, len(returns) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        verdict, found = _Search(key, _until(part, returns[middle]), model, Budget(200_000)).run()
        if verdict is Verdict.NOT_LINEARIZABLE:
            bad, explanation = middle, found
        else:
            good = middle  # or too hard to tell: then the explanation is only longer than it could be
    return explanation


def _until(part: list[Operation], time: float) -> list[Operation]:
    begun = (operation for operation in part if operation.call < time)
    return [o if o.ret is not None and o.ret <= time else replace(o, ret=None, result=UNKNOWN_RESULT) for o in begun]


class _Search:
    """The search over one part. Events of known operations form a ring; placed operations are lifted out of it."""

    def __init__(self, key: Hashable, part: Sequence[Operation], model: Model, budget: Budget) -> None:
        self._key = key
        self._step = model.step
        self._initial = model.init()
        self._budget = budget
        self._progress = model.progress
        inferred = model.infer(part)
        # Explanations show what clients saw, not what was made of it.
        self._seen = {id(made): seen for made, seen in zip(inferred, part, strict=True)}
        self._known = sorted((o for o in inferred if o.known), key=_call)
        count = len(self._known)
        # Events: 2i + 1 is the call of operation i, 2i + 2 its return, 0 the head of the ring. At equal times a return
        # goes before another's call: a client that calls again at once did see its first answer.
        timed: list[tuple[float, int, int]] = []
        for number, operation in enumerate(self._known):
            assert operation.ret is not None
            timed.append((operation.call, 1, 2 * number + 1))
            timed.append((operation.ret, 0 if operation.ret > operation.call else 2, 2 * number + 2))
        timed.sort()
        order = [0, *(event for _, _, event in timed)]
        self._next = [0] * (2 * count + 1)
        self._previous = [0] * (2 * count + 1)
        for position, event in enumerate(order):
            self._next[event] = order[(position + 1) % len(order)]
            self._previous[event] = order[position - 1]
        # Operations of unknown outcome, equal ones together, first called first. One more bit each in the `used` set.
        classes: dict[Hashable, list[Operation]] = {}
        for operation in sorted((o for o in inferred if not o.known), key=_call):
            # With its type: tuples of different types may be equal.
            classes.setdefault((type(operation.op), operation.op), []).append(operation)
        self._classes = list(classes.values())
        self._used = [0] * len(self._classes)
        self._offset = [sum(len(c) for c in self._classes[:n]) for n in range(len(self._classes))]
        self._used_bits = 0
        self._placed_bits = 0
        self._order: list[Placed] = []
        self._moves: list[int] = []
        self._best: tuple[int, tuple[Placed, ...], Hashable, list[int]] | None = None
        self._observes = [model.observes(operation.op, operation.result) for operation in self._known]
        self._tried: dict[tuple[int, Hashable], list[int]] = {}
        # Known operations that can come too late, the most urgent first. Those not placed have their bit in `waiting`.
        latest = [model.latest(operation.op, operation.result) for operation in self._known]
        self._urgent = sorted((n for n in range(count) if latest[n] < NEVER_TOO_LATE), key=latest.__getitem__)
        self._latest = [latest[number] for number in self._urgent]
        self._urgency = [0] * count
        for position, number in enumerate(self._urgent):
            self._urgency[number] = 1 << position
        self._waiting = (1 << len(self._urgent)) - 1

    def run(self) -> tuple[Verdict, Explanation | None]:
        state = self._initial
        # Each frame: how long the order was before it, and the choices it has left.
        frames: list[tuple[int, list[tuple[int, Hashable]]]] = [(0, self._choices(state))]
        if self._next[0] == 0:
            return Verdict.LINEARIZABLE, None
        while frames:
            before, choices = frames[-1]
            if not choices:
                frames.pop()
                self._take_back(before)
                continue
            if not self._budget.spend():
                return Verdict.UNKNOWN, None
            choice, state = choices.pop()
            length = len(self._order)
            self._place(choice, state)
            if not self._is_too_late(state) and self._is_new(state):
                more = self._choices(state)
                if self._next[0] == 0:
                    return Verdict.LINEARIZABLE, None
                frames.append((length, more))
            else:
                self._take_back(length)
        return Verdict.NOT_LINEARIZABLE, self._explain()

    def _choices(self, state: Hashable) -> list[tuple[int, Hashable]]:
        """Place what needs no choice; then all that could come next, best last. Negative: a class of unknown ones."""
        following, step, known = self._next, self._step, self._known
        candidates: list[tuple[int, Hashable]] = []
        event = following[0]
        while event & 1:  # calls, up to the first return; the head of the ring is even too
            number = event >> 1
            operation = known[number]
            fits, after = step(state, operation.op, operation.result)
            if fits and after == state and self._observes[number]:
                # Go on from the one before: the event after this one may be its own return, and that is lifted too.
                event = self._previous[event]
                self._place(number, state)
            elif fits:
                candidates.append((number, after))
            event = following[event]
        self._remember(state, lambda: self._in_the_way(event))
        first_return = self._time_of_return(event)
        unknown: list[tuple[int, Hashable]] = []
        for number, members in enumerate(self._classes):
            used = self._used[number]
            if used < len(members) and members[used].call < first_return:
                fits, after = step(state, members[used].op, UNKNOWN_RESULT)
                if fits and after != state:
                    unknown.append((-number - 1, after))
        # Taken from the end: known operations in order of their call, then unknown ones.
        unknown.reverse()
        candidates.reverse()
        return unknown + candidates

    def _time_of_return(self, event: int) -> float:
        if event == 0:
            return float("inf")
        ret = self._known[(event >> 1) - 1].ret
        assert ret is not None
        return ret

    def _is_too_late(self, state: Hashable) -> bool:
        """Whether an operation that must still be placed can't follow this state, whatever comes in between."""
        if not self._waiting:
            return False
        first = (self._waiting & -self._waiting).bit_length() - 1
        if self._latest[first] >= self._progress(state):
            return False
        self._remember(state, lambda: [self._urgent[first]])
        return True

    def _is_new(self, state: Hashable) -> bool:
        """Whether this configuration leaves a chance that none tried before had."""
        tried = self._tried.setdefault((self._placed_bits, state), [])
        used = self._used_bits
        for earlier in tried:
            if earlier & used == earlier:
                return False
        tried.append(used)
        return True

    def _place(self, choice: int, state: Hashable) -> None:
        if choice < 0:
            number = -choice - 1
            used = self._used[number]
            self._used[number] = used + 1
            self._used_bits |= 1 << (self._offset[number] + used)
            self._order.append(Placed(self._classes[number][used], state))
        else:
            self._placed_bits |= 1 << choice
            self._waiting &= ~self._urgency[choice]
            for event in (2 * choice + 1, 2 * choice + 2):
                previous, following = self._previous[event], self._next[event]
                self._next[previous] = following
                self._previous[following] = previous
            self._order.append(Placed(self._known[choice], state))
        self._moves.append(choice)

    def _take_back(self, length: int) -> None:
        """Undo placements until the order has this length again. Events go back exactly where they were lifted from."""
        while len(self._order) > length:
            self._order.pop()
            choice = self._moves.pop()
            if choice < 0:
                number = -choice - 1
                self._used[number] -= 1
                self._used_bits &= ~(1 << (self._offset[number] + self._used[number]))
            else:
                self._placed_bits &= ~(1 << choice)
                self._waiting |= self._urgency[choice]
                for event in (2 * choice + 2, 2 * choice + 1):
                    self._next[self._previous[event]] = event
                    self._previous[self._next[event]] = event

    def _remember(self, state: Hashable, in_the_way: Callable[[], list[int]]) -> None:
        """Keep the longest order met, for the explanation."""
        placed = self._placed_bits.bit_count()
        if self._best is None or placed > self._best[0]:
            self._best = (placed, tuple(self._order), state, in_the_way())

    def _in_the_way(self, stop: int) -> list[int]:
        """The operations called before the first return, and last the one that returned."""
        waiting: list[int] = []
        event = self._next[0]
        while event & 1:
            waiting.append(event >> 1)
            event = self._next[event]
        if stop:
            waiting.append((stop >> 1) - 1)
        return waiting

    def _explain(self) -> Explanation | None:
        if self._best is None:
            return None
        _, order, state, waiting = self._best
        seen = self._seen
        stuck = tuple(seen[id(self._known[number])] for number in dict.fromkeys(waiting))
        deadline = seen[id(self._known[waiting[-1]])] if waiting else None
        placed = tuple(Placed(seen[id(step.operation)], step.state) for step in order)
        return Explanation(self._key, placed, state, stuck, deadline)


def _call(operation: Operation) -> float:
    return operation.call
