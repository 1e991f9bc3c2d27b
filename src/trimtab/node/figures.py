"""Numbers about one part of an instance, as that part gives them when somebody asks: for metrics.

Whoever has some appends a callable to the instance's `samplers`; nothing is counted for the sake of it. Names are
without the `trimtab_` that all of them get; a counter's is without `_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One number. Samples of one name have the same label names."""

    name: str
    text: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    counter: bool = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """How often something took how long: `counts` up to each limit and above the one before; the last: longer."""

    name: str
    text: str
    limits: Sequence[float]
    counts: Sequence[int]
    total: float


Sampler = Callable[[], Iterable[Sample | Distribution]]
