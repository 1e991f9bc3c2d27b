from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.cli.screen import Screen, acts_table


@pytest.fixture
def screen() -> Screen:
    """One that nobody sees: no terminal."""
    made = Screen(stderr=False, picture=True)
    made.console = Console(file=io.StringIO(), width=80, highlight=False)
    return made


def said(screen: Screen) -> str:
    assert isinstance(screen.console.file, io.StringIO)
    return screen.console.file.getvalue()


def test_what_happened_is_a_line_with_its_time_and_the_text_stays_right_of_it(screen: Screen) -> None:
    with screen:
        screen.tell("word " * 30)
    lines = said(screen).splitlines()
    assert re.match(r" +\d+\.\d s  word", lines[0]) and lines[1].startswith("         word")


def test_without_a_terminal_progress_is_a_line_now_and_then(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [100.0]
    monkeypatch.setattr("trimtab.cli.screen.time.monotonic", lambda: moments[0])
    screen._began = screen._said = 100.0
    with screen:
        for _ in range(20):
            moments[0] += 1
            screen.show("tablets move", 0.5, "3 of 6")
    assert [line.strip() for line in said(screen).splitlines()] == [
        f"{passed}.0 s  … tablets move 50% · 3 of 6" for passed in (5, 10, 15, 20)
    ]


def test_on_a_terminal_progress_moves_and_is_gone_in_the_end(screen: Screen) -> None:
    screen.console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with screen:
        screen.show("tablets move", None, "3 of 6")
        screen.show("tablets move", 0.5, "4 of 6")
    assert "tablets move" in said(screen) and said(screen).rstrip("\x1b[?25h").endswith("\x1b[2K")


def test_a_picture_has_what_was_told_and_fetches_nothing(screen: Screen, tmp_path: Path) -> None:
    with screen:
        screen.tell("a node joins")
        screen.show("tablets move", 0.5, "3 of 6")
        screen.print(acts_table([("a node joins", "1.5 s", "12 MB")]))
    screen.save(tmp_path / "demo.svg", "./trimtab demo")
    drawn = (tmp_path / "demo.svg").read_text()
    assert "a&#160;node&#160;joins" in drawn and "tablets&#160;move" not in drawn
    assert "@font-face" not in drawn and "url(http" not in drawn
