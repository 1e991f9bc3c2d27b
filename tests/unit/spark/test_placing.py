"""The tablet of each row, as the load will have it."""

from __future__ import annotations

import uuid

import msgspec
import pyarrow as pa
import pytest
from tests.unit.rows import tables
from tests.unit.spark.plans import STAMP_US

from trimtab.client.errors import InvalidRequest
from trimtab.rows.columns import encode_table
from trimtab.rows.layout import RowLayout
from trimtab.spark.placing import tablets_of


def layout_of(*partition: str, tablets: int) -> RowLayout:
    table = msgspec.structs.replace(tables.table(list(partition), [], ["int"]), tablets=tablets)
    return RowLayout(table, tables.USER_TYPES)


@pytest.mark.parametrize("tablets", [1, 2, 8, 1 << 14])
def test_rows_are_in_the_tablets_that_the_load_writes_them_to(tablets: int) -> None:
    layout = layout_of("bigint", "text", tablets=tablets)
    ids, names = pa.array(range(500)), pa.array([f"n{at}" for at in range(500)])
    found = tablets_of(layout, (ids, names)).to_pylist()
    rows = encode_table(layout, pa.table({"p0": ids, "p1": names}), timestamp_us=STAMP_US, now_ms=0)
    expected = {tablet: len(part) for tablet, part in rows.by_tablet(tablets)}
    assert {tablet: found.count(tablet) for tablet in set(found)} == expected


def test_a_key_that_can_not_be_one_has_no_tablet_and_is_in_nobodys_way() -> None:
    layout = layout_of("uuid", tablets=4)
    good = [str(uuid.UUID(int=at)) for at in range(40)]
    whole = tablets_of(layout, (pa.array(good),)).to_pylist()
    bad = [*good[:7], None, *good[7:20], "no uuid", "", *good[20:]]
    found = tablets_of(layout, (pa.array(bad),)).to_pylist()
    assert [found[at] for at in (7, 21, 22)] == [None, None, None]
    assert [each for each in found if each is not None] == whole


def test_a_column_of_another_type_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"column p0 \(bigint\) of .*: .*string"):
        tablets_of(layout_of("bigint", tablets=4), (pa.array(["a"]),))


def test_no_rows_have_no_tablets() -> None:
    assert tablets_of(layout_of("bigint", tablets=4), (pa.array([], pa.int64()),)).to_pylist() == []
