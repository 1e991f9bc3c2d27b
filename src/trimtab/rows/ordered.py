"""Cells as bytes that sort like CQL sorts their values, and back.

An encoding is never the beginning of another one of its type, so that columns can simply follow each other in a key and
compare one after the other. A descending column is the same with every byte complemented.

    tinyint ... bigint, timestamp, time    big endian, sign flipped        date    as it is: CQL's days are unsigned
    float, double    the bits, flipped so that -0.0 < 0.0 < NaN            boolean as it is
    uuid             version first, then time where there is one           timeuuid   time, then signed bytes
    text, ascii, blob, inet    00 becomes 00 FF, the end is 00 00
    varint           how long it is (the longer, the further from zero), then its bytes
    decimal          sign, power of ten, digits two by two up to 00
    list, set, map   01 before each element (of a map: key, value), 00 at the end
    tuple, user type 02 before each component, 01 for one that is absent, 00 at the end; so a type can get new fields

Order in CQL is no identity: 1.0 and 1.00 sort as one value, and all that is no number does. As a clustering key they
must be one row, so those columns hold the shortest form, and read as that. In partition keys bytes count: the token is
made of them. There, and inside collections, encodings are *exact* (what differs follows the rest) and come back
byte for byte. A user type that lacks its last fields equals one in which they are absent; the same rule holds.

Cells must be valid for their type before they come here. What comes back from `decode` is not trusted: it may lie on a
disk, so anything that `encode` can't have made raises BadRow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from trimtab.catalog.cql_type import Kind, Type
from trimtab.rows.errors import BadRow

Encode = Callable[[bytes], bytes]
Decode = Callable[[bytes, int], tuple[bytes, int]]

INVERT = bytes(byte ^ 0xFF for byte in range(256))
_FLIPPED_SIGN = [bytes((byte ^ 0x80,)) for byte in range(256)]
_FLIP = bytes(byte ^ 0x80 for byte in range(256))
_SIGN_FLIPPED = frozenset((Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.COUNTER, Kind.TIMESTAMP, Kind.TIME))
_ESCAPED = frozenset((Kind.TEXT, Kind.ASCII, Kind.BLOB, Kind.INET))
NOT_IN_KEYS = frozenset((Kind.DURATION, Kind.COUNTER))


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode(encoded, start)` gives the cell, and where the next column begins. `width` if it is always the same."""

    encode: Encode
    decode: Decode
    width: int | None = None


def codec(column_type: Type, *, descending: bool = False, exact: bool = False) -> Codec:
    """Both ways for one column of a key."""
    if column_type.kinds & NOT_IN_KEYS:
        raise ValueError(f"{column_type.name} has no order, so it can't be in a key")
    made = _codec(column_type, exact, {})
    return _descending(made) if descending else made


def _codec(column_type: Type, exact: bool, inner: dict[int, Codec]) -> Codec:
    """`inner` holds what was made for parts of the type: user types may share theirs many times over."""

    def part(each: Type) -> Codec:
        known = inner.get(id(each))
        if known is None:
            known = inner[id(each)] = _codec(each, True, inner)
        return known

    kind = column_type.kind
    if kind in _SIGN_FLIPPED:
        assert column_type.fixed_width is not None
        return _sign_flipped(column_type.fixed_width)
    if kind in _ESCAPED:
        return Codec(_encode_bytes, _decode_bytes)
    if kind in (Kind.DATE, Kind.BOOLEAN):
        assert column_type.fixed_width is not None
        return _as_it_is(column_type.fixed_width)
    if kind is Kind.FLOAT:
        return _floating(4, exact)
    if kind is Kind.DOUBLE:
        return _floating(8, exact)
    if kind is Kind.UUID:
        return Codec(_encode_uuid, _decode_uuid, 16)
    if kind is Kind.TIMEUUID:
        return Codec(_encode_timeuuid, _decode_timeuuid, 16)
    if kind is Kind.VARINT:
        return Codec(_encode_varint, _decode_varint)
    if kind is Kind.DECIMAL:
        return _decimal(exact)
    if kind in (Kind.LIST, Kind.SET, Kind.MAP):
        return _collection([part(each) for each in column_type.elements])
    if kind in (Kind.TUPLE, Kind.USER):
        return _components([part(each) for each in column_type.elements], exact)
    raise ValueError(f"{column_type.name} has no order, so it can't be in a key")


