from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.net.loopback import WAIT_S, Play, calling, echo, limits, raw_peer, serving, until

from trimtab.net.connection import TURN_BYTES
from trimtab.net.errors import DeadlineExceeded, FrameTooLarge, NetError, RpcError
from trimtab.net.frames import (
    ERROR,
    HELLO,
    ONEWAY,
    PING,
    PONG,
    REQUEST,
    RESPONSE,
    decode_failure,
    encode_frame,
)
from trimtab.net.hello import Hello
from trimtab.net.server import Request

HOSTILE: dict[str, tuple[bytes, str]] = {
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP request"),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00" + b"x" * 512, "uses TLS"),
    "noise": (b"\xff" * 64, "exceeds the limit"),
    "an empty frame": (b"\0\0\0\0", "zero length"),
    "a request before hello": (encode_frame(REQUEST, 1, "echo", 0, b""), "must be HELLO"),
    "a hello of another protocol": (encode_frame(HELLO, 0, "gopher", 0, b""), "not a trimtab peer"),
    "a hello that is too large": (encode_frame(HELLO, 0, "trimtab/1", 0, b"x" * 20_000), "exceeds the limit of 16384"),
    "a nested hello": (encode_frame(HELLO, 0, "trimtab/1", 0, b"\x91" * 5000), "malformed HELLO"),
}

