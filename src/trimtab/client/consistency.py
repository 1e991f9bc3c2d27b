"""How a client says what it wants: consistency levels by name, times in seconds, addresses as one text or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trimtab.client.errors import InvalidRequest
from trimtab.tablets.consistency import Level

Consistency = Literal["ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"]

MAX_TTL_S = 20 * 365 * 86_400  # as in CQL
_MAX_STAMP_US = (1 << 63) - 1
_LEVELS: dict[object, Level] = {level.name: level for level in Level} | {level: level for level in Level}


def level_of(name: Consistency | Level, *, reads: bool = False) -> Level:
    """The level of that name."""
    level = _LEVELS.get(name)
    if level is None and isinstance(name, str):
        level = _LEVELS.get(name.upper())
    if level is None:
        raise InvalidRequest(
            f"there is no consistency level {name!r}; there are {', '.join(each.name for each in Level)}"
        )
    if reads and level is Level.ANY:
        raise InvalidRequest("nothing can be read at ANY, only written; read at ONE")
    return level


def addresses_of(contact: str | Sequence[str]) -> list[str]:
    """`a:1,b:2`, or several of such."""
    given = [contact] if isinstance(contact, str) else list(contact)
    found = [address.strip() for each in given for address in each.split(",") if address.strip()]
    if not found:
        raise InvalidRequest('connect() needs the address of a member at least: connect("127.0.0.1:3301")')
    return list(dict.fromkeys(found))


def checked_timeout(timeout: float | None, default_s: float) -> float:
    if timeout is None:
        return default_s
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise InvalidRequest(f"a timeout is a number of seconds above 0, not {timeout!r}")
    return timeout


def checked_ttl(ttl: int | None) -> int:
    if ttl is None:
        return 0
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 0 <= ttl <= MAX_TTL_S:
        raise InvalidRequest(f"ttl is whole seconds, from 1 to {MAX_TTL_S} (20 years; 0 is none), not {ttl!r}")
    return ttl


def checked_stamp(timestamp: int | None, what: str = "timestamp") -> int:
    if timestamp is None:
        return 0
    if isinstance(timestamp, bool) or not isinstance(timestamp, int) or not 0 < timestamp <= _MAX_STAMP_US:
        raise InvalidRequest(f"{what} is whole microseconds since 1970, above 0, not {timestamp!r}")
    return timestamp


def checked_limit(limit: int | None, what: str = "limit") -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidRequest(f"{what} is a whole number above 0, not {limit!r}")
    return limit
