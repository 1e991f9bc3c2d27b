"""The columns of files that are loaded together: every file is looked at before anything is begun.

    parquet   its footer
    csv       its header
    json      nothing: a field that the table does not have is found when it is read. For a table that is to be made all
              lines of all files are read once before, since any of them may have a field that no other has

Each file is read with the columns that it has, so one that lacks a column leaves it null; but a column that the table
does not have, or a key that a file does not have, is refused with the name of the file. Directories called name=value
are columns of all files in them, with the value in place of what a file may say itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trimtab.catalog.cql_type import Type
from trimtab.client.errors import InvalidRequest
from trimtab.rows.layout import RowLayout
from trimtab.spark import lossy_numbers
from trimtab.spark.checking import types_of, wrong_columns
from trimtab.spark.file_splits import (
    BLOCK_BYTES,
    BOM,
    CSV,
    JSON,
    PARQUET,
    File,
    FileOptions,
    Found,
    Looked,
    Piece,
    compression,
    partition_value,
)
from trimtab.spark.load_plan import LoadFailed, NotNow
from trimtab.spark.rejecting import place
from trimtab.spark.text_values import column_type

HEAD_BYTES = 1 << 20  # of a CSV, by which it is judged
_AT_ONCE = 16
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def look(found: Sequence[Found], options: FileOptions) -> list[Looked]:
    """All files, with the columns that each of them has. InvalidRequest: they can't be read, or not together."""
    import pyarrow as pa

    files = [(each.url, place(each.url)[0], file) for each in found for file in each.files]
    _check_directories([file for _, _, file in files])

    def one(given: tuple[str, Any, File]) -> Looked:
        url, system, file = given
        try:
            if options.format == PARQUET:
                return _parquet(url, system, file)
            return _csv(url, system, file, options) if options.format == CSV else Looked(url, file)
        except ValueError as error:  # Arrow's, too
            raise InvalidRequest(f"{file.path} is no {options.format} file: {_told(error)}") from error
        except (OSError, pa.ArrowException) as error:
            raise NotNow(f"{file.path} can't be read: {_told(error)}") from error

    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
        looked = list(pool.map(one, files))
    _check_chosen(looked, options)
    _check_names(looked, options)
    return looked


def _check_directories(files: Sequence[File]) -> None:
    first = files[0]
    for file in files:
        names = [name for name, _ in file.partition]
        if len(set(names)) < len(names):
            raise InvalidRequest(f"{file.path} is in two directories that are called {max(names, key=names.count)}=…")
        if sorted(names) != sorted(name for name, _ in first.partition):
            raise InvalidRequest(
                f"{first.path} is in directories of {_listed(first)} and {file.path} in those of {_listed(file)}; load "
                "them one after the other"
            )


def _listed(file: File) -> str:
    return ", ".join(f"{name}=…" for name, _ in file.partition) or "no such name"


