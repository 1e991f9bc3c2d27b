"""Where records of a CSV end: at line ends that are not inside quotes. Exactly as Arrow's parser sees it.

A quote opens a value only where a field begins, and a doubled one inside of it is one that belongs to the value. Where
all quotes stand as they should, every other one opens, and whole blocks are looked at at once; else value by value. A
text has to begin with a record: whoever cuts a file makes sure of that, by the `open_at` of the part before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

_END = ord("\n")
AFTER_QUOTE = "there is text after a closing quote; a quote inside a value is doubled"
NOT_CLOSED = "there is a quote that is not closed"


@dataclass(frozen=True)
class Records:
    """Whole records. `ends`: the places after them, None where each line is one. `wrong`: reasons, by their numbers."""

    data: bytes
    ends: Sequence[int] | None = None
    wrong: dict[int, str] = field(default_factory=dict)

    def bounds(self) -> list[int]:
        """From where to where each record goes."""
        import numpy as np

        ends = self.ends
        if ends is None:
            ends = (np.flatnonzero(np.frombuffer(self.data, np.uint8) == _END) + 1).tolist()
        found = [0, *ends]
        return found if found[-1] == len(self.data) else [*found, len(self.data)]


@dataclass(frozen=True)
class Split:
    """Whole records, and what is left of the text after them. `open_at`: where a quote opens that is not closed.

    `spans_lines`: there are values with line ends in them.
    """

    records: Records
    rest: bytes
    open_at: int | None = None
    spans_lines: bool = False


def lines(data: bytes) -> Split:
    whole, end, rest = data.rpartition(b"\n")
    return Split(Records(whole + end), rest)


def split(data: bytes, delimiter: bytes, quote: bytes) -> Split:
    """The records of a text that begins with one."""
    import numpy as np

    if quote not in data:
        return lines(data)
    octets = np.frombuffer(data, np.uint8)
    places = np.flatnonzero((octets == ord(quote)) | (octets == _END))
    is_quote = octets[places] == ord(quote)
    quotes, ends = places[is_quote], places[~is_quote]
    after_quote = np.empty(0, np.int64)
    if _regular(octets, quotes, delimiter, quote):
        # As many quotes before a line end as make it odd: one is open.
        inside = (np.cumsum(is_quote, dtype=np.int32)[~is_quote] & 1).astype(bool)
        open_at = int(quotes[-1]) if len(quotes) % 2 else None
    else:
        starts, stops, after_quote, open_at = _one_by_one(data, delimiter, quote)
        inside = np.searchsorted(starts, ends) > np.searchsorted(stops, ends)
    if not inside.any() and open_at is None and not len(after_quote):
        return lines(data)
    found = ends[~inside] + 1
    cut = int(found[-1]) if len(found) else 0
    wrong = dict.fromkeys(np.searchsorted(found, after_quote, side="right").tolist(), AFTER_QUOTE)
    wrong.pop(len(found), None)  # what has no end yet is looked at again when there is more of it
    return Split(Records(data[:cut], found.tolist(), wrong), data[cut:], open_at, bool(inside.any()))


def _regular(octets: NDArray[np.uint8], quotes: Places, delimiter: bytes, quote: bytes) -> bool:
    """Whether each quote that opens follows, and each that closes precedes, the edge of a field or another quote."""
    import numpy as np

    edges = np.zeros(256, bool)
    edges[[*delimiter, *quote, *b"\r\n"]] = True
    starts, stops = quotes[::2], quotes[1::2]
    before = starts[1:] if len(starts) and not starts[0] else starts
    after = stops[:-1] if len(stops) and stops[-1] == len(octets) - 1 else stops
    return bool(edges[octets[before - 1]].all() and edges[octets[after + 1]].all())


def _one_by_one(data: bytes, delimiter: bytes, quote: bytes) -> tuple[Places, Places, Places, int | None]:
    """Where quoted values begin and end, where text follows one, and where one begins that does not end."""
    import numpy as np

    starts, stops, wrong = [], [], []
    open_at = None
    edges = delimiter + b"\r\n"
    for found in _quoted(delimiter, quote).finditer(data):
        starts.append(found.start())
        if not found[1]:
            open_at = found.start()
            break
        stops.append(found.end() - 1)
        if found.end() < len(data) and data[found.end()] not in edges:
            wrong.append(found.start())
    return np.array(starts, np.int64), np.array(stops, np.int64), np.array(wrong, np.int64), open_at


@cache
def _quoted(delimiter: bytes, quote: bytes) -> re.Pattern[bytes]:
    one, edge = re.escape(quote), re.escape(delimiter)
    return re.compile(rb"(?:\A|(?<=[%b\r\n]))%b[^%b]*+(?:%b%b[^%b]*+)*+(%b?)" % (edge, *(one,) * 6))
