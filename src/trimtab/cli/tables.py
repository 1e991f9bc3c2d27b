"""How commands draw tables: without frames, columns that are names never broken, wide enough where nobody measures.

On a terminal a table is as wide as that. In a file or a pipe nothing is cut: there is no width there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 240


def console() -> Console:
    """Standard output."""
    from rich.console import Console

    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=_WIDE)


def table(*columns: str, wraps: Collection[str] = ()) -> Table:
    """A table whose columns are kept whole, except for those in `wraps`: sentences that may take several lines."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=column not in wraps, overflow="fold" if column in wraps else "ellipsis")
    return made
