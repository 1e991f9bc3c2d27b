"""`schema.json` of an export: it makes the same table again, and tells when it can't."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from tests.unit.rows import tables

from trimtab.catalog import describe
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import Keyspace, Table
from trimtab.client.blocking import Database
from trimtab.client.errors import InvalidRequest, SchemaError
from trimtab.pipeline import table_document
from trimtab.rows.layout import RowLayout

TABLE = tables.table(["int", "text"], ["bigint desc"], ["frozen<place>", "list<text>"], ["int"])


class FakeDatabase:
    def __init__(self, *there: Table) -> None:
        self.made: list[tuple[Any, ...]] = []
        self._tables = {each.full_name: each for each in there}

    @property
    def catalog(self) -> Catalog:
        return Catalog()

    def tables(self) -> dict[str, Table]:
        return self._tables

    def keyspaces(self) -> dict[str, Keyspace]:
        return {}

    def create_keyspace(self, name: str, **options: Any) -> None:
        self.made.append(("keyspace", name, options["replication"]))

    def create_type(self, name: str, fields: dict[str, str], **options: Any) -> None:
        self.made.append(("type", name, fields))

    def create_table(self, name: str, columns: dict[str, str], **options: Any) -> None:
        self.made.append(("table", name, columns, options))


def document() -> dict[str, Any]:
    catalog = Catalog(
        keyspaces={TABLE.keyspace: Keyspace(TABLE.keyspace, {"dc1": 3})}, types={TABLE.keyspace: tables.USER_TYPES}
    )
    found: dict[str, Any] = json.loads(json.dumps(table_document.document(catalog, TABLE, {"rows": 3, "files": []})))
    return table_document.checked(found, "schema.json")


def test_a_table_is_made_again_with_all_that_it_needs() -> None:
    database = FakeDatabase()
    shown: list[RowLayout] = []
    assert table_document.make(cast(Database, database), document(), "other.copy", shown.append)
    keyspace, *types, (_, name, columns, options) = database.made
    assert keyspace == ("keyspace", "other", {"dc1": 3})
    assert [each[1] for each in types] == ["other.place", "other.deep"], "a type after those it is made of"
    assert name == "other.copy"
    assert columns == {column.name: column.type for column in TABLE.columns}
    assert options["primary_key"] == [["p0", "p1"], "c0"]
    assert (options["order"], options["static"], options["tablets"]) == ({"c0": "desc"}, ["s0"], TABLE.tablets)
    (layout,) = shown
    made = [(each.name, each.type, each.kind, each.descending) for each in describe.in_order(layout.table)]
    assert made == [(each.name, each.type, each.kind, each.descending) for each in describe.in_order(TABLE)]


def test_nothing_is_made_of_a_document_if_what_is_to_be_loaded_does_not_go_into_its_table() -> None:
    """A table, its keyspace and types were left behind by files that were refused."""
    database = FakeDatabase()

    def refuse(layout: RowLayout) -> None:
        raise InvalidRequest(f"{layout.name} has no column nick")

    with pytest.raises(InvalidRequest, match=r"other\.copy has no column nick"):
        table_document.make(cast(Database, database), document(), "other.copy", refuse)
    assert not database.made


def test_a_table_that_is_there_stays_if_it_fits() -> None:
    database = FakeDatabase(TABLE)
    assert not table_document.make(cast(Database, database), document(), TABLE.full_name)
    assert not database.made
    other = tables.table(["int"], [], ["text"])
    with pytest.raises(SchemaError, match="partition key"):
        table_document.make(cast(Database, FakeDatabase(other)), document(), other.full_name)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"format": "x"}, "is no schema.json"), ({"version": 99}, "version 99"), ({"table": None}, "no 'table'")],
)
def test_what_is_no_document_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        table_document.checked(document() | change, "x")
