"""How commands draw tables: without frames, columns that are names never broken, wide enough where nobody measures.

On a terminal a table is as wide as that; one that can't be drawn whole leaves out columns (`Fitting`), because half a
name is worse than none. In a file or a pipe nothing is cut: there is no width there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_WIDE = 240
_LONG_WORD = 60


def console() -> Console:
    """Standard output."""
    from rich.console import Console

    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=_WIDE)


def table(*columns: str, wraps: Collection[str] = ()) -> Table:
    """A table whose columns are kept whole, except for those in `wraps`: sentences that may take several lines."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in columns:
        made.add_column(column, no_wrap=column not in wraps, overflow="fold" if column in wraps else "ellipsis")
    return made


def in_bytes(count: int) -> str:
    """A number of bytes, as short as a table wants it."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


@dataclass(frozen=True)
class Fitting:
    """A table that leaves out columns, in the order of `drops`, until the others fit in the width there is.

    Columns in `wraps` may take several lines, but are broken only between words, and need at least that much width.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Text]]
    drops: Sequence[str]
    wraps: Mapping[str, int] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        made = self._table(shown)
        for column in self.drops:
            if console.measure(made, options=options.update(max_width=_WIDE)).minimum <= options.max_width:
                break
            if column in shown:
                shown.remove(column)
                made = self._table(shown)
        yield made

    def _table(self, columns: Sequence[str]) -> Table:
        made = table(*columns, wraps=self.wraps.keys())
        for drawn, column in zip(made.columns, columns, strict=True):
            cells = [row[column] for row in self.rows]
            if column in self.wraps:
                words = [len(word) for cell in cells for word in cell.plain.split()]
                # An endless word is broken rather than allowed to push everything else out.
                drawn.min_width = max(self.wraps[column], min(max(words, default=0), _LONG_WORD))
            else:
                drawn.min_width = max((cell.cell_len for cell in cells), default=0)
        for row in self.rows:
            made.add_row(*(row[column] for column in columns))
        return made
