"""`trimtab plan`: what a rebalance would do, what it would cost, and how little it could cost; nothing is changed.

Of the running cluster, or of a topology in a file: the same code plans both. What the file says can be changed for the
question's sake: more nodes, nodes that go, another replication.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import replication_of
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.client.database import Database
    from trimtab.tablets.balancer.model import Cluster, Plan

_MOVES_SHOWN = 20
MAX_INPUT_BYTES = 4 << 30


def add_to(app: typer.Typer) -> None:
    app.command("plan")(with_contact(plan))


def plan(
    contact: Contact,
    add: Annotated[int, typer.Option("--add", min=0, metavar="N", help="Suppose so many nodes more.")] = 0,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="ID", help="Suppose that it goes; may be repeated.")
    ] = None,
    replication: Annotated[
        list[str] | None,
        typer.Option("--replication", metavar="KS=N", help="Suppose another replication, or KS=dc1=3,dc2=2."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="PATH", help="A topology: a JSON file, or a directory of Parquet files."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="PATH", help="Write the topology there as it would be afterwards."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would move, why, and the least that could; of the cluster, or of a topology file. Changes nothing."""
    import time

    from trimtab.tablets.balancer.model import ModelError
    from trimtab.tablets.balancer.planning import plan as planned
    from trimtab.tablets.balancer.supposing import with_changes

    declared = _declared(replication or [])
    try:
        cluster = _read(source) if source is not None else _live(contact)
        cluster = with_changes(cluster, add=add, remove=tuple(remove or ()), replication=declared)
        found = planned(cluster, time.perf_counter)
    except ModelError as error:
        where = f"{source}: " if source is not None else ""
        raise CommandFailed(f"{where}{error}.") from error
    if output is not None:
        _write(output, cluster, found, source)
    if as_json:
        from trimtab.tablets.balancer.shapes import plan_shape

        print(json.dumps(plan_shape(found, cluster)))
    else:
        _show(found, cluster)


def _declared(said: list[str]) -> dict[str, int | dict[str, int]]:
    found: dict[str, int | dict[str, int]] = {}
    for word in said:
        keyspace, equals, value = word.partition("=")
        if not keyspace or not equals or keyspace in found:
            raise WrongUsage(f"'{word}' is no replication: write KEYSPACE=3, or KEYSPACE=dc1=3,dc2=2, each once.")
        found[keyspace] = replication_of(value)
    return found


# Where it comes from


def _read(path: Path) -> Cluster:
    from trimtab.tablets.balancer import files
    from trimtab.tablets.balancer.model import ModelError

    try:
        if not path.is_dir():
            if path.exists() and not path.is_file():
                raise ModelError("this is neither a file nor a directory")
            if path.stat().st_size > MAX_INPUT_BYTES:
                raise ModelError(f"this is {path.stat().st_size} bytes, and at most {MAX_INPUT_BYTES} are read")
            return files.from_json(path.read_bytes())
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts: dict[str, Any] = {}
        for name in files.PARTS:
            part = path / f"{name}.parquet"
            if not part.is_file():
                raise ModelError(f"this directory has no {part.name}; a topology is {', '.join(files.PARTS)}.parquet")
            try:
                parts[name] = pq.ParquetFile(part).read()
            except pa.ArrowException as error:
                raise ModelError(f"{part.name} can't be read as Parquet: {str(error).rstrip('.')}") from error
        return files.from_tables(parts)
    except OSError as error:
        raise CommandFailed(f"{path} can't be read: {error.strerror or error}.") from error


def _write(path: Path, cluster: Cluster, found: Plan, source: Path | None) -> None:
    """In the input's format; of the running cluster, a directory unless the name ends in .json."""
    from trimtab.tablets.balancer import files

    as_directory = source.is_dir() if source is not None else path.suffix != ".json"
    try:
        if not as_directory:
            path.write_bytes(files.to_json(cluster, found.replicas))
            return
        import pyarrow.parquet as pq

        path.mkdir(parents=True, exist_ok=True)
        for name, table in files.to_tables(cluster, found.replicas).items():
            pq.write_table(table, path / f"{name}.parquet")
    except OSError as error:
        raise CommandFailed(f"{path} can't be written: {error.strerror or error}.") from error


