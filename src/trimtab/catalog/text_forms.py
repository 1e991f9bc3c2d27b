"""Values as people type and read them: JSON, and the plain words of a command line.

JSON says what it can say exactly and uses strings for the rest, in CQL's own notation: `0x00ff` for a blob, ISO 8601 in
UTC for times, `1mo2d` for a duration, digits in a string for a decimal (its zeros count), `"NaN"` where JSON has no
number. The keys of a map are text. On a command line a simple value is typed without quotes, all others as JSON.

Whatever `to_json` writes, `from_json` reads back as the same value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec

from trimtab.catalog.cql_type import NESTED, Kind, Type
from trimtab.catalog.values import UUID, Duration, refused

_WHOLE = re.compile(r"[+-]?[0-9]{1,2466}", re.ASCII)
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?", re.ASCII)
_DURATION = re.compile(r"(-?)((?:[0-9]{1,20}(?:mo|ms|us|µs|ns|y|w|d|h|m|s))+)", re.ASCII | re.IGNORECASE)
_PART = re.compile(r"([0-9]+)([a-zµ]+)", re.IGNORECASE)
# Unit -> which part of a duration it counts in, and how much it is there.
_UNITS = {
    "y": (0, 12),
    "mo": (0, 1),
    "w": (1, 7),
    "d": (1, 1),
    "h": (2, 3_600_000_000_000),
    "m": (2, 60_000_000_000),
    "s": (2, 1_000_000_000),
    "ms": (2, 1_000_000),
    "us": (2, 1_000),
    "µs": (2, 1_000),
    "ns": (2, 1),
}
_WHOLES = frozenset((Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.COUNTER, Kind.VARINT))
_FLOATS = frozenset((Kind.FLOAT, Kind.DOUBLE))


def to_json(given: Type, value: Any) -> Any:
    if value is None:
        return None
    kind = given.kind
    if kind is Kind.LIST:
        return [to_json(given.elements[0], each) for each in value]
    if kind is Kind.SET:
        cells = given.elements[0]
        in_order = sorted(value, key=lambda each: (cells.order(cells.serialize(each)), cells.serialize(each)))
        return [to_json(cells, each) for each in in_order]
    if kind is Kind.MAP:
        entries = value if isinstance(value, tuple) else value.items()
        return {to_text(given.elements[0], key): to_json(given.elements[1], each) for key, each in entries}
    if kind is Kind.TUPLE:
        return [to_json(element, each) for element, each in zip(given.elements, value, strict=False)]
    if kind is Kind.USER:
        fields = value if isinstance(value, dict) else dict(zip(given.fields, value, strict=False))
        return {
            name: to_json(element, fields.get(name)) for name, element in zip(given.fields, given.elements, strict=True)
        }
    if kind in _FLOATS:
        return value if math.isfinite(value) else _no_number(value)
    shape = _SHOWN.get(kind)
    return shape(value) if shape else value


def from_json(given: Type, data: Any) -> Any:
    """The value that JSON data stands for; ValueError if it stands for none of this type."""
    if data is None:
        return None
    kind = given.kind
    if kind not in NESTED:
        return _from_plain(given, data)
    elements = given.elements
    if kind in (Kind.LIST, Kind.SET, Kind.TUPLE):
        if not isinstance(data, list):
            raise refused(f"a JSON array for {given.name}", data)
        if kind is Kind.TUPLE:
            if len(data) > len(elements):
                raise ValueError(f"{given.name} has {len(elements)} components, not {len(data)}")
            found = [from_json(element, each) for element, each in zip(elements, data, strict=False)]
            return tuple(found + [None] * (len(elements) - len(found)))
        return _back(given, [from_json(elements[0], each) for each in data])
    if not isinstance(data, dict):
        raise refused(f"a JSON object for {given.name}", data)
    if kind is Kind.MAP:
        pairs = tuple(
            (_hashable(elements[0], from_text(elements[0], k)), from_json(elements[1], v)) for k, v in data.items()
        )
        return _back(given, pairs)
    if unknown := [key for key in data if key not in given.fields]:
        raise ValueError(f"{given.name} has no field '{unknown[0][:80]}'; its fields are {', '.join(given.fields)}")
    return {name: from_json(element, data.get(name)) for name, element in zip(given.fields, elements, strict=True)}


def to_text(given: Type, value: Any) -> str:
    shown = to_json(given, value)
    if isinstance(shown, str) and given.kind not in NESTED:
        return shown
    return msgspec.json.encode(shown).decode()


def from_text(given: Type, text: str) -> Any:
    """What was typed for a value of this type; ValueError, saying what to type, if it can't be one."""
    if given.kind in NESTED:
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            raise refused(f"JSON for {given.name}", text) from None
        return from_json(given, data)
    read = _READ.get(given.kind)
    return read(text) if read else text


