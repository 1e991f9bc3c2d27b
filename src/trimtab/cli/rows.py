"""`trimtab get`, `put` and `scan`: rows by hand.

Values are typed plainly where their type is simple (id=1, name=Ada, at=2024-05-01T12:00Z, photo=0x00ff), and as JSON
where it is made of others (tags='["a", "b"]').
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import ColumnsOption, ConsistencyOption, LevelName, TableArgument, columns_of, pairs_of, use
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.catalog.types import Type
    from trimtab.client.database import Database
    from trimtab.client.plans import TablePlan
    from trimtab.client.reads import RowWithMeta

_SHOWN_ROWS = 100

LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help=f"At most this many rows; 0: {_SHOWN_ROWS}, or all as JSON.")
]
AsOfOption = Annotated[
    int, typer.Option("--as-of", min=0, metavar="MICROSECONDS", help="As it was then, in µs since 1970; 0 is now.")
]
MetaOption = Annotated[
    bool, typer.Option("--with-meta", help="When cells were written, and what is left of their TTL.")
]


def add_to(app: typer.Typer) -> None:
    for command in (get, put, scan):
        app.command(command.__name__)(with_contact(command))


def get(
    contact: Contact,
    table: TableArgument,
    key: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="The key, or the beginning of one.")],
    columns: ColumnsOption = None,
    limit: LimitOption = 0,
    with_meta: MetaOption = False,
    as_of: AsOfOption = 0,
    consistency: ConsistencyOption = LevelName.QUORUM,
    as_json: JsonOption = False,
) -> int:
    """Show the row with a key; with the beginning of a key, all rows that have it. Exit code 1 if there is none."""
    wanted, words = columns_of(columns), pairs_of(key, "part of a key", "id=1")
    count = 0

    async def show(database: Database) -> None:
        nonlocal count
        types = await _types(database, table)
        values = _typed(table, types, words)
        found = database.table(table)
        plan = database.plan(table)
        options: dict[str, Any] = {"columns": wanted, "with_meta": with_meta, "as_of": as_of or None}
        printer = _Printer(types, as_json, with_meta)
        if set(values) == set(plan.key):
            row = await found.get(values, **options)
            if row is not None:
                printer.row(row)
        else:
            await printer.rows(found.slice(values, limit=_asked(limit, as_json), **options), limit)
        printer.end()
        count = printer.count

    use(contact, show, consistency=consistency)
    if not count:
        raise CommandFailed(f"{table} has no row with {', '.join(key)}.")
    return 0


def scan(
    contact: Contact,
    table: TableArgument,
    columns: ColumnsOption = None,
    limit: LimitOption = 0,
    with_meta: MetaOption = False,
    as_of: AsOfOption = 0,
    consistency: ConsistencyOption = LevelName.QUORUM,
    as_json: JsonOption = False,
) -> None:
    """Show the rows of a table; as JSON all of them, one object a line."""
    wanted = columns_of(columns)

    async def show(database: Database) -> None:
        types = await _types(database, table)
        printer = _Printer(types, as_json, with_meta)
        options: dict[str, Any] = {"columns": wanted, "with_meta": with_meta, "as_of": as_of or None}
        await printer.rows(database.table(table).scan(limit=_asked(limit, as_json), **options), limit)
        printer.end()

    use(contact, show, consistency=consistency)


def put(
    contact: Contact,
    table: TableArgument,
    cells: Annotated[
        list[str],
        typer.Argument(
            metavar="COLUMN=VALUE…", help="A row; or - for JSON lines from standard input, @FILE from a file."
        ),
    ],
    null: Annotated[
        list[str] | None, typer.Option("--null", metavar="COLUMN", help="Delete this cell; may be repeated.")
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option("--ttl", min=0, metavar="SECONDS", help="Gone after so long; 0 is never. Else the table says."),
    ] = None,
    timestamp: Annotated[
        int, typer.Option("--timestamp", min=0, metavar="MICROSECONDS", help="Orders the write; 0 is now.")
    ] = 0,
    consistency: ConsistencyOption = LevelName.QUORUM,
    as_json: JsonOption = False,
) -> None:
    """Write a row: trimtab put shop.users id=1 name=Ada. Or many: trimtab put shop.users - < rows.jsonl."""
    options: dict[str, Any] = {"ttl": ttl, "timestamp": timestamp or None}
    if len(cells) == 1 and (cells[0] == "-" or cells[0].startswith("@")):
        if null:
            raise WrongUsage("--null is for a single row; in JSON lines write null.")
        with _lines(cells[0]) as lines:
            written = use(contact, lambda db: _put_lines(db, table, lines, options), consistency=consistency)
        print(json.dumps({"rows": written}) if as_json else f"{written} row{'s' if written != 1 else ''} written.")
        return
    words = pairs_of(cells, "cell", "name=Ada")
    for name in null or []:
        if name in words:
            raise WrongUsage(f"{name} has a value and is to be null; give one of them.")

    async def write(database: Database) -> int:
        row = _typed(table, await _types(database, table), words) | dict.fromkeys(null or [])
        return await database.table(table).put(row, **options)

    stamp = use(contact, write, consistency=consistency)
    print(json.dumps({"rows": 1, "timestamp_us": stamp}) if as_json else f"1 row written (timestamp {stamp}).")


async def _put_lines(database: Database, table: str, lines: Iterator[str], options: dict[str, Any]) -> int:
    """Rows before a line that is wrong are written, and those after it are not: then it can be gone on from there."""
    await _types(database, table)
    plan, wrong = database.plan(table), None

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal wrong
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _from_json(plan, line, number)
        except CommandFailed as error:
            wrong = error
        except (OSError, UnicodeDecodeError) as error:
            wrong = CommandFailed(f"what comes after line {number} can't be read: {error}.")

    written = await database.table(table).put_many(rows(), **options)
    if wrong is not None:
        before = {0: "no row was", 1: "1 row before that was"}.get(written, f"{written} rows before that were")
        raise CommandFailed(f"{str(wrong).rstrip('.')}; {before} written.") from wrong
    return written


@contextmanager
def _lines(source: str) -> Iterator[Iterator[str]]:
    try:
        stream: IO[str]
        if source == "-":
            stream = sys.stdin
            yield iter(stream)
        else:
            with Path(source[1:]).open(encoding="utf-8") as stream:
                yield iter(stream)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"can't read the rows: {error}.") from error


# Values


async def _types(database: Database, table: str) -> dict[str, Type]:
    """The columns' types; the table is looked for now, so that what is wrong is said first."""
    await database.refresh()
    return database.plan(table).types


