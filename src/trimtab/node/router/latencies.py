"""How fast replicas answer: who is asked first, and when another one is asked as well.

Per replica an exponentially weighted mean; one that does not answer counts as slow for a while. Per table the last
answers, for the percentile that its option `speculative_retry` names: `none`, `always`, `pNN`, `NNms`.
"""

from __future__ import annotations

from collections.abc import Callable

_WEIGHT = 0.2
_SAMPLES = 256
_LOOK_EVERY = 32
_FIRST_GUESS_S = 0.05
_LEAST_WAIT_S = 0.001
_PENALTY_S = 1.0


class Latencies:
    """Of the answers that this node got from replicas."""

    def __init__(self) -> None:
        self._mean_s: dict[int, float] = {}
        self._tables: dict[int, _Answers] = {}

    def answered(self, raft_id: int, table: int, seconds: float) -> None:
        mean = self._mean_s.get(raft_id)
        self._mean_s[raft_id] = seconds if mean is None else mean + _WEIGHT * (seconds - mean)
        answers = self._tables.get(table)
        if answers is None:
            answers = self._tables[table] = _Answers()
        answers.add(seconds)

    def failed(self, raft_id: int) -> None:
        """It did not answer: ask others first until it has answered a few times again."""
        self._mean_s[raft_id] = max(self._mean_s.get(raft_id, 0.0), _PENALTY_S)

    def mean_s(self, raft_id: int) -> float:
        """0 for one that was never asked: then it is, and known."""
        return self._mean_s.get(raft_id, 0.0)

    def patience_s(self, table: int, option: str) -> float | None:
        """How long to wait before another replica is asked too; None: never, 0: at once."""
        rule = _rules.get(option)
        if rule is None:
            rule = _rules[option] = _parse(option)
        return rule(self._tables.get(table))


class _Answers:
    __slots__ = ("_fresh", "_sorted", "_taken", "_times_s")

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._taken = 0
        self._sorted: list[float] = []
        self._fresh = 0

    def add(self, seconds: float) -> None:
        if len(self._times_s) < _SAMPLES:
            self._times_s.append(seconds)
        else:
            self._times_s[self._taken % _SAMPLES] = seconds
        self._taken += 1
        self._fresh += 1

    def percentile(self, part: float) -> float | None:
        if self._fresh >= _LOOK_EVERY:
            self._sorted = sorted(self._times_s)
            self._fresh = 0
        if not self._sorted:
            return None
        return self._sorted[min(int(part * len(self._sorted)), len(self._sorted) - 1)]


_Rule = Callable[[_Answers | None], float | None]
_rules: dict[str, _Rule] = {}


def _parse(option: str) -> _Rule:
    text = option.strip().lower()
    try:
        if text == "none":
            return lambda _answers: None
        if text == "always":
            return lambda _answers: 0.0
        if text.endswith("ms"):
            fixed_s = float(text[:-2]) / 1000
            return lambda _answers: fixed_s
        if text.startswith("p"):
            return _percentile(float(text[1:]) / 100)
    except ValueError:
        pass
    # The catalog checks the option; whatever a newer release may allow must not stop reads here.
    return _percentile(0.99)


def _percentile(part: float) -> _Rule:
    def rule(answers: _Answers | None) -> float | None:
        seconds = answers.percentile(part) if answers is not None else None
        return _FIRST_GUESS_S if seconds is None else max(seconds, _LEAST_WAIT_S)

    return rule
