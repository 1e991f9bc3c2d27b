"""Pieces of CSV and JSON files: whole records, parsed many at a time, and one at a time where some are bad.

A line belongs to the piece in which it begins: a piece that does not start the file skips what comes before its first
line end, and reads on after its end to the next one. So every line is read once, wherever the cuts are. Values of CSV
may hold line ends, in quotes. A cut inside of one would make rows of its parts: the piece before it finds that out,
since it began right, and the load fails and says how the file can be read. So a wrong row is never made of it.

A field of JSON that the table does not have fails the load by name, as a column of any other file does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.catalog.cql_type import Type
from trimtab.spark import lossy_numbers, text_values
from trimtab.spark.csv_records import NOT_CLOSED, Records, Split, lines, split
from trimtab.spark.file_splits import (
    BLOCK_BYTES,
    BOM,
    CSV,
    MAX_LINE_BYTES,
    Aside,
    FileOptions,
    Heard,
    Piece,
    compression,
)
from trimtab.spark.load_plan import REJECT_HINT, LoadFailed

_SHOWN_CHARACTERS = 100
_BY_LINE = 256  # lines of JSON that are read one by one where one of them is bad


def read_text(
    system: Any,
    piece: Piece,
    schema: Any,
    options: FileOptions,
    kinds: Mapping[str, Type],
    aside: Aside | None,
    heard: Heard,
) -> Iterator[Any]:
    """The rows of a piece as record batches. `heard` is told of bytes of the file that were read."""
    reader: _Reader = (_Csv if options.format == CSV else _Json)(piece, schema, options, kinds, aside)
    header = options.format == CSV and options.header and not piece.start
    for records, read_bytes in blocks(system, piece, options):
        yield from reader.batches(_without_first(records) if header else records)
        header = False
        heard(read_bytes)


def blocks(system: Any, piece: Piece, options: FileOptions) -> Iterator[tuple[Records, int]]:
    """The records of a piece, some megabytes at a time, with the bytes of the file that were read for them."""
    import pyarrow as pa

    packed = piece.stop == 0
    file = system.open_input_file(piece.path)
    with file, pa.CompressedInputStream(file, compression(piece.path)) if packed else file as stream:
        at = piece.start
        if piece.start:
            # One byte before: if that is a line end, the piece begins with a line of its own.
            stream.seek(piece.start - 1)
            at = piece.start - 1 + len(_to_line_end(stream, piece.path))
        before: int = file.tell()
        found = Split(Records(b""), b"")
        while packed or at < piece.stop:
            data = stream.read(BLOCK_BYTES if packed else min(BLOCK_BYTES, piece.stop - at))
            if not data:
                break
            at, first = at + len(data), not at
            data = data.removeprefix(BOM) if first else data
            if not packed and at >= piece.stop and not data.endswith(b"\n"):
                data += _to_line_end(stream, piece.path)
            found = cut(found.rest + data, options)
            if len(found.rest) > MAX_LINE_BYTES:
                what = "a line" if found.open_at is None else "a quoted value"
                raise LoadFailed(f"{piece.path}: {what} of more than {MAX_LINE_BYTES} bytes near byte {at}")
            now: int = file.tell()
            if found.records.data:
                yield found.records, now - before
                before = now
        if found.open_at is not None and not packed and stream.read(1):
            raise LoadFailed(
                f"{piece.path} has a value with a line end in quotes near byte {piece.stop}, where the file was cut "
                "for another task; load it with the option tasks=1, then no file is cut"
            )
        if found.open_at is not None:
            yield Records(found.rest, [len(found.rest)], {0: NOT_CLOSED}), 0
        elif found.rest:
            yield cut(found.rest + b"\n", options).records, 0


def cut(data: bytes, options: FileOptions) -> Split:
    """The records of a text that begins with one."""
    return split(data, options.delimiter.encode(), options.quote.encode()) if options.format == CSV else lines(data)


def header_of(head: bytes, options: FileOptions) -> list[str]:
    """The names in the first record of a CSV; ValueError where it ends with a carriage return alone."""
    import csv
    import io

    bounds = cut(head, options).records.bounds()
    text = head[: bounds[1] if len(bounds) > 1 else len(head)].decode("utf-8", "replace").rstrip("\r\n")
    rows = list(csv.reader(io.StringIO(text, ""), delimiter=options.delimiter, quotechar=options.quote))
    if len(rows) > 1:
        raise ValueError("its lines end with a carriage return alone; line feeds are expected")
    return rows[0] if rows else []


def _without_first(records: Records) -> Records:
    bounds = records.bounds()
    ends = None if records.ends is None else [each - bounds[1] for each in bounds[2:]]
    wrong = {number - 1: why for number, why in records.wrong.items() if number}
    return Records(records.data[bounds[1] :], ends, wrong)


def _to_line_end(stream: Any, path: str) -> bytes:
    """What comes up to and with the next line end; the stream is after it then."""
    found = b""
    while True:
        before: int = stream.tell()
        data: bytes = stream.read(65_536)
        end = data.find(b"\n")
        if not data or end >= 0:
            taken = data[: end + 1] if end >= 0 else data
            stream.seek(before + len(taken))
            return found + taken
        found += data
        if len(found) > MAX_LINE_BYTES:
            raise LoadFailed(f"{path}: a line of more than {MAX_LINE_BYTES} bytes near byte {before}")


class _Reader:
    """Reads records of one piece. Where they can't be read they are halved, until those are found that can't."""

    few = 1  # records that are not halved any more

    def __init__(
        self, piece: Piece, schema: Any, options: FileOptions, kinds: Mapping[str, Type], aside: Aside | None
    ) -> None:
        self._piece, self._schema, self._options, self._aside = piece, schema, options, aside
        self._kinds = {name: kinds[name] for name in schema.names}

    def batches(self, records: Records) -> Iterator[Any]:
        import pyarrow as pa

        if not records.data.strip():
            return
        if not records.wrong:
            try:
                yield from self._read(records.data).to_batches()
                return
            except (pa.ArrowException, ValueError, KeyError):
                pass  # some of them are bad
        data, bounds = records.data, records.bounds()
        waiting = _between(sorted(records.wrong), len(bounds) - 1)[::-1]
        while waiting:
            first, last = waiting.pop()
            some = data[bounds[first] : bounds[last]]
            if first in records.wrong:
                self._bad(some, records.wrong[first])
                continue
            if not some.strip():
                continue
            try:
                table = self._read(some)
            except (pa.ArrowException, ValueError, KeyError) as error:
                if last - first > self.few:
                    middle = (first + last) // 2
                    waiting += [(middle, last), (first, middle)]
                    continue
                table = self._one_by_one(some, error)
            yield from table.to_batches()

    def _read(self, data: bytes) -> Any:
        """All rows of these records; Arrow's exceptions or ValueError where one can't be read."""
        raise NotImplementedError

    def _one_by_one(self, data: bytes, error: Exception) -> Any:
        """The rows of a few records, without the bad ones."""
        raise NotImplementedError

    def _converted(self, table: Any, asked: Any) -> Any:
        """What was read as text and is to be something else."""
        for at, field in enumerate(self._schema):
            if asked.field(at).type != field.type:
                made = text_values.of_texts(self._kinds[field.name], table.column(at))
                table = table.set_column(at, field.name, made)
        return table

    def _bad(self, record: bytes, why: str) -> None:
        import pyarrow as pa

        text = record.rstrip(b"\r\n").decode("utf-8", "replace")
        if self._aside is None:
            shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
            raise LoadFailed(f"{self._piece.path}: the line {shown!r} can't be read: {why}. {REJECT_HINT}")
        self._aside(pa.table({"_file": [self._piece.path], "_line": [text], "_reason": [why]}))


def _between(wrong: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Ranges of records in order: each wrong one by itself, and those between them."""
    found, start = [], 0
    for number in wrong:
        found += [(start, number), (number, number + 1)]
        start = number + 1
    return [(first, last) for first, last in (*found, (start, count)) if first < last]


