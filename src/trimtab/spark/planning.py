"""Plans a read, on the driver: the table's schema, one epoch and one moment for all tasks, and who reads what where.

Every tablet is read once, from the replica that has the least to do so far (Online ones, and those of the preferred
data centre, first). Small tablets that one instance serves are read by one task; `splitsPerTablet` cuts large ones by
tokens. What cost a task might have is only guessed from the sizes that instances report.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.catalog.cql_type import Type
from trimtab.catalog.schema import ColumnKind, Table, UserType
from trimtab.client.consistency import addresses_of, level_of
from trimtab.client.contact import Contacts, decoded
from trimtab.client.errors import InvalidRequest, NotFound, SchemaError
from trimtab.client.loop_thread import LoopThread
from trimtab.client.plans import TablePlan
from trimtab.client.session import Session
from trimtab.loads import protocol
from trimtab.loads.protocol import LoadsReply, ShowRequest
from trimtab.loads.records import LoadKind
from trimtab.rows.column_meta import TTL_LEFT, WRITETIME
from trimtab.rows.layout import RowLayout
from trimtab.rows.tokens import keys_between
from trimtab.spark.instances import tls_context
from trimtab.spark.options import ReadOptions, read_options
from trimtab.spark.scan_plan import Holder, KeyRange, ScanPart, ScanPartition, ScanPlan
from trimtab.spark.types import spark_type
from trimtab.tablets.ring import tablet_of, token_range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import DataType, StructType

GROUP_BYTES = 16 * 1024 * 1024  # so much is worth a task of its own
GROUP_TABLETS = 64  # or so many tablets
_UNKNOWN_BYTES = 4 * 1024 * 1024  # of a tablet whose size nobody has reported
_AHEAD_US = 1_000_000  # clocks differ


@dataclass(frozen=True)
class Known:
    """The cluster and one table of it, as they are told now. `replicas` and `sizes` by tablet.

    `now_us` is what a member says: the clock of the machine that plans may be wrong.
    """

    plan: TablePlan
    types: Mapping[str, UserType]
    holders: Mapping[int, Holder]
    online: frozenset[int]
    replicas: Sequence[tuple[int, ...]]
    sizes: Mapping[int, int]
    loads: LoadsReply
    now_us: int

    @property
    def table(self) -> Table:
        return self.plan.table


def schema(given: Mapping[str, str]) -> StructType:
    """The columns of the table that the options name, as Spark has them."""
    from pyspark.sql.types import StructField, StructType

    options = read_options(given)
    table = look(options).plan
    names = _chosen(table, options)
    fields = [StructField(name, spark_type(table.types[name])) for name in names]
    if options.meta:
        fields += [StructField(name, kind) for name, kind in meta_columns(table, names).items()]
    return StructType(fields)


def meta_columns(table: TablePlan, names: Iterable[str]) -> dict[str, DataType]:
    """The columns that `meta` adds: of every column that has a time of writing of its own."""
    from pyspark.sql.types import IntegerType, LongType

    found: dict[str, DataType] = {}
    for name in names:
        if has_meta(table, name):
            found[WRITETIME + name] = LongType()
            found[TTL_LEFT + name] = IntegerType()
    if taken := sorted(found.keys() & table.columns.keys()):
        raise InvalidRequest(
            f"option meta: {table.name} has a column {taken[0]} itself; leave it out with the option columns, "
            "or read without meta"
        )
    return found


def has_meta(table: TablePlan, name: str) -> bool:
    """Key columns have no time of writing, and of collections every element has one of its own."""
    kind: Type = table.types[name]
    return table.columns[name].kind in (ColumnKind.REGULAR, ColumnKind.STATIC) and not kind.multicell


def _chosen(table: TablePlan, options: ReadOptions) -> list[str]:
    if options.columns is None:
        return list(table.columns)
    table.check_columns(options.columns)
    return list(options.columns)


def partitions(given: Mapping[str, str], schema: StructType, filters: Sequence[Filter]) -> list[ScanPartition]:
    """What the tasks of a read are to do. `schema` is ours, or the user's choice of columns."""
    options = read_options(given)
    known = look(options)
    names = _checked_schema(known.plan, options, schema)
    _check_time(known, options.as_of_us)
    plan = ScanPlan(
        options.connection,
        known.table,
        known.types,
        columns=tuple(name for name in names if name in known.plan.columns),
        names=names,
        epoch=known.loads.epochs.get(known.table.id, (0, 1))[0],
        now_s=known.now_us // 1_000_000,
        level=level_of(options.consistency),  # type: ignore[arg-type]
        local_dc=options.datacenter or _own_dc(known),
        holders=known.holders,
        as_of_us=options.as_of_us,
    )
    from trimtab.spark.narrowing import key_ranges

    narrowed = key_ranges(RowLayout(known.table, known.types), filters)
    parts = _parts(known, plan.local_dc, narrowed, options.splits_per_tablet)
    return [ScanPartition(plan, group) for group in _grouped(parts, options.splits_per_tablet)]


