"""Files to be loaded, cut into pieces of about equal size for tasks; and a piece read as Arrow batches, in the task.

    parquet   by row groups: what each holds is in the file's footer
    csv, json by bytes: a piece begins after the first line end in it, and goes on to the first line end after it
    packed    (.gz, .bz2, .zst, .lz4) text can only be read from its beginning: one piece a file

Lines that can't be read are told with file and place. Paths may be local or URLs that Arrow knows (hdfs://, s3://,
gs://); a directory stands for all its files but those that begin with `_` or `.`. Directories called name=value give
their files a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from trimtab.catalog.cql_type import Type
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.spark.load_plan import LoadFailed
from trimtab.spark.rejecting import place

PARQUET, CSV, JSON = "parquet", "csv", "json"
FORMATS = (PARQUET, CSV, JSON)
BLOCK_BYTES = 16 * 1024 * 1024  # of text that is parsed together
MAX_LINE_BYTES = 32 * 1024 * 1024
BOM = b"\xef\xbb\xbf"  # some write it before the first line
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}  # and what Arrow calls it
_GLOB = re.compile(r"[*?\[{]")
_WILD = re.compile(r"(\*)|(\?)|\[([!^]?)([^]/]+)\]|\{([^{}/]*,[^{}/]*)\}")
_NAMED = re.compile(r"[^=]+=")
_NULL = "__HIVE_DEFAULT_PARTITION__"

Aside = Callable[[Any], None]
Heard = Callable[[int], None]


@dataclass(frozen=True)
class File:
    """`partition`: columns that the directories of the file give values to, as text; None is null."""

    path: str
    size_bytes: int
    partition: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A part of one file: row groups, or bytes from `start` to `stop` (0: to the end). `header` is that of a CSV."""

    path: str
    size_bytes: int
    groups: tuple[int, ...] = ()
    start: int = 0
    stop: int = 0
    header: tuple[str, ...] = ()
    partition: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class FileOptions:
    """How files are read. `columns`: only these, in a CSV without header the names of all, in order."""

    format: str
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    null: str = ""


@dataclass
class Found:
    """Files, with the URL that says which file system they are on."""

    url: str
    files: list[File] = field(default_factory=list)


@dataclass(frozen=True)
class Looked:
    """What a look at a file has shown. `schema`: the columns it has itself (of a CSV without types), None for JSON.

    `group_bytes`: row groups as they are unpacked. `whole`: it can't be cut.
    """

    url: str
    file: File
    schema: Any = None
    group_bytes: tuple[int, ...] = ()
    whole: bool = False


def find(paths: Sequence[str]) -> list[Found]:
    """The files below these paths, which may be patterns. NotFound: a path has none."""
    from pyarrow import fs

    found = []
    for path in paths:
        try:
            system, inner = place(path)
            fixed = inner.split("/")
            cut = next((at for at, part in enumerate(fixed) if _GLOB.search(part)), len(fixed))
            base = "/".join(fixed[:cut])
            info = system.get_file_info(base or "/")
            if info.type == fs.FileType.File:
                listed = [info]
            else:
                listed = system.get_file_info(fs.FileSelector(base or "/", recursive=True, allow_not_found=True))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{path} can't be read: {error}") from error
        try:
            pattern = _pattern("/".join(fixed))
        except re.error as error:
            raise InvalidRequest(f"{path} is no pattern: {error}") from error
        files = [
            File(each.path, each.size, _partition(each.path, base))
            for each in listed
            if each.type == fs.FileType.File and each.size and pattern.match(each.path) and not _hidden(each.path, base)
        ]
        if not files:
            raise NotFound(f"there are no files to load at {path}, or they are empty")
        found.append(Found(path, sorted(files, key=lambda each: each.path)))
    return found


def _pattern(path: str) -> re.Pattern[str]:
    """What a pattern means (`*`, `?`, `[ab]`, `[!ab]`, `{one,other}`) or what is called so, and all that lies below."""
    parts = (f"(?:{re.escape(part)}|{_meant(part)})" for part in path.split("/"))
    return re.compile("/".join(parts) + "(/.*)?$")


def _meant(part: str) -> str:
    wild, end = "", 0
    for found in _WILD.finditer(part):
        wild += re.escape(part[end : found.start()])
        end = found.end()
        star, mark, no, letters, others = found.groups()
        if star or mark:
            wild += "[^/]*" if star else "[^/]"
        elif letters:
            ranges = re.escape(letters).replace(r"\-", "-")
            wild += f"[{'^/' if no else ''}{ranges}]"
        else:
            wild += f"(?:{'|'.join(map(_meant, others.split(',')))})"
    return wild + re.escape(part[end:])


