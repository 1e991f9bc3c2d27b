"""Whole columns between Arrow and CQL's cells.

Numbers, times, texts and blobs are converted as columns; what has another form in Arrow than bytes of its own (varint,
collections, user types, ...) goes value by value. A column of binaries is taken for cells as they are, and validated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.rows.arrow_types import EPOCH_DAY, arrow_type, plain, to_cell
from trimtab.rows.errors import DoesNotFit
from trimtab.rows.ragged import Ragged, copy_columns, fixed, from_arrow, from_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Mask, Octets

_NUMBERS = {
    Kind.TINYINT: "i1",
    Kind.SMALLINT: "i2",
    Kind.INT: "i4",
    Kind.BIGINT: "i8",
    Kind.COUNTER: "i8",
    Kind.FLOAT: "f4",
    Kind.DOUBLE: "f8",
    Kind.TIMESTAMP: "i8",
    Kind.TIME: "i8",
    Kind.DATE: "u4",
}
_DAY_NS = 86_400 * 10**9
_SHOWN_CHARACTERS = 60
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A column's cells. `valid` None: all are there; a cell that is not there has no bytes, or zeros."""

    strings: Ragged
    valid: Mask | None = None

    def __len__(self) -> int:
        return len(self.strings)


def encode(column: Type, array: Any) -> Cells:
    """The cells of an Arrow array. ValueError where a value is none of this type."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            raise ValueError("a column is too long for one array of this type; give fewer rows at a time")
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if column.kind in _NUMBERS:
            return _numbers(column, array)
        if column.kind is Kind.BOOLEAN:
            return _booleans(array)
        if column.kind in (Kind.TEXT, Kind.ASCII, Kind.BLOB):
            return _strings(column, array)
        if pa.types.is_fixed_size_binary(array.type) and column.fixed_width == array.type.byte_width:
            return _checked(column, Cells(_of_fixed_size(array), _validity(array)))
        if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
            return _checked(column, Cells(from_arrow(array), _validity(array)))
    except pa.ArrowException as error:
        raise ValueError(f"{array.type} can't be {column.name}: {error}") from None
    return _one_by_one(column, array)


def decode(column: Type, cells: Cells) -> Any:
    """The Arrow array of these cells, in the type that `arrow_type` says. DoesNotFit: it can't hold one of them."""
    import numpy as np
    import pyarrow as pa

    strings, count, kind = cells.strings, len(cells), arrow_type(column)
    if column.fixed_width is not None and strings.width != column.fixed_width:
        if count:
            raise ValueError(f"cells of {column.name} have {column.fixed_width} bytes, not {strings.width}")
        return pa.array([], kind)
    if column.kind in _NUMBERS:
        code = _NUMBERS[column.kind]
        # From Arrow's own memory, which it keeps: the system's is slow where it was not touched before.
        held = pa.allocate_buffer(count * int(code[1:]))
        numbers = np.frombuffer(held, dtype=f"={code}")
        numbers[:] = strings.numbers(0, f">{code}")
        if column.kind is Kind.DATE:
            numbers ^= np.uint32(EPOCH_DAY)
        return pa.Array.from_buffers(kind, count, [_bitmap(cells.valid), held])
    if column.kind is Kind.BOOLEAN:
        bits = pa.py_buffer(np.packbits(strings.data != 0, bitorder="little"))
        return pa.Array.from_buffers(kind, count, [_bitmap(cells.valid), bits])
    if column.fixed_width is not None:
        return pa.Array.from_buffers(kind, count, [_bitmap(cells.valid), _held(strings)])
    if column.kind in (Kind.TEXT, Kind.ASCII, Kind.BLOB):
        offsets = strings.offsets
        if int(offsets[-1]) - int(offsets[0]) >= 1 << 31:
            raise ValueError(
                f"a batch of {int(offsets[-1] - offsets[0])} bytes of {column.name}; read fewer rows at a time"
            )
        places = pa.allocate_buffer(4 * (count + 1))
        np.subtract(offsets, offsets[0], out=np.frombuffer(places, dtype=np.int32), casting="unsafe")
        return pa.Array.from_buffers(kind, count, [_bitmap(cells.valid), places, _held(strings)])
    convert = plain(column)
    there = [True] * count if cells.valid is None else cells.valid.tolist()
    values = [convert(cell) if given else None for cell, given in zip(strings.to_list(), there, strict=True)]
    try:
        return pa.array(values, type=kind)
    except pa.ArrowException as error:
        shown = _first_unfit(values, kind)
        raise DoesNotFit(f"a value of {column.name} that does not fit {kind}, {shown}: {error}") from None


