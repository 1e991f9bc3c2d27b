"""The simple types: values to cells and back, byte for byte as the CQL driver writes them.

Where Python's own type can't hold every value of CQL's, the others come as the plain number that CQL uses, and go back
the same way: a `timestamp` outside the years 1 to 9999 as milliseconds since 1970, a `date` as days with 2^31 for 1970,
a `time` that is not in whole microseconds as nanoseconds since midnight.

`True` is no number here and a `float` no decimal: a conversion that would lose or invent something is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from trimtab.catalog import ordering
from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.limits import MAX_NUMBER_BYTES
from trimtab.catalog.values import UUID, Duration, refused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = 1 << 31  # of `date`
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LAST_ORDINAL = date.max.toordinal()
DAY_NS = 86_400 * 10**9
_INT32, _INT64 = 1 << 31, 1 << 63
_TIMEUUID_VERSION = 1


def _wrong_width(name: str, width: int, cell: bytes) -> ValueError:
    return ValueError(f"a cell of {name} has {width} byte{'s' if width > 1 else ''}, not {len(cell)}")


def _unchanged(cell: bytes) -> bytes:
    return cell


def _native(
    kind: Kind,
    width: int | None,
    serialize: Callable[[Any], bytes],
    deserialize: Callable[[bytes], Any],
    validate: Callable[[bytes], None],
    order: Callable[[bytes], Any],
    canonical: Callable[[bytes], bytes] = _unchanged,
) -> Type:
    return Type(kind.value, kind, width, serialize, deserialize, validate, canonical, order, deserialize)


def _width_check(name: str, width: int) -> Callable[[bytes], None]:
    def validate(cell: bytes) -> None:
        if len(cell) != width:
            raise _wrong_width(name, width, cell)

    return validate


def _unpacker(name: str, packer: struct.Struct) -> Callable[[bytes], Any]:
    unpack = packer.unpack

    def deserialize(cell: bytes) -> Any:
        try:
            return unpack(cell)[0]
        except struct.error:
            raise _wrong_width(name, packer.size, cell) from None

    return deserialize


def _whole(kind: Kind, code: str) -> Type:
    packer = struct.Struct(">" + code)
    pack, bits = packer.pack, packer.size * 8
    expected = f"a whole number from {-(1 << bits - 1)} to {(1 << bits - 1) - 1} for {kind.value}"

    def serialize(value: Any) -> bytes:
        if value.__class__ is bool:
            raise refused(expected, value)
        try:
            return pack(value)
        except struct.error:
            raise refused(expected, value) from None

    deserialize = _unpacker(kind.value, packer)
    return _native(
        kind, packer.size, serialize, deserialize, _width_check(kind.value, packer.size), ordering.number(code)
    )


def _floating(kind: Kind, code: str) -> Type:
    packer = struct.Struct(">" + code)
    pack = packer.pack
    expected = f"a number that fits {kind.value}"

    def serialize(value: Any) -> bytes:
        if value.__class__ is bool:
            raise refused(expected, value)
        try:
            return pack(value)
        except (struct.error, OverflowError):
            raise refused(expected, value) from None

    deserialize = _unpacker(kind.value, packer)
    return _native(
        kind, packer.size, serialize, deserialize, _width_check(kind.value, packer.size), ordering.floating(code)
    )


def _serialize_text(value: Any) -> bytes:
    try:
        return str.encode(value)
    except TypeError:
        raise refused("a str for text", value) from None
    except UnicodeEncodeError as error:
        raise ValueError(f"text that UTF-8 can't hold: {error.reason} at character {error.start}") from None


def _deserialize_text(cell: bytes) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"a cell of text that is not UTF-8: {error.reason} at byte {error.start}") from None


def _validate_text(cell: bytes) -> None:
    if not cell.isascii():
        _deserialize_text(cell)


def _serialize_ascii(value: Any) -> bytes:
    try:
        return str.encode(value, "ascii")
    except TypeError:
        raise refused("a str for ascii", value) from None
    except UnicodeEncodeError as error:
        raise ValueError(f"ascii can't hold character {error.start}: {value[error.start]!r}; use text") from None


def _deserialize_ascii(cell: bytes) -> str:
    _validate_ascii(cell)
    return cell.decode("ascii")


def _validate_ascii(cell: bytes) -> None:
    if not cell.isascii():
        raise ValueError("a cell of ascii with bytes above 127; use text")


def _serialize_blob(value: Any) -> bytes:
    if value.__class__ is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise refused("bytes for blob", value)


def _anything(cell: bytes) -> None:
    return None


def _serialize_boolean(value: Any) -> bytes:
    if value is True:
        return b"\x01"
    if value is False:
        return b"\x00"
    if type(value).__name__ in ("bool", "bool_"):  # numpy's, which is not Python's
        return b"\x01" if value else b"\x00"
    raise refused("True or False for boolean", value)


def _deserialize_boolean(cell: bytes) -> bool:
    if len(cell) != 1:
        raise _wrong_width("boolean", 1, cell)
    return cell != b"\x00"


def _validate_boolean(cell: bytes) -> None:
    if cell != b"\x01" and cell != b"\x00":
        raise ValueError(f"a cell of boolean is one byte, 0 or 1, not {cell[:8]!r}")


def _canonical_boolean(cell: bytes) -> bytes:
    return b"\x01" if _deserialize_boolean(cell) else b"\x00"


def pack_varint(value: int) -> bytes:
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _serialize_varint(value: Any) -> bytes:
    if value.__class__ is not int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise refused("a whole number for varint", value)
        value = value.__index__()
    if value.bit_length() >= MAX_NUMBER_BYTES * 8:
        raise ValueError(f"a varint has at most {MAX_NUMBER_BYTES} bytes, not {value.bit_length() // 8 + 1}")
    return pack_varint(value)


def _deserialize_varint(cell: bytes) -> int:
    if not 0 < len(cell) <= MAX_NUMBER_BYTES:
        raise ValueError(f"a cell of varint has 1 to {MAX_NUMBER_BYTES} bytes, not {len(cell)}")
    return int.from_bytes(cell, "big", signed=True)


def _validate_varint(cell: bytes) -> None:
    value = _deserialize_varint(cell)
    if len(cell) > 1 and pack_varint(value) != cell:
        raise ValueError(f"a cell of varint is as short as can be: {len(pack_varint(value))} bytes, not {len(cell)}")


def _canonical_varint(cell: bytes) -> bytes:
    return pack_varint(_deserialize_varint(cell))


def _serialize_decimal(value: Any) -> bytes:
    if not isinstance(value, Decimal):
        if isinstance(value, bool) or not isinstance(value, int):
            raise refused("a Decimal or a whole number for decimal (Decimal('0.1') for 0.1)", value)
        return b"\x00\x00\x00\x00" + _serialize_varint(value)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise refused("a finite Decimal for decimal", value)
    if not -_INT32 <= -exponent < _INT32:
        raise ValueError(f"the exponent of a decimal fits 32 bits, {exponent} does not")
    if len(digits) > MAX_NUMBER_BYTES * 3:
        raise ValueError(f"a decimal has at most {MAX_NUMBER_BYTES} bytes of digits; {len(digits)} digits need more")
    unscaled = int("".join(map(str, digits)))
    return (-exponent).to_bytes(4, "big", signed=True) + _serialize_varint(-unscaled if sign else unscaled)


def _deserialize_decimal(cell: bytes) -> Decimal:
    if len(cell) < 5:
        raise ValueError(f"a cell of decimal has at least 5 bytes (scale and digits), not {len(cell)}")
    scale, unscaled = int.from_bytes(cell[:4], "big", signed=True), _deserialize_varint(cell[4:])
    return Decimal(f"{unscaled}e{-scale}")


def _validate_decimal(cell: bytes) -> None:
    if len(cell) < 5:
        raise ValueError(f"a cell of decimal has at least 5 bytes (scale and digits), not {len(cell)}")
    _validate_varint(cell[4:])


def _canonical_decimal(cell: bytes) -> bytes:
    _deserialize_decimal(cell)
    return cell[:4] + _canonical_varint(cell[4:])


def _serialize_uuid(value: Any) -> bytes:
    if isinstance(value, UUID):
        return value.bytes
    raise refused("a uuid.UUID for uuid", value)


def _deserialize_uuid(cell: bytes) -> UUID:
    if len(cell) != 16:
        raise _wrong_width("uuid", 16, cell)
    return UUID(bytes=bytes(cell))


def _serialize_timeuuid(value: Any) -> bytes:
    # Not `value.version`, which knows none unless the variant is right too. CQL looks at the version alone.
    if isinstance(value, UUID) and (cell := value.bytes)[6] >> 4 == _TIMEUUID_VERSION:
        return cell
    raise refused("a uuid.UUID of version 1 for timeuuid", value)


def _validate_timeuuid(cell: bytes) -> None:
    if len(cell) != 16:
        raise _wrong_width("timeuuid", 16, cell)
    if cell[6] >> 4 != _TIMEUUID_VERSION:
        raise ValueError(f"a timeuuid has version 1, not {cell[6] >> 4}")


def _serialize_timestamp(value: Any) -> bytes:
    if isinstance(value, datetime):
        passed = value - (_NAIVE_EPOCH if value.tzinfo is None else _EPOCH)
    elif isinstance(value, date):
        passed = timedelta(value.toordinal() - _EPOCH_ORDINAL)
    elif isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
        return value.to_bytes(8, "big", signed=True)
    else:
        raise refused("a datetime (UTC unless it says otherwise), or whole milliseconds since 1970", value)
    milliseconds, rest = divmod(passed.microseconds, 1000)
    milliseconds += passed.days * 86_400_000 + passed.seconds * 1000
    # What is finer than a millisecond is cut towards 1970, as the driver does it.
    return (milliseconds + (milliseconds < 0 < rest)).to_bytes(8, "big", signed=True)


def _deserialize_timestamp(cell: bytes) -> datetime | int:
    if len(cell) != 8:
        raise _wrong_width("timestamp", 8, cell)
    at_ms = int.from_bytes(cell, "big", signed=True)
    seconds, rest = divmod(at_ms, 1000)
    try:
        return _EPOCH + timedelta(0, seconds, rest * 1000)
    except OverflowError:
        return at_ms


def _serialize_date(value: Any) -> bytes:
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value.toordinal() - _EPOCH_ORDINAL + _EPOCH_DAY).to_bytes(4, "big")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32:
        return value.to_bytes(4, "big")
    raise refused("a datetime.date (of a datetime: its .date()), or days with 2^31 for 1970-01-01, for date", value)


def _deserialize_date(cell: bytes) -> date | int:
    if len(cell) != 4:
        raise _wrong_width("date", 4, cell)
    days = int.from_bytes(cell, "big")
    ordinal = days - _EPOCH_DAY + _EPOCH_ORDINAL
    return date.fromordinal(ordinal) if 0 < ordinal <= _LAST_ORDINAL else days


def _serialize_time(value: Any) -> bytes:
    if isinstance(value, time) and value.tzinfo is None:
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return (seconds * 10**9 + value.microsecond * 1000).to_bytes(8, "big")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < DAY_NS:
        return value.to_bytes(8, "big")
    raise refused("a datetime.time without a zone, or nanoseconds since midnight, for time", value)


def _deserialize_time(cell: bytes) -> time | int:
    _validate_time(cell)
    of_day_ns = int.from_bytes(cell, "big")
    microseconds, rest = divmod(of_day_ns, 1000)
    if rest:
        return of_day_ns
    minutes, microseconds = divmod(microseconds, 60_000_000)
    return time(minutes // 60, minutes % 60, microseconds // 1_000_000, microseconds % 1_000_000)


def _validate_time(cell: bytes) -> None:
    if len(cell) != 8:
        raise _wrong_width("time", 8, cell)
    if int.from_bytes(cell, "big") >= DAY_NS:
        raise ValueError(f"a time is less than a day ({DAY_NS} nanoseconds) after midnight")


def _serialize_inet(value: Any) -> bytes:
    from ipaddress import IPv4Address, IPv6Address, ip_address

    if isinstance(value, str) and "%" not in value:
        try:
            return ip_address(value).packed
        except ValueError:
            pass
    elif isinstance(value, IPv4Address | IPv6Address):
        return value.packed
    raise refused("an address such as '10.0.0.1' or '::1' for inet", value)


def _deserialize_inet(cell: bytes) -> str:
    _validate_inet(cell)
    if len(cell) == 4:
        return "{}.{}.{}.{}".format(*cell)
    from ipaddress import IPv6Address

    return str(IPv6Address(bytes(cell)))


def _validate_inet(cell: bytes) -> None:
    if len(cell) not in (4, 16):
        raise ValueError(f"a cell of inet has 4 or 16 bytes, not {len(cell)}")


def _pack_vint(value: int) -> bytes:
    """CQL's variable integer: zigzag, the ones that the first byte begins with count the bytes that follow."""
    zigzag = (value << 1) ^ (value >> 63)
    width = max(1, (zigzag.bit_length() + 6) // 7)
    if width > 8:
        return b"\xff" + zigzag.to_bytes(8, "big")
    ones = (0xFF << (9 - width)) & 0xFF
    return (zigzag | ones << 8 * (width - 1)).to_bytes(width, "big")


def _unpack_vint(cell: bytes, start: int) -> tuple[int, int]:
    """The value, and where the next begins."""
    first = cell[start]
    follow = 8 - (~first & 0xFF).bit_length()
    end = start + 1 + follow
    if end > len(cell):
        raise IndexError
    zigzag = int.from_bytes(cell[start:end], "big")
    if follow:
        zigzag &= (1 << 8 * follow + max(0, 7 - follow)) - 1
    return (zigzag >> 1) ^ -(zigzag & 1), end


def _serialize_duration(value: Any) -> bytes:
    try:
        parts = (value.months, value.days, value.nanoseconds)
    except AttributeError:
        raise refused("a Duration(months, days, nanoseconds) for duration", value) from None
    _check_duration(parts, value)
    return b"".join(map(_pack_vint, parts))


def _check_duration(parts: tuple[Any, ...], value: Any) -> None:
    limits = (_INT32, _INT32, _INT64)
    for part, limit in zip(parts, limits, strict=True):
        if not isinstance(part, int) or isinstance(part, bool) or not -limit <= part < limit:
            raise refused("months and days of 32 bits and nanoseconds of 64 for duration", value)
    if min(parts) < 0 < max(parts):
        raise refused("a duration whose parts have one sign", value)


def _deserialize_duration(cell: bytes) -> Duration:
    end, parts = 0, []
    try:
        for _ in range(3):
            part, end = _unpack_vint(cell, end)
            parts.append(part)
    except IndexError:
        raise ValueError("a cell of duration holds three numbers; this one ends before") from None
    if end != len(cell):
        raise ValueError(f"a cell of duration holds three numbers; {len(cell) - end} bytes follow them")
    return Duration(*parts)


def _validate_duration(cell: bytes) -> None:
    if _canonical_duration(cell) != cell:
        raise ValueError("the numbers in a cell of duration are as short as can be; these are not")


def _canonical_duration(cell: bytes) -> bytes:
    return _serialize_duration(_deserialize_duration(cell))


_BYTES = ordering.plain_bytes

NATIVES: dict[Kind, Type] = {
    made.kind: made
    for made in (
        _whole(Kind.TINYINT, "b"),
        _whole(Kind.SMALLINT, "h"),
        _whole(Kind.INT, "i"),
        _whole(Kind.BIGINT, "q"),
        _whole(Kind.COUNTER, "q"),
        _floating(Kind.FLOAT, "f"),
        _floating(Kind.DOUBLE, "d"),
        _native(Kind.TEXT, None, _serialize_text, _deserialize_text, _validate_text, _BYTES),
        _native(Kind.ASCII, None, _serialize_ascii, _deserialize_ascii, _validate_ascii, _BYTES),
        _native(Kind.BLOB, None, _serialize_blob, bytes, _anything, _BYTES),
        _native(
            Kind.BOOLEAN, 1, _serialize_boolean, _deserialize_boolean, _validate_boolean, _BYTES, _canonical_boolean
        ),
        _native(
            Kind.VARINT,
            None,
            _serialize_varint,
            _deserialize_varint,
            _validate_varint,
            _deserialize_varint,
            _canonical_varint,
        ),
        _native(
            Kind.DECIMAL,
            None,
            _serialize_decimal,
            _deserialize_decimal,
            _validate_decimal,
            _deserialize_decimal,
            _canonical_decimal,
        ),
        _native(Kind.UUID, 16, _serialize_uuid, _deserialize_uuid, _width_check("uuid", 16), ordering.uuid),
        _native(Kind.TIMEUUID, 16, _serialize_timeuuid, _deserialize_uuid, _validate_timeuuid, ordering.timeuuid),
        _native(
            Kind.TIMESTAMP,
            8,
            _serialize_timestamp,
            _deserialize_timestamp,
            _width_check("timestamp", 8),
            ordering.number("q"),
        ),
        _native(Kind.DATE, 4, _serialize_date, _deserialize_date, _width_check("date", 4), _BYTES),
        _native(Kind.TIME, 8, _serialize_time, _deserialize_time, _validate_time, _BYTES),
        _native(Kind.INET, None, _serialize_inet, _deserialize_inet, _validate_inet, _BYTES),
        _native(
            Kind.DURATION,
            None,
            _serialize_duration,
            _deserialize_duration,
            _validate_duration,
            _BYTES,
            _canonical_duration,
        ),
    )
}
