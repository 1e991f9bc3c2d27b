"""Layouts of a table's rows, and how long they are kept."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.rows.tables import USER_TYPES, add_column, drop_column, table

from trimtab.catalog.schema import ColumnKind, UserType
from trimtab.rows.errors import UnknownLayout
from trimtab.rows.layout import MAX_PLANS, Layouts, RowLayout


def test_every_layout_ever_written_can_be_read() -> None:
    made = table(["int"], ["int"], ["int", "text"], ["text"])
    made = drop_column(add_column(made, "blob", ColumnKind.STATIC), 4)
    layout = RowLayout(made)
    assert [column.name for column in layout.shape(1, static=False).columns] == ["v0", "v1"]
    assert [column.used for column in layout.shape(1, static=False).columns] == [False, True]
    assert [column.name for column in layout.shape(2, static=True).columns] == ["s0", "n6"]
    assert layout.regular.latest
    assert layout.regular.number == 3
    with pytest.raises(UnknownLayout, match="layout 4"):
        layout.shape(4, static=False)


def test_a_layout_is_made_once_and_again_when_the_table_or_a_user_type_changes() -> None:
    layouts = Layouts()
    made = table(["int"], [], ["place"])
    first = layouts.of(made, USER_TYPES)
    assert layouts.of(made, dict(USER_TYPES)) is first
    grown = {**USER_TYPES, "place": UserType("shop", "place", (*USER_TYPES["place"].fields, ("x", "int")))}
    second = layouts.of(made, grown)
    assert second is not first
    assert layouts.of(msgspec.structs.replace(made, version=2), grown) is not second
    layouts.keep_only({})
    assert layouts.of(made, grown) is not second


def test_plans_are_bounded() -> None:
    layout = RowLayout(table(["int"]))
    for each in range(MAX_PLANS * 3):
        layout.remember(each, each)
        assert len(layout.plans) <= MAX_PLANS