def _descending(ascending: Codec) -> Codec:
    forward, back, width = ascending.encode, ascending.decode, ascending.width

    def encode(cell: bytes) -> bytes:
        return forward(cell).translate(INVERT)

    def decode(encoded: bytes, start: int) -> tuple[bytes, int]:
        cell, end = back((encoded[start:] if width is None else encoded[start : start + width]).translate(INVERT), 0)
        return cell, start + end

    return Codec(encode, decode, width)


def _short(encoded: bytes, start: int, width: int) -> BadRow:
    return BadRow(f"a key ends inside a column: {max(0, len(encoded) - start)} of {width} bytes are there")


def _sign_flipped(width: int) -> Codec:
    flipped = _FLIPPED_SIGN

    def encode(cell: bytes) -> bytes:
        return flipped[cell[0]] + cell[1:]

    def decode(encoded: bytes, start: int) -> tuple[bytes, int]:
        end = start + width
        if end > len(encoded):
            raise _short(encoded, start, width)
        return flipped[encoded[start]] + encoded[start + 1 : end], end

    return Codec(encode, decode, width)


def _as_it_is(width: int) -> Codec:
    def encode(cell: bytes) -> bytes:
        return cell

    def decode(encoded: bytes, start: int) -> tuple[bytes, int]:
        end = start + width
        if end > len(encoded):
            raise _short(encoded, start, width)
        return encoded[start:end], end

    return Codec(encode, decode, width)


def _floating(width: int, exact: bool) -> Codec:
    unpack = Struct(">f" if width == 4 else ">d").unpack
    no_number = bytes.fromhex("7fc00000" if width == 4 else "7ff8000000000000")

    def encode(cell: bytes) -> bytes:
        if not exact:
            (value,) = unpack(cell)
            if value != value:
                cell = no_number
        return cell.translate(INVERT) if cell[0] & 0x80 else _FLIPPED_SIGN[cell[0]] + cell[1:]

    def decode(encoded: bytes, start: int) -> tuple[bytes, int]:
        end = start + width
        if end > len(encoded):
            raise _short(encoded, start, width)
        cell = encoded[start:end]
        return (_FLIPPED_SIGN[cell[0]] + cell[1:] if cell[0] & 0x80 else cell.translate(INVERT)), end

    return Codec(encode, decode, width)


def _encode_bytes(cell: bytes) -> bytes:
    return cell.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _decode_bytes(encoded: bytes, start: int) -> tuple[bytes, int]:
    end = encoded.find(b"\x00\x00", start)
    if end < 0:
        raise BadRow("a key ends inside a column: there is no end of its text or bytes")
    cell = encoded[start:end]
    if b"\x00" in cell:
        plain = cell.replace(b"\x00\xff", b"\x00")
        if cell.count(b"\x00") != cell.count(b"\x00\xff"):
            raise BadRow("a zero byte that is not escaped in a column of a key")
        return plain, end + 2
    return cell, end + 2


def _encode_uuid(cell: bytes) -> bytes:
    if cell[6] >> 4 == 1:
        return cell[6:8] + cell[4:6] + cell[:4] + cell[8:]
    upper = int.from_bytes(cell[:8], "big")
    return ((upper >> 12 & 0xF) << 60 | upper >> 16 << 12 | upper & 0xFFF).to_bytes(8, "big") + cell[8:]


