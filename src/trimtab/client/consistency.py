"""How a client says what it wants: consistency levels by name, times in seconds, rows as mappings, lists of names.

What is checked here makes no sense for any table: it is refused where it is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from trimtab.client.errors import InvalidRequest
from trimtab.tablets.consistency import Level

Consistency = Literal["ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"]

MAX_TTL_S = 20 * 365 * 86_400  # as in CQL
_MOST = (1 << 63) - 1  # what a message can say
_LEVELS: dict[str, Level] = {level.name: level for level in Level}

T = TypeVar("T")


def level_of(name: Consistency | Level, *, reads: bool = False) -> Level:
    """The level of that name."""
    level: Level | None = None
    if isinstance(name, str):
        level = _LEVELS.get(name) or _LEVELS.get(name.upper())
    elif isinstance(name, Level):
        level = name
    if level is None:
        raise InvalidRequest(
            f"there is no consistency level {name!r}; there are {', '.join(each.name for each in Level)}"
        )
    if reads and level is Level.ANY:
        raise InvalidRequest("nothing can be read at ANY, only written; read at ONE")
    return level


def addresses_of(contact: str | Sequence[str]) -> list[str]:
    """`a:1,b:2`, or several of such."""
    given = [contact] if isinstance(contact, str) else list(iterated(contact, _ADDRESSES))
    if not all(isinstance(each, str) for each in given):
        raise InvalidRequest(f"{_ADDRESSES}, not {contact!r}")
    found = [address.strip() for each in given for address in each.split(",") if address.strip()]
    if not found:
        raise InvalidRequest('connect() needs the address of a member at least: connect("127.0.0.1:3301")')
    return list(dict.fromkeys(found))


_ADDRESSES = 'connect() takes the addresses of members as text: connect("127.0.0.1:3301")'


def checked_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row.__class__ is not dict and not isinstance(row, Mapping):
        raise InvalidRequest(f"a row is given as a mapping of its columns: {{'id': 1, 'name': 'Ada'}}, not {row!r}")
    return row


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    expected = "columns are given as a list of names: ['id', 'name']"
    if isinstance(columns, str):
        raise InvalidRequest(f"{expected}, not as one text {columns!r}")
    names = tuple(iterated(columns, expected))
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"{expected}, not {columns!r}")
    return names


def checked_flag(flag: bool, what: str) -> bool:
    if not isinstance(flag, bool):
        raise InvalidRequest(f"{what} is True or False, not {flag!r}")
    return flag


def iterated(given: Iterable[T], expected: str) -> Iterator[T]:
    """What is to be gone through; what goes wrong on the way is not ours to explain."""
    try:
        return iter(given)
    except TypeError:
        raise InvalidRequest(f"{expected}, not {given!r}") from None


def checked_timeout(timeout: float | None, default_s: float) -> float:
    if timeout is None:
        return default_s
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise InvalidRequest(f"a timeout is a number of seconds above 0, not {timeout!r}")
    return timeout


def checked_ttl(ttl: int | None) -> int | None:
    """None: the table says how long cells live. 0: for ever, whatever the table says."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 0 <= ttl <= MAX_TTL_S:
        raise InvalidRequest(f"ttl is whole seconds, from 1 to {MAX_TTL_S} (20 years), or 0 for ever, not {ttl!r}")
    return ttl


def checked_stamp(timestamp: int | None, what: str = "timestamp") -> int:
    if timestamp is None:
        return 0
    if isinstance(timestamp, bool) or not isinstance(timestamp, int) or not 0 < timestamp <= _MOST:
        raise InvalidRequest(f"{what} is whole microseconds since 1970, above 0, not {timestamp!r}")
    return timestamp


def checked_limit(limit: int | None, what: str = "limit") -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= _MOST:
        raise InvalidRequest(f"{what} is a whole number above 0, and at most {_MOST}, not {limit!r}")
    return limit
