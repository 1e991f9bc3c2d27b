"""A column of every type, with a value of it as a client has it, and as Spark does."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import trimtab

UUID = uuid.UUID("123e4567-e89b-42d3-a456-426614174000")
TIME_UUID = uuid.UUID("50554d6e-29bb-11e5-b345-feff819cdc9f")
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=dt.UTC)
# Column, type, what a client writes, what Spark has.
TYPES: list[tuple[str, str, Any, Any]] = [
    ("c_tinyint", "tinyint", -128, -128),
    ("c_smallint", "smallint", -32768, -32768),
    ("c_int", "int", -(1 << 31), -(1 << 31)),
    ("c_bigint", "bigint", (1 << 63) - 1, (1 << 63) - 1),
    ("c_float", "float", 1.5, 1.5),
    ("c_double", "double", 0.1, 0.1),
    ("c_boolean", "boolean", True, True),
    ("c_text", "text", "Grüße 👋", "Grüße 👋"),
    ("c_ascii", "ascii", "plain", "plain"),
    ("c_blob", "blob", b"\x00\xff", bytearray(b"\x00\xff")),
    ("c_uuid", "uuid", UUID, str(UUID)),
    ("c_timeuuid", "timeuuid", TIME_UUID, str(TIME_UUID)),
    ("c_inet", "inet", "10.0.0.1", "10.0.0.1"),
    ("c_timestamp", "timestamp", MOMENT, MOMENT),
    ("c_date", "date", dt.date(1969, 12, 31), dt.date(1969, 12, 31)),
    ("c_time", "time", dt.time(23, 59, 59, 999999), 86_399_999_999_000),
    ("c_varint", "varint", -(10**37), Decimal(-(10**37))),
    ("c_decimal", "decimal", Decimal("3.14"), Decimal("3.14")),
    ("c_duration", "duration", trimtab.Duration(1, 2, 3), (1, 2, 3)),
    ("c_list", "list<int>", [3, 1, 3], [3, 1, 3]),
    ("c_set", "set<text>", {"b", "a"}, ["a", "b"]),
    ("c_map", "map<text, bigint>", {"x": 1, "y": 2}, {"x": 1, "y": 2}),
    (
        "c_frozen",
        "frozen<list<frozen<map<uuid, date>>>>",
        [{UUID: dt.date(2020, 1, 1)}],
        [{str(UUID): dt.date(2020, 1, 1)}],
    ),
    ("c_tuple", "tuple<int, text>", (1, "one"), (1, "one")),
    (
        "c_user",
        "frozen<address>",
        {"street": "Main St", "since": MOMENT, "ids": {UUID}},
        ("Main St", MOMENT, [str(UUID)]),
    ),
    ("c_times", "frozen<set<timeuuid>>", {TIME_UUID}, [str(TIME_UUID)]),
    (
        "c_nested",
        "map<text, frozen<tuple<time, inet, duration>>>",
        {"night": (dt.time(1, 2, 3), "::1", trimtab.Duration(0, 1, 2))},
        {"night": (3_723_000_000_000, "::1", (0, 1, 2))},
    ),
    (
        "c_users",
        "list<frozen<address>>",
        [{"street": "Side St", "since": MOMENT, "ids": {UUID}}, {"street": None, "since": None, "ids": None}],
        [("Side St", MOMENT, [str(UUID)]), (None, None, None)],
    ),
]


def make_table(db: trimtab.Database, table: str) -> None:
    """One with all of them; its key is `id`."""
    keyspace = table.partition(".")[0]
    fields = {"street": "text", "since": "timestamp", "ids": "frozen<set<uuid>>"}
    db.create_type(f"{keyspace}.address", fields, if_not_exists=True)
    db.create_table(table, {"id": "int", **{name: kind for name, kind, _, _ in TYPES}}, primary_key=["id"], tablets=2)


def plain(value: Any) -> Any:
    """A value of Spark as Python compares it."""
    from pyspark.sql import Row

    if isinstance(value, Row):
        return tuple(plain(each) for each in value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC)
    return value