HOSTILE_AFTER_HELLO: dict[str, tuple[bytes, str]] = {
    "an unknown kind": (encode_frame(77, 1, "echo", 0, b""), "unknown frame kind 77"),
    "a second hello": (encode_frame(HELLO, 0, "trimtab/1", 0, b""), "HELLO frames go the other way"),
    "a response": (encode_frame(RESPONSE, 1, "", 0, b""), "RESPONSE frames go the other way"),
    "an oversized frame": ((5 * 1024 * 1024).to_bytes(4, "big"), "5242880 bytes exceeds the limit of 4194304"),
    "not an array": (b"\0\0\0\x01\x01", "malformed frame of 1 bytes"),
    "deep nesting": ((100_000).to_bytes(4, "big") + b"\x91" * 100_000, "malformed"),
    "an id in use": (encode_frame(REQUEST, 9, "hold", 0, b"") * 2, "id 9 is already in use"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_stranger_is_told_why_and_harms_nobody(play: Play, what: str) -> None:
    data, reason = HOSTILE[what]

    async def story() -> None:
        async with serving() as served, calling(served.port) as caller, raw_peer(served.port) as stranger:
            stranger.write(data)
            assert reason in await stranger.goodbye()
            assert reason in await served.error()
            assert served.server.counters.refused == 1
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


@pytest.mark.parametrize("what", HOSTILE_AFTER_HELLO)
def test_a_peer_that_breaks_the_protocol_is_told_why_and_harms_nobody(play: Play, what: str) -> None:
    data, reason = HOSTILE_AFTER_HELLO[what]

    async def story() -> None:
        handlers = {"echo": echo, "hold": lambda request: None}
        async with (
            serving(handlers) as served,
            calling(served.port) as caller,
            raw_peer(served.port, hello=True) as peer,
        ):
            peer.write(encode_frame(REQUEST, 1, "echo", 0, b"before"))
            answer = await peer.next()
            assert answer is not None and answer.body == b"before"
            peer.write(data)
            assert reason in await peer.goodbye()
            assert reason in await served.error()
            assert served.server.counters.malformed == 1
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_an_unknown_method_is_an_error_and_the_connection_goes_on(play: Play) -> None:
    async def story() -> None:
        async with serving() as served, calling(served.port) as caller:
            with pytest.raises(RpcError, match="no method 'nope' here") as caught:
                await caller.channel.call("nope", b"", WAIT_S)
            assert caught.value.code == "unknown_method"
            assert caller.channel.send("nope", b"")
            assert "unknown method 'nope'" in await served.error()
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_what_a_handler_raises_is_an_internal_error_to_the_caller_and_a_report_here(play: Play) -> None:
    def broken(request: Request) -> None:
        raise KeyError("x" * 1000)

    async def story() -> None:
        async with serving({"echo": echo, "broken": broken}) as served, calling(served.port) as caller:
            with pytest.raises(RpcError, match="internal: KeyError") as caught:
                await caller.channel.call("broken", b"", WAIT_S)
            assert len(caught.value.text) <= 300
            assert "handler of 'broken' failed" in await served.error()
            assert caller.channel.send("broken", b"")
            assert "handler of 'broken' failed" in await served.error()
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"
            assert served.server.counters.handler_errors == 2

    play(story)


def test_a_handler_sees_who_asks_and_how_long_they_wait(play: Play) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> None:
        seen.append(request)
        request.reply()
        request.reply(b"a second answer is ignored")
        request.fail("x", "and so is this")

    async def story() -> None:
        async with serving({"m": handler}) as served, calling(served.port) as caller:
            assert await caller.channel.call("m", b"body", 25.0) == b""
            assert caller.channel.send("m", b"one-way")
            await until(lambda: len(seen) == 2)
            request, oneway = seen
            now = asyncio.get_running_loop().time()
            assert request.method == "m" and request.body == b"body" and not request.oneway and request.done
            assert request.peer.instance_id == "caller" and request.protocol == 1
            assert request.deadline is not None and 5 < request.deadline - now < 25.1
            assert not request.expired(now) and request.expired(now + 26)
            assert oneway.oneway and oneway.deadline is None and not oneway.expired(now + 1e9)
            assert caller.channel.counters.unknown_answers == 0

    play(story)


def test_errors_carry_code_text_and_details(play: Play) -> None:
    async def story() -> None:
        handlers = {"m": lambda request: request.fail("compacted", "revision 3 is gone", b"\x05")}
        async with serving(handlers) as served, calling(served.port) as caller:
            with pytest.raises(RpcError) as caught:
                await caller.channel.call("m", b"", WAIT_S)
            assert (caught.value.code, caught.value.text, caught.value.details) == (
                "compacted",
                "revision 3 is gone",
                b"\x05",
            )

    play(story)


def test_an_answer_that_is_too_large_for_the_peer_becomes_an_error_with_the_sizes(play: Play) -> None:
    """How much a peer accepts is its own choice: it must not become an exception in whoever answers it."""

    def large(request: Request) -> None:
        request.reply(b"x" * 5000)
        assert request.done

    def large_error(request: Request) -> None:
        request.fail("x", "y", b"x" * 5000)

    async def story() -> None:
        handlers = {"large": large, "error": large_error, "echo": echo}
        async with serving(handlers) as served, calling(served.port, limits=limits(max_frame_bytes=4096)) as caller:
            for method in ("large", "error"):
                with pytest.raises(RpcError, match="limit of this connection is 4096") as caught:
                    await caller.channel.call(method, b"", WAIT_S)
                assert caught.value.code == "too_large"
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_an_answer_may_be_larger_than_a_request_where_both_sides_say_so(play: Play) -> None:
    def large(request: Request) -> None:
        request.reply(b"x" * 20_000)

    async def story() -> None:
        both = limits(max_frame_bytes=4096, max_answer_bytes=32_000)
        async with serving({"large": large}, limits=both) as served, calling(served.port, limits=both) as caller:
            assert len(await caller.channel.call("large", b"", WAIT_S)) == 20_000
            with pytest.raises(FrameTooLarge):
                caller.channel.call("large", b"x" * 5000, WAIT_S)
        small = limits(max_frame_bytes=4096)
        async with serving({"large": large}, limits=both) as served, calling(served.port, limits=small) as caller:
            with pytest.raises(RpcError, match="limit of this connection is 4096"):
                await caller.channel.call("large", b"", WAIT_S)

    play(story)


def test_many_requests_at_once_are_spread_over_turns_of_the_loop(play: Play) -> None:
    turns: list[int] = []
    turn = 0

    def large(request: Request) -> None:
        turns.append(turn)
        request.reply(b"x" * (TURN_BYTES // 2))

    async def story() -> None:
        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async with serving({"large": large}) as served, calling(served.port) as caller:
            counting = asyncio.ensure_future(count())
            answers = [caller.channel.call("large", b"", WAIT_S) for _ in range(40)]
            assert [len(await answer) for answer in answers] == [TURN_BYTES // 2] * 40
            counting.cancel()
            assert max(turns.count(each) for each in turns) <= 3
            assert served.server.counters.reading_paused == 0

    play(story)


def test_a_held_request_is_expired_and_its_handler_told(play: Play) -> None:
    held: list[Request] = []
    reasons: list[str] = []

    def hold(request: Request) -> None:
        request.on_cancel(reasons.append)
        held.append(request)

    async def story() -> None:
        held.clear()
        reasons.clear()
        async with (
            serving({"hold": hold}, limits=limits(keepalive_s=0.05)) as served,
            raw_peer(served.port, hello=True) as peer,
        ):
            peer.write(encode_frame(REQUEST, 5, "hold", 20, b""))
            answer = await peer.next()
            while answer is not None and answer.kind == PING:
                answer = await peer.next()
            assert answer is not None and answer.kind == ERROR and answer.id == 5
            assert decode_failure(answer.body).code == "deadline_exceeded"
            assert reasons == ["the deadline passed"]
            assert held[0].done
            held[0].reply(b"too late")
            peer.write(encode_frame(PING, 42, "", 0, b""))
            answer = await peer.next()
            while answer is not None and answer.kind == PING:
                answer = await peer.next()
            assert answer is not None and (answer.kind, answer.id) == (PONG, 42)
            assert served.server.counters.expired == 1

    play(story)


def test_requests_over_the_limit_wait_unread_and_expired_ones_are_never_executed(play: Play) -> None:
    held: list[Request] = []

    async def story() -> None:
        held.clear()
        async with (
            serving({"hold": held.append, "echo": echo}, limits=limits(max_server_in_flight=3)) as served,
            calling(served.port) as caller,
            raw_peer(served.port, hello=True) as peer,
        ):
            flood = b"".join(encode_frame(REQUEST, id, "hold", 0, b"") for id in range(1, 4))
            flood += encode_frame(REQUEST, 4, "hold", 30, b"") + encode_frame(REQUEST, 5, "hold", 0, b"")
            peer.write(flood)
            await until(lambda: len(held) == 3)
            assert served.server.counters.reading_paused == 1
            assert await caller.channel.call("echo", b"others go on", WAIT_S) == b"others go on"
            deadline = asyncio.get_running_loop().time() + 0.05
            await until(lambda: asyncio.get_running_loop().time() > deadline)
            held[0].reply(b"done")
            await until(lambda: len(held) == 4)
            assert [request.id for request in held] == [1, 2, 3, 5]
            assert served.server.counters.expired == 1
            for request in held[1:]:
                request.reply()
            answers = [await peer.next() for _ in range(4)]
            assert [frame.id for frame in answers if frame is not None] == [1, 2, 3, 5]
            peer.write(encode_frame(REQUEST, 6, "echo", 0, b"reading again"))
            answer = await peer.next()
            assert answer is not None and answer.body == b"reading again"

    play(story)


def test_a_peer_that_does_not_read_its_answers_is_not_read_either_and_finally_disconnected(play: Play) -> None:
    async def story() -> None:
        big = b"x" * 500_000
        small = limits(write_high_bytes=64 * 1024, write_low_bytes=1024, max_buffered_bytes=2_000_000)
        held: list[Request] = []
        async with (
            serving({"echo": echo, "hold": held.append}, limits=small) as served,
            calling(served.port) as caller,
            raw_peer(served.port, hello=True) as peer,
        ):
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for id in range(1, 41):
                peer.write(encode_frame(REQUEST, id, "hold", 0, b""))
            await until(lambda: len(held) == 40)
            for request in held[:30]:
                request.reply(big)
                await asyncio.sleep(0)
            assert "bytes of answers are waiting for a peer that does not read them" in await served.error()
            assert all(request.done for request in held)
            assert await caller.channel.call("echo", b"others go on", WAIT_S) == b"others go on"

    play(story)


def test_an_echo_flood_to_a_peer_that_does_not_read_stops_reading_and_resumes_when_it_reads(play: Play) -> None:
    async def story() -> None:
        body = b"x" * 100_000
        count = 400
        small = limits(write_high_bytes=64 * 1024, write_low_bytes=1024)
        async with serving({"echo": echo}, limits=small) as served, raw_peer(served.port, hello=True) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for id in range(1, count + 1):
                peer.write(encode_frame(REQUEST, id, "echo", 0, body))
            await until(lambda: served.server.counters.reading_paused > 0)
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            answered: list[int] = []
            while len(answered) < count:
                frame = await peer.next()
                assert frame is not None
                if frame.kind == RESPONSE:
                    answered.append(frame.id)
            assert answered == list(range(1, count + 1))

    play(story)


def test_a_connection_without_a_hello_is_closed_in_time_however_slowly_it_talks(play: Play) -> None:
    async def story() -> None:
        async with (
            serving(limits=limits(hello_timeout_s=0.2)) as served,
            raw_peer(served.port) as silent,
            raw_peer(served.port) as loris,
        ):
            loris.write(b"\0\0\0\x20")
            loris.write(b"\x95")
            assert await silent.goodbye() == "no hello within 0.2 s"
            assert await loris.goodbye() == "no hello within 0.2 s"
            await until(lambda: served.server.connections == 0)

    play(story)


def test_connections_are_limited_and_room_comes_back(play: Play) -> None:
    async def story() -> None:
        async with serving(limits=limits(max_connections=2)) as served:
            async with calling(served.port), calling(served.port):
                async with raw_peer(served.port) as third:
                    assert await third.goodbye() == "too many connections, the limit is 2"
                assert "too many connections" in await served.error()
            await until(lambda: served.server.connections == 0)
            async with calling(served.port) as caller:
                assert await caller.channel.call("echo", b"room", WAIT_S) == b"room"

    play(story)


def test_strangers_cannot_take_all_places(play: Play) -> None:
    async def story() -> None:
        async with (
            serving(limits=limits(max_unauthenticated=1, hello_timeout_s=WAIT_S)) as served,
            calling(served.port) as caller,
            raw_peer(served.port) as first,
        ):
            await until(lambda: served.server.connections == 2)
            async with raw_peer(served.port) as second:
                assert "without a hello, the limit is 1" in await second.goodbye()
            first.say_hello()
            answer = await first.next()
            assert answer is not None and answer.kind == HELLO
            async with calling(served.port):
                assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_one_way_messages_arrive_in_order_and_get_no_answer(play: Play) -> None:
    async def story() -> None:
        seen: list[bytes] = []
        async with (
            serving({"note": lambda request: seen.append(request.body), "echo": echo}) as served,
            raw_peer(served.port, hello=True) as peer,
        ):
            peer.write(b"".join(encode_frame(ONEWAY, 0, "note", 0, bytes([n])) for n in range(100)))
            peer.write(encode_frame(REQUEST, 1, "echo", 0, b"end"))
            answer = await peer.next()
            assert answer is not None and answer.kind == RESPONSE
            assert seen == [bytes([n]) for n in range(100)]

    play(story)


def test_a_closing_server_says_so_and_cancels_what_is_under_way(play: Play) -> None:
    async def story() -> None:
        reasons: list[str] = []
        held: list[Request] = []

        def hold(request: Request) -> None:
            request.on_cancel(reasons.append)
            held.append(request)

        async with serving({"hold": hold}) as served, calling(served.port) as caller:
            call = caller.channel.call("hold", b"", WAIT_S)
            await until(lambda: len(held) == 1)
            served.server.close("upgrade")
            with pytest.raises(NetError, match="upgrade"):
                await call
            reason, refused = await caller.down()
            assert "said goodbye: upgrade" in reason and not refused
            assert reasons == ["upgrade"]
            assert served.errors.empty()

    play(story)


@pytest.mark.parametrize("side", ["server", "caller"])
def test_a_hello_can_be_refused_by_either_side_and_both_read_why(play: Play, side: str) -> None:
    def refuse(hello: Hello) -> str | None:
        return f"{hello.instance_id} belongs to cluster {hello.cluster_id!r}, not to mine"

    check: dict[str, Any] = {"check_hello": refuse}

    async def story() -> None:
        async with (
            serving(**(check if side == "server" else {})) as served,
            calling(served.port, wait=False, **(check if side == "caller" else {})) as caller,
        ):
            reason, refused = await caller.down()
            assert "belongs to cluster 'c', not to mine" in reason and not refused
            assert "belongs to cluster 'c', not to mine" in await served.error()
            assert caller.ups.empty() and not caller.channel.connected

    play(story)


def test_a_hello_check_that_raises_refuses(play: Play) -> None:
    def check(hello: Hello) -> str | None:
        raise KeyError("no such instance")

    async def story() -> None:
        async with serving(check_hello=check) as served, calling(served.port, wait=False) as caller:
            assert "could not be checked: KeyError" in (await caller.down())[0]
            assert "could not be checked: KeyError" in await served.error()

    play(story)


def test_versions_that_do_not_overlap_are_refused_naming_both_ranges(play: Play) -> None:
    async def story() -> None:
        async with (
            serving(hello=Hello(3, 4, instance_id="new")) as served,
            calling(served.port, wait=False, hello=Hello(1, 2, instance_id="old")) as caller,
        ):
            reason, _ = await caller.down()
            for text in (reason, await served.error()):
                assert "new speaks 3 to 4" in text and "old speaks 1 to 2" in text

    play(story)


def test_versions_that_overlap_use_the_highest_common_one(play: Play) -> None:
    async def story() -> None:
        protocols: list[int] = []

        def handler(request: Request) -> None:
            protocols.append(request.protocol)
            request.reply()

        async with (
            serving({"m": handler}, hello=Hello(2, 4)) as served,
            calling(served.port, hello=Hello(1, 3)) as caller,
        ):
            await caller.channel.call("m", b"", WAIT_S)
            assert protocols == [3] and caller.channel.protocol == 3

    play(story)


def test_a_deadline_error_of_the_server_is_a_deadline_to_the_caller(play: Play) -> None:
    async def story() -> None:
        handlers = {"m": lambda request: request.fail("deadline_exceeded", "took too long elsewhere")}
        async with serving(handlers) as served, calling(served.port) as caller:
            with pytest.raises(DeadlineExceeded, match="elsewhere"):
                await caller.channel.call("m", b"", WAIT_S)

    play(story)


def test_bodies_are_bytes_that_nobody_looks_into(play: Play) -> None:
    async def story() -> None:
        async with serving() as served, calling(served.port) as caller:
            for body in (b"", b"\xc1", b"\0" * 10, msgspec.msgpack.encode([[[1]]]), b"\x91" * 100_000):
                assert await caller.channel.call("echo", body, WAIT_S) == body

    play(story)
