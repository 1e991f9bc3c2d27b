"""A version of the catalog in the making: changes are put into it one by one, and each sees those before it.

Applying an update and planning one go through the same draft, so that what was planned is what will be. Every kind of
change has one handler here, and a change that does not fit raises ValueError.

Columns that were dropped stay known, because old layouts name them. However many columns one update adds and drops, a
table gets one new layout from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from trimtab.catalog import updates
from trimtab.catalog.errors import NoSuchThing
from trimtab.catalog.schema import Column, ColumnKind, Keyspace, Layout, Table, UserType
from trimtab.catalog.types import parse


class Declared(Protocol):
    """What a catalog and a draft of one have in common: enough to look around."""

    @property
    def keyspaces(self) -> Mapping[str, Keyspace]: ...
    @property
    def tables(self) -> Mapping[int, Table]: ...
    @property
    def types(self) -> Mapping[str, Mapping[str, UserType]]: ...
    @property
    def ids(self) -> Mapping[tuple[str, str], int]: ...


class Beginning(Declared, Protocol):
    @property
    def next_table(self) -> int: ...


class Draft:
    """What is declared so far. `version` is the one that is being made."""

    def __init__(self, base: Beginning, version: int) -> None:
        self.version = version
        self.keyspaces: dict[str, Keyspace] = dict(base.keyspaces)
        self.tables: dict[int, Table] = dict(base.tables)
        self.types: dict[str, Mapping[str, UserType]] = dict(base.types)
        self.ids: dict[tuple[str, str], int] = dict(base.ids)
        self.next_table = base.next_table
        self._relaid: set[int] = set()  # tables whose values will hold other columns

    def apply(self, change: updates.Change) -> None:
        handler = _HANDLERS.get(type(change))
        if handler is None:
            raise ValueError(f"no such change of the schema: {type(change).__name__}")
        handler(self, change)

    def finish(self) -> None:
        """The new layouts of tables whose columns are others now."""
        for number in sorted(self._relaid & self.tables.keys()):
            table = self.tables[number]
            layout = layout_of(table.columns, table.layout.number + 1)
            if (layout.regular, layout.static) != (table.layout.regular, table.layout.static):
                self.tables[number] = replace(table, layouts=(*table.layouts, layout))
        self._relaid.clear()

    # Keyspaces

    def _keyspace_added(self, change: updates.KeyspaceAdded) -> None:
        if change.keyspace in self.keyspaces:
            raise self._misfit(f"the keyspace {change.keyspace} is there already")
        self.keyspaces[change.keyspace] = Keyspace(change.keyspace, dict(change.replication), change.mode, self.version)

    def _replication_changed(self, change: updates.ReplicationChanged) -> None:
        self.keyspaces[change.keyspace] = replace(
            self._keyspace(change.keyspace), replication=dict(change.replication), version=self.version
        )

    def _keyspace_dropped(self, change: updates.KeyspaceDropped) -> None:
        self._keyspace(change.keyspace)
        if self.types.get(change.keyspace) or any(keyspace == change.keyspace for keyspace, _ in self.ids):
            raise self._misfit(f"the keyspace {change.keyspace} is not empty")
        del self.keyspaces[change.keyspace]
        self.types.pop(change.keyspace, None)

    # User types

    def _type_added(self, change: updates.TypeAdded) -> None:
        self._keyspace(change.keyspace)
        if change.type in self.types.get(change.keyspace, ()):
            raise self._misfit(f"the type {change.keyspace}.{change.type} is there already")
        self._put_type(UserType(change.keyspace, change.type, change.fields, self.version))

    def _field_added(self, change: updates.FieldAdded) -> None:
        known = self._type(change.keyspace, change.type)
        fields = (*known.fields, (change.field, change.field_type))
        self._put_type(replace(known, fields=fields))
        self._type_changed(change.keyspace, change.type)

    def _field_renamed(self, change: updates.FieldRenamed) -> None:
        known = self._type(change.keyspace, change.type)
        fields = tuple((change.to if name == change.field else name, text) for name, text in known.fields)
        self._put_type(replace(known, fields=fields))
        self._type_changed(change.keyspace, change.type)

    def _type_dropped(self, change: updates.TypeDropped) -> None:
        self._type(change.keyspace, change.type)
        left = {name: each for name, each in self.types[change.keyspace].items() if name != change.type}
        self.types[change.keyspace] = left
        if not left:
            del self.types[change.keyspace]

    def _put_type(self, user_type: UserType) -> None:
        self.types[user_type.keyspace] = {**self.types.get(user_type.keyspace, {}), user_type.name: user_type}

    def _type_changed(self, keyspace: str, name: str) -> None:
        """Whatever is made of the type is another now: those who remember it by its version have to look again."""
        udts = self.types[keyspace]
        for each in list(udts.values()):
            if name in parse(f"frozen<{_quote(each.name)}>", udts).user_types:
                self._put_type(replace(each, version=self.version))
        for number, table in list(self.tables.items()):
            if table.keyspace == keyspace and uses_type(table.columns, name, udts):
                self.tables[number] = replace(table, version=self.version)

    # Tables

    def _table_added(self, change: updates.TableAdded) -> None:
        self._keyspace(change.keyspace)
        if change.id < self.next_table or (change.keyspace, change.table) in self.ids:
            raise self._misfit(f"the table {change.keyspace}.{change.table} or its id {change.id} is there already")
        self.tables[change.id] = Table(
            id=change.id,
            keyspace=change.keyspace,
            name=change.table,
            version=self.version,
            columns=change.columns,
            layouts=(layout_of(change.columns, 1),),
            tablets=change.tablets,
            options=change.options,
            next_column=max(column.id for column in change.columns) + 1,
        )
        self.ids[change.keyspace, change.table] = change.id
        self.next_table = change.id + 1

    def _column_added(self, change: updates.ColumnAdded) -> None:
        table = self._table(change.table)
        if change.column.id < table.next_column or any(each.name == change.column.name for each in table.columns):
            raise self._misfit(f"the column {change.column.name} of {table.full_name} is there already")
        columns = (*table.columns, change.column)
        self._put_table(replace(table, columns=columns, next_column=change.column.id + 1), relaid=True)

    def _column_dropped(self, change: updates.ColumnDropped) -> None:
        table = self._table(change.table)
        gone = replace(self._column(table, change.column), type=change.kept_type)
        columns = tuple(column for column in table.columns if column.id != change.column)
        self._put_table(replace(table, columns=columns, dropped=(*table.dropped, gone)), relaid=True)

    def _column_renamed(self, change: updates.ColumnRenamed) -> None:
        table = self._table(change.table)
        self._column(table, change.column)
        columns = tuple(
            replace(column, name=change.to) if column.id == change.column else column for column in table.columns
        )
        self._put_table(replace(table, columns=columns))

    def _options_changed(self, change: updates.OptionsChanged) -> None:
        self._put_table(replace(self._table(change.table), options=change.options))

    def _table_dropped(self, change: updates.TableDropped) -> None:
        table = self._table(change.table)
        del self.tables[table.id]
        del self.ids[table.keyspace, table.name]

    def _put_table(self, table: Table, relaid: bool = False) -> None:
        self.tables[table.id] = replace(table, version=self.version)
        if relaid:
            self._relaid.add(table.id)

    # What has to be there

    def _keyspace(self, name: str) -> Keyspace:
        if name not in self.keyspaces:
            raise self._misfit(f"there is no keyspace {name}")
        return self.keyspaces[name]

    def _type(self, keyspace: str, name: str) -> UserType:
        if name not in self.types.get(keyspace, ()):
            raise self._misfit(f"there is no type {keyspace}.{name}")
        return self.types[keyspace][name]

    def _table(self, number: int) -> Table:
        if number not in self.tables:
            raise self._misfit(f"there is no table with id {number}")
        return self.tables[number]

    def _column(self, table: Table, number: int) -> Column:
        for column in table.columns:
            if column.id == number:
                return column
        raise self._misfit(f"{table.full_name} has no column with id {number}")

    def _misfit(self, why: str) -> ValueError:
        return ValueError(f"schema update {self.version} does not fit the version before it: {why}")


_HANDLERS: dict[type, Callable[[Draft, Any], None]] = {
    updates.KeyspaceAdded: Draft._keyspace_added,
    updates.ReplicationChanged: Draft._replication_changed,
    updates.KeyspaceDropped: Draft._keyspace_dropped,
    updates.TypeAdded: Draft._type_added,
    updates.FieldAdded: Draft._field_added,
    updates.FieldRenamed: Draft._field_renamed,
    updates.TypeDropped: Draft._type_dropped,
    updates.TableAdded: Draft._table_added,
    updates.ColumnAdded: Draft._column_added,
    updates.ColumnDropped: Draft._column_dropped,
    updates.ColumnRenamed: Draft._column_renamed,
    updates.OptionsChanged: Draft._options_changed,
    updates.TableDropped: Draft._table_dropped,
}


def layout_of(columns: tuple[Column, ...], number: int) -> Layout:
    """The columns that values hold, oldest first, so that a column's place changes only when an older one goes."""
    regular = sorted(column.id for column in columns if column.kind is ColumnKind.REGULAR)
    static = sorted(column.id for column in columns if column.kind is ColumnKind.STATIC)
    return Layout(number, tuple(regular), tuple(static))


