"""The rules of user types: fields are added and renamed, never removed or changed, because old values hold them.

A type that is part of a primary key can't grow: a key written before and one written after would be two keys.
"""

from __future__ import annotations

from trimtab.catalog import names
from trimtab.catalog.commands import AlterType, CreateType, DropType
from trimtab.catalog.cql_type import Kind
from trimtab.catalog.drafts import no_type, uses_type
from trimtab.catalog.errors import AlreadyThere, NoSuchThing, SchemaError
from trimtab.catalog.limits import MAX_FIELDS, MAX_TYPES
from trimtab.catalog.schema import ColumnKind, UserType
from trimtab.catalog.table_planning import Asking
from trimtab.catalog.types import parse
from trimtab.catalog.updates import FieldAdded, FieldRenamed, TypeAdded, TypeDropped


def create(asking: Asking, command: CreateType) -> None:
    asking.check_keyspace(command.keyspace)
    if wrong := names.wrong_type_name(command.name):
        raise SchemaError(wrong)
    there = asking.draft.types.get(command.keyspace, {})
    full_name = f"{command.keyspace}.{command.name}"
    if command.name in there:
        if command.if_not_exists:
            return
        raise AlreadyThere(f"the type {full_name} is there already")
    if len(there) >= MAX_TYPES:
        raise SchemaError(f"a keyspace has at most {MAX_TYPES} types; drop one of {command.keyspace} first")
    if not 0 < len(command.fields) <= MAX_FIELDS:
        raise SchemaError(f"{full_name}: a type has 1 to {MAX_FIELDS} fields, not {len(command.fields)}")
    fields: dict[str, str] = {}
    for name, text in command.fields:
        _check_field_name(name, fields, full_name)
        fields[name] = _field_type(asking, command.keyspace, name, text, full_name)
    asking.emit(TypeAdded(command.keyspace, command.name, tuple(fields.items())))
    asking.type(command.keyspace, f'"{command.name}"', full_name)  # it may be nested too deep now


def alter(asking: Asking, command: AlterType) -> None:
    known = _found(asking, command.keyspace, command.name)
    full_name = f"{command.keyspace}.{command.name}"
    if not (command.add or command.rename):
        raise SchemaError(f"{full_name}: nothing to change; add fields or rename them")
    for old, new in command.rename:
        fields = dict(_found(asking, command.keyspace, command.name).fields)
        if old not in fields:
            raise NoSuchThing(f"{full_name} has no field '{old[:80]}'; its fields are {', '.join(fields)}")
        _check_field_name(new, fields, full_name)
        asking.emit(FieldRenamed(command.keyspace, command.name, old, new))
    if not command.add:
        return
    for table in asking.draft.tables.values():
        if table.keyspace != command.keyspace:
            continue
        for column in uses_type(table.columns, command.name, asking.draft.types[command.keyspace]):
            if column.kind in (ColumnKind.PARTITION, ColumnKind.CLUSTERING):
                raise SchemaError(
                    f"{full_name} can't have more fields: it is part of the primary key of {table.full_name} "
                    f"({column.name}), and keys written before would not be found; create another type"
                )
    if len(known.fields) + len(command.add) > MAX_FIELDS:
        raise SchemaError(f"{full_name}: a type has at most {MAX_FIELDS} fields")
    for name, text in command.add:
        fields = dict(_found(asking, command.keyspace, command.name).fields)
        _check_field_name(name, fields, full_name)
        canonical = _field_type(asking, command.keyspace, name, text, full_name)
        if command.name in parse(canonical, asking.draft.types[command.keyspace]).user_types:
            raise SchemaError(f"{full_name}: the field {name} ({canonical}) would make the type a part of itself")
        try:
            asking.emit(FieldAdded(command.keyspace, command.name, name, canonical))
        except ValueError as error:  # what is made of the type can't be any more: too deep, or a key without order
            raise SchemaError(f"{full_name} can't have the field {name}: {error}") from None
    _check_all_readable(asking, command.keyspace)


def drop(asking: Asking, command: DropType) -> None:
    there = asking.draft.types.get(command.keyspace, {})
    if command.name not in there and command.if_exists:
        return
    _found(asking, command.keyspace, command.name)
    users = [
        f"{table.full_name} ({column.name})"
        for table in asking.draft.tables.values()
        if table.keyspace == command.keyspace
        for column in uses_type(table.columns, command.name, there)
    ]
    users += [
        f"the type {command.keyspace}.{name}"
        for name in sorted(there)
        if name != command.name and command.name in parse(f'"{name}"', there).user_types
    ]
    if users:
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        raise SchemaError(
            f"the type {command.keyspace}.{command.name} is in use by {', '.join(users[:5])}{more}; drop these first"
        )
    asking.emit(TypeDropped(command.keyspace, command.name))


def _found(asking: Asking, keyspace: str, name: str) -> UserType:
    found = asking.draft.types.get(keyspace, {}).get(name)
    if found is None:
        raise no_type(asking.draft, keyspace, name)
    return found


def _check_field_name(name: str, fields: dict[str, str], full_name: str) -> None:
    if wrong := names.wrong_column(name, "field"):
        raise SchemaError(f"{full_name}: {wrong}")
    if name in fields:
        raise AlreadyThere(f"{full_name} has a field {name} already, of type {fields[name]}")


def _field_type(asking: Asking, keyspace: str, name: str, text: str, full_name: str) -> str:
    found = asking.type(keyspace, text, f"{full_name}: the field {name}")
    if found.kind is Kind.COUNTER:
        raise SchemaError(f"{full_name}: the field {name} can't be a counter; use bigint")
    return found.name


def _check_all_readable(asking: Asking, keyspace: str) -> None:
    """Everything made of the keyspace's types can still be: not nested too deep, no key without order."""
    udts = asking.draft.types[keyspace]
    for name in udts:
        asking.type(keyspace, f'"{name}"', f"the type {keyspace}.{name}")
    for table in asking.draft.tables.values():
        if table.keyspace == keyspace:
            for column in table.columns:
                asking.type(keyspace, column.type, f"{table.full_name}: the column {column.name}")
