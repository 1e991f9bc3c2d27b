"""Keyspaces, tables and tablets over HTTP: what the command line shows, in bounded pages."""

from __future__ import annotations

import asyncio

from tests.unit.http.doors import Play, door
from tests.unit.http.made_up import MadeUpCluster
from tests.unit.http.test_app import exactly

from trimtab.catalog import describe
from trimtab.http import models
from trimtab.tablets import shapes
from trimtab.tablets.moves_shown import by_place


def test_the_door_shows_tables_as_the_command_line_does(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            catalog = opened.cluster.catalog
            tables = sorted(catalog.tables.values(), key=lambda table: table.full_name)
            assert (await opened.get("/api/v1/keyspaces")).json() == [describe.keyspace_shape(catalog, "shop")]
            shown = (await opened.get("/api/v1/tables?keyspace=shop")).json()
            assert shown == [describe.table_shape(table) for table in tables]
            known = await opened.cluster.tables(True)
            moves = by_place(await opened.cluster.moves(0, True))
            tablets = shapes.tablets(catalog.tables, known.maps, known.names, sizes={(1, 0): 77}, moves=moves)
            assert (await opened.get("/api/v1/tablets")).json() == tablets
            assert [each["bytes"] for each in tablets if each["table"] == "users"] == [77, None, None, None]

    play(story)


def test_the_models_describe_tables_field_by_field() -> None:
    cluster = MadeUpCluster()
    exactly(models.Keyspace).model_validate(describe.keyspace_shape(cluster.catalog, "shop"))
    for table in cluster.catalog.tables.values():
        shape = describe.table_shape(table)
        exactly(models.Table).model_validate(shape)
        for column in shape["columns"]:
            exactly(models.Column).model_validate(column)
        exactly(models.TableOptions).model_validate(shape["options"])
    known, moves = asyncio.run(cluster.tables(True)), by_place(asyncio.run(cluster.moves(0, True)))
    for tablet in shapes.tablets(cluster.catalog.tables, known.maps, known.names, moves=moves):
        exactly(models.Tablet).model_validate(tablet)


def test_tablets_come_in_pages(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            page = (await opened.get("/api/v1/tablets?table=shop.users&first=1&limit=2")).json()
            assert [each["tablet"] for each in page] == [1, 2]
            whole = (await opened.get("/api/v1/tablets")).json()
            pages = [(await opened.get(f"/api/v1/tablets?first={first}&limit=3")).json() for first in (0, 3, 6)]
            assert pages[0] + pages[1] == whole and pages[2] == []

    play(story)


def test_what_is_not_there_is_not_found(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            for path in ("/api/v1/tables?keyspace=shopp", "/api/v1/tablets?table=shop.user"):
                answer = await opened.get(path)
                assert answer.status_code == 404 and "lists them" in answer.json()["what_to_do"]

    play(story)
