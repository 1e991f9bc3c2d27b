"""Types of columns in Spark and in CQL, both ways; and whole columns from the Arrow form of one to the other's.

    CQL                          Spark                       made for a new table of
    tinyint ... bigint, counter  byte ... long               byte ... long
    float, double, boolean       the same                    the same
    text, ascii, inet            string                      string -> text, also char and varchar
    uuid, timeuuid               string                      (a string column; name the type in the table beforehand)
    blob                         binary                      binary
    timestamp                    timestamp (CQL has ms)      timestamp, timestamp_ntz (taken as UTC)
    date                         date                        date
    time                         long: ns since midnight     time -> time
    varint                       decimal(38, 0)              decimal(p, 0) -> varint
    decimal                      decimal(38, 18)             decimal(p, s) -> decimal
    duration                     struct<months int, days int, nanoseconds bigint>
    list<a>, set<a>              array<a>                    array<a> -> frozen<list<a>> inside others, list<a> outside
    map<a, b>                    map<a, b>                   map<a, b> -> map<a, b>
    tuple<a, b>                  struct<`0` a, `1` b>        struct<`0` a, `1` b> -> frozen<tuple<a, b>>
    user type                    struct of its fields        any other struct -> a user type made for it

Why `time` is a long: Spark's own has microseconds, CQL's nanoseconds, and reading must not round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.client.errors import SchemaError
from trimtab.rows.arrow_types import component_names

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Names the user type for a struct: where it is (its column, and fields in that), and its fields with their types.
StructNamer = Callable[[Sequence[str], Sequence[tuple[str, str]]], str]
DURATION_FIELDS = ("months", "days", "nanoseconds")
_DASHES = (8, 13, 18, 23)
_UUID_TEXT = 36


@cache
def _simple() -> dict[Kind, DataType]:
    from pyspark.sql import types as spark

    duration = [spark.IntegerType(), spark.IntegerType(), spark.LongType()]
    return {
        Kind.TINYINT: spark.ByteType(),
        Kind.SMALLINT: spark.ShortType(),
        Kind.INT: spark.IntegerType(),
        Kind.BIGINT: spark.LongType(),
        Kind.COUNTER: spark.LongType(),
        Kind.FLOAT: spark.FloatType(),
        Kind.DOUBLE: spark.DoubleType(),
        Kind.BOOLEAN: spark.BooleanType(),
        Kind.TEXT: spark.StringType(),
        Kind.ASCII: spark.StringType(),
        Kind.INET: spark.StringType(),
        Kind.UUID: spark.StringType(),
        Kind.TIMEUUID: spark.StringType(),
        Kind.BLOB: spark.BinaryType(),
        Kind.TIMESTAMP: spark.TimestampType(),
        Kind.DATE: spark.DateType(),
        Kind.TIME: spark.LongType(),
        Kind.VARINT: spark.DecimalType(38, 0),
        Kind.DECIMAL: spark.DecimalType(38, 18),
        Kind.DURATION: spark.StructType(
            [spark.StructField(name, kind) for name, kind in zip(DURATION_FIELDS, duration, strict=True)]
        ),
    }


def spark_type(column: Type) -> DataType:
    """The type that a column of this type has in a DataFrame."""
    from pyspark.sql import types as spark

    if column.kind in _simple():
        return _simple()[column.kind]
    inner = [spark_type(each) for each in column.elements]
    if column.kind is Kind.MAP:
        return spark.MapType(inner[0], inner[1])
    if column.kind in (Kind.LIST, Kind.SET):
        return spark.ArrayType(inner[0])
    names = component_names(column)
    return spark.StructType([spark.StructField(name, each) for name, each in zip(names, inner, strict=True)])


def arrow_schema(given: StructType) -> Any:
    """Arrow's schema of a DataFrame. SchemaError names a column that Arrow has no type for, as of `array()`: what has
    none in Arrow has none in CQL.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    fields = []
    for each in given.fields:
        try:
            fields += to_arrow_schema(StructType([each]), timezone="UTC")
        except (TypeError, ValueError):
            raise _no_type(each.name, each.dataType) from None
    return pa.schema(fields)


