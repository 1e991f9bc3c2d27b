"""A run told to a reader: when, who, what; and for a failure which invariant broke, with the evidence."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.sim.run import Outcomes

LAST_LINES = 40


def lines(story: Iterable[tuple[float, str, str]]) -> list[str]:
    """One line for each thing that happened; further lines of a text are indented below it."""
    told = []
    for at_s, who, text in story:
        first, *rest = text.splitlines() or [""]
        told.append(f"{at_s:11.6f}  {who:<8} {first}")
        told += [f"{'':21} {line}" for line in rest]
    return told


def tell(outcome: Outcomes) -> str:
    """The whole story of a run."""
    return "\n".join([*lines(outcome.story), "", verdict(outcome)])


def verdict(outcome: Outcomes) -> str:
    """The end of the story: passed, or what is wrong and how to see it again."""
    cost = f"{outcome.events} events, {outcome.virtual_s:.1f} s of virtual time, {outcome.cpu_s:.2f} s of CPU"
    if outcome.passed:
        return f"seed {outcome.seed} passed: {outcome.summary} ({cost})"
    told = [f"seed {outcome.seed} FAILED: {outcome.why} ({cost})"]
    if outcome.evidence:
        told += ["evidence:", *(f"  {line}" for line in outcome.evidence.splitlines())]
    return "\n".join(told)


def failure(outcome: Outcomes) -> str:
    """A failure among many seeds: the verdict, the last lines before it, and the command that replays it."""
    last = lines(outcome.story)[-LAST_LINES:]
    return "\n".join(
        [
            verdict(outcome),
            f"the last {len(last)} lines of its story:",
            *(f"  {line}" for line in last),
            f"replay it with: trimtab sim --seed {outcome.seed} --scenario {outcome.scenario}",
        ]
    )
