"""Diagrams: every state and every step of the tables is in the picture, and stale documents are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.topology import diagrams
from trimtab.topology.grades import CHANGES
from trimtab.topology.states import FOLLOWING

DOCS = Path(__file__).parents[3] / "docs"


def test_the_picture_of_node_states_is_the_table() -> None:
    arrows = {
        tuple(part.strip() for part in line.split("-->"))
        for line in diagrams.node_states().splitlines()
        if "-->" in line
    }
    expected = {(state.value, after.value) for state, following in FOLLOWING.items() for after in following}
    assert arrows == expected | {("[*]", "none"), ("left", "[*]")}


def test_the_picture_of_grades_is_the_table() -> None:
    drawn = diagrams.grades()
    for grade, following in CHANGES.items():
        for after in following:
            assert f"    {grade.value} --> {after.value}\n" in drawn
    assert "Expelled --> [*]" in drawn
    assert "| Expelled | nothing: it is final |" in diagrams.grade_table()
    assert "Offline → RaftSynced → Replicated → ShardingInitialized → Online" in diagrams.grade_table()


@pytest.mark.parametrize("name", sorted(diagrams.SECTIONS))
def test_sections_are_renewed_in_place_and_the_rest_is_left_alone(name: str) -> None:
    document = f"# Title\n\n<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n\nThe end.\n"
    assert diagrams.stale_sections(document) == [name]
    renewed = diagrams.with_sections(document)
    assert diagrams.stale_sections(renewed) == []
    assert renewed == f"# Title\n\n{diagrams.section(name)}\n\nThe end.\n"
    assert diagrams.with_sections(renewed) == renewed


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_documents_show_the_tables_as_they_are(page: Path) -> None:
    stale = diagrams.stale_sections(page.read_text("utf-8"))
    assert not stale, f"{page.name} is out of date in {stale}: renew it with trimtab.topology.diagrams.with_sections"
