"""What a server answers in many pieces."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.net.loopback import WAIT_S, Play, calling, limits, raw_peer, serving, until

from trimtab.net.errors import NetError, RpcError
from trimtab.net.frames import (
    CANCEL,
    PUSH,
    REQUEST,
    RESPONSE,
    STREAM,
    decode_failure,
    encode_frame,
)
from trimtab.net.server import Request


def test_a_stream_delivers_in_order_until_the_server_ends_it(play: Play) -> None:
    def count(request: Request) -> None:
        for number in range(int(request.body)):
            assert request.push(str(number).encode())
        request.reply()
        assert not request.push(b"after the end")

    async def story() -> None:
        async with serving({"count": count}) as served, calling(served.port) as caller:
            items: list[bytes] = []
            end: asyncio.Future[NetError | None] = asyncio.get_running_loop().create_future()
            caller.channel.stream("count", b"5", items.append, end.set_result)
            assert await asyncio.wait_for(end, WAIT_S) is None
            assert items == [b"0", b"1", b"2", b"3", b"4"]

    play(story)


def test_a_stream_can_end_with_an_error_and_push_is_for_streams_only(play: Play) -> None:
    pushed: list[bool] = []

    def handler(request: Request) -> None:
        pushed.append(request.push(b"item"))
        request.fail("compacted", "gone")

    async def story() -> None:
        pushed.clear()
        async with serving({"m": handler}) as served, calling(served.port) as caller:
            end: asyncio.Future[NetError | None] = asyncio.get_running_loop().create_future()
            caller.channel.stream("m", b"", lambda item: None, end.set_result)
            error = await asyncio.wait_for(end, WAIT_S)
            assert isinstance(error, RpcError) and error.code == "compacted"
            with pytest.raises(RpcError):
                await caller.channel.call("m", b"", WAIT_S)
            assert pushed == [True, False]

    play(story)


def test_cancelling_a_stream_tells_the_handler_and_stops_the_items(play: Play) -> None:
    async def story() -> None:
        streams: list[Request] = []
        reasons: asyncio.Queue[str] = asyncio.Queue()

        def watch(request: Request) -> None:
            request.on_cancel(reasons.put_nowait)
            request.push(b"first")
            streams.append(request)

        async with serving({"watch": watch}) as served, calling(served.port) as caller:
            items: asyncio.Queue[bytes] = asyncio.Queue()
            ends: list[NetError | None] = []
            cancel = caller.channel.stream("watch", b"", items.put_nowait, ends.append)
            assert await asyncio.wait_for(items.get(), WAIT_S) == b"first"
            cancel()
            cancel()
            assert await asyncio.wait_for(reasons.get(), WAIT_S) == "cancelled by the caller"
            assert streams[0].done and not streams[0].push(b"second")
            assert ends == [] and items.empty()

    play(story)


def test_a_lost_connection_cancels_what_its_caller_asked_for(play: Play) -> None:
    async def story() -> None:
        reasons: asyncio.Queue[str] = asyncio.Queue()
        async with serving({"hold": lambda request: request.on_cancel(reasons.put_nowait)}) as served:
            async with raw_peer(served.port, hello=True) as peer:
                peer.write(encode_frame(REQUEST, 1, "hold", 0, b"") + encode_frame(STREAM, 2, "hold", 0, b""))
                await until(lambda: served.server.connections == 1)
                await asyncio.sleep(0)
                peer.write(encode_frame(CANCEL, 2, "", 0, b"") + encode_frame(CANCEL, 77, "", 0, b""))
                assert await asyncio.wait_for(reasons.get(), WAIT_S) == "cancelled by the caller"
            assert "closed the connection" in await asyncio.wait_for(reasons.get(), WAIT_S)

    play(story)


def test_a_slow_consumer_is_told_no_and_the_stream_goes_on_when_it_reads_again(play: Play) -> None:
    async def story() -> None:
        item = b"x" * 50_000
        total = 1200
        sent = 0
        refusals = 0
        no: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def watch(request: Request) -> None:
            def pump() -> None:
                nonlocal sent, refusals
                for _ in range(20):
                    if sent == total:
                        request.reply()
                        return
                    if not request.push(item):
                        refusals += 1
                        request.on_writable(pump)
                        if not no.done():
                            no.set_result(None)
                        return
                    sent += 1
                asyncio.get_running_loop().call_soon(pump)

            pump()

        small = limits(write_high_bytes=64 * 1024, write_low_bytes=1024, max_push_buffered_bytes=100_000)
        async with serving({"watch": watch}, limits=small) as served, raw_peer(served.port, hello=True) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.write(encode_frame(STREAM, 1, "watch", 0, b""))
            await asyncio.wait_for(no, WAIT_S)
            assert 0 < sent < total
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            received = 0
            while (frame := await peer.next()) is not None and frame.kind != RESPONSE:
                received += frame.kind == PUSH
            assert received == total and refusals >= 1

    play(story)


def test_streams_have_a_limit_of_their_own(play: Play) -> None:
    async def story() -> None:
        async with (
            serving({"watch": lambda request: None}, limits=limits(max_streams=2)) as served,
            raw_peer(served.port, hello=True) as peer,
        ):
            peer.write(b"".join(encode_frame(STREAM, id, "watch", 0, b"") for id in (1, 2, 3)))
            answer = await peer.next()
            assert answer is not None and answer.id == 3
            assert decode_failure(answer.body).code == "too_many_streams"

    play(story)
