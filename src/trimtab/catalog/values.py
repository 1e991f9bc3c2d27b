"""Values that Python has no type of its own for, and how a value that was refused is shown.

This module is the only one of the core that knows Python's `uuid`: as a type of values. No uuid is made here.
"""

from __future__ import annotations

import reprlib
from typing import Any, NamedTuple
from uuid import UUID

__all__ = ["UUID", "Duration", "refused", "shown"]

_SHOWN_BITS = 256
_SHOWN_CHARACTERS = 80


class Duration(NamedTuple):
    """CQL's duration. A month has no fixed number of days and a day none of hours, so the three stay apart."""

    months: int = 0
    days: int = 0
    nanoseconds: int = 0

    def __str__(self) -> str:
        """As CQL writes it: `1mo2d3ns`. The parts have one sign, which stands in front."""
        sign = "-" if min(self) < 0 else ""
        parts = [f"{abs(number)}{unit}" for number, unit in zip(self, ("mo", "d", "ns"), strict=True) if number]
        return sign + "".join(parts) if parts else "0ns"


def shown(value: Any) -> str:
    """A value for an error message: short whatever it is, with its type."""
    name = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    try:
        text = reprlib.repr(value)
    except Exception:  # a stranger's repr; the message is about the type then
        return f"a value of type {name}"
    return f"{text[:_SHOWN_CHARACTERS]} ({name})"


def refused(expected: str, value: Any) -> ValueError:
    return ValueError(f"expected {expected}, got {shown(value)}")
