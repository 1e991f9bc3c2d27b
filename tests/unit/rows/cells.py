"""Cells of any type: few different ones, so that they meet, and among them the ones at the edges."""

from __future__ import annotations

import random
import struct
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from trimtab.catalog.types import Duration, Kind, Type

_TIME_LOW = "{:08x}-{:04x}-1{:03x}-{:04x}-{:012x}"


def _uuid1(rng: random.Random) -> UUID:
    return UUID(
        _TIME_LOW.format(
            rng.choice([0, 1, 0xFFFFFFFF]),
            rng.choice([0, 0xFFFF]),
            rng.choice([0, 0xFFF]),
            rng.choice([0x8000, 0xBFFF, 0x80FF]),
            rng.choice([0, 0x7F, 0x80, 0xFFFFFFFFFFFF]),
        )
    )


def _uuid(rng: random.Random) -> UUID:
    if rng.random() < 0.4:
        return _uuid1(rng)
    return UUID(int=rng.choice([0, 1, (1 << 128) - 1, rng.getrandbits(128), 0x4000 << 64, 0x1000 << 64 | 5]))


def _signed(bits: int, rng: random.Random) -> int:
    edge = 1 << bits - 1
    given = rng.choice([-edge, -edge + 1, -1, 0, 1, 2, 100, edge - 1, rng.randrange(-edge, edge)])
    return max(-edge, min(edge - 1, given))


_TEXTS = ["", "a", "b", "a\x00", "a\x00b", "ab", "a\x01", "ä", "\U0001f600", "z" * 40, "\x00", "\x00\x00", "a\x7f"]
_DOUBLES = [0.0, -0.0, 1.0, -1.0, 1.5, float("inf"), float("-inf"), float("nan"), 5e-324, -5e-324]
_DECIMALS = [
    "0",
    "0.00",
    "0E+5",
    "1",
    "1.0",
    "1.00",
    "-1",
    "-1.10",
    "10",
    "100",
    "99",
    "1E+30",
    "1E-30",
    "-1E+30",
    "12.5",
    "105",
]


def random_value(rng: random.Random, given: Type) -> Any:
    kind = given.kind
    if kind in (Kind.TEXT, Kind.ASCII):
        text = rng.choice(_TEXTS)
        return text if kind is Kind.TEXT or text.isascii() else "a"
    if kind is Kind.BLOB:
        return rng.choice([b"", b"\x00", b"\xff", b"\xff\xff\x00", b"\x00\xff", b"a", bytes(20), rng.randbytes(5)])
    if kind is Kind.BOOLEAN:
        return rng.random() < 0.5
    if kind in (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.COUNTER, Kind.TIMESTAMP):
        return _signed({Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32}.get(kind, 64), rng)
    if kind is Kind.DATE:
        return rng.choice([date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), 0, 1, (1 << 32) - 1])
    if kind is Kind.TIME:
        return rng.choice([0, 1, 86_400 * 10**9 - 1, rng.randrange(86_400 * 10**9)])
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return rng.choice(_DOUBLES if kind is Kind.DOUBLE else [each for each in _DOUBLES if abs(each) != 5e-324])
    if kind is Kind.VARINT:
        return rng.choice([0, 1, -1, 127, 128, -128, -129, 255, 256, 1 << 64, -(1 << 64), 1 << 1100, -(1 << 1100)])
    if kind is Kind.DECIMAL:
        return Decimal(rng.choice(_DECIMALS))
    if kind is Kind.UUID:
        return _uuid(rng)
    if kind is Kind.TIMEUUID:
        return _uuid1(rng)
    if kind is Kind.INET:
        return rng.choice(["0.0.0.0", "10.0.0.1", "255.255.255.255", "::", "::1", "10:0:0:1::"])
    if kind is Kind.DURATION:
        return rng.choice([Duration(), Duration(1, 2, 3), Duration(-1, 0, -5)])
    if kind in (Kind.LIST, Kind.SET):
        found = [random_value(rng, given.elements[0]) for _ in range(rng.choice([0, 1, 2, 3]))]
        return found if kind is Kind.LIST else _unique(found, given.elements[0])
    if kind is Kind.MAP:
        keys = _unique(
            [random_value(rng, given.elements[0]) for _ in range(rng.choice([0, 1, 2, 3]))], given.elements[0]
        )
        return tuple((key, random_value(rng, given.elements[1])) for key in keys)
    parts = [None if rng.random() < 0.2 else random_value(rng, each) for each in given.elements]
    return tuple(parts[: rng.randint(1, len(parts))])


def _unique(values: list[Any], given: Type) -> list[Any]:
    return list({given.serialize(value): value for value in values}.values())


def random_cell(rng: random.Random, given: Type) -> bytes:
    return given.serialize(random_value(rng, given))


def bigint(value: int) -> bytes:
    return struct.pack(">q", value)


def int_(value: int) -> bytes:
    return struct.pack(">i", value)
