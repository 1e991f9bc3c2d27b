from __future__ import annotations

import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from trimtab.catalog.schema import UserType
from trimtab.catalog.types import parse
from trimtab.client.errors import SchemaError
from trimtab.rows import arrow_cells
from trimtab.rows.arrow_types import arrow_type
from trimtab.spark.types import cql_type, from_spark, spark_type, to_spark

ADDRESS = {
    "address": UserType("shop", "address", (("street", "text"), ("since", "timestamp"), ("ids", "frozen<set<uuid>>")))
}
UUIDS = [uuid.UUID(int=1 << 127 | at) for at in range(3)]
# Type, values as rows are read, values as Spark has them.
CASES: list[tuple[str, list[Any], list[Any]]] = [
    ("bigint", [1, None], [1, None]),
    ("uuid", [UUIDS[0].bytes, None], [str(UUIDS[0]), None]),
    ("timeuuid", [None, uuid.UUID(int=1 << 76 | 1 << 63).bytes], [None, str(uuid.UUID(int=1 << 76 | 1 << 63))]),
    ("time", [0, 86_399_999_999_999, None], [0, 86_399_999_999_999, None]),
    ("varint", [Decimal(10) ** 37, None], [Decimal(10) ** 37, None]),
    ("duration", [(-1, -2, -3), None], [{"months": -1, "days": -2, "nanoseconds": -3}, None]),
    ("list<uuid>", [[UUIDS[0].bytes, UUIDS[1].bytes], None, []], [[str(UUIDS[0]), str(UUIDS[1])], None, []]),
    ("map<uuid, time>", [[(UUIDS[0].bytes, 5)], None], [[(str(UUIDS[0]), 5)], None]),
    (
        "tuple<int, frozen<list<duration>>>",
        [{"0": 1, "1": [(0, 0, 1)]}, None, {"0": None, "1": None}],
        [{"0": 1, "1": [{"months": 0, "days": 0, "nanoseconds": 1}]}, None, {"0": None, "1": None}],
    ),
]


def read_form(name: str, values: list[Any]) -> tuple[Any, Any]:
    column = parse(name, ADDRESS)
    kind = arrow_type(column)
    if name == "time":
        return column, pa.array(values, pa.int64()).view(kind)
    return column, pa.array(values, kind)


@pytest.mark.parametrize(("name", "stored", "shown"), CASES, ids=[case[0] for case in CASES])
def test_columns_are_in_the_form_that_spark_expects_and_back(name: str, stored: list[Any], shown: list[Any]) -> None:
    column, array = read_form(name, stored)
    there = to_spark(column, array)
    assert there.type == to_arrow_type(spark_type(column), timezone="UTC")
    there.validate(full=True)
    assert there.to_pylist() == shown
    cells = arrow_cells.encode(column, from_spark(column, there))
    again = arrow_cells.encode(column, array)
    assert cells.strings.to_list() == again.strings.to_list()


@pytest.mark.parametrize(("name", "stored", "shown"), CASES, ids=[case[0] for case in CASES])
def test_a_part_of_a_column_is_converted_as_the_whole_is(name: str, stored: list[Any], shown: list[Any]) -> None:
    column, array = read_form(name, [*stored, *stored])
    part = to_spark(column, array.slice(1, len(stored)))
    assert part.to_pylist() == [*shown, *shown][1 : 1 + len(stored)]
    assert from_spark(column, part).to_pylist() == array.slice(1, len(stored)).to_pylist() or name == "time"


def test_a_user_type_is_a_struct_of_its_fields_all_the_way_down() -> None:
    column = parse("list<frozen<address>>", ADDRESS)
    shown = spark_type(column).simpleString()
    assert shown == "array<struct<street:string,since:timestamp,ids:array<string>>>"
    stored = pa.array([[{"street": "a", "since": 1, "ids": [UUIDS[0].bytes]}], None], arrow_type(column))
    there = to_spark(column, stored)
    assert there.type == to_arrow_type(spark_type(column), timezone="UTC")
    assert there.to_pylist()[0][0]["ids"] == [str(UUIDS[0])]
    assert from_spark(column, there).to_pylist()[0][0]["ids"] == [UUIDS[0].bytes]


def test_a_field_that_a_user_type_does_not_have_is_named() -> None:
    column = parse("frozen<address>", ADDRESS)
    with pytest.raises(ValueError, match="has no field town; it has street, since, ids"):
        from_spark(column, pa.array([{"town": "x"}]))


def test_a_struct_with_names_of_its_own_is_a_tuple_by_place() -> None:
    column = parse("tuple<int, text>", {})
    assert from_spark(column, pa.array([{"a": 1, "b": "x"}])).to_pylist() == [{"0": 1, "1": "x"}]


def test_new_tables_get_the_nearest_type_of_cql() -> None:
    found = {
        "decimal(10,0)": spark.DecimalType(10, 0),
        "decimal(10,2)": spark.DecimalType(10, 2),
        "varchar": spark.VarcharType(10),
        "nested": spark.ArrayType(spark.MapType(spark.StringType(), spark.ArrayType(spark.LongType()))),
        "struct": spark.StructType(
            [spark.StructField("a", spark.DateType()), spark.StructField("b", spark.ByteType())]
        ),
        "tuple": spark.StructType([spark.StructField("0", spark.DateType())]),
        "duration": spark_type(parse("duration", {})),
    }

    def user_type(path: Sequence[str], fields: Sequence[tuple[str, str]]) -> str:
        return f"<{' '.join(path)} of {', '.join(' '.join(field) for field in fields)}>"

    assert {name: cql_type(each, name, user_type) for name, each in found.items()} == {
        "decimal(10,0)": "varint",
        "decimal(10,2)": "decimal",
        "varchar": "text",
        "nested": "list<frozen<map<text, frozen<list<bigint>>>>>",
        "struct": "<struct of a date, b tinyint>",
        "tuple": "frozen<tuple<date>>",
        "duration": "duration",
    }


def test_a_type_without_an_equal_is_refused_with_the_name_of_the_column() -> None:
    with pytest.raises(SchemaError, match="column span: there is no type of CQL for Spark's interval day to second"):
        cql_type(spark.DayTimeIntervalType(), "span", lambda _path, _fields: "")


def test_fields_of_a_user_type_are_found_by_name_in_any_order_and_depth() -> None:
    types = {
        "spot": UserType("shop", "spot", (("lat", "int"), ("lon", "int"))),
        "trip": UserType("shop", "trip", (("start", "frozen<spot>"), ("others", "frozen<list<frozen<spot>>>"))),
    }
    column = parse("frozen<trip>", types)
    stored = {"start": {"lat": 1, "lon": 2}, "others": [{"lat": 3, "lon": 4}]}
    turned = pa.array([{"others": [{"lon": 4, "lat": 3}], "start": {"lon": 2, "lat": 1}}])
    assert from_spark(column, turned).to_pylist() == [stored]
    assert from_spark(column, turned).type.field(0).type.field(0).name == "lat"
