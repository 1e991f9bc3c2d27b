"""What a client says about a write whose attempts ended differently: "not carried out" only when that is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trimtab.client.errors import Error, Timeout, Unavailable
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore import requests
from trimtab.net.hello import Hello
from trimtab.net.server import Request, Server
from trimtab.sim.world import World

STATUS = requests.encode(requests.StatusReply("c", "i1", 1, 1, "10.0.0.1:3301", 1, 1, 1, 1, 1, 0, 0, b"", "", []))


def put_against(answers: list[Callable[[Request], None]]) -> Error:
    """Put a key at a member that answers each attempt by the next of `answers`, the last one for ever; the error."""
    with World(1) as world:
        member, client = world.process("member", "10.0.0.1"), world.process("client", "10.0.0.2")
        left = list(answers)

        def invoke(request: Request) -> None:
            (left.pop(0) if len(left) > 1 else left[0])(request)

        async def serve() -> None:
            handlers = {requests.STATUS: lambda request: request.reply(STATUS), requests.INVOKE: invoke}
            await Server(handlers, Hello(instance_id="i1")).start("10.0.0.1", 3301)

        async def put() -> Error:
            connected = await MetastoreClient.connect(
                ["10.0.0.1:3301"], rng=world.rng("client"), wall_ms=client.wall_ms, timeout_s=5
            )
            with pytest.raises(Error) as raised:
                await asyncio.wait_for(connected.put(b"k", b"v", timeout_s=5), 60)
            return raised.value

        member.start()
        world.run_until_done(member.spawn(serve()), world.now + 1)
        client.start()
        error: Error = world.run_until_done(client.spawn(put()), world.now + 100)
        return error


def fails(code: str) -> Callable[[Request], None]:
    return lambda request: request.fail(code, "because")


def ignores(_request: Request) -> None:
    """As if the answer was lost."""


def test_a_write_that_a_full_disk_refused_was_not_carried_out() -> None:
    assert isinstance(put_against([fails("disk_full")]), Unavailable)


def test_a_write_refused_after_an_attempt_without_an_answer_may_have_been_carried_out() -> None:
    assert isinstance(put_against([ignores, fails("disk_full")]), Timeout)


def test_a_write_under_way_when_the_disk_became_full_may_have_been_carried_out() -> None:
    assert isinstance(put_against([fails("stalled")]), Timeout)
    assert isinstance(put_against([fails("stalled"), fails("disk_full")]), Timeout)


def test_a_write_that_never_found_a_leader_was_not_carried_out() -> None:
    assert isinstance(put_against([fails("not_leader")]), Unavailable)
