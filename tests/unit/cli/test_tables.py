"""`trimtab tables …`."""

from __future__ import annotations

import pytest
from tests.unit.cli.typing_commands import Typist


@pytest.fixture
def shop(typist: Typist) -> Typist:
    assert typist("keyspaces", "create", "shop", "--replication", "2")[0] == 0
    return typist


def test_tables_are_created_listed_described_changed_and_dropped(shop: Typist) -> None:
    assert "No tables yet" in shop("tables", "list")[1]
    columns = ["--column", "id bigint", "--column", "name text", "--primary-key", "id"]
    assert shop("tables", "create", "shop.users", *columns, "--tablets", "16")[:2] == (0, "Table shop.users exists.\n")
    definition = "page text, at timestamp, who text, title text static, primary key (page, at desc)"
    shop.json("tables", "create", "shop.visits", definition, "--option", "comment=who was there")
    users, visits = shop.json("tables", "list")
    assert (users["table"], users["tablets"], users["partition_key"]) == ("users", 16, ["id"])
    assert visits["clustering_key"] == ["at"] and visits["options"]["comment"] == "who was there"
    assert {each["name"]: each["kind"] for each in visits["columns"]}["title"] == "static"
    listed = shop("tables", "list", "shop")[1]
    assert "shop.visits" in listed and "page, at desc" in listed
    assert shop("tables", "describe", "shop.users")[1].startswith("CREATE TABLE shop.users (")
    assert shop.json("tables", "describe", "shop.users") == users
    assert (
        shop("tables", "alter", "shop.users", "--add", "age int", "--drop", "name", "--option", "gc_grace_s=60")[0] == 0
    )
    changed = shop.json("tables", "describe", "shop.users")
    assert [each["name"] for each in changed["columns"]] == ["id", "age"] and changed["options"]["gc_grace_s"] == 60
    assert shop("tables", "create", "shop.users", *columns, "--if-not-exists")[0] == 0
    assert shop("tables", "drop", "shop.users")[1] == "Table shop.users is gone.\n"
    assert shop("tables", "drop", "shop.users", "--if-exists")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "shop.t"), "a table has columns"),
        (("create", "shop.t", "id bigint"), "a table has a primary key"),
        (("create", "shop.t", "id"), "write NAME TYPE"),
        (("create", "shop.t", "--column", "id", "--primary-key", "id"), "write NAME TYPE"),
        (("create", "shop.t", "id int primary key", "--primary-key", "id"), "two primary keys"),
        (("create", "shop.t", "id int primary key", "--option", "comment"), "write NAME=VALUE"),
        (("create", "shop.t", "id int primary key", "--option", "timeout=3"), "timeout is no option"),
        (("create", "shop.t", "id int primary key", "--tablets", "x"), "--tablets"),
        (("alter", "shop.t"), "nothing to change is given"),
        (("alter", "shop.t", "--add", "x"), "write NAME TYPE"),
        (("alter", "shop.t", "--add", "x int primary key"), "can't be changed"),
        (("alter", "shop.t", "--rename", "x"), "write NAME=VALUE"),
        (("drop",), "TABLE"),
        (("describe",), "TABLE"),
    ],
)
def test_wrong_usage_is_named(shop: Typist, arguments: tuple[str, ...], said: str) -> None:
    assert said in shop.refused("tables", *arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "users", "id int primary key"), "write KEYSPACE.TABLE"),
        (("create", "shop.t", "id integer primary key"), "integer"),
        (("create", "shop.t", "id int primary key", "--tablets", "7"), "power of two"),
        (("create", "shop.t", "id int, primary key (nothing)"), "nothing"),
        (("create", "shop.t", "id int primary key", "--option", "colour=red"), "there is no option 'colour'"),
        (("create", "shop.t", "id int primary key", "--static", "id"), "id"),
        (("create", "mars.t", "id int primary key"), "mars"),
        (("alter", "shop.nothing", "--add", "x int"), "nothing"),
        (("drop", "shop.nothing"), "nothing"),
        (("describe", "shop.nothing"), "there is no table shop.nothing"),
        (("list", "mars"), "there is no keyspace 'mars'; keyspaces: shop"),
    ],
)
def test_what_the_catalog_refuses_is_said(shop: Typist, arguments: tuple[str, ...], said: str) -> None:
    assert said in shop.refused("tables", *arguments)