def uses_type(columns: tuple[Column, ...], name: str, udts: Mapping[str, UserType]) -> list[Column]:
    """The columns whose type is made of a user type, directly or not."""
    return [column for column in columns if name in parse(column.type, udts).user_types]


def no_keyspace(declared: Declared, keyspace: str) -> NoSuchThing:
    there = sorted(declared.keyspaces)
    what = _suggestion(keyspace, there) or "create it first: trimtab keyspaces create " + keyspace[:80]
    return NoSuchThing(f"there is no keyspace {keyspace[:80]}; {what}")


def no_table(declared: Declared, keyspace: str, name: str) -> NoSuchThing:
    if keyspace not in declared.keyspaces:
        return no_keyspace(declared, keyspace)
    there = sorted(table for each, table in declared.ids if each == keyspace)
    what = _suggestion(name, there) or "trimtab tables list shows what there is"
    return NoSuchThing(f"there is no table {keyspace}.{name[:80]}; {what}")


def no_type(declared: Declared, keyspace: str, name: str) -> NoSuchThing:
    if keyspace not in declared.keyspaces:
        return no_keyspace(declared, keyspace)
    there = sorted(declared.types.get(keyspace, ()))
    what = _suggestion(name, there) or f"{keyspace} has {', '.join(there[:20]) or 'no types of its own'}"
    return NoSuchThing(f"there is no type {keyspace}.{name[:80]}; {what}")


def _suggestion(name: str, there: list[str]) -> str:
    from difflib import get_close_matches  # only for people who mistyped

    close = get_close_matches(name[:80], there, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