def cql_type(given: DataType, column: str, user_type: StructNamer) -> str:
    """CQL's name of the type that a new table gets for a column of this type; SchemaError where there is none.

    `user_type` names the one for a struct.
    """
    return _cql(given, (column,), user_type, inside=False)


def _cql(given: DataType, path: tuple[str, ...], user_type: StructNamer, *, inside: bool) -> str:
    from pyspark.sql import types as spark

    if isinstance(given, spark.DecimalType):
        return "varint" if given.scale == 0 else "decimal"
    if isinstance(given, spark.StringType | spark.CharType | spark.VarcharType):
        return "text"
    for kind, names in _new_table().items():
        if isinstance(given, kind):
            return names
    if isinstance(given, spark.ArrayType):
        return _frozen(f"list<{_cql(given.elementType, path, user_type, inside=True)}>", inside)
    if isinstance(given, spark.MapType):
        parts = [_cql(each, path, user_type, inside=True) for each in (given.keyType, given.valueType)]
        return _frozen(f"map<{', '.join(parts)}>", inside)
    if isinstance(given, spark.StructType) and given.fields:
        return _struct(given, path, user_type)
    raise _no_type(path[0], given)


def _no_type(column: str, given: DataType) -> SchemaError:
    return SchemaError(
        f"column {column}: there is no type of CQL for Spark's {given.simpleString()}; cast it, or leave it out"
    )


def _struct(given: StructType, path: tuple[str, ...], user_type: StructNamer) -> str:
    from pyspark.sql.types import IntegralType

    if tuple(given.names) == DURATION_FIELDS and all(isinstance(each.dataType, IntegralType) for each in given):
        return "duration"
    if alike := names_alike(given.names):
        raise SchemaError(
            f"column {path[0]}: its struct has the fields {alike}, which Spark can't tell apart; rename one"
        )
    parts = [_cql(each.dataType, (*path, each.name), user_type, inside=True) for each in given]
    if given.names == [str(place) for place in range(len(parts))]:
        # As tuples are read. Only these have no names.
        return f"frozen<tuple<{', '.join(parts)}>>"
    return user_type(path, list(zip(given.names, parts, strict=True)))


def names_alike(names: Sequence[str]) -> str:
    """Two names that are one without regard to case, as Spark has it; empty where there are none."""
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            return f"{known[name.lower()]} and {name}"
        known[name.lower()] = name
    return ""


@cache
def _new_table() -> dict[type[DataType], str]:
    from pyspark.sql import types as spark

    return {
        spark.ByteType: "tinyint",
        spark.ShortType: "smallint",
        spark.IntegerType: "int",
        spark.LongType: "bigint",
        spark.FloatType: "float",
        spark.DoubleType: "double",
        spark.BooleanType: "boolean",
        spark.BinaryType: "blob",
        spark.TimestampType: "timestamp",
        spark.TimestampNTZType: "timestamp",
        spark.DateType: "date",
        spark.TimeType: "time",
    }


def _frozen(name: str, inside: bool) -> str:
    return f"frozen<{name}>" if inside else name


# Columns. What is the same in both forms is passed on as it is, without a copy.


def to_spark(column: Type, array: Any) -> Any:
    """A column as rows are read (`rows.arrow_types`) in the form that Spark takes for `spark_type`."""
    import pyarrow as pa

    kind = column.kind
    if kind in (Kind.UUID, Kind.TIMEUUID):
        return _uuid_texts(array)
    if kind is Kind.TIMESTAMP:
        return array.cast(pa.timestamp("us", "UTC"))
    if kind is Kind.TIME:
        return array.view(pa.int64())
    if kind is Kind.DURATION:
        return _duration_structs(array)
    return _nested(column, array, to_spark)