def _decode_uuid(encoded: bytes, start: int) -> tuple[bytes, int]:
    end = start + 16
    if end > len(encoded):
        raise _short(encoded, start, 16)
    rest = encoded[start + 8 : end]
    if encoded[start] >> 4 == 1:
        return encoded[start + 4 : start + 8] + encoded[start + 2 : start + 4] + encoded[start : start + 2] + rest, end
    upper = int.from_bytes(encoded[start : start + 8], "big")
    version, others, low = upper >> 60, upper >> 12 & (1 << 48) - 1, upper & 0xFFF
    return (others << 16 | version << 12 | low).to_bytes(8, "big") + rest, end


def _encode_timeuuid(cell: bytes) -> bytes:
    return cell[6:8] + cell[4:6] + cell[:4] + cell[8:].translate(_FLIP)


def _decode_timeuuid(encoded: bytes, start: int) -> tuple[bytes, int]:
    end = start + 16
    if end > len(encoded):
        raise _short(encoded, start, 16)
    made_at = encoded[start + 4 : start + 8] + encoded[start + 2 : start + 4] + encoded[start : start + 2]
    return made_at + encoded[start + 8 : end].translate(_FLIP), end


_SHORT_VARINT = 0x7E  # the longest that has its length in the first byte


def _encode_varint(cell: bytes) -> bytes:
    size, negative = len(cell), cell[0] & 0x80
    if size <= _SHORT_VARINT:
        return bytes((0x7F - size if negative else 0x80 + size,)) + cell
    length = size.to_bytes(4, "big")
    return (b"\x00" + length.translate(INVERT) if negative else b"\xff" + length) + cell


def _decode_varint(encoded: bytes, start: int) -> tuple[bytes, int]:
    if start >= len(encoded):
        raise _short(encoded, start, 1)
    first, start = encoded[start], start + 1
    negative = first < 0x80
    if first in (0x00, 0xFF):
        length = encoded[start : start + 4]
        size, start = int.from_bytes(length.translate(INVERT) if negative else length, "big"), start + 4
    else:
        size = 0x7F - first if negative else first - 0x80
    end = start + size
    cell = encoded[start:end]
    if not size or len(cell) != size or (cell[0] >= 0x80) is not negative:
        raise BadRow("a number of a key whose length or sign contradicts its bytes")
    return cell, end


_NEGATIVE, _ZERO, _POSITIVE = b"\x01", b"\x02", b"\x03"
_POWER = Struct(">Q")


def _decimal(exact: bool) -> Codec:
    def encode(cell: bytes) -> bytes:
        scale, unscaled = int.from_bytes(cell[:4], "big", signed=True), int.from_bytes(cell[4:], "big", signed=True)
        if unscaled == 0:
            encoded = _ZERO
        else:
            digits = str(abs(unscaled))
            power = len(digits) - scale
            digits = digits.rstrip("0")
            if len(digits) & 1:
                digits += "0"
            body = _POWER.pack(power + (1 << 63)) + bytes(
                [int(digits[at : at + 2]) + 1 for at in range(0, len(digits), 2)]
            )
            encoded = (_NEGATIVE + (body + b"\x00").translate(INVERT)) if unscaled < 0 else _POSITIVE + body + b"\x00"
        return encoded + cell[:4] if exact else encoded

    def decode(encoded: bytes, start: int) -> tuple[bytes, int]:
        sign = encoded[start : start + 1]
        if sign == _ZERO:
            unscaled, scale, end = 0, 0, start + 1
        elif sign in (_NEGATIVE, _POSITIVE):
            body = encoded[start + 1 :] if sign == _POSITIVE else encoded[start + 1 :].translate(INVERT)
            stop = body.find(b"\x00", 8)
            if stop < 9 or any(not 0 < pair <= 100 for pair in body[8:stop]):
                raise BadRow("a decimal of a key that does not end, or has no digits")
            digits = "".join([f"{pair - 1:02}" for pair in body[8:stop]])
            power = _POWER.unpack_from(body)[0] - (1 << 63)
            unscaled, scale, end = int(digits), len(digits) - power, start + stop + 2
            if digits[-1] == "0":
                unscaled, scale = unscaled // 10, scale - 1
            if sign == _NEGATIVE:
                unscaled = -unscaled
        else:
            raise BadRow("a decimal of a key without a sign")
        if exact:
            written = encoded[end : end + 4]
            if len(written) < 4:
                raise _short(encoded, end, 4)
            more = int.from_bytes(written, "big", signed=True) - scale
            if unscaled and not 0 <= more <= _LONGEST_DECIMAL:
                raise BadRow("a decimal of a key whose scale contradicts its digits")
            unscaled, end = unscaled * 10**more if unscaled else 0, end + 4
        else:
            # A power of ten too far out for CQL's scale has zeros among its digits instead.
            if scale < -(1 << 31):
                unscaled, scale = unscaled * 10 ** min(-(1 << 31) - scale, _LONGEST_DECIMAL), -(1 << 31)
            if scale >= 1 << 31:
                raise BadRow("a decimal of a key that is closer to zero than any decimal")
            written = scale.to_bytes(4, "big", signed=True)
        return written + _shortest(unscaled), end

    return Codec(encode, decode)


