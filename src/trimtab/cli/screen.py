"""A story on the screen: a line for everything that has happened, and below them what is under way.

On a terminal the last part moves and is gone in the end. Elsewhere (a file, a pipe, a build server) it is a plain line
every few seconds, so that whoever looks knows that something goes on. What is kept as a picture has the lines alone.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_WIDTH = 100  # of a picture
_WIDE = 140  # in a file nothing is cut, but a line should be readable
_EVERY_S = 5.0
_BAR = 30


class Screen:
    """`with Screen(...) as screen:`; it is a `Teller` of the demo. `stderr`: standard output is for a result."""

    def __init__(self, *, stderr: bool, picture: bool) -> None:
        import io

        from rich.console import Console

        self.console = Console(stderr=stderr, highlight=False)
        if not self.console.is_terminal:
            self.console = Console(stderr=stderr, highlight=False, width=_WIDE)
        self._kept = Console(record=True, file=io.StringIO(), width=_WIDTH, highlight=False) if picture else None
        self._live: Live | None = None
        self._began = time.monotonic()
        self._said = time.monotonic()

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self.console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print(self, what: RenderableType) -> None:
        """Something that stays."""
        self.console.print(what)
        if self._kept is not None:
            self._kept.print(what)

    def tell(self, line: str) -> None:
        from rich.table import Table

        # The text of a long line stays to the right of the time.
        grid = Table.grid(padding=(0, 2))
        grid.add_row(f"[cyan]{time.monotonic() - self._began:5.1f} s[/]", line)
        self.print(grid)
        self._said = time.monotonic()

    def show(self, what: str, share: float | None, beside: str) -> None:
        passed_s = time.monotonic() - self._began
        if self._live is None:
            if time.monotonic() - self._said >= _EVERY_S:
                self._said = time.monotonic()
                done = "" if share is None else f" {share:.0%}"
                self.console.print(
                    f"{passed_s:5.1f} s  … {what}{done}{f' · {beside}' if beside else ''}", style="dim", soft_wrap=True
                )
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = ProgressBar(1.0, share or 0.0, width=_BAR, pulse=share is None, animation_time=passed_s)
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text(f"{passed_s:5.1f} s", "cyan"), bar, Text(what, "bold"))
        self._live.update(Group(grid, Text(f"         {beside}", "dim")))

    def save(self, picture: Path, title: str) -> None:
        """What was printed and told, as an SVG image."""
        assert self._kept is not None
        drawn = self._kept.export_svg(title=title)
        # Without the fonts that rich would have a viewer fetch from elsewhere; any monospace font will do.
        picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S))


def acts_table(rows: list[tuple[str, str, str]]) -> Any:
    """What was done, how long it took, and what was measured."""
    from trimtab.cli.drawing import table

    made = table("what was done", "took", "measured", wraps=("what was done", "measured"))
    made.columns[1].justify = "right"
    for row in rows:
        made.add_row(*row)
    return made
