"""Server-sent events over a real connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from tests.unit.http.doors import Opened, Play, door, until

EVENTS = "/api/v1/events"


async def numbers(stream: httpx.Response) -> AsyncIterator[tuple[int, Any]]:
    """(id, data) of each event."""
    number = 0
    async for line in stream.aiter_lines():
        if line.startswith("id: "):
            number = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield number, json.loads(line.removeprefix("data: "))


def following(opened: Opened, query: str = "", **headers: str) -> Any:
    return opened.client.stream("GET", EVENTS + query, headers={"Accept": "text/event-stream", **headers})


def test_a_stream_tells_new_events_as_they_happen(play: Play) -> None:
    async def story() -> None:
        async with door() as opened, following(opened) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert "content-length" not in stream.headers
            events = numbers(stream)
            for text in ("i2 is Online", "two\nlines\r\nof it"):
                number = opened.cluster.happen(text)
                assert (await anext(events))[0] == number

    play(story)


def test_a_reader_that_comes_back_misses_nothing(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            async with following(opened, "?after=2") as stream:
                events = numbers(stream)
                assert [(await anext(events))[0] for _ in range(3)] == [3, 4, 5]
            await until(lambda: opened.cluster.ended == 1, "the stream of a reader that left ends")
            opened.cluster.happen("meanwhile")
            # A browser repeats the address it was given; the header knows better.
            async with following(opened, "?after=2", **{"Last-Event-ID": "4"}) as stream:
                events = numbers(stream)
                assert [(await anext(events))[0] for _ in range(2)] == [5, 6]

    play(story)


def test_events_that_are_kept_no_more_are_missed_visibly(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            del opened.cluster.events[1], opened.cluster.events[2]
            async with following(opened, "?after=0") as stream:
                lines = stream.aiter_lines()
                seen = [await anext(lines) for _ in range(6)]
            assert ": no events are kept between 0 and 3" in seen
            assert "id: 3" in seen

    play(story)


def test_a_quiet_stream_is_kept_alive(play: Play) -> None:
    async def story() -> None:
        async with door(stream_keepalive_ms=20) as opened, following(opened) as stream:
            lines = stream.aiter_lines()
            while await anext(lines) != ": keep-alive":
                pass

    play(story)


def test_streams_are_few_and_a_place_is_free_again_when_a_reader_leaves(play: Play) -> None:
    async def story() -> None:
        async with door(streams=1, requests=1) as opened:
            async with following(opened):
                refused = await opened.get(f"{EVENTS}?stream=true")
                assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")
                assert (await opened.get("/health")).status_code == 200
            await until(lambda: opened.cluster.ended == 1, "the stream ends")
            async with following(opened) as stream:
                assert stream.status_code == 200

    play(story)


def test_a_reader_that_reads_nothing_is_let_go(play: Play) -> None:
    async def story() -> None:
        async with door(stream_send_ms=100) as opened:
            reader, writer = await opened.raw()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(f"GET {EVENTS}?stream=true&after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            for _ in range(400):
                opened.cluster.happen("x" * 50_000)
            await until(lambda: opened.cluster.ended == 1, "the stream ends")
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            taken = 0
            while chunk := await reader.read(1 << 20):
                taken += len(chunk)
            assert taken < 400 * 50_000, "the rest was not waited for"

    play(story)


def test_a_bad_last_event_id_is_refused(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            for bad in ("x", "-1", "1e3", "9" * 30):
                answer = await opened.get(f"{EVENTS}?stream=true", headers={"Last-Event-ID": bad})
                assert (answer.status_code, answer.json()["code"]) == (400, "invalid")

    play(story)


def test_a_head_request_for_a_stream_ends(play: Play) -> None:
    async def story() -> None:
        async with door() as opened:
            async with asyncio.timeout(20):
                answer = await opened.client.head(f"{EVENTS}?stream=true")
            assert answer.status_code == 200
            assert (await opened.client.head("/health")).status_code == 200

    play(story)
