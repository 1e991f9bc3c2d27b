"""Changes of the schema as people write them in Python, made into the catalog's commands.

Only what could not be said in a command is refused here; everything else is judged where the schema is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec
from trimtab.catalog.schema import Mode
from trimtab.client.consistency import checked_flag, iterated
from trimtab.client.errors import InvalidRequest
from trimtab.client.known import table_name

Replication = int | Mapping[str, int]
# ["a", "b"]: partition key a, clustering key b. [["a", "b"], "c"]: partition key (a, b). ("c", "desc"): descending.
PrimaryKey = str | Sequence[str | Sequence[str]]
_ORDERS = {"asc": False, "desc": True}
_MOST = (1 << 63) - 1  # what a message can say


class Options(TypedDict, total=False):
    """What may be said of a table, by our names or CQL's; docs/tables.md tells what each does."""

    comment: str
    default_ttl_s: int
    default_time_to_live: int
    gc_grace_s: int
    gc_grace_seconds: int
    history_s: int
    speculative_retry: str
    extensions: dict[str, str]


def create_keyspace(name: str, replication: Replication, mode: str, if_not_exists: bool) -> bytes:
    checked_flag(if_not_exists, "if_not_exists")
    if mode not in [each.value for each in Mode]:
        raise InvalidRequest(f"a keyspace's mode is {' or '.join(each.value for each in Mode)}, not {mode!r}")
    return _encoded(commands.CreateKeyspace(_name(name), _replication(replication), mode, if_not_exists))


def alter_keyspace(name: str, replication: Replication) -> bytes:
    return _encoded(commands.AlterKeyspace(_name(name), _replication(replication)))


def drop_keyspace(name: str, if_exists: bool) -> bytes:
    checked_flag(if_exists, "if_exists")
    return _encoded(commands.DropKeyspace(_name(name), if_exists))


def create_table(
    name: str,
    columns: Mapping[str, str],
    primary_key: PrimaryKey,
    *,
    order: Mapping[str, str] | None,
    static: Collection[str],
    tablets: int | None,
    if_not_exists: bool,
    options: Mapping[str, Any],
) -> bytes:
    keyspace, table = table_name(name)
    checked_flag(if_not_exists, "if_not_exists")
    _check_columns(name, columns)
    _check_options(name, options)
    partition, clustering = _primary_key(name, primary_key)
    if order is not None and not isinstance(order, Mapping):
        raise InvalidRequest(f"{name}: an order is given by column: order={{'at': 'desc'}}, not {order!r}")
    for column in order or {}:
        if column not in clustering:
            there = ", ".join(clustering) or "none"
            raise InvalidRequest(f"{name}: an order is given for {column}, but the clustering columns are {there}")
    clustering |= {column: _descends(name, word) for column, word in (order or {}).items()}
    static = _static(name, columns, static)
    if tablets is not None and (isinstance(tablets, bool) or not isinstance(tablets, int) or not 0 < tablets < _MOST):
        raise InvalidRequest(f"{name}: tablets is a power of two, or None to let the cluster choose, not {tablets!r}")
    return _encoded(
        commands.CreateTable(
            keyspace,
            table,
            [ColumnSpec(column, type_, column in static) for column, type_ in columns.items()],
            partition,
            list(clustering.items()),
            dict(options),
            tablets or 0,
            if_not_exists,
        )
    )


def alter_table(
    name: str,
    *,
    add: Mapping[str, str],
    drop: Sequence[str],
    rename: Mapping[str, str],
    static: Collection[str],
    options: Mapping[str, Any],
) -> bytes:
    keyspace, table = table_name(name)
    _check_columns(name, add)
    _check_renames(name, rename)
    _check_options(name, options)
    static = _static(name, add, static)
    drop = _names(name, drop, "columns to drop are given as a list of names: drop=")
    if not (add or drop or rename or options):
        raise InvalidRequest(f"{name}: nothing to change is given: add, drop, rename, or options")
    added = [ColumnSpec(column, type_, column in static) for column, type_ in add.items()]
    return _encoded(commands.AlterTable(keyspace, table, added, list(drop), list(rename.items()), dict(options)))


def drop_table(name: str, if_exists: bool) -> bytes:
    keyspace, table = table_name(name)
    checked_flag(if_exists, "if_exists")
    return _encoded(commands.DropTable(keyspace, table, if_exists))


def create_type(name: str, fields: Mapping[str, str], if_not_exists: bool) -> bytes:
    keyspace, type_ = _type_name(name)
    checked_flag(if_not_exists, "if_not_exists")
    _check_columns(name, fields)
    return _encoded(commands.CreateType(keyspace, type_, list(fields.items()), if_not_exists))


def alter_type(name: str, *, add: Mapping[str, str], rename: Mapping[str, str]) -> bytes:
    keyspace, type_ = _type_name(name)
    _check_columns(name, add)
    _check_renames(name, rename)
    return _encoded(commands.AlterType(keyspace, type_, list(rename.items()), list(add.items())))


def drop_type(name: str, if_exists: bool) -> bytes:
    keyspace, type_ = _type_name(name)
    checked_flag(if_exists, "if_exists")
    return _encoded(commands.DropType(keyspace, type_, if_exists))