def _checked_schema(table: TablePlan, options: ReadOptions, schema: StructType) -> tuple[str, ...]:
    """The names of the columns to read; SchemaError where a type is not the one that the column has."""
    of_meta = meta_columns(table, table.columns) if options.meta else {}
    for field in schema.fields:
        if field.name not in of_meta:
            table.check_columns([field.name])
        wanted = of_meta[field.name] if field.name in of_meta else spark_type(table.types[field.name])
        if field.dataType != wanted:
            raise SchemaError(
                f"{table.name}.{field.name} is {wanted.simpleString()} in Spark, not {field.dataType.simpleString()}; "
                "name that in .schema(), and cast the column afterwards"
            )
    if not schema.fields:
        raise InvalidRequest("at least one column must be read")
    return tuple(field.name for field in schema.fields)


def _check_time(known: Known, as_of_us: int) -> None:
    """Reads at a time are exact only where nothing can change any more, and where nothing was forgotten yet."""
    if not as_of_us:
        return
    now_us = known.now_us
    if as_of_us > now_us + _AHEAD_US:
        raise InvalidRequest(f"option asOf: {as_of_us} µs lies in the future; leave it out to read what is there now")
    kept_s = known.table.options.history_s
    if now_us - as_of_us > kept_s * 1_000_000:
        raise InvalidRequest(
            f"option asOf: {(now_us - as_of_us) // 1_000_000} s ago is more than the {kept_s} s that "
            f"{known.table.full_name} keeps its history for (its option history_s)"
        )
    _visible, served = known.loads.epochs.get(known.table.id, (0, 1))
    for load in known.loads.loads:
        if load.kind is LoadKind.OVERWRITE and load.generation == served and as_of_us < load.published_ms * 1000:
            raise InvalidRequest(
                f"option asOf: {known.table.full_name} was overwritten since, by the load {load.id}; it can be read as "
                f"it was from {load.published_ms * 1000} µs on"
            )
        if not load.state.final and load.stamp_us <= as_of_us:
            raise InvalidRequest(
                f"option asOf: the load {load.id} is {load.state.value}, and its rows will be of {load.stamp_us} µs; "
                "read at a time before that, or wait until it has ended"
            )


# Looking


def look(options: ReadOptions) -> Known:
    """Ask the cluster; Unavailable if nobody answers, NotFound if there is no such table."""
    # On a loop of its own: in a notebook there is one that runs.
    thread = LoopThread()
    try:
        return thread.call(lambda: _look(options))
    finally:
        thread.close()


