"""Elements of collections that are changed without reading them first."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.playing import Stage, fake, play

from trimtab.client.database import Database
from trimtab.client.elements import Add, Prepend, Remove
from trimtab.client.errors import InvalidRequest
from trimtab.rows import protocol
from trimtab.rows.protocol import Way

COLUMNS = "id bigint, tags set<text>, log list<int>, phones map<text,text>, fixed frozen<set<text>>"


def run(work: Any) -> Any:
    cluster = fake()
    cluster.create("shop.users", COLUMNS, "id")
    result = play(cluster, work)
    return result, cluster


def test_each_change_travels_with_its_way() -> None:
    async def work(db: Database, _: Stage) -> None:
        users = db.table("shop.users")
        await users.update({"id": 1, "tags": Add({"a"}), "log": Prepend([1, 2]), "phones": Remove(["home"])})
        await users.put({"id": 1, "tags": {"whole"}})
        async with db.batch() as batch:
            batch.update(users, {"id": 2, "phones": Add({"home": "1"})})

    result, cluster = run(work)
    assert result is None
    changed, whole = cluster.of(protocol.PUT)
    assert changed.ways == [Way.WHOLE, Way.ADD, Way.PREPEND, Way.REMOVE] and whole.ways == []
    assert cluster.of(protocol.BATCH)[0].writes[0].ways == [Way.WHOLE, Way.ADD]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1, "fixed": Add({"a"})}, "Add is for sets and maps and lists that are not frozen"),
        ({"id": 1, "tags": Prepend(["a"])}, "Prepend is for lists"),
        ({"id": 1, "log": Remove([1])}, "Remove is for sets and maps"),
        ({"id": Add({1})}, "shop.users.id is of type bigint"),
        ({"id": 1, "tags": Add({1})}, "shop.users.tags is of type set<text>"),
        ({"id": 1, "phones": Remove(5)}, "shop.users.phones is of type map<text, text>"),
        ({"id": None, "tags": Add({"a"})}, "id is None"),
        ({"id": "x", "tags": Add({"a"})}, "shop.users.id is of type bigint"),
    ],
)
def test_a_change_that_does_not_fit_is_named(row: dict[str, Any], said: str) -> None:
    async def work(db: Database, _: Stage) -> str:
        with pytest.raises(InvalidRequest) as caught:
            await db.table("shop.users").update(row)
        return str(caught.value)

    text, _ = run(work)
    assert said in text


def test_many_rows_at_once_can_not_change_elements() -> None:
    async def work(db: Database, _: Stage) -> None:
        await db.table("shop.users").put_many([{"id": 1, "tags": Add({"a"})}])

    error, _ = run(work)
    assert isinstance(error, InvalidRequest) and "elements are changed row by row" in str(error)
