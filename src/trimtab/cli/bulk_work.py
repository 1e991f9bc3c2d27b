"""`trimtab load`, `export`, `verify`, `repair`, `count`, `analyze`: work over whole tables, done by jobs in Spark.

What is given is checked before a job is asked for. The exit code is 1 when the job did not succeed, and when it found
what it was asked to look for: replicas that differ, or that could not be repaired.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from trimtab.cli.asking import ask
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import ColumnsOption, TableArgument, columns_of, pairs_of, use
from trimtab.cli.errors import CommandFailed, WrongUsage
from trimtab.cli.jobs import Describe, await_job, run_job

if TYPE_CHECKING:
    from trimtab.catalog.schema import Table
    from trimtab.client.cluster import ClusterClient
    from trimtab.client.database import Database
    from trimtab.jobs.protocol import ScheduleReply
    from trimtab.jobs.records import JobKind, JobRecord
    from trimtab.pipeline.parameters import Parameters

_MOST_LISTED = 20
P = TypeVar("P", bound="Parameters")
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Return when it is done (default), or when it is asked for.")
]


class ReadLevel(enum.Enum):
    """The consistency levels of reads of whole tables."""

    ONE = "ONE"
    LOCAL_ONE = "LOCAL_ONE"
    QUORUM = "QUORUM"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    ALL = "ALL"


class FileFormat(enum.Enum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


LevelOption = Annotated[
    ReadLevel, typer.Option("--consistency", case_sensitive=False, help="How many replicas are read.")
]
AsOfOption = Annotated[
    str, typer.Option("--as-of", metavar="TIME", help="As it was then: ISO 8601, or microseconds since 1970.")
]
TabletOption = Annotated[
    list[int] | None, typer.Option("--tablet", min=0, help="Only this tablet; may be repeated. Default: all.")
]


def add_to(app: typer.Typer) -> None:
    commands: tuple[Callable[..., object], ...] = (load, export, verify, repair, count, analyze)
    for command in commands:
        app.command(command.__name__)(with_contact(command))


def load(
    contact: Contact,
    table: TableArgument,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Files, directories, patterns, URLs; or an export's directory.")
    ],
    format: Annotated[FileFormat | None, typer.Option("--format", help="Default: by the names of the files.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="In place of all rows there are.")] = False,
    primary_key: Annotated[
        str, typer.Option("--primary-key", metavar="KEY", help='A missing table is made: "id", or "(a,b),c desc".')
    ] = "",
    replication: Annotated[str, typer.Option("--replication", help='Of what is made: "3" or "dc1:3,dc2:2".')] = "",
    schema_from: Annotated[
        str, typer.Option("--schema-from", metavar="PATH", help="An export: a missing table is made as it says.")
    ] = "",
    rejected: Annotated[
        str,
        typer.Option("--rejected", metavar="PATH", help="Bad rows go there; else one fails the load."),
    ] = "",
    timestamp: Annotated[str, typer.Option("--timestamp", metavar="TIME", help="Of all rows; default: now.")] = "",
    ttl: Annotated[int, typer.Option("--ttl", min=0, metavar="SECONDS", help="Rows expire after so long.")] = 0,
    columns: ColumnsOption = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="How files are read: delimiter, quote, header, null, tasks, duplicates.",
        ),
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="The files are where the job runs, and need not be found here.")
    ] = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> int:
    """Load files into a table: all rows appear at once, or none."""
    from trimtab.jobs.records import JobKind
    from trimtab.pipeline.parameters import LoadParameters

    sink = {
        "primaryKey": primary_key,
        "replication": replication,
        "rejected": absolute(rejected) if rejected else "",
        "onError": "reject" if rejected else "",
        "timestamp": timestamp,
        "ttl": str(ttl) if ttl else "",
    }
    reading = pairs_of(option or [], "option", "delimiter=;")
    if names := columns_of(columns):
        reading["columns"] = ",".join(names)
    found = [absolute(path) for path in paths]
    if not remote:
        for given, path in zip(paths, found, strict=True):
            _check_there(given, path)
        if schema_from:
            _check_export(schema_from)
    parameters = _checked(
        lambda: LoadParameters(
            table=table,
            paths=found,
            format=format.value if format else "",
            mode="overwrite" if overwrite else "append",
            options={name: value for name, value in sink.items() if value},
            reading=reading,
            schema_from=absolute(schema_from) if schema_from else "",
        )
    )
    _check_options(parameters.options, reading, table)
    if not (primary_key or schema_from):
        _known_table(contact, table)
    return _run(contact, JobKind.LOAD, parameters, wait, as_json)


def export(
    contact: Contact,
    table: TableArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory that is not there yet.")],
    columns: ColumnsOption = None,
    as_of: AsOfOption = "",
    consistency: LevelOption = ReadLevel.QUORUM,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> int:
    """Write a table to Parquet files with its schema, as it was at one moment."""
    from trimtab.jobs.records import JobKind
    from trimtab.pipeline.parameters import ExportParameters

    parameters = _checked(
        lambda: ExportParameters(
            table=table,
            path=absolute(path),
            columns=columns_of(columns) or [],
            as_of_us=moment_us(as_of),
            consistency=consistency.value,
        )
    )
    if "://" not in path and Path(path).exists():
        raise CommandFailed(f"{path} is there already; name a directory that is not, or remove it first.")
    there = _table(contact, table)
    if unknown := [name for name in columns_of(columns) or [] if name not in {each.name for each in there.columns}]:
        raise CommandFailed(f"{table} has no column {unknown[0]}.")
    return _run(contact, JobKind.EXPORT, parameters, wait, as_json)


def verify(
    contact: Contact,
    table: TableArgument,
    tablet: TabletOption = None,
    limit: Annotated[int, typer.Option("--limit", min=0, max=1000, help="Differences that are listed.")] = 100,
    settle: Annotated[
        float, typer.Option("--settle", min=0, max=600, metavar="SECONDS", help="What differs is looked at twice.")
    ] = 3.0,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> int:
    """Compare all replicas of a table; exit code 1 if they differ, or could not all be compared."""
    from trimtab.jobs.records import JobKind
    from trimtab.pipeline.parameters import VerifyParameters

    parameters = _checked(lambda: VerifyParameters(table=table, tablets=tablet or [], limit=limit, settle_s=settle))
    _check_tablets(contact, table, tablet)
    return _run(contact, JobKind.VERIFY, parameters, wait, as_json)


def repair(
    contact: Contact,
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="KEYSPACE.TABLE, such as shop.users.")] = "",
    tablet: TabletOption = None,
    every: Annotated[
        float | None,
        typer.Option("--every", min=0, max=365, metavar="DAYS", help="Repair each table so often; 0: never by itself."),
    ] = None,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> int:
    """Make all replicas of a table equal; exit code 1 if some could not be. Without a table: show the schedule."""
    if not table or every is not None:
        if table or tablet:
            raise WrongUsage("--every is for all tables; leave out the table.")
        return _schedule(contact, every, as_json)
    from trimtab.jobs.records import JobKind
    from trimtab.pipeline.parameters import RepairParameters

    parameters = _checked(lambda: RepairParameters(table=table, tablets=tablet or []))
    _check_tablets(contact, table, tablet)
    return _run(contact, JobKind.REPAIR, parameters, wait, as_json)


def count(
    contact: Contact,
    table: TableArgument,
    as_of: AsOfOption = "",
    consistency: LevelOption = ReadLevel.ONE,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> int:
    """Count the rows of a table."""
    from trimtab.jobs.records import JobKind
    from trimtab.pipeline.parameters import CountParameters

    parameters = _checked(
        lambda: CountParameters(table=table, as_of_us=moment_us(as_of), consistency=consistency.value)
    )
    _table(contact, table)
    return _run(contact, JobKind.COUNT, parameters, wait, as_json)


def analyze(
    contact: Contact,
    table: TableArgument,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="How many of the largest partitions.")] = 10,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> int:
    """See what a table is made of: rows, partitions, bytes, its largest partitions. `tablets` shows it by tablet."""
    from trimtab.jobs.records import JobKind
    from trimtab.pipeline.parameters import AnalyzeParameters

    parameters = _checked(lambda: AnalyzeParameters(table=table, top=top))
    _table(contact, table)
    return _run(contact, JobKind.ANALYZE, parameters, wait, as_json)


def _run(contact: Contact, kind: JobKind, parameters: Parameters, wait: bool, as_json: bool) -> int:
    """Ask for the job and see it to its end; the exit code."""
    from trimtab.pipeline.parameters import plain

    why = f"{kind.value} of {parameters.table}"
    if not wait:
        return run_job(contact, kind, plain(parameters), why=why, no_wait=True, as_json=as_json)

    async def create(client: ClusterClient) -> JobRecord:
        return await client.jobs.create(kind, plain(parameters), why=why)

    return await_bulk_work(contact, kind.value, ask(contact, create).number, as_json)


def await_bulk_work(contact: Contact, kind: str, number: int, as_json: bool) -> int:
    """See a job of this kind to its end; the exit code, which is 1, too, if its result is not what one hopes for."""
    describe, good = _SAID.get(kind, (None, None))
    await_job(contact, number, as_json, describe)
    if good is None:
        return 0

    async def result(client: ClusterClient) -> JobRecord:
        return (await client.jobs.get(number))[0]

    return 0 if good(ask(contact, result).result) else 1


def _schedule(contact: Contact, days: float | None, as_json: bool) -> int:
    """Show, or set, how often tables are repaired by themselves."""
    interval_s = -1 if days is None else round(days * 86_400)

    async def change(client: ClusterClient) -> ScheduleReply:
        return await client.jobs.schedule_repairs(interval_s)

    found = ask(contact, change)
    if as_json:
        print(json.dumps({"repair_interval_s": found.interval_s}))
    elif found.interval_s:
        print(f"Every table is repaired every {found.interval_s / 86_400:g} days.")
    else:
        print("Tables are repaired only when somebody asks for it.")
    return 0


# What was given


def _checked(make: Callable[[], P]) -> P:
    """Parameters that make sense; WrongUsage says what does not."""
    from trimtab.client.errors import Error

    try:
        made = make()
        made.check()
    except Error as error:
        raise WrongUsage(f"{str(error).rstrip('.')}.") from error
    return made


def _table(contact: Contact, name: str) -> Table:
    """The table, as it is now; CommandFailed if there is none."""

    async def look(database: Database) -> Table:
        await database.refresh()
        return database.plan(name).table

    return use(contact, look)


def absolute(path: str) -> str:
    """The job may run elsewhere, where the current directory is another."""
    return path if "://" in path else str(Path(path).absolute())


def moment_us(text: str) -> int:
    """ISO 8601 (UTC where it names no zone) or microseconds since 1970; 0 where nothing is given."""
    if not text:
        return 0
    if text.isascii() and text.isdigit():
        if not 0 < int(text) < 1 << 63:
            raise WrongUsage(f"{text} µs is no time after 1970; leave it out for now.")
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(f"'{text}' is no time: write 2025-06-01T12:00:00Z, or microseconds since 1970.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    found_us = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if found_us <= 0:
        # 0 means that no time was given.
        raise WrongUsage(f"'{text}' is no time after 1970; leave it out for now.")
    return found_us


def _check_there(given: str, path: str) -> None:
    import glob

    # Of `{one,other}`, which `glob` does not know, the job finds out whether one of them is there.
    pattern = re.sub(r"\{[^{}]*\}", "*", path)
    if "://" not in path and not (Path(path).exists() or glob.glob(pattern)):  # noqa: PTH207 - it is a whole path
        raise _nothing_at(given)


def _check_export(given: str) -> None:
    """A schema.json, or the directory that it is in."""
    from trimtab.pipeline.table_document import NAME

    if "://" in given:
        return
    if not Path(given).exists():
        raise _nothing_at(given)
    if Path(given).is_dir() and not Path(given, NAME).exists():
        raise CommandFailed(f"{given} is no export: it has no {NAME}.")


def _nothing_at(given: str) -> CommandFailed:
    return CommandFailed(f"there is nothing at {given}; with --remote it is looked for where the job runs.")


def _known_table(contact: Contact, name: str) -> None:
    from trimtab.client.known import UnknownTable

    try:
        _table(contact, name)
    except CommandFailed as error:
        if not isinstance(error.__cause__, UnknownTable):
            raise
        raise CommandFailed(f"{str(error).rstrip('.')}. With --primary-key, or --schema-from, it is made.") from error


def _check_options(options: dict[str, str], reading: dict[str, str], table: str) -> None:
    from trimtab.client.errors import Error
    from trimtab.spark.options import READING_FILES, Options
    from trimtab.spark.write_options import write_options

    try:
        Options(reading, READING_FILES, "reading files")
        write_options(options | {"peer": "127.0.0.1:1", "table": table})
    except Error as error:
        raise WrongUsage(f"{str(error).removeprefix('option ').rstrip('.')}.") from error


def _check_tablets(contact: Contact, table: str, tablets: list[int] | None) -> None:
    there = _table(contact, table).tablets
    if wrong := [each for each in tablets or [] if each >= there]:
        raise CommandFailed(f"{table} has no tablet {wrong[0]}: it has {there}, from 0 on.")


# What is said


def _loaded(found: dict[str, Any]) -> str:
    from trimtab.cli.drawing import in_bytes

    rejected = f", {found['rejected']:,} were rejected" if found["rejected"] else ""
    seen = "" if found["state"] == "published" else f"; it is {found['state']}, and will be seen shortly"
    what = f"{found['rows']:,} rows are loaded ({in_bytes(found['bytes'])} in files{rejected})"
    return f"{what}: load {found['load']}{seen}."


def _exported(found: dict[str, Any]) -> str:
    from trimtab.cli.drawing import in_bytes

    moment = dt.datetime.fromtimestamp(found["as_of_us"] / 1_000_000, dt.UTC).isoformat()
    size = in_bytes(found["bytes"])
    return f"{found['rows']:,} rows as of {moment} are in {found['path']}: {found['files']} files, {size}."


def _verified(found: dict[str, Any]) -> str:
    lines = []
    if found["equal"]:
        ranges = f"{found['tablets']} tablets, {found['ranges']:,} ranges, {found['versions']:,} versions of rows"
        lines.append(f"All replicas of {found['table']} hold the same ({ranges}).")
    if found["differences"]:
        least = "at least " if found["more"] else ""
        tablets = ", ".join(map(str, found["differing_tablets"][:_MOST_LISTED]))
        lines.append(f"{least}{found['differences']:,} rows are not on all replicas; in tablets {tablets}:")
        for each in found["listed"][:_MOST_LISTED]:
            key = ", ".join(f"{name}={value}" for name, value in each["key"].items())
            lines.append(f"  {key}: lacking at {', '.join(each['lacking'])}")
        if len(found["listed"]) > _MOST_LISTED or found["differences"] > len(found["listed"]):
            lines.append("  … (--json lists up to --limit)")
        lines.append(f"`trimtab repair {found['table']}` makes them equal.")
    lines += [f"not compared: {each}" for each in found["troubles"]]
    return "\n".join(lines)


def _repaired(found: dict[str, Any]) -> str:
    from trimtab.cli.drawing import in_bytes

    lines = [f"{found['repaired_tablets']} of {found['tablets']} tablets of {found['table']} are repaired"]
    if found["rows_sent"]:
        whom = ", ".join(f"{name} {count:,}" for name, count in sorted(found["rows_lacked"].items()))
        lines[0] += f"; {found['rows_sent']:,} rows ({in_bytes(found['bytes_sent'])}) were sent to replicas: {whom}."
    else:
        lines[0] += "; no replica lacked anything."
    lines += [f"not repaired: {each}" for each in found["troubles"]]
    return "\n".join(lines)


def _analyzed(found: dict[str, Any]) -> str:
    from trimtab.cli.drawing import in_bytes

    lines = [
        f"{found['table']}: {found['rows']:,} rows in {found['partitions']:,} partitions, {in_bytes(found['bytes'])} "
        f"in {found['versions']:,} versions ({found['deletions']:,} of them deletions).",
        f"partitions along the ring: {_bars(found['histogram'])}",
    ]
    if found["largest"]:
        lines.append("largest partitions:")
    for each in found["largest"]:
        key = ", ".join(f"{name}={value}" for name, value in each["key"].items())
        lines.append(f"  {key}: {in_bytes(each['bytes'])} in {each['versions']:,} versions, tablet {each['tablet']}")
    lines.append(f"`trimtab tablets {found['table']}` shows it by tablet.")
    return "\n".join(lines)


def _bars(counts: list[int]) -> str:
    most = max([*counts, 1])
    return "".join("▁▂▃▄▅▆▇█"[min(7, 8 * count // (most + 1))] for count in counts)


def _counted(found: dict[str, Any]) -> str:
    return f"{found['rows']:,} rows"


# How a result is told, by the kind of the job, and whether it is good.
_SAID: dict[str, tuple[Describe, Callable[[dict[str, Any]], bool] | None]] = {
    "load": (_loaded, None),
    "export": (_exported, None),
    "verify": (_verified, lambda found: bool(found["equal"])),
    "repair": (_repaired, lambda found: not found["incomplete_tablets"]),
    "count": (_counted, None),
    "analyze": (_analyzed, None),
}