class _Csv(_Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        import pyarrow as pa

        asked = [pa.field(name, text_values.csv_type(kind)) for name, kind in self._kinds.items()]
        self._asked = pa.schema(asked)
        self._header = list(self._piece.header or self._options.columns)

    def _read(self, data: bytes) -> Any:
        table = parse_csv(data, self._header, self._options, self._asked)
        for at, (name, kind) in enumerate(self._kinds.items()):
            lossy_numbers.check_csv(kind, name, table.column(at), csv_texts(data, self._header, self._options))
        return self._converted(table, self._asked)

    def _one_by_one(self, data: bytes, error: Exception) -> Any:
        why = self._why(error)
        if self._piece.start and self._options.quote.encode() in data:
            why += " (if values of the file have line ends in them, load it with the option tasks=1)"
        self._bad(data, why)
        return self._schema.empty_table()

    def _why(self, error: Exception) -> str:
        """What Arrow says of one record, with the column's name; the row that it counts is always the first."""

        def column(found: re.Match[str]) -> str:
            number = int(found[1])
            return f"column {self._header[number]}: " if number < len(self._header) else found[0]

        text = re.sub(r"In CSV column #(\d+): ", column, str(error))
        return re.sub(r"Row #\d+: | in row \d+\.?$", "", text).strip().rstrip(".")


def parse_csv(data: bytes, header: Sequence[str] | None, options: FileOptions, asked: Any = None) -> Any:
    """A table of whole records; without `asked`, of types that the values suggest."""
    import pyarrow as pa
    from pyarrow import csv

    convert = csv.ConvertOptions(
        column_types=asked,
        include_columns=asked.names if asked is not None else None,
        null_values=[options.null],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true", "True", "TRUE", "t", "1"],
        false_values=["false", "False", "FALSE", "f", "0"],
    )
    parse = csv.ParseOptions(delimiter=options.delimiter, quote_char=options.quote, newlines_in_values=True)
    read = csv.ReadOptions(column_names=header, use_threads=False, block_size=max(len(data), 1))
    return csv.read_csv(pa.BufferReader(data), read_options=read, parse_options=parse, convert_options=convert)


def csv_texts(data: bytes, header: Sequence[str] | None, options: FileOptions) -> lossy_numbers.Texts:
    """Columns of whole records as they are written."""
    import pyarrow as pa

    return lambda name: parse_csv(data, header, options, pa.schema([(name, pa.string())])).column(0)


class _Json(_Reader):
    few = _BY_LINE

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        import pyarrow as pa

        kinds = {name: text_values.json_type(kind) for name, kind in self._kinds.items()}
        self._asked = pa.schema(list(kinds.items())) if None not in kinds.values() else None
        self._passed = {name for name, _ in self._piece.partition}  # a directory says it

    def _read(self, data: bytes) -> Any:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        if self._asked is None:
            return self._by_line(data)
        table = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=self._asked, unexpected_field_behavior="ignore" if self._options.columns else "infer"
            ),
        )
        self._check_fields(table.schema.names)
        table = table.select(self._asked.names)
        if table.schema.types != self._asked.types:
            raise ValueError("a user type has not all of these fields")
        lossy_numbers.check_json(table)
        return self._converted(table, self._asked)

    def _one_by_one(self, data: bytes, error: Exception) -> Any:
        return self._by_line(data)

    def _by_line(self, data: bytes) -> Any:
        """The same by the notation of the CLI, which has a form for every type."""
        import pyarrow as pa

        rows: list[tuple[bytes, list[bytes | None]]] = []
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                found = json.loads(line, parse_float=text_values.Fraction, object_pairs_hook=_object)
                if not isinstance(found, dict):
                    raise ValueError("an object of JSON is expected")
                self._check_fields(found)
                rows.append((line, [self._cell(name, found.get(name)) for name in self._kinds]))
            except (ValueError, RecursionError) as error:
                self._bad(line, str(error) or type(error).__name__)
        try:
            return self._table([cells for _, cells in rows])
        except (pa.ArrowException, ValueError):
            # A number that CQL can hold, and Arrow not.
            good = []
            for line, cells in rows:
                try:
                    self._table([cells])
                    good.append(cells)
                except (pa.ArrowException, ValueError) as error:
                    self._bad(line, str(error))
            return self._table(good)

    def _table(self, rows: list[list[bytes | None]]) -> Any:
        import pyarrow as pa

        columns = [[row[at] for row in rows] for at in range(len(self._kinds))]
        made = [text_values.of_cells(kind, each) for kind, each in zip(self._kinds.values(), columns, strict=True)]
        return pa.table(made, schema=self._schema)

    def _cell(self, name: str, data: Any) -> bytes | None:
        kind = self._kinds[name]
        try:
            return text_values.cell_of(kind, data)
        except ValueError as error:
            raise ValueError(f"column {name} ({kind.name}): {error}") from None

    def _check_fields(self, names: Sequence[str] | dict[str, Any]) -> None:
        if self._options.columns:
            return
        if unknown := [name for name in names if name not in self._kinds and name not in self._passed]:
            raise LoadFailed(
                f"{self._piece.path} has the field {', '.join(unknown)}, and the table has no such column; it has "
                f"{', '.join(self._kinds)}. Add it to the table, or name the columns to load in the option columns"
            )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there twice")
    return found


def json_types(system: Any, piece: Piece, options: FileOptions) -> Iterator[tuple[Any, set[lossy_numbers.Path]]]:
    """Schemas that the lines of a file suggest, some megabytes at a time, and where they have whole numbers that no
    double holds. Lines that are no JSON suggest nothing: they are told when they are loaded.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    for records, _ in blocks(system, piece, options):
        waiting = [records.data]
        while waiting:
            some = waiting.pop()
            try:
                if some.strip():
                    whole = arrow_json.ReadOptions(use_threads=False, block_size=len(some))
                    table = arrow_json.read_json(pa.BufferReader(some), read_options=whole)
                    yield table.schema, lossy_numbers.long_in_json(table, some)
            except pa.ArrowException:
                middle = some.find(b"\n", len(some) // 2, len(some) - 1) + 1 or some.find(b"\n") + 1
                if 0 < middle < len(some):
                    waiting += [some[middle:], some[:middle]]
