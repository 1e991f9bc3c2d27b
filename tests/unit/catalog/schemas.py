"""A catalog that is changed by commands, as a leader would, for tests of everything around it."""

from __future__ import annotations

from collections.abc import Collection

from trimtab.catalog import commands, updates
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.commands import Command, CreateKeyspace, CreateTable
from trimtab.catalog.planning import plan
from trimtab.catalog.schema import Table

CHOSEN_TABLETS = 16


class Schema:
    """`do` sends a command through all its encodings, and applies what comes out."""

    def __init__(self, datacenters: Collection[str] = ("dc1",)) -> None:
        self.catalog = Catalog()
        self.datacenters = datacenters
        self.updates: list[updates.Update] = []
        self.catalogs = [self.catalog]
        self.now_ms = 1_000

    def do(self, command: Command) -> updates.Update | None:
        asked = commands.decode(commands.encode(command))
        update = plan(self.catalog, asked, self.now_ms, self.datacenters, lambda replication: CHOSEN_TABLETS)
        if update is None:
            return None
        update = updates.decode(updates.encode(update))
        self.catalog = self.catalog.apply(update)
        self.updates.append(update)
        self.catalogs.append(self.catalog)
        return update

    def table(self, name: str) -> Table:
        return self.catalog.table(name)


def columns(**types: str) -> list[commands.ColumnSpec]:
    """`static_` in front of a name makes the column static."""
    return [
        commands.ColumnSpec(name.removeprefix("static_"), text, name.startswith("static_"))
        for name, text in types.items()
    ]


def shop() -> Schema:
    """A keyspace `shop` with a table `users` (id bigint; name text, score double)."""
    schema = Schema()
    schema.do(CreateKeyspace("shop", 3))
    schema.do(CreateTable("shop", "users", columns(id="bigint", name="text", score="double"), ["id"]))
    return schema


def clustered() -> Schema:
    """`shop` with `visits`: partition key (site, day), clustering key at, descending; one static column."""
    schema = Schema()
    schema.do(CreateKeyspace("shop", 3))
    schema.do(
        CreateTable(
            "shop",
            "visits",
            columns(day="date", at="timestamp", site="text", static_owner="text", page="text"),
            ["site", "day"],
            [("at", True)],
        )
    )
    return schema
