"""What is refused before anything looks at it, over a real connection."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.http.doors import Play, door, until

EXPEL = "/api/v1/instances/i2/expel"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Origin": "https://evil.example"}, 403, "cross_site"),
        ({"Origin": "null"}, 403, "cross_site"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "cross_site"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "cross_site"),
        ({"Host": "evil.example"}, 421, "wrong_host"),
        ({"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, 421, "wrong_host"),
        ({"Content-Type": "text/plain"}, 415, "wrong_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "wrong_type"),
        ({"Content-Type": "application/json, text/plain"}, 415, "wrong_type"),
    ],
)
def test_a_page_of_another_site_changes_nothing(play: Play, headers: dict[str, str], status: int, code: str) -> None:
    async def story() -> None:
        async with door() as opened:
            answer = await opened.post(EXPEL, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert opened.cluster.asked == []

    play(story)


def test_a_page_of_this_very_door_and_a_program_may_change_things(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            own = {"Origin": f"http://127.0.0.1:{opened.port}", "Sec-Fetch-Site": "same-origin"}
            assert (await opened.post(EXPEL, headers=own)).status_code == 202
            assert (await opened.post(EXPEL)).status_code == 202
            assert len(opened.cluster.asked) == 2

    play(story)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("[::1]:1", 200), ("127.0.0.1", 200), ("box.example:3303", 200), ("evil.example", 421)],
)
def test_on_loopback_the_door_answers_only_to_names_of_its_own(play: Play, host: str, status: int) -> None:
    async def story() -> None:
        async with door(known_as=("box.example:3303",)) as opened:
            assert (await opened.get("/health", headers={"Host": host})).status_code == status

    play(story)


def test_a_body_above_the_limit_is_refused_also_without_a_declared_length(play: Play) -> None:
    async def chunks():  # type: ignore[no-untyped-def]
        for _ in range(100):
            yield b" " * 1_000

    async def story() -> None:
        async with door(body_bytes=4_000) as opened:
            declared = await opened.client.post(
                EXPEL, content=b" " * 5_000, headers={"Content-Type": "application/json"}
            )
            assert (declared.status_code, declared.json()["code"]) == (413, "too_large")
            streamed = await opened.client.post(EXPEL, content=chunks(), headers={"Content-Type": "application/json"})
            assert streamed.status_code == 413
            assert (await opened.get("/health")).status_code == 200

    play(story)


def test_a_request_that_trickles_is_ended(play: Play) -> None:
    async def story() -> None:
        async with door(request_read_ms=100) as opened:
            silent, _writer = await opened.raw()
            reader, writer = await opened.raw()
            writer.write(b"GET /health HTTP/1.1\r\nHost: loc")
            assert await reader.read() == b""
            assert await silent.read() == b""
            reader, writer = await opened.raw()
            writer.write(
                f"POST {EXPEL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 20\r\n\r\n{".encode()
            )
            assert b"408" in await reader.readline()
            assert opened.cluster.asked == []

    play(story)


def test_a_second_request_on_a_connection_must_not_trickle_either(play: Play) -> None:
    async def story() -> None:
        async with door(request_read_ms=100, idle_ms=60_000) as opened:
            reader, writer = await opened.raw()
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            writer.write(b"GET /hea")
            assert (await reader.read()).endswith(b"}")

    play(story)


def test_an_idle_connection_is_closed(play: Play) -> None:
    async def story() -> None:
        async with door(idle_ms=100) as opened:
            reader, writer = await opened.raw()
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.read()).endswith(b"}")

    play(story)


def test_connections_and_requests_have_limits_that_say_so(play: Play) -> None:
    async def story() -> None:
        async with door(connections=2) as opened:
            held = [await opened.raw() for _ in range(2)]
            reader, _writer = await opened.raw()
            answer = await reader.read()
            assert b"503" in answer
            assert b'"code":"overloaded"' in answer
            held[0][1].close()
        async with door(requests=1) as opened:
            opened.cluster.delay_s = 60
            slow = asyncio.ensure_future(opened.get("/api/v1/status"))
            await until(lambda: opened.cluster.waiting > 0, "the slow request is under way")
            refused = await opened.get("/api/v1/topology")
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
            await opened.client.aclose()

    play(story)


@pytest.mark.parametrize(
    "noise", [b"\xff\xfe\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET " + b"x" * 40_000]
)
def test_what_is_no_http_gets_an_error_in_json_and_harms_nobody(play: Play, noise: bytes) -> None:
    async def story() -> None:
        async with door() as opened:
            reader, writer = await opened.raw()
            writer.write(noise)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400")
            assert b'"code":"invalid"' in answer
            assert (await opened.get("/health")).status_code == 200
            assert opened.told == []

    play(story)


def test_a_defect_is_an_answer_and_a_line_in_the_log(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            opened.cluster.requests = None  # type: ignore[assignment]
            answer = await opened.get("/api/v1/tasks")
            assert (answer.status_code, answer.json()["code"]) == (500, "internal")
            assert len(opened.told) == 1
            assert "failed at GET '/api/v1/tasks'" in opened.told[0]
            assert (await opened.get("/health")).status_code == 200

    play(story)