def from_spark(column: Type, array: Any) -> Any:
    """A column of a DataFrame in a form that `rows.arrow_cells.encode` takes for this type."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if column.kind is Kind.DURATION and pa.types.is_struct(array.type):
        return _durations(array)
    if column.kind in (Kind.UUID, Kind.TIMEUUID) and _is_text(array.type):
        return _uuid_bytes(column, array)
    if column.kind is Kind.TIME and pa.types.is_int64(array.type):
        return array.view(pa.time64("ns"))
    return _nested(column, array, from_spark)


def _nested(column: Type, array: Any, convert: Any) -> Any:
    import pyarrow as pa

    kind = array.type
    if column.kind in (Kind.LIST, Kind.SET) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        inner = convert(column.elements[0], array.values)
        wanted = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return _rebuilt(wanted(pa.field("element", inner.type)), array, inner)
    if column.kind is Kind.MAP and pa.types.is_map(kind):
        keys, items = convert(column.elements[0], array.keys), convert(column.elements[1], array.items)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        )
        return _rebuilt(pa.map_(keys.type, items.type), array, entries)
    if column.kind in (Kind.TUPLE, Kind.USER) and pa.types.is_struct(kind):
        return _components(column, array, convert)
    return array


def _rebuilt(kind: Any, array: Any, child: Any) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], null_count=-1, offset=array.offset, children=[child]
    )


def _components(column: Type, array: Any, convert: Any) -> Any:
    """By name where the names are those of the type, else by place: a tuple's components have none of their own."""
    import pyarrow as pa

    names = component_names(column)
    given = [array.type.field(at).name for at in range(array.type.num_fields)]
    places = [given.index(name) if name in given else None for name in names]
    if column.kind is Kind.TUPLE and not any(place is not None for place in places):
        places = [at if at < len(given) else None for at in range(len(names))]
    elif surplus := [name for name in given if name not in names]:
        raise ValueError(f"{column.name} has no field {surplus[0]}; it has {', '.join(names)}")
    parts = [
        pa.nulls(len(array)) if place is None else convert(each, array.field(place))
        for each, place in zip(column.elements, places, strict=True)
    ]
    fields = [pa.field(name, part.type) for name, part in zip(names, parts, strict=True)]
    if not parts:
        return array
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _uuid_texts(array: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    count = len(array)
    if not count:
        return pa.array([], pa.string())
    raw = np.frombuffer(array.buffers()[1], np.uint8)[16 * array.offset : 16 * (array.offset + count)]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    hexadecimal = np.stack([digits[raw >> 4], digits[raw & 15]], axis=1).reshape(count, 32)
    texts = np.full((count, _UUID_TEXT), ord("-"), np.uint8)
    texts[:, [at for at in range(_UUID_TEXT) if at not in _DASHES]] = hexadecimal
    ends = np.arange(count + 1, dtype=np.int32) * _UUID_TEXT
    return pa.Array.from_buffers(pa.string(), count, [_bits(array), pa.py_buffer(ends), pa.py_buffer(texts)])


def _uuid_bytes(column: Type, array: Any) -> Any:
    import pyarrow as pa

    from trimtab.rows.arrow_types import to_cell

    convert = to_cell(column)
    cells = [None if text is None else convert(text) for text in array.to_pylist()]
    return pa.array(cells, pa.binary(16))


def _duration_structs(array: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    layout = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
    count = len(array)
    raw = (
        np.frombuffer(array.buffers()[1], layout)[array.offset : array.offset + count] if count else np.empty(0, layout)
    )
    parts = [pa.array(np.ascontiguousarray(raw[name])) for name in DURATION_FIELDS]
    return pa.StructArray.from_arrays(
        parts, names=list(DURATION_FIELDS), mask=array.is_null() if array.null_count else None
    )


def _durations(array: Any) -> Any:
    import pyarrow as pa

    given = [array.type.field(at).name for at in range(array.type.num_fields)]
    if sorted(given) != sorted(DURATION_FIELDS):
        raise ValueError(f"a duration is a struct of {', '.join(DURATION_FIELDS)}, not of {', '.join(given)}")
    values = [
        None if value is None else tuple(value[name] or 0 for name in DURATION_FIELDS) for value in array.to_pylist()
    ]
    return pa.array(values, pa.month_day_nano_interval())


def _bits(array: Any) -> Any:
    """The validity of an array as one that begins at its first value has it."""
    import numpy as np
    import pyarrow as pa

    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little"))