def _first_unfit(values: list[Any], kind: Any) -> str:
    """The value that spoils an array, for a reader to look for."""
    import pyarrow as pa

    for value in values:
        try:
            pa.array([value], type=kind)
        except pa.ArrowException:
            text = str(value)
            return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return "together with others"


def _held(strings: Ragged) -> Any:
    """The bytes of all strings in Arrow's memory."""
    import numpy as np
    import pyarrow as pa

    held = pa.allocate_buffer(strings.size)
    if strings.width is not None:
        copy_columns(strings.matrix, np.frombuffer(held, np.uint8).reshape(strings.count, strings.width))
    else:
        np.frombuffer(held, np.uint8)[:] = strings.flat()
    return held


def _validity(array: Any) -> Mask | None:
    import numpy as np

    if not array.null_count:
        return None
    found: Mask = np.asarray(array.is_valid())
    return found


def _bitmap(valid: Mask | None) -> Any:
    import numpy as np
    import pyarrow as pa

    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _raw(array: Any, code: str) -> NDArray[Any]:
    """The numbers of an array of a fixed width as they lie in memory, zeros where there is none."""
    import numpy as np

    if not len(array):
        return np.empty(0, code)
    numbers: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=code)[array.offset : array.offset + len(array)]
    if array.null_count:
        numbers = np.where(np.asarray(array.is_valid()), numbers, numbers.dtype.type(0))
    return numbers


def _big_endian(numbers: NDArray[Any]) -> Ragged:
    import numpy as np

    width = numbers.dtype.itemsize
    swapped = numbers.astype(numbers.dtype.newbyteorder(">"))
    return fixed(swapped.view(np.uint8).reshape(len(numbers), width))


def _numbers(column: Type, array: Any) -> Cells:
    import numpy as np
    import pyarrow as pa

    valid, code = _validity(array), _NUMBERS[column.kind]
    if pa.types.is_null(array.type):
        return Cells(_big_endian(np.zeros(len(array), code)), valid)
    if column.kind is Kind.TIMESTAMP:
        return Cells(_big_endian(_timestamps_ms(array)), valid)
    if column.kind is Kind.TIME:
        return Cells(_big_endian(_times_ns(array)), valid)
    if column.kind is Kind.DATE:
        if not pa.types.is_date(array.type):
            raise ValueError(f"{array.type} can't be date; cast it to date32")
        days = _raw(array.cast(pa.date32()), "i4").astype(np.int64) + EPOCH_DAY
        return Cells(
            _big_endian(np.where(valid, days, 0).astype("u4") if valid is not None else days.astype("u4")), valid
        )
    if pa.types.is_boolean(array.type) or not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise ValueError(f"{array.type} can't be {column.name}; cast it to {arrow_type(column)}")
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return Cells(_big_endian(_raw(_as_floating(column, array), code)), valid)
    return Cells(_big_endian(_raw(array.cast(arrow_type(column)), code)), valid)


