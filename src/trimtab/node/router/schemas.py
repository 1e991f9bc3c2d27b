"""The tables as requests see them: each with the layout of its rows, made once per version.

A request names the version of its table that it was made for. An older one is refused as `version_mismatch`, before
anything is done: its columns may be gone. A newer one is waited for, because this node is about to hear of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import UserType
from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.rows.layout import Layouts, RowLayout
from trimtab.tablets.view import TableView


class Behind(Exception):
    """The request was made for a version of the catalog that this node does not know yet."""

    def __init__(self, version: int) -> None:
        super().__init__(f"catalog version {version} is not known here yet")
        self.version = version


class Schemas:
    """Over the tables' view of one node."""

    def __init__(self, tables: TableView) -> None:
        self._tables = tables
        self._layouts = Layouts()
        self._catalog: Catalog | None = None
        self._known: dict[int, RowLayout] = {}

    @property
    def version(self) -> int:
        return self._tables.catalog.version

    def exists(self, table: int) -> bool:
        return table in self._tables.catalog.tables

    def holds(self, raft_id: int, table: int, tablet: int) -> bool:
        """Whether a replica of this tablet belongs to an instance."""
        try:
            sets = self._tables.sets(table, tablet)
        except LookupError:
            return False
        return raft_id in sets.writers or raft_id in sets.reads

    def layout(self, table: int) -> RowLayout:
        """The newest layout of a table; Refused where there is no such table."""
        if self._catalog is not self._tables.catalog:
            self._catalog = self._tables.catalog
            self._layouts.keep_only(self._catalog.tables)
            self._known.clear()
        layout = self._known.get(table)
        if layout is None:
            found = self._catalog.tables.get(table)
            if found is None:
                text = f"there is no table with the number {table}; it may have been dropped"
                raise Refused(refusals.NOT_FOUND, text)
            layout = self._known[table] = self._layouts.of(found, self._user_types(self._catalog, found.keyspace))
        return layout

    def asked(self, table: int, version: int) -> RowLayout:
        """The layout that a request was made for. Refused: it is another by now. Behind: it is not known yet."""
        if version > self._tables.catalog.version:
            raise Behind(version)
        layout = self.layout(table)
        if layout.table.version != version:
            text = (
                f"the request was made for version {version} of {layout.name}, which is at version "
                f"{layout.table.version} now; read the schema again and make the request anew (nothing was done)"
            )
            details = refusals.numbers(version=version, current=layout.table.version)
            raise Refused(refusals.VERSION_MISMATCH, text, details)
        return layout

    def speculative_retry(self, table: int) -> str:
        found = self._tables.catalog.tables.get(table)
        return found.options.speculative_retry if found is not None else "none"

    @staticmethod
    def _user_types(catalog: Catalog, keyspace: str) -> Mapping[str, UserType]:
        return catalog.types_of(keyspace)
