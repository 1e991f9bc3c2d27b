"""What the demo did and found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Act:
    """One thing that was done: how long it took (None: that is not the point), and what was measured."""

    what: str
    seconds: float | None
    figure: str = ""


@dataclass(frozen=True)
class Outcome:
    """Of acknowledged rows none may be lost or changed, and all replicas of a tablet hold the same."""

    acts: list[Act]
    rows: int
    writes: int
    reads: int
    failed: int
    wrong: int
    errors: list[str]
    replicas_equal: bool
    rows_equal: bool
    killed: str
    peers: list[str]
    seconds: float

    @property
    def good(self) -> bool:
        return self.replicas_equal and self.rows_equal and self.wrong == 0