_LONGEST_DECIMAL = 4096  # digits: more than any number of the catalog's greatest width has


def _shortest(value: int) -> bytes:
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


_LENGTH = Struct(">i")
_MORE, _END = b"\x01", b"\x00"


def _collection(elements: list[Codec]) -> Codec:
    """Element after element; a map's keys and values take turns."""
    turns = len(elements)

    def encode(cell: bytes) -> bytes:
        parts, at = [], 4
        (count,) = _LENGTH.unpack_from(cell)
        for _ in range(count):
            parts.append(_MORE)
            for element in elements:
                (size,) = _LENGTH.unpack_from(cell, at)
                parts.append(element.encode(cell[at + 4 : at + 4 + size]))
                at += 4 + size
        parts.append(_END)
        return b"".join(parts)

    def decode(encoded: bytes, at: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        while (mark := encoded[at : at + 1]) == _MORE:
            at += 1
            for element in elements:
                cell, at = element.decode(encoded, at)
                parts += (_LENGTH.pack(len(cell)), cell)
        if mark != _END:
            raise BadRow("a collection of a key that does not end")
        return _LENGTH.pack(len(parts) // 2 // turns) + b"".join(parts), at + 1

    return Codec(encode, decode)


_GIVEN, _ABSENT = b"\x02", b"\x01"
_NO_VALUE = b"\xff\xff\xff\xff"


def _components(elements: list[Codec], exact: bool) -> Codec:
    def encode(cell: bytes) -> bytes:
        parts, at, end = [], 0, len(cell)
        for element in elements:
            if at >= end:
                break
            (size,) = _LENGTH.unpack_from(cell, at)
            at += 4
            if size < 0:
                parts.append(_ABSENT)
            else:
                parts.append(_GIVEN + element.encode(cell[at : at + size]))
                at += size
        if not exact:
            while parts and parts[-1] is _ABSENT:
                parts.pop()
        parts.append(_END)
        return b"".join(parts)

    def decode(encoded: bytes, at: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        for element in elements:
            mark = encoded[at : at + 1]
            if mark == _GIVEN:
                cell, at = element.decode(encoded, at + 1)
                parts.append(_LENGTH.pack(len(cell)) + cell)
            elif mark == _ABSENT:
                parts.append(_NO_VALUE)
                at += 1
            else:
                break
        if encoded[at : at + 1] != _END:
            raise BadRow("a tuple of a key that does not end where its type does")
        if not exact:
            parts += [_NO_VALUE] * (len(elements) - len(parts))
        return b"".join(parts), at + 1

    return Codec(encode, decode)