def _encoded(command: commands.Command) -> bytes:
    try:
        encoded = commands.encode(command)
        # What is only wrong in its type would else come back as a riddle.
        commands.decode(encoded)
        return encoded
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRequest(f"this can't be said in a command: {error}") from error


def _name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"the name of a keyspace is a text, not {name!r}")
    return name


def _type_name(name: str) -> tuple[str, str]:
    try:
        return table_name(name)
    except InvalidRequest:
        raise InvalidRequest(f"{name!r} is not the name of a type; write KEYSPACE.TYPE, such as shop.address") from None


def _replication(given: Replication) -> dict[str, int] | int:
    counts = given.values() if isinstance(given, Mapping) else [given]
    if not all(isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MOST for count in counts):
        raise InvalidRequest(f'replication is a number of replicas, or such by data centre {{"dc1": 3}}, not {given!r}')
    if isinstance(given, Mapping):
        if not given or not all(isinstance(dc, str) and dc for dc in given):
            raise InvalidRequest(f'replication by data centre names at least one: {{"dc1": 3}}, not {given!r}')
        return dict(given)
    return given


def _check_columns(name: str, columns: Mapping[str, str]) -> None:
    if not isinstance(columns, Mapping):
        raise InvalidRequest(f'{name}: columns are given as {{"id": "bigint", "name": "text"}}, not {columns!r}')
    for column, type_ in columns.items():
        if not isinstance(column, str) or not isinstance(type_, str):
            raise InvalidRequest(f"{name}: the type of {column!r} is given as text, such as 'bigint', not {type_!r}")


def _check_renames(name: str, rename: Mapping[str, str]) -> None:
    if not isinstance(rename, Mapping) or not all(isinstance(each, str) for pair in rename.items() for each in pair):
        raise InvalidRequest(f"{name}: what to rename is given as {{'old': 'new'}}, not {rename!r}")


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """That a message can say them; whether they make sense is judged where the schema is."""
    for option, value in options.items():
        if isinstance(value, dict):
            fine = all(isinstance(each, str) for pair in value.items() for each in pair)
        else:
            fine = isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
        if not fine or (isinstance(value, int) and not -_MOST <= value <= _MOST):
            raise InvalidRequest(
                f"{name}: the option {option} is a text or a whole number, or texts by name {{'a': 'b'}}, not {value!r}"
            )


def _static(name: str, columns: Mapping[str, str], static: Collection[str]) -> list[str]:
    found = _names(name, static, "static columns are given as a list of names: static=")
    if unknown := [column for column in found if column not in columns]:
        raise InvalidRequest(f"{name}: {', '.join(unknown)} is to be static, but is not among the columns")
    return found


def _names(name: str, given: Collection[str], expected: str) -> list[str]:
    """`expected` ends where the list follows."""
    if isinstance(given, str):
        raise InvalidRequest(f"{name}: {expected}[{given!r}]")
    found = list(iterated(given, f"{name}: {expected}['a', 'b']"))
    if not all(isinstance(each, str) for each in found):
        raise InvalidRequest(f"{name}: {expected}['a', 'b'], not {given!r}")
    return found


def _primary_key(name: str, given: PrimaryKey) -> tuple[list[str], dict[str, bool]]:
    """The partition key's columns, and the clustering ones with whether they descend."""
    if not isinstance(given, str | Sequence):
        raise _no_primary_key(name, given)
    parts: list[Any] = [given] if isinstance(given, str) else list(given)
    if not parts:
        raise InvalidRequest(f"{name}: a table needs a primary key: primary_key=['id']")
    first, rest = parts[0], parts[1:]
    if not isinstance(first, str | Sequence):
        raise _no_primary_key(name, given)
    partition = [first] if isinstance(first, str) else list(first)
    clustering: dict[str, bool] = {}
    for part in rest:
        column, word = (part, "asc") if isinstance(part, str) else _ordered(name, part)
        if column in clustering:
            raise InvalidRequest(f"{name}: {column} is twice in the primary key")
        clustering[column] = _descends(name, word)
    if not partition or not all(isinstance(column, str) for column in partition):
        raise _no_primary_key(name, given)
    return partition, clustering


def _no_primary_key(name: str, given: Any) -> InvalidRequest:
    return InvalidRequest(
        f"{name}: a primary key is a list of columns, ['a', 'b'] (partition key a) or [['a', 'b'], 'c'] "
        f"(partition key a and b), not {given!r}"
    )


def _ordered(name: str, part: Any) -> tuple[str, str]:
    if not isinstance(part, tuple | list) or len(part) != 2 or not all(isinstance(each, str) for each in part):
        raise InvalidRequest(
            f"{name}: a clustering column is a name, or with its order: ('c', 'desc'), not {part!r}; "
            "columns of the partition key come first, in a list of their own"
        )
    return part[0], part[1]


def _descends(name: str, word: str) -> bool:
    found = _ORDERS.get(word.lower()) if isinstance(word, str) else None
    if found is None:
        raise InvalidRequest(f"{name}: an order is 'asc' or 'desc', not {word!r}")
    return found