def _hidden(path: str, base: str) -> bool:
    parts = path.removeprefix(base).split("/")
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def _partition(path: str, base: str) -> tuple[tuple[str, str | None], ...]:
    """The directories called name=value below the base, and those at its end, as Hive and Spark write them."""
    folders = path.split("/")[:-1]
    fixed = min(len(base.split("/")), len(folders))
    while fixed and _NAMED.match(folders[fixed - 1]):
        fixed -= 1
    named = (folder.partition("=") for folder in folders[fixed:] if _NAMED.match(folder))
    return tuple((unquote(name), None if value == _NULL else unquote(value)) for name, _, value in named)


def pieces(looked: Sequence[Looked], options: FileOptions, target_bytes: int) -> list[tuple[Looked, Piece]]:
    """The files in pieces of about so many bytes, each with its file."""
    return [(each, piece) for each in looked for piece in _cut(each, options, max(1, target_bytes))]


def _cut(looked: Looked, options: FileOptions, target: int) -> Iterator[Piece]:
    file = looked.file
    if options.format == PARQUET:
        yield from _row_groups(looked, target)
        return
    header = tuple(looked.schema.names) if options.format == CSV and options.header else ()
    packed = compression(file.path) is not None
    count = 1 if packed or looked.whole else max(1, round(file.size_bytes / target))
    cuts = [file.size_bytes * at // count for at in range(count)] + [0 if packed else file.size_bytes]
    for start, stop in pairwise(cuts):
        yield Piece(
            file.path, file.size_bytes // count, start=start, stop=stop, header=header, partition=file.partition
        )


def compression(path: str) -> str | None:
    """How a text is packed, by the ending of its name in whatever case; None: it is not."""
    return next((name for ending, name in _PACKED.items() if path.lower().endswith(ending)), None)


def unpacked_name(path: str) -> str:
    """In lower case, and without the ending that says how it is packed."""
    name = path.lower()
    return next((name.removesuffix(ending) for ending in _PACKED if name.endswith(ending)), name)


def _row_groups(looked: Looked, target: int) -> Iterator[Piece]:
    """Row groups, put together up to the target; never of two files."""
    file, unpacked_bytes = looked.file, max(1, sum(looked.group_bytes))
    held: list[int] = []
    size = 0
    for number, group_bytes in enumerate(looked.group_bytes):
        # Its share of the file: what a group says of itself is how large it is when unpacked.
        share = file.size_bytes * group_bytes // unpacked_bytes
        if held and size + share / 2 > target:
            yield Piece(file.path, size, tuple(held), partition=file.partition)
            held, size = [], 0
        held.append(number)
        size += share
    if held:
        yield Piece(file.path, size, tuple(held), partition=file.partition)


# Reading, in tasks


def read_piece(
    url: str,
    piece: Piece,
    schema: Any,
    options: FileOptions,
    kinds: Mapping[str, Type],
    aside: Aside | None,
    heard: Heard = lambda _: None,
) -> Iterator[Any]:
    """The rows of a piece as record batches. `kinds` are the types of the table's columns.

    `aside` takes lines that can't be read; without it they are LoadFailed. `heard` is told of bytes as they are read.
    """
    import pyarrow as pa

    system, _ = place(url)
    given = {name: value for name, value in piece.partition if name in schema.names}
    own = pa.schema([field for field in schema if field.name not in given])
    fixed = [(name, partition_value(kinds[name], value)) for name, value in given.items()]
    try:
        if options.format == PARQUET:
            batches = _read_parquet(system, piece, own, heard)
        else:
            from trimtab.spark.text_files import read_text

            batches = read_text(system, piece, own, options, kinds, aside, heard)
        for batch in batches:
            for name, value in fixed:
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
            yield batch
    except (OSError, pa.ArrowException) as error:
        raise LoadFailed(f"{piece.path} can't be read: {error}") from error


def partition_value(kind: Type, text: str | None) -> Any:
    """What a directory says, as a value of Arrow; ValueError where it is none of this type."""
    from trimtab.catalog.text_forms import from_text
    from trimtab.spark.text_values import of_values

    return of_values(kind, [None if text is None else from_text(kind, text)])[0]


def _read_parquet(system: Any, piece: Piece, schema: Any, heard: Heard) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(piece.path, filesystem=system, memory_map=False, pre_buffer=True) as file:
        there = file.schema_arrow
        if missing := [name for name in schema.names if name not in there.names]:
            raise LoadFailed(f"{piece.path} has no column {', '.join(missing)} any more")
        for group in piece.groups:
            table = file.read_row_group(group, columns=schema.names, use_threads=False)
            for batch in table.select(schema.names).to_batches():
                yield batch
                heard(piece.size_bytes // len(piece.groups) * batch.num_rows // max(1, table.num_rows))
