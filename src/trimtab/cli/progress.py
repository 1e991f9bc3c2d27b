"""What a person sees while a command waits: a line for each thing it waits for, gone when the wait is over.

On standard error, and only on a terminal: standard output is the result, and a log file wants no moving picture.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live


class Progress:
    """`with Progress() as progress: progress.show({"i1": "Online"})`."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lines: Mapping[str, str]) -> None:
        """Show these lines in the place of those before."""
        if self._live is None:
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, text in lines.items():
            grid.add_row(Text(name, style="bold"), Text(text))
        grid.add_row(Text(f"{time.monotonic() - self._began:.0f} s", style="dim"), "")
        self._live.update(grid)
