"""Schema changes as they are typed in Python: what they come to, and what can't be said."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.fake_cluster import fails
from tests.unit.client.playing import Stage, fake, play

from trimtab.catalog import commands
from trimtab.catalog.commands import AlterTable, ColumnSpec, CreateTable
from trimtab.client import definitions
from trimtab.client.database import Database
from trimtab.client.errors import InvalidRequest, NotFound, SchemaError
from trimtab.rows import protocol


def create(primary_key: Any, **options: Any) -> CreateTable:
    given: dict[str, Any] = {"order": None, "static": (), "tablets": None, "if_not_exists": False, "options": {}}
    columns = {"a": "int", "b": "text", "c": "bigint", "d": "double"}
    command = commands.decode(definitions.create_table("shop.t", columns, primary_key, **(given | options)))
    assert isinstance(command, CreateTable)
    return command


@pytest.mark.parametrize(
    ("given", "partition", "clustering"),
    [
        (["a"], ["a"], []),
        ("a", ["a"], []),
        (["a", "b"], ["a"], [("b", False)]),
        ([["a", "b"], "c"], ["a", "b"], [("c", False)]),
        ([("a", "b"), ("c", "desc")], ["a", "b"], [("c", True)]),
        (["a", ("b", "DESC"), "c"], ["a"], [("b", True), ("c", False)]),
    ],
)
def test_primary_keys_as_people_write_them(
    given: Any, partition: list[str], clustering: list[tuple[str, bool]]
) -> None:
    command = create(given)
    assert command.partition == partition
    assert [tuple(each) for each in command.clustering] == clustering


def test_order_static_columns_tablets_and_options() -> None:
    command = create(["a", "b"], order={"b": "desc"}, static=["d"], tablets=16, options={"comment": "x"})
    assert command.clustering == [("b", True)] and command.tablets == 16 and command.options == {"comment": "x"}
    assert ColumnSpec("d", "double", True) in command.columns
    altered = commands.decode(
        definitions.alter_table("shop.t", add={"e": "int"}, drop=["d"], rename={}, static=["e"], options={})
    )
    assert isinstance(altered, AlterTable) and altered.add == [ColumnSpec("e", "int", True)] and altered.drop == ["d"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: create([]), "needs a primary key"),
        (lambda: create([[]]), "a primary key is a list of columns"),
        (lambda: create(["a", ["b", "c", "d"]]), "columns of the partition key come first"),
        (lambda: create(["a", ("b", "down")]), "'asc' or 'desc', not 'down'"),
        (lambda: create(["a", "b", "b"]), "b is twice"),
        (lambda: create(["a", "b"], order={"c": "desc"}), "the clustering columns are b"),
        (lambda: create(["a"], static="d"), "static=['d']"),
        (lambda: create(["a"], static=["x"]), "x is to be static, but is not among the columns"),
        (lambda: create(["a"], tablets=0), "tablets is a power of two"),
        (lambda: create(["a"], options={"x": {1, 2}}), "the option x is a text or a whole number"),
        (lambda: create(["a"], options={"extensions": {1: 2}}), "or texts by name {'a': 'b'}, not {1: 2}"),
        (lambda: create(["a"], options={"gc_grace_s": 10**30}), "the option gc_grace_s is a text or a whole number"),
        (lambda: create(["a"], options={"comment": None}), "the option comment is a text"),
        (lambda: create(["a"], if_not_exists="yes"), "if_not_exists is True or False, not 'yes'"),
        (lambda: create(["a"], tablets=10**30), "tablets is a power of two"),
        (lambda: create(5), "a primary key is a list of columns"),
        (lambda: create([5]), "a primary key is a list of columns"),
        (lambda: create(["a", "b"], order=5), "an order is given by column"),
        (lambda: create(["a"], static=5), "static=['a', 'b'], not 5"),
        (lambda: create(["a"], static=[5]), "static=['a', 'b'], not [5]"),
        (
            lambda: definitions.alter_table("shop.t", add={}, drop=[5], rename={}, static=(), options={}),  # type: ignore[list-item]
            "drop=['a', 'b'], not [5]",
        ),
        (
            lambda: definitions.alter_table("shop.t", add={}, drop=[], rename={"a": 5}, static=(), options={}),  # type: ignore[dict-item]
            "what to rename is given as {'old': 'new'}, not {'a': 5}",
        ),
        (lambda: definitions.create_keyspace("shop", 10**30, "eventual", False), "replication is a number"),
        (lambda: definitions.drop_table(5, False), "the name of a table is a text"),  # type: ignore[arg-type]
        (lambda: definitions.create_keyspace("shop", 3, "sometimes", False), "mode is eventual or strong"),
        (lambda: definitions.create_keyspace("shop", -1, "eventual", False), "replication is a number"),
        (lambda: definitions.create_keyspace("shop", {}, "eventual", False), "names at least one"),
        (lambda: definitions.create_keyspace("shop", {"dc1": "3"}, "eventual", False), "replication is a number"),  # type: ignore[dict-item]
        (lambda: definitions.create_keyspace("", 3, "eventual", False), "the name of a keyspace"),
        (lambda: definitions.drop_table("users", False), "write KEYSPACE.TABLE"),
        (lambda: definitions.create_type("address", {"a": "int"}, False), "write KEYSPACE.TYPE"),
        (
            lambda: definitions.alter_table("shop.t", add={}, drop=[], rename={}, static=(), options={}),
            "nothing to change",
        ),
        (lambda: definitions.alter_table("shop.t", add={}, drop="d", rename={}, static=(), options={}), "drop=['d']"),
        (
            lambda: definitions.alter_table("shop.t", add={"a": 1}, drop=[], rename={}, static=(), options={}),
            "given as text",
        ),  # type: ignore[dict-item]
    ],
)
def test_what_can_not_be_said_is_refused_with_how_to_say_it(call: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert said in str(caught.value)


def test_a_schema_is_made_changed_and_listed() -> None:
    async def work(db: Database, _: Stage) -> None:
        assert await db.create_keyspace("shop", replication=3) == []
        await db.create_keyspace("shop", replication=3, if_not_exists=True)
        await db.create_type("shop.address", {"street": "text", "town": "text"})
        await db.create_table("shop.users", {"id": "bigint", "home": "address"}, primary_key=["id"], tablets=16)
        users = db.table("shop.users")
        home = {"street": "A", "town": "B"}
        await users.put({"id": 1, "home": home})
        row = await users.get(id=1)
        assert row is not None and row["home"]["town"] == "B"
        await db.alter_table("shop.users", add={"age": "int"}, comment="people")
        assert users.schema.options.comment == "people" and users.schema.tablets == 16
        await users.put({"id": 1, "age": 3})
        assert list(await db.keyspaces()) == ["shop"]
        assert list(await db.tables()) == ["shop.users"] == list(await db.tables("shop"))
        with pytest.raises(SchemaError, match="shop"):
            await db.create_keyspace("shop", replication=3)
        with pytest.raises(SchemaError, match="power of two"):
            await db.create_table("shop.t", {"id": "int"}, primary_key="id", tablets=7)
        with pytest.raises(NotFound):
            await db.drop_table("shop.nothing")
        await db.drop_table("shop.nothing", if_exists=True)
        await db.drop_table("shop.users")
        with pytest.raises(NotFound):
            await users.get(id=1)
        await db.drop_type("shop.address")
        await db.drop_keyspace("shop")
        assert await db.keyspaces() == {}

    assert play(fake(), work) is None


def test_a_change_is_asked_again_with_the_same_id() -> None:
    async def work(db: Database, stage: Stage) -> set[str]:
        await db.create_keyspace("shop", replication=3)
        return {protocol.decode_change(body).id for body in stage.cluster.of(protocol.CHANGE)}

    cluster = fake()
    cluster.script(protocol.CHANGE, fails("leadership_lost"), fails("not_leader"))
    assert len(play(cluster, work)) == 1