def _as_floating(column: Type, array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = arrow_type(column)
    if array.type == wanted:
        return array
    narrowed = array.cast(wanted)
    if pa.types.is_float64(array.type) and pc.any(pc.and_(pc.is_inf(narrowed), pc.invert(pc.is_inf(array)))).as_py():
        raise ValueError(f"a number that does not fit {column.name}")
    return narrowed


def _timestamps_ms(array: Any) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    if pa.types.is_int64(array.type):
        return _raw(array, "i8")
    if not pa.types.is_timestamp(array.type):
        raise ValueError(f"{array.type} can't be timestamp; cast it to timestamp[ms]")
    numbers, unit_ns = _raw(array, "i8"), _UNIT_NS[array.type.unit]
    if unit_ns > 10**6:
        return _raw(array.cast(pa.timestamp("ms", array.type.tz)), "i8")
    part = 10**6 // unit_ns
    if part == 1:
        return numbers
    # What is finer than a millisecond is cut towards 1970, as it is for single values.
    whole = numbers // part
    whole += (numbers < 0) & (whole * part != numbers)
    return whole


def _times_ns(array: Any) -> NDArray[Any]:
    import pyarrow as pa

    if not (pa.types.is_time(array.type) or pa.types.is_int64(array.type)):
        raise ValueError(f"{array.type} can't be time; cast it to time64[ns]")
    numbers = _raw(array if pa.types.is_int64(array.type) else array.cast(pa.time64("ns")), "i8")
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= _DAY_NS):
        raise ValueError(f"a time is less than a day ({_DAY_NS} nanoseconds) after midnight")
    return numbers


def _booleans(array: Any) -> Cells:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_null(array.type):
        array = array.cast(pa.bool_())
    if not pa.types.is_boolean(array.type):
        raise ValueError(f"{array.type} can't be boolean")
    bits: Octets = np.asarray(array.fill_null(False)).astype(np.uint8)
    return Cells(fixed(bits.reshape(-1, 1)), _validity(array))


def _strings(column: Type, array: Any) -> Cells:
    import pyarrow as pa

    kind = array.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        text = pa.types.is_string_view(kind)
        array = array.cast(pa.large_string() if text else pa.large_binary())
    elif pa.types.is_null(kind):
        array = array.cast(pa.large_binary())
    elif pa.types.is_fixed_size_binary(kind) and column.kind is Kind.BLOB:
        return Cells(_of_fixed_size(array), _validity(array))
    elif not (text or (binary and column.kind is Kind.BLOB)):
        raise ValueError(f"{kind} can't be {column.name}; cast it to {arrow_type(column)}")
    if text and column.kind is Kind.BLOB:
        raise ValueError(f"{kind} can't be blob; cast it to binary")
    strings = from_arrow(array)
    if column.kind is Kind.ASCII and strings.size and int(strings.flat().max()) > 127:
        raise ValueError("ascii can't hold characters above 127; use text")
    return Cells(strings, _validity(array))


def _of_fixed_size(array: Any) -> Ragged:
    import numpy as np

    width = array.type.byte_width
    if not len(array):
        return Ragged(np.empty(0, np.uint8), 0, width)
    held = np.frombuffer(array.buffers()[1], np.uint8)
    matrix = held[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)
    if array.null_count:
        matrix = np.where(np.asarray(array.is_valid())[:, None], matrix, np.uint8(0))
    return fixed(matrix)


def _checked(column: Type, cells: Cells) -> Cells:
    """Cells that a stranger made. A column of a fixed width has zeros where there is none."""
    there = [True] * len(cells) if cells.valid is None else cells.valid.tolist()
    width = column.fixed_width
    strings = cells.strings.to_list()
    for cell, given in zip(strings, there, strict=True):
        if given:
            column.validate(cell)
    if width is None or cells.strings.width == width:
        return cells
    return Cells(
        from_list([cell if given else bytes(width) for cell, given in zip(strings, there, strict=True)]), cells.valid
    )


def _one_by_one(column: Type, array: Any) -> Cells:
    import numpy as np

    convert, nothing = to_cell(column), bytes(column.fixed_width or 0)
    values = array.to_pylist()
    valid = _validity(array)
    strings = from_list([nothing if value is None else convert(value) for value in values])
    if column.fixed_width is not None and not values:
        strings = Ragged(np.empty(0, np.uint8), 0, column.fixed_width)
    return Cells(strings, valid)
