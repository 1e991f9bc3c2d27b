"""Steering moves over HTTP: what the command line can do, with the same refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.http.doors import Play, door
from tests.unit.http.made_up import MadeUpCluster
from tests.unit.http.test_app import exactly

from trimtab.http import models
from trimtab.jobs.protocol import SteerJob
from trimtab.tablets import move_shapes
from trimtab.tablets.move_protocol import MoveRequest


def test_the_models_describe_moves_and_settings_field_by_field() -> None:
    told = asyncio.run(MadeUpCluster().rebalance(None))
    exactly(models.Rebalance).model_validate(move_shapes.rebalance(told.settings, told.still, told.problems))
    moves = asyncio.run(MadeUpCluster().moves(0, True))
    exactly(models.TabletMove).model_validate(move_shapes.move(moves.moves[0], {1: "i1"}))


def test_balancing_is_turned_off_and_gets_a_window(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            shown = (await opened.get("/api/v1/rebalance")).json()
            assert (shown["enabled"], shown["window"], shown["active"], shown["heal_after_s"]) == (
                True,
                None,
                True,
                600,
            )
            changed = await opened.client.put("/api/v1/rebalance", json={"enabled": False, "window": "22:00-06:00"})
            assert changed.status_code == 200
            assert (changed.json()["enabled"], changed.json()["window"]) == (False, "22:00-06:00")
            assert "off" in changed.json()["still"]
            # What is left out stays.
            changed = await opened.client.put("/api/v1/rebalance", json={"heal_after_s": 30, "window": "always"})
            assert (changed.json()["enabled"], changed.json()["window"]) == (False, None)
            assert changed.json()["heal_after_s"] == 30
            assert opened.cluster.settings.heal_after_ms == 30_000

    play(story)


@pytest.mark.parametrize(
    "body",
    [
        {"window": "22-06"},
        {"window": "25:00-06:00"},
        {"window": "10:00-10:00"},
        {"window": ""},
        {"window": [1, 2]},
        {"enabled": "no"},
        {"enabled": 1},
        {"heal_after_s": 0.5},
        {"heal_after_s": 1e12},
        {"heal_after_s": "10min"},
        {"moving": 0},
        {"moving": None},
        {"window": None},
        {"moving_bytes": -1},
        {"off": True},
        [],
    ],
)
def test_settings_that_make_no_sense_change_nothing(play: Play, body: Any) -> None:
    async def story() -> None:
        async with door() as opened:
            before = opened.cluster.settings
            refused = await opened.client.put("/api/v1/rebalance", json=body)
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), refused.text
            assert opened.cluster.settings == before

    play(story)


def test_settings_are_not_changed_for_another_site_or_without_json(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            away = await opened.client.put(
                "/api/v1/rebalance", json={"enabled": False}, headers={"origin": "http://elsewhere"}
            )
            assert away.status_code == 403
            plain = await opened.client.put("/api/v1/rebalance", content=b"{}", headers={"content-type": "text/plain"})
            assert plain.status_code == 415
            assert opened.cluster.settings.enabled

    play(story)


def test_a_move_is_asked_for_and_undone(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            asked = await opened.post("/api/v1/tablets/shop.users/2/move", {"from": "i1", "to": "i3", "why": "hot"})
            assert (asked.status_code, asked.json()) == (
                202,
                {"id": "shop.users:2", "outcome": "pending", "replicas": ["i3", "i2"]},
            )
            assert asked.headers["location"] == "/api/v1/tasks/shop.users:2"
            shown = (await opened.get("/api/v1/tasks/shop.users:2")).json()
            assert (shown["kind"], shown["state"], shown["phase"]) == (
                "migration",
                "running",
                "allow_write_both_read_old",
            )
            undone = await opened.post("/api/v1/tablets/shop.users/2/undo", {})
            assert (undone.status_code, undone.json()["outcome"]) == (202, "undone")
            assert opened.cluster.asked == [
                MoveRequest(1, 2, 1, 3, why="hot"),
                MoveRequest(1, 2),
            ]

    play(story)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("shop.users/1/move", {"from": "i1"}, 400),
        ("shop.users/1/move", {"source": "i1", "to": "i3"}, 400),
        ("shop.users/1/move", {"from": "i1", "to": "i3", "force": "yes"}, 400),
        ("shop.users/-1/move", {"from": "i1", "to": "i3"}, 400),
        ("shop.users/one/move", {"from": "i1", "to": "i3"}, 400),
        ("users/1/move", {"from": "i1", "to": "i3"}, 400),
        ("shop.nothing/1/move", {"from": "i1", "to": "i3"}, 404),
        ("shop.users/99/move", {"from": "i1", "to": "i3"}, 404),
        ("shop.users/9000000000/move", {"from": "i1", "to": "i3"}, 404),
        ("shop.users/1/move", {"from": "i1", "to": "i99"}, 404),
        ("shop.users/0/move", {"from": "i2", "to": "i1"}, 409),
        ("shop.users/0/undo", {}, 409),
        ("shop.users/0/undo", {"force": True}, 400),
    ],
)
def test_a_move_that_can_t_be_is_refused_with_the_reason(play: Play, path: str, body: Any, status: int) -> None:
    async def story() -> None:
        async with door() as opened:
            before = dict(opened.cluster.under_way)
            refused = await opened.post(f"/api/v1/tablets/{path}", body)
            assert refused.status_code == status, refused.text
            assert refused.json()["error"] and refused.json()["what_to_do"]
            assert opened.cluster.under_way == before

    play(story)


def test_to_pause_a_tablet_is_to_pause_its_job_and_to_cancel_it_is_to_undo_it(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            paused = await opened.post("/api/v1/tasks/shop.users:1/pause", {})
            assert paused.status_code == 202 and opened.cluster.asked[-1] == SteerJob(4, "pause")
            assert (await opened.post("/api/v1/tasks/shop.users:1/resume", {})).status_code == 202
            cancelled = await opened.post("/api/v1/tasks/shop.users:1/cancel", {"reason": "not today"})
            assert (cancelled.status_code, cancelled.json()["state"]) == (202, "undoing")
            assert opened.cluster.asked[-1] == MoveRequest(1, 1, why="not today")
            # Nothing is copied any more, so there is nothing to pause.
            assert (await opened.post("/api/v1/tasks/shop.users:1/pause", {})).status_code == 409

    play(story)


@pytest.mark.parametrize(
    ("task", "status"), [("shop.users:3", 404), ("shop.users", 409), ("shop:3", 400), ("shop.users:x", 400)]
)
def test_orders_to_what_is_not_under_way_are_refused(play: Play, task: str, status: int) -> None:
    async def story() -> None:
        async with door() as opened:
            for order in ("pause", "resume", "cancel"):
                assert (await opened.post(f"/api/v1/tasks/{task}/{order}", {})).status_code == status
            assert opened.cluster.asked == []

    play(story)
