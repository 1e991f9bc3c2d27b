"""The routes: what they answer, what they refuse, and that it is what /openapi.json says."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pydantic
import pytest
from tests.unit.http.doors import Opened, Play, door
from tests.unit.http.made_up import MadeUpCluster

from trimtab.http import models
from trimtab.http.port import Refused
from trimtab.jobs import shapes as job_shapes
from trimtab.jobs.protocol import SteerJob
from trimtab.tablets import move_shapes
from trimtab.topology import shapes
from trimtab.topology.grades import Grades
from trimtab.topology.protocol import CancelRequest, CreateRequest, Level, ProbeRequest
from trimtab.topology.records import RequestKind


def exactly(model: type[pydantic.BaseModel]) -> type[pydantic.BaseModel]:
    """The model, refusing fields that it does not name."""
    return type(f"Exactly{model.__name__}", (model,), {"model_config": pydantic.ConfigDict(extra="forbid")})


def test_the_models_describe_the_shapes_field_by_field() -> None:
    view = asyncio.run(MadeUpCluster().view(True, 0, 100))
    status, topology = shapes.status(view), shapes.topology(view)
    exactly(models.Status).model_validate(status)
    exactly(models.Topology).model_validate(topology)
    exactly(models.Events).model_validate(shapes.events(view))
    for instance in status["instances"]:
        exactly(models.Instance).model_validate(instance)
    for node in topology["nodes"]:
        exactly(models.Node).model_validate(node)
    jobs = asyncio.run(MadeUpCluster().jobs((), True))
    moves = move_shapes.tasks(asyncio.run(MadeUpCluster().moves(0, True)), {1: "i1", 2: "i2"})
    for task in job_shapes.together(shapes.tasks(view), job_shapes.tasks(jobs), moves):
        exactly(models.Task).model_validate(task)
    for event in shapes.events(view)["events"]:
        exactly(models.Event).model_validate(event)


def test_the_door_shows_what_the_command_line_shows(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            view = await opened.cluster.view(True, 0, 100)
            assert (await opened.get("/api/v1/status")).json() == shapes.status(view)
            assert (await opened.get("/api/v1/topology")).json() == shapes.topology(view)
            jobs = job_shapes.tasks(await opened.cluster.jobs((), True))
            names = {each.raft_id: each.record.instance_id for each in view.instances}
            moves = move_shapes.tasks(await opened.cluster.moves(0, True), names)
            assert (await opened.get("/api/v1/tasks")).json() == [*shapes.tasks(view), *jobs, *moves]
            assert (await opened.get("/api/v1/tasks/shop.users")).json() == moves[0]
            assert (await opened.get("/api/v1/tasks/shop.users:1")).json() == moves[1]
            assert (await opened.get("/api/v1/tasks/1")).json() == shapes.tasks(view)[0]
            assert (await opened.get("/api/v1/tasks/4")).json() == jobs[1]
            assert (await opened.get("/api/v1/events?after=0")).json() == shapes.events(view)
            assert (await opened.get("/api/v1/instances/i2")).json() == shapes.status(view)["instances"][1]

    play(story)


def test_health_is_about_the_process_and_readiness_about_serving(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            assert (await opened.get("/ready")).json()["ready"] is True
            opened.cluster.stand(grades=Grades(), lease_ms=0, leader="")
            healthy, ready = await opened.get("/health"), await opened.get("/ready")
            assert (healthy.status_code, healthy.json()["status"]) == (200, "ok")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert ready.json()["reason"] == "it is told to be Offline, and is Offline"
            exactly(models.Health).model_validate(healthy.json())
            exactly(models.Ready).model_validate(ready.json())

    play(story)


def test_health_and_readiness_need_nobody_else(play: Play) -> None:
    async def story() -> None:
        cluster = MadeUpCluster(refusal=Refused("not_leader", "no leader is known yet"))
        async with door(cluster) as opened:
            for path in ("/health", "/ready", "/metrics", "/", "/docs", "/openapi.json", "/api/v1/status?local=true"):
                assert (await opened.get(path)).status_code == 200
            lost = await opened.get("/api/v1/status")
            assert (lost.status_code, lost.json()["code"]) == (503, "not_leader")

    play(story)


def test_metrics_are_text_that_prometheus_reads(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            answer = await opened.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'trimtab_heartbeat_age_seconds{instance_id="i2"} 0.12' in answer.text

    play(story)


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("instances/i2/expel", {"drain": True}, CreateRequest(RequestKind.LEAVE, "i2", expel=True, drain=True)),
        ("instances/i2/decommission", {"timeout_ms": 5}, CreateRequest(RequestKind.LEAVE, "i2", timeout_ms=5)),
        ("instances/i3/remove", {"ignore": ["i2"]}, CreateRequest(RequestKind.REMOVE, "i3", ignore=["i2"])),
        ("instances/i2/rebuild", {"source": "dc1"}, CreateRequest(RequestKind.REBUILD, "i2", source="dc1")),
        ("barrier", {}, CreateRequest(RequestKind.BARRIER)),
        ("tasks/1/cancel", {"reason": "not now"}, CancelRequest(1, "not now")),
        ("tasks/4/cancel", {"reason": "not now"}, SteerJob(4, "cancel", "not now")),
        ("tasks/4/pause", {}, SteerJob(4, "pause")),
        ("tasks/4/resume", {}, SteerJob(4, "resume")),
    ],
)
def test_a_change_becomes_a_task_and_says_where_it_is(play: Play, path: str, body: Any, asked: object) -> None:
    async def story() -> None:
        async with door() as opened:
            answer = await opened.post(f"/api/v1/{path}", body)
            assert answer.status_code == 202
            assert opened.cluster.asked == [asked]
            followed = await opened.get(answer.headers["location"])
            assert followed.json() == answer.json()

    play(story)


def test_a_probe_says_who_answered_and_whether_it_may_be_stale(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            answer = await opened.get("/api/v1/probe?target=i2")
            assert answer.json() == {
                "instance_id": "i2", "raft_id": 2, "topology_version": 7, "stale": False, "applied": 39
            }  # fmt: skip
            opened.cluster.stand(lease_ms=0)
            refused = await opened.get("/api/v1/probe")
            assert (refused.status_code, refused.json()["code"]) == (503, "no_lease")
            assert (await opened.get("/api/v1/probe?level=ONE")).json()["stale"] is True
            assert opened.cluster.asked[-1] == ProbeRequest(0, Level.ONE)

    play(story)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/tasks/77", 404, "not_found"),
        ("/api/v1/tasks/0", 400, "invalid"),
        ("/api/v1/tasks/1_0", 400, "invalid"),
        ("/api/v1/tasks/99999999999999999999", 400, "invalid"),
        ("/api/v1/instances/nobody", 404, "not_found"),
        ("/api/v1/instances/" + "x" * 300, 400, "invalid"),
        ("/api/v1/events?limit=0", 400, "invalid"),
        ("/api/v1/events?limit=1001", 400, "invalid"),
        ("/api/v1/events?limit=1.0", 400, "invalid"),
        ("/api/v1/events?after=-1", 400, "invalid"),
        ("/api/v1/events?after=1&after=2", 400, "invalid"),
        ("/api/v1/events?limt=5", 400, "invalid"),
        ("/api/v1/events?stream=yes", 400, "invalid"),
        ("/api/v1/status?local=1", 400, "invalid"),
        ("/health?x=1", 400, "invalid"),
        ("/api/v1/probe?level=TWO", 400, "invalid"),
        ("/api/v1/probe?target=nobody", 404, "not_found"),
        ("/api/v1/status/", 404, "no_such_path"),
        ("/api/v2/status", 404, "no_such_path"),
        ("/api/v1/barrier", 405, "wrong_method"),
    ],
)
def test_what_is_asked_wrongly_is_told_so(play: Play, path: str, status: int, code: str) -> None:
    async def story() -> None:
        async with door() as opened:
            answer = await opened.get(path)
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            exactly(models.ProblemModel).model_validate(answer.json())
            assert answer.json()["what_to_do"]

    play(story)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"drian": true}',
        b'{"drain": 1}',
        b'{"drain": "true"}',
        b'{"timeout_ms": "5"}',
        b'{"timeout_ms": -1}',
        b'{"timeout_ms": 1e300}',
        b'{"timeout_ms": NaN}',
        b'{"\\ud800": 1}',
        b'{"drain": "\\ud800"}',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"timeout_ms": ' + b"9" * 5_000 + b"}",
    ],
)
def test_a_body_that_is_not_as_described_is_refused(play: Play, body: bytes) -> None:
    async def story() -> None:
        async with door() as opened:
            json_type = {"Content-Type": "application/json"}
            answer = await opened.client.post("/api/v1/instances/i2/expel", content=body, headers=json_type)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
            assert opened.cluster.asked == []
            assert opened.told == []

    play(story)


@pytest.mark.parametrize(
    ("code", "status"),
    [("conflict", 409), ("not_leader", 503), ("no_answer", 504), ("not_found", 404), ("something_new", 503)],
)
def test_a_refusal_of_the_cluster_keeps_its_code_and_words(play: Play, code: str, status: int) -> None:
    async def story() -> None:
        async with door(MadeUpCluster(refusal=Refused(code, "because"))) as opened:
            answer = await opened.post("/api/v1/barrier")
            assert answer.status_code == status
            assert (answer.json()["code"], answer.json()["error"]) == (code, "because")

    play(story)


def test_a_cluster_that_does_not_answer_is_not_waited_for_long(play: Play) -> None:
    async def story() -> None:
        async with door(MadeUpCluster(delay_s=60), answer_ms=50) as opened:
            answer = await opened.get("/api/v1/status")
            assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
            assert "local=true" in answer.json()["what_to_do"]

    play(story)


def test_the_newest_events_come_when_no_number_is_given(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            page = (await opened.get("/api/v1/events?limit=2")).json()
            assert [event["number"] for event in page["events"]] == [4, 5]
            page = (await opened.get("/api/v1/events?limit=2&after=1")).json()
            assert [event["number"] for event in page["events"]] == [2, 3]

    play(story)


def test_nothing_is_loaded_from_elsewhere(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            page = await opened.get("/docs")
            assert page.headers["content-type"].startswith("text/html")
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert re.findall(r"https?://|<script|<link|<img", page.text) == []
            assert "/api/v1/instances/{instance_id}/expel" in page.text

    play(story)


def test_openapi_names_every_path_and_no_validation_of_fastapi(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            described = (await opened.get("/openapi.json")).json()
            assert (await opened.get("/")).json()["paths"] == sorted(described["paths"])
            assert "422" not in str(described)
            assert "HTTPValidationError" not in str(described)
            await _every_change_declares_its_body(opened, described)

    play(story)


async def _every_change_declares_its_body(opened: Opened, described: Any) -> None:
    for path, methods in described["paths"].items():
        if "post" in methods:
            assert methods["post"]["requestBody"]["required"] is True
            empty = await opened.client.post(re.sub(r"\{\w+\}", "1", path))
            assert (empty.status_code, empty.json()["code"]) == (415, "wrong_type")