def _parquet(url: str, system: Any, file: File) -> Looked:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file.path, filesystem=system)
    sizes = tuple(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return Looked(url, file, metadata.schema.to_arrow_schema().remove_metadata(), sizes)


def _csv(url: str, system: Any, file: File, options: FileOptions) -> Looked:
    import pyarrow as pa

    from trimtab.spark.text_files import cut, header_of

    if not options.header and not options.columns:
        raise InvalidRequest(f"{file.path} has no header (header=false), so the option columns has to name its columns")
    head = _head(system, file, HEAD_BYTES)
    names = header_of(head, options) if options.header else options.columns
    # Where values have line ends in them, nobody knows where a record begins who has not read all before it.
    return Looked(url, file, pa.schema([(name, pa.null()) for name in names]), whole=cut(head, options).spans_lines)


def _head(system: Any, file: File, size_bytes: int) -> bytes:
    with system.open_input_stream(file.path, compression=compression(file.path)) as stream:
        found: bytes = stream.read(size_bytes)
        return found.removeprefix(BOM)


def _check_chosen(looked: Sequence[Looked], options: FileOptions) -> None:
    """That columns which were asked for are in some file."""
    if options.format == JSON or not options.columns:
        return
    known = {name for each in looked for name in (*each.schema.names, *dict(each.file.partition))}
    if missing := [name for name in options.columns if name not in known]:
        names = ", ".join(looked[0].schema.names)
        raise InvalidRequest(f"{looked[0].file.path} has no column {', '.join(missing)}; it has {names}")


def _check_names(looked: Sequence[Looked], options: FileOptions) -> None:
    """That columns which are loaded have names, each its own."""
    for each in looked if options.format != JSON else ():
        of_path = dict(each.file.partition)
        names = [name for name in each.schema.names if _loaded(name, options) and name not in of_path]
        if not all(names):
            raise InvalidRequest(
                f"{each.file.path}: column {each.schema.names.index('') + 1} has no name; give it one, or name the "
                "columns to load in the option columns"
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidRequest(f"{each.file.path}: column {', '.join(twice)} is there twice; rename one")


# For a table that is there


def schemas(looked: Sequence[Looked], options: FileOptions, layout: RowLayout) -> list[Any]:
    """The schema that each file is read with. InvalidRequest names a file that does not go into the table, and why."""
    kinds = types_of(layout)
    checked: dict[Any, Any] = {}
    found = []
    for each in looked:
        schema = schema_of(each, options, kinds)
        if schema not in checked:
            wrong = wrong_columns(layout, schema)
            if not wrong and all(name in dict(each.file.partition) for name in schema.names):
                wrong = ["no column of the file itself is loaded"]
            if wrong:
                raise InvalidRequest(f"{each.file.path} can't be loaded into {layout.name}: {'; '.join(wrong)}")
            checked[schema] = schema
        found.append(checked[schema])
    loaded = {name: kinds[name] for schema in checked for name in schema.names}
    _check_values([each.file for each in looked], loaded)
    return found


def schema_of(looked: Looked, options: FileOptions, kinds: Mapping[str, Type]) -> Any:
    """What a file is read with: the columns it has and those of its directories; of JSON, all that the table has."""
    import pyarrow as pa

    def typed(name: str) -> Any:
        return pa.field(name, column_type(kinds[name]) if name in kinds else pa.string())

    of_path = dict(looked.file.partition)
    if options.format == PARQUET:
        own = [field for field in looked.schema if _chosen(field.name, options)]
    elif options.format == CSV:
        own = [typed(name) for name in looked.schema.names if _loaded(name, options)]
    else:
        own = [typed(name) for name in options.columns or kinds]
    given = [typed(name) for name in of_path if _loaded(name, options)]
    return pa.schema([*(field for field in own if field.name not in of_path), *given])


def _chosen(name: str, options: FileOptions) -> bool:
    return not options.columns or name in options.columns


def _loaded(name: str, options: FileOptions) -> bool:
    """Whether a column is chosen. Without a header the option names what there is, and all of it is loaded."""
    return _chosen(name, options) or (options.format == CSV and not options.header)


def _check_values(files: Sequence[File], kinds: Mapping[str, Type]) -> None:
    seen: set[tuple[str, str | None]] = set()
    for file in files:
        for name, value in set(file.partition) - seen:
            seen.add((name, value))
            if name not in kinds:
                continue  # it is not asked for
            try:
                partition_value(kinds[name], value)
            except ValueError as error:
                raise InvalidRequest(f"{file.path}: the directory {name}={value}: {error}") from None


# For a table that is to be made


def guessed(looked: Sequence[Looked], options: FileOptions) -> Any:
    """The columns of all files, with types that go for all. InvalidRequest names two files whose types don't agree."""
    import pyarrow as pa

    found: dict[str, tuple[Any, str]] = {}  # a type, and the file that has it
    long: dict[lossy_numbers.Path, str] = {}  # whole numbers that no double holds, and the file that has them
    of_path = {name for each in looked for name, _ in each.file.partition}
    for number, each in enumerate(looked):
        for schema, long_here in _suggested(each, options, first=not number):
            long = dict.fromkeys(long_here, each.file.path) | long
            for field in schema:
                if field.name in of_path or not _loaded(field.name, options):
                    continue
                kind, path = found.get(field.name, (field.type, each.file.path))
                wider = _wider(kind, field.type, text=options.format != PARQUET)
                if wider is None:
                    raise _different(field.name, (kind, path), (field.type, each.file.path))
                found[field.name] = wider, path if wider == kind else each.file.path
    if options.format == JSON and not found:
        raise InvalidRequest(f"{looked[0].file.path} has no lines of JSON objects")
    made = {name: _without_nulls(kind) for name, (kind, _) in found.items()}
    _check_exact(made, long)
    for name in sorted(of_path):
        if _loaded(name, options):
            made[name] = _of_values([dict(each.file.partition)[name] for each in looked])
    return pa.schema(list(made.items()))


def _different(column: str, one: tuple[Any, str], other: tuple[Any, str]) -> InvalidRequest:
    make = "make the table with the type that it should have"
    (kind, path), (other_kind, other_path) = one, other
    if path == other_path:
        return InvalidRequest(f"column {column} is {kind} in some lines of {path} and {other_kind} in others; {make}")
    return InvalidRequest(
        f"column {column} is {kind} in {path} and {other_kind} in {other_path}; {make}, or load the files one after "
        "the other"
    )


def _check_exact(made: Mapping[str, Any], long: Mapping[lossy_numbers.Path, str]) -> None:
    """That nothing is rounded by a type that nobody has asked for."""
    import pyarrow as pa

    for path, file in long.items():
        kind = lossy_numbers.type_at(made[path[0]], path[1:]) if path[0] in made else None
        if kind is not None and pa.types.is_floating(kind):
            raise InvalidRequest(
                f"column {lossy_numbers.shown(path)} has whole numbers beyond 2^53 in {file}, and not all its values "
                "fit bigint; double would round them. Make the table first, with varint, decimal or double"
            )


def _suggested(
    looked: Looked, options: FileOptions, *, first: bool
) -> Iterator[tuple[Any, Iterable[lossy_numbers.Path]]]:
    """The schema of a file, or of its parts, and where these have whole numbers that no double holds."""
    import pyarrow as pa

    from trimtab.spark.text_files import csv_texts, cut, json_types, parse_csv

    if options.format == PARQUET:
        yield looked.schema, ()
        return
    system, file = place(looked.url)[0], looked.file
    try:
        if options.format == JSON:
            stop = 0 if compression(file.path) else file.size_bytes
            yield from json_types(system, Piece(file.path, file.size_bytes, stop=stop), options)
            return
        size_bytes = BLOCK_BYTES if first else HEAD_BYTES
        head = _head(system, file, size_bytes)
        records = head if len(head) < size_bytes - len(BOM) else cut(head, options).records.data or head
        header = None if options.header else list(options.columns)
        table = parse_csv(records, header, options)
        yield table.schema, lossy_numbers.long_in_csv(table, csv_texts(records, header, options))
    except OSError as error:
        raise NotNow(f"{file.path} can't be read: {_told(error)}") from error
    except pa.ArrowException as error:
        raise LoadFailed(f"{file.path} is no {options.format} file that can be read: {_told(error)}") from error


def _wider(one: Any, other: Any, *, text: bool) -> Any:
    """The type that takes values of both; None: there is none. Of text all types are guesses."""
    import pyarrow as pa
    from pyarrow import types

    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_signed_integer(one) and types.is_signed_integer(other):
        return max(one, other, key=lambda each: each.bit_width)
    numbers = types.is_floating(one) and types.is_floating(other)
    if numbers or (text and all(types.is_integer(each) or types.is_floating(each) for each in (one, other))):
        return max((each for each in (one, other) if types.is_floating(each)), key=lambda each: each.bit_width)
    if types.is_list(one) and types.is_list(other):
        inner = _wider(one.value_type, other.value_type, text=text)
        return None if inner is None else pa.list_(inner)
    if text and types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _wider(fields.get(field.name, field.type), field.type, text=text)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    if text and any(types.is_string(each) for each in (one, other)) and any(map(types.is_temporal, (one, other))):
        return pa.string()
    return None


def _without_nulls(kind: Any) -> Any:
    """Text where nothing is known of a type but that there were nulls."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_nulls(field.type)) for field in kind])
    return kind


def _of_values(values: Sequence[str | None]) -> Any:
    """Whole numbers where all of them are, else text."""
    import pyarrow as pa

    whole = [value is None or (_WHOLE.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63) for value in values]
    return pa.int64() if all(whole) and any(value is not None for value in values) else pa.string()


def _told(error: Exception) -> str:
    """What Arrow says, as a part of a sentence of ours."""
    return str(error).strip().rstrip(".")