async def _look(options: ReadOptions) -> Known:
    connection = options.connection
    addresses, tls = addresses_of(connection.peer), tls_context(connection)
    session = await Session.open(
        addresses, tls=tls, timeout_s=connection.timeout_s, datacenter=options.datacenter or None
    )
    contacts = Contacts(addresses, rng=random.Random(), tls=tls, timeout_s=connection.timeout_s, follow_leader=False)
    try:
        plan = session.known.plan(options.table)
        table = plan.table
        shown, now, sizes = await asyncio.gather(
            contacts.ask(protocol.SHOW, protocol.encode(ShowRequest(table.id)), None),
            session.contacts.ask(protocol.TIME, b"", None),
            session.sizes(table.id),
        )
        members = session.members.by_id
        tablets = session.members.reading(table.id)
        if tablets is None or tablets.count != table.tablets:
            raise NotFound(f"{table.full_name} was dropped, or made anew, a moment ago; read it again")
        return Known(
            plan,
            session.known.catalog.types_of(table.keyspace),
            {
                each.raft_id: Holder(each.raft_id, each.instance_id, each.address, each.dc, each.online)
                for each in members.values()
            },
            frozenset(each.raft_id for each in members.values() if each.online),
            [tuple(tablets.replicas(tablet)) for tablet in range(table.tablets)],
            {tablet: size for (_, tablet), size in sizes.items()},
            decoded(protocol.decode_loads_reply, shown),
            decoded(protocol.decode_time_reply, now).now_us,
        )
    finally:
        contacts.close()
        await session.close()


def _own_dc(known: Known) -> str:
    """The data centre that LOCAL levels are about where none is named: the only one, or the first."""
    return min((each.dc for each in known.holders.values()), default="")


# Sharing out


def _parts(known: Known, local_dc: str, narrowed: list[KeyRange] | None, splits: int) -> list[ScanPart]:
    count = known.table.tablets
    wanted: dict[int, list[KeyRange]] = {}
    if narrowed is None:
        # Without bounds, though a tablet has some: a whole snapshot is read faster than a range of it.
        wanted = {tablet: [keys_between(None, None)] for tablet in range(count)}
    else:
        for low, high in narrowed:
            wanted.setdefault(tablet_of(int.from_bytes(low[:8], "big") - (1 << 63), count), []).append((low, high))
    busy: dict[int, int] = dict.fromkeys(known.holders, 0)
    parts: list[ScanPart] = []
    for tablet, ranges in sorted(wanted.items()):
        size_bytes = known.sizes.get(tablet, _UNKNOWN_BYTES) if narrowed is None else 0
        pieces = _pieces(tablet, count, splits) if narrowed is None and splits > 1 else [ranges]
        for piece in pieces:
            part = ScanPart(tablet, tuple(piece), _ordered(known, tablet, local_dc, busy), size_bytes // len(pieces))
            if part.holders:
                busy[part.holders[0]] += part.size_bytes + 1
            parts.append(part)
    return parts


def _pieces(tablet: int, count: int, splits: int) -> list[list[KeyRange]]:
    first, last = token_range(tablet, count)
    bounds = [first + (last - first) * piece // splits for piece in range(splits + 1)]
    pieces = []
    for piece in range(splits):
        low, high = keys_between(bounds[piece] if piece else None, bounds[piece + 1] if piece < splits - 1 else None)
        pieces.append([(low, high)])
    return pieces


def _ordered(known: Known, tablet: int, local_dc: str, busy: Mapping[int, int]) -> tuple[int, ...]:
    """The holders of a tablet, the one to be asked first in front."""
    return tuple(
        sorted(
            (each for each in known.replicas[tablet] if each in known.holders),
            key=lambda each: (each not in known.online, known.holders[each].dc != local_dc, busy[each], each),
        )
    )


def _grouped(parts: Sequence[ScanPart], splits: int) -> list[tuple[ScanPart, ...]]:
    """Parts that one task reads: small ones of one instance together."""
    if splits > 1:
        return [(part,) for part in parts]
    groups: list[list[ScanPart]] = []
    filling: dict[int, tuple[list[ScanPart], int]] = {}
    for part in parts:
        first = part.holders[0] if part.holders else 0
        group, size_bytes = filling.get(first, ([], 0))
        if not group or size_bytes + part.size_bytes > GROUP_BYTES or len(group) >= GROUP_TABLETS:
            group, size_bytes = [], 0
            groups.append(group)
        group.append(part)
        filling[first] = group, size_bytes + part.size_bytes
    return [tuple(group) for group in groups]
