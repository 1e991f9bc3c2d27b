"""Pictures of the state tables, made from the tables: documents that hold them can't be out of date.

`section(name)` is what a document holds between `<!-- name: begin -->` and `<!-- name: end -->`; `stale_sections`
compares, `with_sections` renews.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from trimtab.topology.barriers import RoundState
from trimtab.topology.grades import CHANGES, LADDER, Grade
from trimtab.topology.states import FOLLOWING, NodeState

_State = TypeVar("_State", bound=Enum)


def node_states() -> str:
    """How the state of a node may change, as a Mermaid diagram."""
    return _mermaid(FOLLOWING, NodeState.NONE)


def node_state_table() -> str:
    """The same as a table."""
    return _table("state", "may become", FOLLOWING)


def grades() -> str:
    """How the current grade of an instance may change, as a Mermaid diagram."""
    return _mermaid(CHANGES, Grade.OFFLINE)


def grade_table() -> str:
    """The same as a table, and the ladder."""
    ladder = " → ".join(grade.value for grade in LADDER)
    return f"{_table('current grade', 'may become', CHANGES)}\n\nThe ladder: {ladder}."


def barrier() -> str:
    """The states of a barrier as its leader sees it."""
    steps = (
        f"    [*] --> {RoundState.WAITING.value}",
        f"    {RoundState.WAITING.value} --> {RoundState.PASSED.value}: all answered",
        f"    {RoundState.WAITING.value} --> {RoundState.RAISE_FENCE.value}: all answered or skipped",
        f"    {RoundState.RAISE_FENCE.value} --> {RoundState.WAITING.value}: fence written, the others once more",
        f"    {RoundState.PASSED.value} --> [*]",
    )
    return "\n".join(("```mermaid", "stateDiagram-v2", *steps, "```"))


SECTIONS: dict[str, Callable[[], str]] = {
    "node states": node_states,
    "node state table": node_state_table,
    "grades": grades,
    "grade table": grade_table,
    "barrier": barrier,
}


Sections = Mapping[str, Callable[[], str]]


def section(name: str, sections: Sections = SECTIONS) -> str:
    return f"<!-- {name}: begin -->\n{sections[name]()}\n<!-- {name}: end -->"


def with_sections(document: str, sections: Sections = SECTIONS) -> str:
    """The document with every section that it has made anew."""
    for name in sections:
        document = section(name, sections).join(_marked(name).split(document))
    return document


def stale_sections(document: str, sections: Sections = SECTIONS) -> list[str]:
    """The sections in the document that are not what the tables say; those it does not have don't count."""
    return [name for name in sections for found in _marked(name).findall(document) if found != section(name, sections)]


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(f"<!-- {re.escape(name)}: begin -->.*?<!-- {re.escape(name)}: end -->", re.DOTALL)


def _mermaid(following: Mapping[_State, frozenset[_State]], first: _State) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    order = list(following)
    for state in order:
        lines += [f"    {state.value} --> {after.value}" for after in order if after in following[state]]
        if not following[state]:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join((*lines, "```"))


def _table(left: str, right: str, following: Mapping[_State, frozenset[_State]]) -> str:
    order = list(following)
    lines = [f"| {left} | {right} |", "| --- | --- |"]
    for state in order:
        after = ", ".join(other.value for other in order if other in following[state]) or "nothing: it is final"
        lines.append(f"| {state.value} | {after} |")
    return "\n".join(lines)
