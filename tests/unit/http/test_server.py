from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter
from tests.unit.http.doors import WAIT_S, Play, bind_free, door, until
from tests.unit.http.made_up import MadeUpCluster
from tests.unit.net.certificates import Authority

from trimtab.http import server
from trimtab.http.server import CannotListen, bind
from trimtab.net.tls import client_context, server_context


def test_a_port_that_is_taken_is_named_with_the_option_that_changes_it() -> None:
    with bind_free() as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(CannotListen) as refused:
            bind(f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in str(refused.value)
    assert "the port is taken" in str(refused.value)
    assert "--http HOST:PORT" in str(refused.value)


def test_an_address_of_another_machine_can_not_be_listened_on() -> None:
    with pytest.raises(CannotListen, match="one of this machine"):
        bind("192.0.2.1:8080")


def test_binding_costs_no_imports() -> None:
    """The port is bound while the instance starts, which must stay fast."""
    code = (
        "import sys, trimtab.http.server, trimtab.http.port;"
        "print([name for name in ('fastapi', 'pydantic', 'uvicorn', 'starlette') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_all_routes_are_made_before_the_first_request_and_not_on_the_loop(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    on: list[threading.Thread] = []
    make = TypeAdapter.__init__

    def noted(self: Any, *given: Any, **options: Any) -> None:
        on.append(threading.current_thread())
        make(self, *given, **options)

    monkeypatch.setattr(TypeAdapter, "__init__", noted)

    async def story() -> None:
        async with door() as opened:
            made = len(on)
            assert made > 100 and threading.current_thread() not in on
            for path in ("/health", "/nothing"):
                await opened.get(path)
            assert len(on) == made

    play(story)


def test_a_door_that_others_can_reach_without_tls_is_warned_of(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests listen on loopback only, so the door is told that it is not.
    monkeypatch.setattr(server, "is_loopback", lambda _bound: False)

    async def story() -> None:
        async with door() as opened:
            assert len(opened.told) == 1
            assert f"warning: HTTP on 127.0.0.1:{opened.port} is reachable from other machines" in opened.told[0]
            anywhere = await opened.get("/health", headers={"Host": "box.example:3303"})
            assert anywhere.status_code == 200

    play(story)


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_a_door_opens_on_ipv6_too(play: Play, free_ports: Callable[[int], list[int]]) -> None:
    port = free_ports(1)[0]
    try:
        bound = bind(f"[::1]:{port}")
    except CannotListen as error:
        pytest.skip(f"there is no IPv6 loopback here: {error}")

    async def story() -> None:
        close = await server.open_door(MadeUpCluster(), bound)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://[::1]:{port}/ready")).status_code == 200
        await close()

    play(story)


# Opens a door in a process that has imported nothing of it yet; prints who imported FastAPI and its like.
_WHO_IMPORTS = """
import asyncio, socket, sys, threading
from unittest.mock import MagicMock
from trimtab.http import server

importers = {}

class Noting:
    def find_spec(self, name, path=None, target=None):
        if name in ("fastapi", "pydantic", "uvicorn", "starlette"):
            importers[name] = threading.current_thread() is threading.main_thread()

sys.meta_path.insert(0, Noting())

async def main():
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.setblocking(False)
    close = await server.open_door(MagicMock(), bound)
    await close()

asyncio.run(main())
print(sorted(importers.items()))
"""


def test_the_loop_goes_on_turning_while_the_door_is_imported() -> None:
    """Raft's ticks must not wait for it."""
    done = subprocess.run([sys.executable, "-c", _WHO_IMPORTS], capture_output=True, text=True)
    none_on_the_loop = [(name, False) for name in ("fastapi", "pydantic", "starlette", "uvicorn")]
    assert done.stdout.strip() == str(none_on_the_loop), done.stderr


def test_a_closed_door_ends_streams_and_finishes_answers(play: Play) -> None:
    async def story() -> None:
        async with door(stop_ms=20_000) as opened:
            opened.cluster.delay_s = 0.2
            slow = asyncio.ensure_future(opened.get("/api/v1/status"))
            async with opened.client.stream("GET", "/api/v1/events?stream=true") as stream:
                lines = stream.aiter_lines()
                assert (await anext(lines)).startswith("retry:")
                await until(lambda: opened.cluster.waiting > 0, "the slow request is under way")
                await opened.close()
                assert [line async for line in lines if line.startswith("data")] == []
            assert (await slow).status_code == 200
            with pytest.raises(httpx.ConnectError):
                await opened.get("/health")

    play(story)


def test_an_answer_that_takes_too_long_does_not_hold_up_the_end(play: Play) -> None:
    async def story() -> None:
        async with door(stop_ms=50) as opened:
            opened.cluster.delay_s = 60
            slow = asyncio.ensure_future(opened.get("/api/v1/status"))
            await until(lambda: opened.cluster.waiting > 0, "the slow request is under way")
            async with asyncio.timeout(20):
                await opened.close()
            assert ((await slow).status_code, (await slow).json()["code"]) == (503, "stopped")

    play(story)


def test_with_tls_only_certificates_of_the_authority_get_in(play: Play, tmp_path: Path) -> None:
    authority = Authority()
    mine, other = authority.issue(tmp_path, "i1"), Authority().issue(tmp_path, "stranger")
    tls = server_context(mine.ca, mine.cert, mine.key)

    async def story() -> None:
        verify = client_context(mine.ca, mine.cert, mine.key)
        async with door(tls=tls, verify=verify) as opened:
            assert (await opened.get("/health")).json()["status"] == "ok"
            stranger = client_context(mine.ca, other.cert, other.key)
            for verify_as in (stranger, False):
                async with httpx.AsyncClient(verify=verify_as, timeout=WAIT_S) as client:
                    with pytest.raises(httpx.TransportError):
                        await client.get(f"https://127.0.0.1:{opened.port}/health")

    play(story)
