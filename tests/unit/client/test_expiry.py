"""A command that is refused as too old: issued again where that is safe, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.client.errors import Error, Expired, InvalidRequest, Timeout, Unavailable
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore import commands, requests
from trimtab.metastore.command_ids import issue_time_ms
from trimtab.metastore.results import Failed, FailureCode, InvokeResult, encode_result
from trimtab.net.hello import Hello
from trimtab.net.server import Request, Server
from trimtab.sim.world import World

STATUS = requests.encode(requests.StatusReply("c", "i1", 1, 1, "10.0.0.1:3301", 1, 1, 1, 1, 1, 0, 0, b"", "", []))
LATER_MS = 1_900_000_000_000
EXPIRED = encode_result(Failed(FailureCode.EXPIRED, "too old", LATER_MS))
DONE = encode_result(InvokeResult(7, True, 1))

Answer = Callable[[Request], None]


def says(body: bytes) -> Answer:
    return lambda request: request.reply(body)


def ignores(_request: Request) -> None:
    """As if the answer was lost."""


def ask(answers: list[Answer], work: Callable[[MetastoreClient], Awaitable[Any]]) -> tuple[Any, list[bytes]]:
    """What the client says, or raises, against a member that answers so; and the ids it was asked with."""
    with World(1) as world:
        member, client = world.process("member", "10.0.0.1"), world.process("client", "10.0.0.2")
        left, ids = list(answers), []

        def invoke(request: Request) -> None:
            ids.append(commands.decode(bytes(request.body)).id)
            (left.pop(0) if len(left) > 1 else left[0])(request)

        async def serve() -> None:
            handlers = {requests.STATUS: says(STATUS), requests.INVOKE: invoke}
            await Server(handlers, Hello(instance_id="i1")).start("10.0.0.1", 3301)

        async def run() -> Any:
            connected = await MetastoreClient.connect(
                ["10.0.0.1:3301"], rng=world.rng("client"), wall_ms=client.wall_ms, timeout_s=5
            )
            try:
                return await asyncio.wait_for(work(connected), 60)
            except Error as error:
                return error

        member.start()
        world.run_until_done(member.spawn(serve()), world.now + 1)
        client.start()
        return world.run_until_done(client.spawn(run()), world.now + 100), ids


def put(client: MetastoreClient) -> Awaitable[Any]:
    return client.put(b"k", b"v")


def test_a_first_attempt_that_is_too_old_is_issued_again_at_the_clusters_time() -> None:
    result, ids = ask([says(EXPIRED), says(DONE)], put)
    assert result == 7
    assert len(set(ids)) == 2 and issue_time_ms(ids[1]) == LATER_MS


def test_an_attempt_known_to_have_failed_before_does_not_keep_it_from_that() -> None:
    result, ids = ask([lambda request: request.fail("refused", "not now"), says(EXPIRED), says(DONE)], put)
    assert result == 7
    assert ids[0] == ids[1] != ids[2]


def test_a_retry_that_is_too_old_may_have_been_carried_out_before() -> None:
    result, ids = ask([ignores, says(EXPIRED)], put)
    assert type(result) is Expired and len(set(ids)) == 1


def test_an_id_that_the_caller_brought_is_never_replaced() -> None:
    command = commands.put(b"k", b"v", id=bytes(8) + b"i" * 24)
    result, ids = ask([says(EXPIRED)], lambda client: client.invoke(command))
    assert type(result) is Expired and ids == [command.id]


def test_what_is_refused_again_and_again_was_not_carried_out() -> None:
    result, ids = ask([says(EXPIRED)], put)
    assert type(result) is Unavailable and len(set(ids)) == 3 and "too old" in str(result)


def test_what_the_state_machine_refuses_is_an_error_of_the_client() -> None:
    failed = encode_result(Failed(FailureCode.INVALID, "in the future", LATER_MS))
    assert type(ask([says(failed)], put)[0]) is InvalidRequest
    assert type(ask([ignores, says(failed)], put)[0]) is Timeout


@pytest.mark.parametrize("key", [b"", b"k" * 5_000])
def test_a_command_that_can_not_be_encoded_is_never_sent(key: bytes) -> None:
    result, ids = ask([says(DONE)], lambda client: client.put(key, b"v"))
    assert type(result) is InvalidRequest and not ids


def test_an_answer_that_can_not_be_read_is_an_error_of_the_client() -> None:
    result, _ = ask([says(b"\xc1")], put)
    assert isinstance(result, Error) and "can't be read" in str(result)


def test_an_address_that_is_none_is_refused() -> None:
    with World(1) as world:
        client = world.process("client", "10.0.0.2")
        client.start()
        connecting = client.spawn(MetastoreClient.connect(["10.0.0.1:3301", "::1:3301"], rng=world.rng("client")))
        with pytest.raises(InvalidRequest, match="is not an address"):
            world.run_until_done(connecting, world.now + 5)
