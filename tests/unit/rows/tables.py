"""Tables for tests, as the catalog would make them: columns by kind, new layouts when columns come and go."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from trimtab.catalog.schema import Column, ColumnKind, Layout, Table, TableOptions, UserType

PLACE = UserType("shop", "place", (("name", "text"), ("at", "double")))
DEEP = UserType("shop", "deep", (("where", "frozen<place>"), ("tags", "frozen<set<text>>")))
USER_TYPES = {"place": PLACE, "deep": DEEP}

SIMPLE = [
    "ascii",
    "bigint",
    "blob",
    "boolean",
    "date",
    "decimal",
    "double",
    "float",
    "inet",
    "int",
    "smallint",
    "text",
    "time",
    "timestamp",
    "timeuuid",
    "tinyint",
    "uuid",
    "varint",
]
NESTED = [
    "frozen<list<int>>",
    "frozen<set<text>>",
    "frozen<map<int, text>>",
    "frozen<tuple<int, text>>",
    "frozen<place>",
    "frozen<deep>",
    "frozen<list<frozen<tuple<bigint, decimal>>>>",
]
KEY_TYPES = SIMPLE + NESTED
MULTICELL = ["list<text>", "set<int>", "set<text>", "map<text, bigint>", "map<int, frozen<place>>", "set<decimal>"]
VALUE_TYPES = [*SIMPLE, "duration", *NESTED, *MULTICELL]


def table(
    partition: Sequence[str],
    clustering: Sequence[str] = (),
    regular: Sequence[str] = (),
    static: Sequence[str] = (),
    options: TableOptions | None = None,
) -> Table:
    """Columns p0, c0, v0, s0, ... of these types; `desc` after the type of a clustering column."""
    columns: list[Column] = []
    for kind, letter, types in (
        (ColumnKind.PARTITION, "p", partition),
        (ColumnKind.CLUSTERING, "c", clustering),
        (ColumnKind.STATIC, "s", static),
        (ColumnKind.REGULAR, "v", regular),
    ):
        for at, text in enumerate(types):
            down = text.endswith(" desc")
            columns.append(
                Column(len(columns) + 1, f"{letter}{at}", text.removesuffix(" desc"), kind, at, descending=down)
            )
    made = Table(
        id=7,
        keyspace="shop",
        name="things",
        version=1,
        columns=tuple(columns),
        layouts=(),
        tablets=8,
        options=options or TableOptions(),
        next_column=len(columns) + 1,
    )
    return _with_layout(made, 1)


def _with_layout(made: Table, version: int) -> Table:
    layout = Layout(
        len(made.layouts) + 1,
        tuple(each.id for each in made.columns if each.kind is ColumnKind.REGULAR),
        tuple(each.id for each in made.columns if each.kind is ColumnKind.STATIC),
    )
    return msgspec.structs.replace(made, layouts=(*made.layouts, layout), version=version)


def add_column(before: Table, text: str, kind: ColumnKind = ColumnKind.REGULAR) -> Table:
    id = before.next_column
    position = len(before.of_kind(kind))
    column = Column(id, f"n{id}", text, kind, position)
    changed = msgspec.structs.replace(before, columns=(*before.columns, column), next_column=id + 1)
    return _with_layout(changed, before.version + 1)


def drop_column(before: Table, id: int) -> Table:
    gone = next(each for each in before.columns if each.id == id)
    kept = tuple(each for each in before.columns if each.id != id)
    changed = msgspec.structs.replace(before, columns=kept, dropped=(*before.dropped, gone))
    return _with_layout(changed, before.version + 1)


def random_table(rng: random.Random) -> Table:
    def types(low: int, high: int, of: Sequence[str]) -> list[str]:
        return [rng.choice(of) for _ in range(rng.randint(low, high))]

    clustering = [each + rng.choice(["", " desc"]) for each in types(0, 3, KEY_TYPES)]
    return table(
        types(1, 2, KEY_TYPES),
        clustering,
        types(0, 5, VALUE_TYPES),
        types(0, 2, VALUE_TYPES) if clustering else [],
    )
