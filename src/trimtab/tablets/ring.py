"""The ring of tokens, cut into tablets.

Tokens are those of Cassandra's Murmur3: whole numbers from -2^63 + 1 to 2^63 - 1. A table has 2^k tablets. The tablet
of a token is read off its k upper bits, so every token has exactly one, and twice as many tablets cut each of them in
two halves. A tablet covers the tokens after the last one of the tablet before it, up to and with its own last one.
"""

from __future__ import annotations

from typing import NamedTuple

MIN_TOKEN = -(1 << 63)  # no key has it: it is the end before the first token
MAX_TOKEN = (1 << 63) - 1
MAX_TABLETS = 1 << 14  # of one table: all are placed at once, and their replicas fit into one command
MIN_CHOSEN = 8
MAX_CHOSEN = 4096
TABLETS_PER_INSTANCE = 4


class TokenRange(NamedTuple):
    """Tokens after `first`, up to and with `last`."""

    first: int
    last: int

    def covers(self, token: int) -> bool:
        return self.first < token <= self.last


def tablet_of(token: int, count: int) -> int:
    """The tablet that holds this token, of a table with so many."""
    return (token - MIN_TOKEN) >> (65 - count.bit_length())


def last_token(tablet: int, count: int) -> int:
    """The greatest token of a tablet."""
    return MIN_TOKEN - 1 + ((tablet + 1) << (65 - count.bit_length()))


def token_range(tablet: int, count: int) -> TokenRange:
    """The tokens that a tablet covers."""
    return TokenRange(last_token(tablet - 1, count) if tablet else MIN_TOKEN, last_token(tablet, count))


def tablets_between(first: int | None, last: int | None, count: int) -> range:
    """The tablets that hold tokens after `first` (None: from the beginning) and up to `last` (None: to the end)."""
    low = MIN_TOKEN if first is None else first
    high = MAX_TOKEN if last is None else last
    if low >= high:
        return range(0)
    return range(tablet_of(low + 1, count), tablet_of(high, count) + 1)


def wrong_count(count: int) -> str | None:
    """Why a table can't have so many tablets; None if it can."""
    if 0 < count <= MAX_TABLETS and count & (count - 1) == 0:
        return None
    if not 0 < count <= MAX_TABLETS:
        return f"a table has from 1 to {MAX_TABLETS} tablets, not {count}"
    below = 1 << (count.bit_length() - 1)
    return f"the number of tablets must be a power of two, and {count} is none; take {below} or {2 * below}"


def choose_count(instances: int) -> int:
    """How many tablets a table gets where nobody says: enough for so many instances to share them evenly."""
    wanted = max(TABLETS_PER_INSTANCE * instances, MIN_CHOSEN)
    return min(1 << (wanted - 1).bit_length(), MAX_CHOSEN)
