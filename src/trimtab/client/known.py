"""What a client knows of the schema at one moment: a value, replaced as a whole when there is news.

Threads and tasks read it without a lock. A request that was made from an old one is refused by the cluster and made
again from a newer one.
"""

from __future__ import annotations

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.names import split_table
from trimtab.catalog.schema import Table
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.client.plans import TablePlan


class UnknownTable(NotFound):
    """There is no such table in what the client knows; it may be newer than that."""


class Known:
    """The schema as of some catalog version. `plan` is made when it is first asked for."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.version = catalog.version
        self._plans: dict[str, TablePlan] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._plans or self.catalog.find(name) is not None

    def plan(self, name: str) -> TablePlan:
        """How to write and read a table's rows; UnknownTable if there is none of that name."""
        plan = self._plans.get(name)
        if plan is None:
            table = self.table(name)
            plan = self._plans[name] = TablePlan(table, self.catalog.types_of(table.keyspace))
        return plan

    def table(self, name: str) -> Table:
        keyspace, short = table_name(name)
        table = self.catalog.find(name)
        if table is None:
            raise UnknownTable(self._missing(keyspace, short))
        return table

    def tables(self, keyspace: str | None = None) -> list[Table]:
        """All tables, or those of a keyspace, by name."""
        found = [each for each in self.catalog.tables.values() if keyspace in (None, each.keyspace)]
        return sorted(found, key=lambda table: table.full_name)

    def _missing(self, keyspace: str, short: str) -> str:
        if keyspace not in self.catalog.keyspaces:
            there = ", ".join(sorted(self.catalog.keyspaces)) or "none"
            return f"there is no keyspace '{keyspace}', and so no table {keyspace}.{short}; keyspaces: {there}"
        from difflib import get_close_matches

        names = [table.name for table in self.tables(keyspace)]
        close = get_close_matches(short, names, n=1)
        hint = f"did you mean {keyspace}.{close[0]}?" if close else f"{keyspace} has {', '.join(names) or 'no tables'}"
        return f"there is no table {keyspace}.{short}; {hint}"


def table_name(name: str) -> tuple[str, str]:
    """Keyspace and table; InvalidRequest where it is no name of one."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of a table is a text KEYSPACE.TABLE, such as 'shop.users', not {name!r}")
    try:
        return split_table(name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
