"""Loads over HTTP: what the command line shows."""

from __future__ import annotations

import asyncio

from tests.unit.http.doors import Play, door
from tests.unit.http.made_up import MadeUpCluster
from tests.unit.http.test_app import exactly

from trimtab.http import models
from trimtab.loads import shapes


def test_the_door_shows_loads_as_the_command_line_does(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            shown = (await opened.get("/api/v1/loads")).json()
            assert [(each["id"], each["table"]) for each in shown["loads"]] == [("a", "shop.users"), ("b", "table 77")]
            assert shown["loads"][0]["sealed"] == ["i1", "9"]
            assert shown["tables"] == [{"table": "shop.users", "epoch": 1, "generation": 1}]
            one = (await opened.get("/api/v1/loads?table=shop.users&local=true")).json()
            assert [each["id"] for each in one["loads"]] == ["a"]
            missing = await opened.get("/api/v1/loads?table=shop.none")
            assert missing.status_code == 404 and "there is no table" in missing.text

    play(story)


def test_the_models_describe_loads_field_by_field() -> None:
    reply = asyncio.run(MadeUpCluster().loads(0, True))
    shape = shapes.listing(reply, lambda table: f"table {table}", {})
    for load in shape["loads"]:
        exactly(models.Load).model_validate(load)
    for table in shape["tables"]:
        exactly(models.Served).model_validate(table)
    exactly(models.Loads).model_validate(shape)
