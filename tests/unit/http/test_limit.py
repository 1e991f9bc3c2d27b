"""The limit of bulk transfers over HTTP: as on the command line, with the same refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.http.doors import Play, door
from tests.unit.http.made_up import MadeUpCluster
from tests.unit.http.test_app import exactly

from trimtab.http import models
from trimtab.http.port import Refused
from trimtab.loads import shapes


def test_the_model_describes_the_limit_field_by_field() -> None:
    exactly(models.Limit).model_validate(shapes.limit(asyncio.run(MadeUpCluster().limit(None))))


def test_the_limit_is_shown_set_and_removed(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            none = {"rate_bytes_s": 0, "share_bytes_s": 0, "online": 2}
            assert (await opened.get("/api/v1/limit")).json() == none
            changed = await opened.client.put("/api/v1/limit", json={"rate_bytes_s": 50_000_000})
            shape = {"rate_bytes_s": 50_000_000, "share_bytes_s": 25_000_000, "online": 2}
            assert (changed.status_code, changed.json()) == (200, shape)
            assert (await opened.get("/api/v1/limit")).json() == shape
            assert (await opened.client.put("/api/v1/limit", json={"rate_bytes_s": 0.0})).json() == none

    play(story)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rate_bytes_s": 1}, "a limit is at least 64000 bytes a second, not 1"),
        ({"rate_bytes_s": -1}, "a limit is at least 64000"),
        ({"rate_bytes_s": 10**15 + 1}, "a limit is at most 1000000000000000 bytes a second"),
        ({"rate_bytes_s": 10**25}, ""),
        ({"rate_bytes_s": 1e300}, ""),
        ({"rate_bytes_s": 70_000.5}, "rate_bytes_s"),
        ({"rate_bytes_s": "10MB/s"}, "rate_bytes_s"),
        ({"rate_bytes_s": True}, "rate_bytes_s"),
        ({"rate_bytes_s": None}, "rate_bytes_s"),
        ({"rate": 100_000}, "rate_bytes_s"),
        ({"rate_bytes_s": 100_000, "off": True}, "off"),
        ({}, "rate_bytes_s"),
        ([], ""),
    ],
)
def test_what_is_no_limit_changes_nothing(play: Play, body: Any, words: str) -> None:
    async def story() -> None:
        async with door() as opened:
            opened.cluster.rate_bytes_s = 77_000
            refused = await opened.client.put("/api/v1/limit", json=body)
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), refused.text
            assert words in refused.json()["error"] and refused.json()["what_to_do"]
            assert opened.cluster.rate_bytes_s == 77_000

    play(story)


def test_the_limit_is_not_changed_for_another_site_or_without_json_or_leader(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            body = {"rate_bytes_s": 100_000}
            away = await opened.client.put("/api/v1/limit", json=body, headers={"origin": "http://elsewhere"})
            assert away.status_code == 403
            plain = await opened.client.put("/api/v1/limit", content=b"{}", headers={"content-type": "text/plain"})
            assert plain.status_code == 415
            assert (await opened.post("/api/v1/limit", body)).status_code == 405
            assert (await opened.get("/api/v1/limit?local=true")).status_code == 400
            opened.cluster.refusal = Refused("not_leader", "there is no leader")
            assert (await opened.client.put("/api/v1/limit", json=body)).status_code == 503
            assert opened.cluster.rate_bytes_s == 0

    play(story)