def _type(table: str, types: Mapping[str, Type], name: str) -> Type:
    if name not in types:
        from difflib import get_close_matches

        close = get_close_matches(name, types, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(types)}."
        raise CommandFailed(f"{table} has no column {name}; {hint}")
    return types[name]


def _typed(table: str, types: Mapping[str, Type], words: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for name, text in words.items():
        type_ = _type(table, types, name)
        try:
            found[name] = type_.from_text(text)
        except ValueError as error:
            raise CommandFailed(f"{table}.{name} is of type {type_}: {error}.") from error
    return found


def _from_json(plan: TablePlan, line: str, number: int) -> dict[str, Any]:
    from trimtab.client.errors import InvalidRequest

    table, types = plan.name, plan.types
    try:
        data = json.loads(line, parse_float=_json_number)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"line {number} is no JSON: {error}.") from error
    if not isinstance(data, dict):
        raise CommandFailed(f'line {number} is no JSON object; write one a line, such as {{"id": 1, "name": "Ada"}}.')
    found = {}
    for name, value in data.items():
        type_ = _type(f"line {number}: {table}", types, name)
        try:
            found[name] = type_.from_json(value)
        except ValueError as error:
            raise CommandFailed(f"line {number}: {table}.{name} is of type {type_}: {error}.") from error
    try:
        plan.cells(plan.writing(found), found)
    except InvalidRequest as error:
        raise CommandFailed(f"line {number}: {error}.") from error
    return found


def _json_number(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"the number {text[:40]} is too large for one; a decimal can be written as a string")
    return found


def _asked(limit: int, as_json: bool) -> int | None:
    """How many rows to ask for: one more than are shown, to know whether there are more."""
    if limit:
        return limit
    return None if as_json else _SHOWN_ROWS + 1


class _Printer:
    """Rows as JSON lines at once, or as a table at the end."""

    def __init__(self, types: Mapping[str, Type], as_json: bool, with_meta: bool) -> None:
        self._types = types
        self._as_json = as_json
        self._with_meta = with_meta
        self._rows: list[Any] = []
        self.count = 0

    async def rows(self, rows: AsyncIterator[Any], limit: int) -> None:
        async for row in rows:
            if not limit and not self._as_json and self.count == _SHOWN_ROWS:
                print(
                    f"trimtab: only the first {_SHOWN_ROWS} rows are shown; give --limit, or --json.", file=sys.stderr
                )
                return
            self.row(row)

    def row(self, row: Any) -> None:
        self.count += 1
        if self._as_json:
            print(json.dumps(self._shape(row)))
        else:
            self._rows.append(row)

    def end(self) -> None:
        if self._as_json or not self._rows:
            return
        from rich.text import Text

        from trimtab.cli.drawing import console, table

        first = self._rows[0].row if self._with_meta else self._rows[0]
        made = table(*first, wraps=[name for name in first if self._types[name].fixed_width is None])
        for row in self._rows:
            cells = row.row if self._with_meta else row
            made.add_row(*(self._cell(name, value, row) for name, value in cells.items()))
        out = console()
        out.print(made)
        if self._with_meta and any(row.stale for row in self._rows):
            out.print(Text("Maybe stale: whoever answered could not make sure that this is the newest."))

    def _cell(self, name: str, value: Any, row: Any) -> Any:
        from rich.text import Text

        text = Text("") if value is None else Text(self._types[name].to_text(value))
        if self._with_meta:
            meta: RowWithMeta = row
            if name in meta.writetime:
                ttl = f", {meta.ttl[name]} s left" if name in meta.ttl else ""
                text.append(f" ({meta.writetime[name]}{ttl})", style="dim")
        return text

    def _shape(self, row: Any) -> Any:
        if not self._with_meta:
            return {name: self._types[name].to_json(value) for name, value in row.items()}
        cells = {name: self._types[name].to_json(value) for name, value in row.row.items()}
        return {"row": cells, "writetime": row.writetime, "ttl": row.ttl, "stale": row.stale}
