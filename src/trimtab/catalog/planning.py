"""From a command to the update it comes to: the only place where the rules of the schema are.

`plan` is a function of the catalog, the command, the time and what there is of a cluster, so the leader may plan, lose
the race for the next version, and plan again on what came in between. It raises SchemaError, with the name of the thing
and what to do, and nothing has happened then; a bulk command is one update or none.

    command          becomes None (nothing to do) when
    create ... if_not_exists     the name is taken
    drop ... if_exists           there is nothing of that name
    alter                        everything is as it is asked for already
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from trimtab.catalog import commands, names, table_planning, type_planning, updates
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.drafts import Draft, no_keyspace
from trimtab.catalog.errors import AlreadyThere, SchemaError
from trimtab.catalog.limits import (
    MAX_BULK_COMMANDS,
    MAX_DATACENTERS,
    MAX_KEYSPACES,
    MAX_REPLICAS,
    MAX_REQUEST_BYTES,
)
from trimtab.catalog.schema import DEFAULT_DATACENTER, Mode
from trimtab.catalog.table_planning import Asking, TabletChooser

__all__ = ["DELAY_MS", "TabletChooser", "plan"]

# A version counts from a little after it was decided, so that most instances have it by then.
DELAY_MS = 100


def plan(
    catalog: Catalog,
    command: commands.Command,
    now_ms: int,
    datacenters: Collection[str],
    choose_tablets: TabletChooser,
) -> updates.Update | None:
    """The update that does what is asked; None where there is nothing to do; SchemaError where it can't be done.

    `datacenters` are those the cluster has instances in. `choose_tablets` says, for a keyspace's replication, how many
    tablets a table gets whose number is not given.
    """
    draft = Draft(catalog, catalog.version + 1)
    asking = Asking(draft, tuple(sorted(datacenters)) or (DEFAULT_DATACENTER,), choose_tablets)
    if isinstance(command, commands.Bulk):
        _plan_all(asking, command)
    else:
        _plan_one(asking, command)
    if not asking.changes:
        return None
    update = updates.Update(
        version=catalog.version + 1,
        activation_ms=max(now_ms + DELAY_MS, catalog.activation_ms + 1),
        changes=tuple(asking.changes),
    )
    try:
        # Whoever writes it adds which request it was made for; there has to be room for that.
        updates.encode(replace(update, request="." * MAX_REQUEST_BYTES))
    except ValueError as error:
        raise SchemaError(str(error)) from None
    return update


def _plan_all(asking: Asking, bulk: commands.Bulk) -> None:
    total = len(bulk.commands)
    if not 0 < total <= MAX_BULK_COMMANDS:
        raise SchemaError(f"a bulk command has 1 to {MAX_BULK_COMMANDS} commands, not {total}")
    for number, command in enumerate(bulk.commands, start=1):
        try:
            _plan_one(asking, command)
        except SchemaError as error:
            raise type(error)(f"command {number} of {total}: {error}") from error


def _plan_one(asking: Asking, command: commands.Single) -> None:
    rule = _RULES.get(type(command))
    if rule is None:
        raise SchemaError(f"there is no such command: {type(command).__name__}")
    rule(asking, command)


# Keyspaces


def _create_keyspace(asking: Asking, command: commands.CreateKeyspace) -> None:
    if wrong := names.wrong_name(command.name, "keyspace"):
        raise SchemaError(wrong)
    _check_not_system(command.name)
    if command.name in asking.draft.keyspaces:
        if command.if_not_exists:
            return
        raise AlreadyThere(f"the keyspace {command.name} is there already; trimtab keyspaces describe shows it")
    if len(asking.draft.keyspaces) >= MAX_KEYSPACES:
        raise SchemaError(f"a cluster has at most {MAX_KEYSPACES} keyspaces; drop one first")
    mode = _mode(command)
    replication = _replication(asking, command.name, command.replication)
    asking.emit(updates.KeyspaceAdded(command.name, replication, mode))


def _alter_keyspace(asking: Asking, command: commands.AlterKeyspace) -> None:
    _check_not_system(command.name)
    known = asking.draft.keyspaces.get(command.name)
    if known is None:
        raise no_keyspace(asking.draft, command.name)
    replication = _replication(asking, command.name, command.replication)
    if replication == known.replication:
        return
    asking.emit(updates.ReplicationChanged(command.name, replication))


def _drop_keyspace(asking: Asking, command: commands.DropKeyspace) -> None:
    _check_not_system(command.name)
    if command.name not in asking.draft.keyspaces:
        if command.if_exists:
            return
        raise no_keyspace(asking.draft, command.name)
    for (keyspace, _), number in sorted(asking.draft.ids.items()):
        if keyspace == command.name:
            asking.emit(updates.TableDropped(number))
    for name in sorted(asking.draft.types.get(command.name, ())):
        asking.emit(updates.TypeDropped(command.name, name))
    asking.emit(updates.KeyspaceDropped(command.name))


def _check_not_system(name: str) -> None:
    if names.is_system(name):
        raise SchemaError(f"the keyspace {name[:80]} belongs to the system; use another name")


def _mode(command: commands.CreateKeyspace) -> Mode:
    if command.mode == Mode.EVENTUAL.value:
        return Mode.EVENTUAL
    if command.mode == Mode.STRONG.value:
        raise SchemaError(
            f"{command.name}: the mode strong is not there yet; use eventual, with QUORUM reads and writes"
        )
    raise SchemaError(f"{command.name}: there is no mode '{command.mode[:40]}'; use eventual")


def _replication(asking: Asking, keyspace: str, asked: Mapping[str, int] | int) -> dict[str, int]:
    """Replicas by data centre, spelled out."""
    known = asking.datacenters
    if isinstance(asked, int):
        if len(known) > 1:
            example = ", ".join(f"{name}={asked}" for name in known[:3])
            raise SchemaError(
                f"{keyspace}: the cluster has several data centres ({', '.join(known)}); say how many replicas each "
                f"shall have, such as {example}"
            )
        asked = {known[0]: asked}
    if not 0 < len(asked) <= MAX_DATACENTERS:
        raise SchemaError(f"{keyspace}: replication names 1 to {MAX_DATACENTERS} data centres, not {len(asked)}")
    for name, number in asked.items():
        if name not in known:
            raise SchemaError(f"{keyspace}: there is no data centre '{name[:80]}'; there are {', '.join(known)}")
        if isinstance(number, bool) or not 1 <= number <= MAX_REPLICAS:
            raise SchemaError(
                f"{keyspace}: {name} can have 1 to {MAX_REPLICAS} replicas, not {number}; leave out a data centre that "
                "shall have none"
            )
    return {name: asked[name] for name in sorted(asked)}


_RULES: dict[type, Callable[[Asking, Any], None]] = {
    commands.CreateKeyspace: _create_keyspace,
    commands.AlterKeyspace: _alter_keyspace,
    commands.DropKeyspace: _drop_keyspace,
    commands.CreateTable: table_planning.create,
    commands.AlterTable: table_planning.alter,
    commands.DropTable: table_planning.drop,
    commands.CreateType: type_planning.create,
    commands.AlterType: type_planning.alter,
    commands.DropType: type_planning.drop,
}