def _from_plain(given: Type, data: Any) -> Any:
    """A simple value. Numbers may come as strings too: not every writer of JSON has numbers as long as ours."""
    kind = given.kind
    if isinstance(data, str):
        return from_text(given, data)
    if isinstance(data, bool):
        if kind is Kind.BOOLEAN:
            return data
    elif isinstance(data, int):
        if kind in _WHOLES or kind in (Kind.TIMESTAMP, Kind.DATE, Kind.TIME):
            return data
        if kind in _FLOATS:
            return _float(str(data))
        if kind is Kind.DECIMAL:
            return Decimal(data)
    elif isinstance(data, float):
        if kind in _FLOATS:
            return data
        if kind is Kind.DECIMAL:
            return Decimal(repr(data))
    raise refused(_EXPECTED[kind], data)


def _back(given: Type, value: Any) -> Any:
    """Through the cell, so that it has the form and the checks of every other value of the type."""
    return given.deserialize(given.serialize(value))


def _hashable(given: Type, value: Any) -> Any:
    return given.hashable(given.serialize(value))


def _no_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _show_timestamp(value: datetime | date | int) -> Any:
    if isinstance(value, int):
        return value
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _show_time(value: time | int) -> str:
    if isinstance(value, int):
        seconds, rest_ns = divmod(value, 10**9)
    else:
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        rest_ns = value.microsecond * 1000
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest_ns:09}"


def _show_date(value: date | int) -> Any:
    return value if isinstance(value, int) else value.isoformat()


_SHOWN: dict[Kind, Callable[[Any], Any]] = {
    Kind.BLOB: lambda value: "0x" + bytes(value).hex(),
    Kind.DATE: _show_date,
    Kind.DECIMAL: str,
    Kind.DURATION: lambda value: str(Duration(value.months, value.days, value.nanoseconds)),
    Kind.INET: str,
    Kind.TIME: _show_time,
    Kind.TIMESTAMP: _show_timestamp,
    Kind.TIMEUUID: str,
    Kind.UUID: str,
}


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise refused("a whole number", text)
    return int(text)


def _float(text: str) -> float:
    try:
        found = float(text)
    except (ValueError, OverflowError):
        raise refused("a number", text) from None
    if math.isinf(found) and any(each.isdigit() for each in text):
        raise refused("a number that fits a double", text)  # and not one that becomes infinite on the way
    return found


def _boolean(text: str) -> bool:
    lower = text.strip().lower()
    if lower not in ("true", "false"):
        raise refused("true or false", text)
    return lower == "true"


def _blob(text: str) -> bytes:
    if text[:2].lower() == "0x":
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass
    raise refused("hexadecimal digits after 0x for blob, such as 0x00ff", text)


def _decimal(text: str) -> Decimal:
    try:
        found = Decimal(text.strip())
    except ArithmeticError:
        raise refused("a decimal number such as 12.50", text) from None
    if not found.is_finite():
        raise refused("a finite decimal number", text)
    return found


def _uuid(text: str) -> UUID:
    try:
        return UUID(text.strip())
    except ValueError:
        raise refused("a uuid such as 6ba7b810-9dad-11d1-80b4-00c04fd430c8", text) from None


def _timestamp(text: str) -> datetime | int:
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise refused("a time such as 2024-05-01T12:30:00Z, or milliseconds since 1970", text) from None


def _date(text: str) -> date | int:
    text = text.strip()
    try:
        return date.fromisoformat(text) if "-" in text[1:] else _whole(text)
    except ValueError:
        raise refused("a date such as 2024-05-01, or days with 2147483648 for 1970-01-01", text) from None


def _time(text: str) -> time | int:
    text = text.strip()
    if found := _TIME.fullmatch(text):
        hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
        if hour < 24 and minute < 60 and second < 60:
            rest_ns = int((found[4] or "").ljust(9, "0"))
            if rest_ns % 1000 == 0:
                return time(hour, minute, second, rest_ns // 1000)
            return (hour * 3600 + minute * 60 + second) * 10**9 + rest_ns
    elif _WHOLE.fullmatch(text):
        return int(text)
    raise refused("a time such as 12:30:00.123456789", text)


def _duration(text: str) -> Duration:
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise refused("a duration such as 1y2mo3w4d5h6m7s8ms9us10ns, with at least one part", text)
    parts = [0, 0, 0]
    for number, unit in _PART.findall(found[2]):
        which, factor = _UNITS[unit.lower()]
        parts[which] += int(number) * factor
    return Duration(*(-part if found[1] else part for part in parts))


_READ: dict[Kind, Callable[[str], Any]] = {
    **dict.fromkeys(_WHOLES, _whole),
    **dict.fromkeys(_FLOATS, _float),
    Kind.BLOB: _blob,
    Kind.BOOLEAN: _boolean,
    Kind.DATE: _date,
    Kind.DECIMAL: _decimal,
    Kind.DURATION: _duration,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMEUUID: _uuid,
    Kind.UUID: _uuid,
}
_EXPECTED = {kind: f"a JSON value for {kind.value}" for kind in Kind}
