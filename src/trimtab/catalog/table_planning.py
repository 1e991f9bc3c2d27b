"""The rules of tables: what a primary key can be made of, what can be changed later and what never.

A column is its id, not its name: values are stored under the id, so a column that is dropped and added again begins
empty, and may have another type. The type of a column that is there never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trimtab.catalog import names
from trimtab.catalog.commands import AlterTable, ColumnSpec, CreateTable, DropTable
from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.drafts import Draft, no_keyspace, no_table
from trimtab.catalog.errors import AlreadyThere, NoSuchThing, SchemaError
from trimtab.catalog.limits import MAX_COLUMNS, MAX_KEY_COLUMNS, MAX_LAYOUTS, MAX_TABLES, MAX_TABLETS
from trimtab.catalog.options import options_after
from trimtab.catalog.schema import Column, ColumnKind, Table, TableOptions
from trimtab.catalog.types import parse, without_user_types
from trimtab.catalog.updates import (
    Change,
    ColumnAdded,
    ColumnDropped,
    ColumnRenamed,
    OptionsChanged,
    TableAdded,
    TableDropped,
)

TabletChooser = Callable[[Mapping[str, int]], int]
_KEY_KINDS = (ColumnKind.PARTITION, ColumnKind.CLUSTERING)


@dataclass
class Asking:
    """One planning: what is declared so far, what the cluster has, and the changes decided on."""

    draft: Draft
    datacenters: tuple[str, ...]
    choose_tablets: TabletChooser
    changes: list[Change] = field(default_factory=list)

    def emit(self, change: Change) -> None:
        """Decide on a change: from now on it is part of what is declared."""
        self.draft.apply(change)
        self.changes.append(change)

    def check_keyspace(self, keyspace: str) -> None:
        if keyspace not in self.draft.keyspaces:
            raise no_keyspace(self.draft, keyspace)

    def type(self, keyspace: str, text: str, of_what: str) -> Type:
        try:
            return parse(text, self.draft.types.get(keyspace, {}))
        except ValueError as error:
            raise SchemaError(f"{of_what}: {error}") from None


# Creating


def create(asking: Asking, command: CreateTable) -> None:
    asking.check_keyspace(command.keyspace)
    if wrong := names.wrong_name(command.name, "table"):
        raise SchemaError(wrong)
    full_name = f"{command.keyspace}.{command.name}"
    if (command.keyspace, command.name) in asking.draft.ids:
        if command.if_not_exists:
            return
        raise AlreadyThere(f"the table {full_name} is there already; trimtab tables describe {full_name} shows it")
    if len(asking.draft.tables) >= MAX_TABLES:
        raise SchemaError(f"a cluster has at most {MAX_TABLES} tables; drop one first")
    columns = _columns(asking, command, full_name)
    asking.emit(
        TableAdded(
            id=asking.draft.next_table,
            keyspace=command.keyspace,
            table=command.name,
            columns=columns,
            tablets=_tablets(asking, command, full_name),
            options=options_after(TableOptions(), command.options, full_name),
        )
    )


def _columns(asking: Asking, command: CreateTable, table: str) -> tuple[Column, ...]:
    if not 0 < len(command.columns) <= MAX_COLUMNS:
        raise SchemaError(f"{table}: a table has 1 to {MAX_COLUMNS} columns, not {len(command.columns)}")
    specs: dict[str, ColumnSpec] = {}
    for spec in command.columns:
        _check_name(spec.name, table)
        if spec.name in specs:
            raise SchemaError(f"{table}: the column {spec.name} is there twice")
        specs[spec.name] = spec
    partition, clustering = _key(command, specs, table)
    made = []
    counts = dict.fromkeys(ColumnKind, 0)
    for number, spec in enumerate(command.columns, start=1):
        kind = _kind(spec, partition, clustering)
        if kind is ColumnKind.STATIC:
            _check_static(spec.name, bool(clustering), table)
        found = _type(asking, command.keyspace, spec, table)
        if kind in _KEY_KINDS:
            _check_key_type(found, spec.name, table)
        key = partition if kind is ColumnKind.PARTITION else list(clustering)
        position = key.index(spec.name) if kind in _KEY_KINDS else counts[kind]
        counts[kind] += 1
        made.append(Column(number, spec.name, found.name, kind, position, clustering.get(spec.name, False)))
    return tuple(made)


def _key(command: CreateTable, specs: Mapping[str, ColumnSpec], table: str) -> tuple[list[str], dict[str, bool]]:
    """The columns of the partition key, and of the clustering key with whether they descend."""
    if not command.partition:
        raise SchemaError(f"{table}: the primary key is missing; say which columns make it")
    key = [*command.partition, *(name for name, _ in command.clustering)]
    for part, what in ((command.partition, "partition"), (command.clustering, "clustering")):
        if len(part) > MAX_KEY_COLUMNS:
            raise SchemaError(f"{table}: a {what} key has at most {MAX_KEY_COLUMNS} columns, not {len(part)}")
    for name in key:
        if name not in specs:
            raise SchemaError(
                f"{table}: the primary key names '{name[:80]}', which is no column of the table; "
                f"its columns are {_listed(list(specs))}"
            )
        if key.count(name) > 1:
            raise SchemaError(f"{table}: the primary key names {name} twice")
        if specs[name].static:
            raise SchemaError(f"{table}: {name} is part of the primary key, so it can't be static")
    return command.partition, dict(command.clustering)


def _kind(spec: ColumnSpec, partition: list[str], clustering: Mapping[str, bool]) -> ColumnKind:
    if spec.name in partition:
        return ColumnKind.PARTITION
    if spec.name in clustering:
        return ColumnKind.CLUSTERING
    return ColumnKind.STATIC if spec.static else ColumnKind.REGULAR


def _type(asking: Asking, keyspace: str, spec: ColumnSpec, table: str) -> Type:
    found = asking.type(keyspace, spec.type, f"{table}: the column {spec.name}")
    if found.kind is Kind.COUNTER:
        raise SchemaError(f"{table}: the column {spec.name} can't be a counter: counters are not there yet; use bigint")
    return found


def _check_key_type(found: Type, name: str, table: str) -> None:
    if found.multicell:
        raise SchemaError(
            f"{table}: {name} is part of the primary key, so it has to be frozen: write frozen<{found.name}>"
        )
    if Kind.DURATION in found.kinds:
        raise SchemaError(
            f"{table}: {name} ({found.name}) can't be part of the primary key: durations have no order, because a "
            "month has 28 to 31 days"
        )


def _check_static(name: str, clustered: bool, table: str) -> None:
    if not clustered:
        raise SchemaError(
            f"{table}: the column {name} can't be static: without clustering columns a partition is one row; "
            "make it a plain column"
        )


def _tablets(asking: Asking, command: CreateTable, table: str) -> int:
    number = command.tablets
    if number == 0:
        number = asking.choose_tablets(asking.draft.keyspaces[command.keyspace].replication)
    if not 1 <= number <= MAX_TABLETS or number & (number - 1):
        raise SchemaError(
            f"{table}: the number of tablets is a power of two from 1 to {MAX_TABLETS}, not {number}; or leave it out, "
            "and one is chosen"
        )
    return number


# Changing


def alter(asking: Asking, command: AlterTable) -> None:
    table = _found(asking, command.keyspace, command.name)
    if not (command.add or command.drop or command.rename or command.options):
        raise SchemaError(f"{table.full_name}: nothing to change; add, drop or rename columns, or set options")
    for old, new in command.rename:
        _rename(asking, _found(asking, command.keyspace, command.name), old, new)
    for name in command.drop:
        _drop_column(asking, _found(asking, command.keyspace, command.name), name)
    for spec in command.add:
        _add_column(asking, _found(asking, command.keyspace, command.name), spec)
    if (command.drop or command.add) and table.layout.number >= MAX_LAYOUTS:
        raise SchemaError(
            f"{table.full_name}: its columns changed {MAX_LAYOUTS} times, which is the limit; copy it to a new table"
        )
    options = options_after(table.options, command.options, table.full_name)
    if options != table.options:
        asking.emit(OptionsChanged(table.id, options))


def _rename(asking: Asking, table: Table, old: str, new: str) -> None:
    column = _column(table, old)
    if column.kind not in _KEY_KINDS:
        raise SchemaError(
            f"{table.full_name}: {old} can't be renamed, only columns of the primary key can; add a column {new[:80]} "
            "and copy what is in it"
        )
    _check_name(new, table.full_name)
    _check_free(table, new)
    asking.emit(ColumnRenamed(table.id, column.id, new))


def _drop_column(asking: Asking, table: Table, name: str) -> None:
    column = _column(table, name)
    if column.kind in _KEY_KINDS:
        raise SchemaError(
            f"{table.full_name}: {name} is part of the primary key and can't be dropped; create another table and copy"
        )
    found = asking.type(table.keyspace, column.type, f"{table.full_name}: the column {name}")
    asking.emit(ColumnDropped(table.id, column.id, without_user_types(found)))


def _add_column(asking: Asking, table: Table, spec: ColumnSpec) -> None:
    _check_name(spec.name, table.full_name)
    _check_free(table, spec.name, spec.type)
    if len(table.columns) >= MAX_COLUMNS:
        raise SchemaError(f"{table.full_name}: a table has at most {MAX_COLUMNS} columns")
    kind = ColumnKind.STATIC if spec.static else ColumnKind.REGULAR
    if spec.static:
        _check_static(spec.name, bool(table.of_kind(ColumnKind.CLUSTERING)), table.full_name)
    found = _type(asking, table.keyspace, spec, table.full_name)
    position = max((column.position for column in table.of_kind(kind)), default=-1) + 1
    asking.emit(ColumnAdded(table.id, Column(table.next_column, spec.name, found.name, kind, position)))


def drop(asking: Asking, command: DropTable) -> None:
    if (command.keyspace, command.name) not in asking.draft.ids and command.if_exists:
        return
    asking.emit(TableDropped(_found(asking, command.keyspace, command.name).id))


# What is there


def _found(asking: Asking, keyspace: str, name: str) -> Table:
    number = asking.draft.ids.get((keyspace, name))
    if number is None:
        raise no_table(asking.draft, keyspace, name)
    return asking.draft.tables[number]


def _column(table: Table, name: str) -> Column:
    for column in table.columns:
        if column.name == name:
            return column
    there = _listed([each.name for each in table.columns])
    raise NoSuchThing(f"{table.full_name} has no column '{name[:80]}'; its columns are {there}")


def _check_name(name: str, table: str) -> None:
    if wrong := names.wrong_column(name):
        raise SchemaError(f"{table}: {wrong}")


def _check_free(table: Table, name: str, text: str | None = None) -> None:
    for column in table.columns:
        if column.name == name:
            other = text is not None and text != column.type
            advice = "; a column's type can't be changed: add one of another name and copy" if other else ""
            raise AlreadyThere(f"{table.full_name} has a column {name} already, of type {column.type}{advice}")


def _listed(found: list[str], most: int = 20) -> str:
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
