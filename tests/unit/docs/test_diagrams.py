"""Documents that show the state tables show them as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.tablets.diagrams import SECTIONS
from trimtab.topology import diagrams

DOCS = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_the_diagrams_in_a_document_are_those_of_the_tables(document: Path) -> None:
    assert diagrams.stale_sections(document.read_text(), SECTIONS) == []


def test_some_document_has_a_diagram() -> None:
    text = "".join(document.read_text() for document in DOCS)
    for name in ("node states", "tablet stages"):
        assert f"<!-- {name}: begin -->" in text