class _Told:
    """Sizes as the leader told them."""

    def __init__(self, sizes: dict[tuple[int, int], int]) -> None:
        self._sizes = sizes

    def size(self, table: int, tablet: int, _replicas: object) -> int:
        from trimtab.tablets.sizes import GONE

        return self._sizes.get((table, tablet), GONE)

    def free(self, _raft_id: int) -> int:
        from trimtab.tablets.sizes import GONE

        return GONE  # the leader alone was told


def _live(contact: Contact) -> Cluster:
    """The running cluster, as its leader would plan it."""
    from trimtab.cli.asking import ask, present_view, warn_if_stale
    from trimtab.cli.database import use
    from trimtab.tablets.balancer.live import cluster_of
    from trimtab.tablets.departures import going, lost
    from trimtab.tablets.view import TableView
    from trimtab.topology.records import RequestKind
    from trimtab.topology.view import View

    seen = ask(contact, present_view)
    warn_if_stale(seen)
    view = View(
        instances={each.raft_id: each.record for each in seen.view.instances}, requests=dict(seen.view.requests)
    )

    async def look(database: Database) -> tuple[TableView, _Told, int]:
        from trimtab.client.errors import Error
        from trimtab.client.moves import MoveClient
        from trimtab.tablets.rebalance_settings import DEFAULT_HEAL_AFTER_MS

        await database.refresh()
        session = database._session
        tables = TableView(catalog=session.known.catalog, maps=dict(session.members.maps))
        for move in (await session.moves(0)).moves:
            tables.transitions.setdefault(move.table, {})[move.tablet] = move.transition
        try:
            heal_after_ms = (await MoveClient.on(database).settings()).settings.heal_after_ms
        except Error:
            heal_after_ms = DEFAULT_HEAL_AFTER_MS
        return tables, _Told(await session.sizes(0)), heal_after_ms

    tables, sizes, heal_after_ms = use(contact, look)
    gone = lost(view, seen.view.wall_ms, heal_after_ms, in_office_ms=0, alive=lambda _raft_id: False)
    leaving = {raft_id for raft_id, kind in going(view).items() if kind is RequestKind.LEAVE}
    return cluster_of(view, tables, sizes, lost=gone, draining=leaving - gone)


# What people see


def _show(found: Plan, cluster: Cluster) -> None:
    from rich.text import Text

    from trimtab.cli.drawing import console, in_bytes
    from trimtab.cli.drawing import table as draw

    out, problems = console(), (*found.problems, *found.shortages)
    if not found.moves:
        out.print(Text("Nothing can be moved." if problems else "Nothing to move.", "bold"))
    else:
        causes = Counter(move.cause.value for move in found.moves)
        kinds = ", ".join(f"{number} {cause}" for cause, number in causes.items())
        out.print(Text(f"{_many(len(found.moves), 'move')} ({kinds}), {in_bytes(found.moved_bytes)} to copy.", "bold"))
        if found.weighed_bytes != found.moved_bytes:
            small = in_bytes(cluster.least_weight)
            out.print(
                f"Tablets below {small} count as {small}, here and in the bound: that makes "
                f"{in_bytes(found.weighed_bytes)}."
            )
        out.print(
            f"At least {_many(found.lower_bound_moves, 'move')} and {in_bytes(found.lower_bound_bytes)} are needed for "
            f"a state as even: {found.ratio:.2f}× the moves, {found.ratio_bytes:.2f}× the bytes."
        )
    out.print(
        f"Bytes per capacity differ by {100 * found.spread_before:.1f} % of the mean now"
        + (f", by {100 * found.spread_after:.1f} % afterwards." if found.moves else ".")
        + f" Planned in {found.seconds:.2f} s."
    )
    for problem in problems:
        out.print(Text(f"Can't be had: {problem}.", "yellow"))
    if not found.moves:
        return
    made = draw("table", "tablet", "from", "to", "size", "why", wraps=("why",))
    for move in found.moves[:_MOVES_SHOWN]:
        table = cluster.tables[cluster.table[move.row]]
        names = ["" if node is None else cluster.nodes[node].id for node in (move.source, move.target)]
        shown = table.id if table.id.startswith(f"{table.keyspace}.") else f"{table.keyspace}.{table.id}"
        size = in_bytes(int(cluster.bytes[move.row])) if move.target is not None else ""
        made.add_row(*map(Text, (shown, str(cluster.tablet[move.row]), *names, size, move.why)))
    out.print(made)
    if len(found.moves) > _MOVES_SHOWN:
        out.print(f"and {len(found.moves) - _MOVES_SHOWN:,} more; --json shows all.")


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"
