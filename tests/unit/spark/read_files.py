"""Files read as the tasks of a load read them, without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab.catalog.types import parse
from trimtab.spark.file_columns import look, schema_of
from trimtab.spark.file_splits import FileOptions, find, pieces, read_piece

COLUMNS = {"id": "bigint", "name": "text", "score": "double", "at": "timestamp"}


def read(
    path: Path | str,
    options: FileOptions,
    wanted: int = 1,
    aside: Any = None,
    columns: Mapping[str, str] = COLUMNS,
    heard: Any = lambda _: None,
) -> list[dict[str, Any]]:
    """The rows of all files at a path, in about so many pieces, for a table of these columns."""
    return [row for batch in batches(path, options, wanted, aside, columns, heard) for row in batch.to_pylist()]


def batches(
    path: Path | str,
    options: FileOptions,
    wanted: int = 1,
    aside: Any = None,
    columns: Mapping[str, str] = COLUMNS,
    heard: Any = lambda _: None,
) -> Iterator[Any]:
    """The same as a task has them."""
    kinds = {name: parse(kind) for name, kind in columns.items()}
    looked = look(find([str(path)]), options)
    target_bytes = sum(each.file.size_bytes for each in looked) // wanted
    for each, piece in pieces(looked, options, target_bytes):
        yield from read_piece(each.url, piece, schema_of(each, options, kinds), options, kinds, aside, heard)
