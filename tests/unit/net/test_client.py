from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.unit.net.loopback import (
    WAIT_S,
    Caller,
    Play,
    calling,
    echo,
    free_port,
    limits,
    raw_server,
    serving,
    until,
)

from trimtab.net.client import Channel, _is_refusal
from trimtab.net.errors import ConnectionLost, DeadlineExceeded, FrameTooLarge, NetError, NotConnected, Overloaded
from trimtab.net.frames import CANCEL, GOODBYE, HELLO, PING, PONG, PUSH, REQUEST, RESPONSE, encode_frame
from trimtab.net.hello import Hello
from trimtab.net.server import Request


def test_refusal_of_every_address_is_a_refusal_and_of_some_is_not() -> None:
    assert _is_refusal(ConnectionRefusedError(111, "Connect call failed"))
    assert _is_refusal(OSError("Multiple exceptions: [Errno 111] a, [Errno 111] b"))
    assert not _is_refusal(OSError("Multiple exceptions: [Errno 111] a, [Errno 101] b"))
    assert not _is_refusal(OSError("no"))


def test_many_calls_in_flight_get_their_own_answers_in_any_order(play: Play) -> None:
    async def story() -> None:
        held: list[Request] = []
        async with serving({"hold": held.append}) as served, calling(served.port) as caller:
            calls = [caller.channel.call("hold", str(n).encode(), WAIT_S) for n in range(500)]
            await until(lambda: len(held) == 500)
            random.Random(3).shuffle(held)
            for request in held:
                request.reply(b"answer to " + request.body)
            assert await asyncio.gather(*calls) == [f"answer to {n}".encode() for n in range(500)]

    play(story)


class Told:
    """Who asks without a future."""

    def __init__(self) -> None:
        self.heard: list[bytes | str] = []

    def done(self) -> bool:
        return bool(self.heard)

    def set_result(self, result: bytes) -> None:
        self.heard.append(result)

    def set_exception(self, exception: NetError) -> None:
        self.heard.append(type(exception).__name__)


def test_whoever_asks_without_a_future_is_told_once_whatever_happens(play: Play) -> None:
    async def story() -> None:
        answered, refused, late, lost = Told(), Told(), Told(), Told()
        handlers = {"echo": echo, "no": lambda request: request.fail("no", "no"), "hold": lambda request: None}
        async with serving(handlers) as served, calling(served.port) as caller:
            channel = caller.channel
            channel.ask("echo", b"x", WAIT_S, answered)
            channel.ask("no", b"x", WAIT_S, refused)
            channel.ask("hold", b"x", 0.05, late)
            channel.ask("hold", b"x", WAIT_S, lost)
            await until(late.done)
            channel.close()
            with pytest.raises(NotConnected):
                channel.ask("echo", b"x", WAIT_S, Told())
        assert [each.heard for each in (answered, refused, late, lost)] == [
            [b"x"],
            ["RpcError"],
            ["DeadlineExceeded"],
            ["ConnectionLost"],
        ]

    play(story)


def test_all_frames_of_a_loop_turn_leave_in_one_write_on_both_sides(play: Play) -> None:
    async def story() -> None:
        held: list[Request] = []
        async with serving({"hold": held.append}) as served, calling(served.port) as caller:
            connection: Any = caller.channel._up
            real = connection._transport
            writes: list[int] = []

            class Counting:
                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

                def write(self, data: bytes) -> None:
                    writes.append(len(data))
                    real.write(data)

            connection._transport = Counting()
            before = served.server.counters.writes
            calls = [caller.channel.call("hold", b"x", WAIT_S) for _ in range(100)]
            assert writes == []
            await until(lambda: len(held) == 100)
            assert len(writes) == 1
            for request in held:
                request.reply()
            await asyncio.gather(*calls)
            assert served.server.counters.writes == before + 1

    play(story)


def test_a_call_without_an_answer_ends_at_its_deadline_and_a_late_answer_is_ignored(play: Play) -> None:
    async def story() -> None:
        held: list[Request] = []
        async with serving({"hold": held.append, "echo": echo}) as served, calling(served.port) as caller:
            loop = asyncio.get_running_loop()
            started = loop.time()
            slow = caller.channel.call("hold", b"", WAIT_S)
            fast = caller.channel.call("hold", b"", 0.05)
            faster = caller.channel.call("hold", b"", 0.02)
            with pytest.raises(DeadlineExceeded, match="no answer to 'hold'"):
                await faster
            with pytest.raises(DeadlineExceeded):
                await fast
            assert 0.04 < loop.time() - started < WAIT_S, "before those that wait longer"
            for request in held:
                request.reply(b"late")
            assert await slow == b"late"
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"
            with pytest.raises(DeadlineExceeded, match="not sent"):
                caller.channel.call("echo", b"", 0)

    play(story)


def test_a_peer_that_stood_still_is_told_that_a_call_was_given_up(play: Play) -> None:
    """Else it would carry out, after it went on, what its caller has long accounted for as over."""

    async def story() -> None:
        async with raw_server() as (port, peers), calling(port, wait=False) as caller:
            peer = await peers.get()
            peer.say_hello()
            await caller.up()
            with pytest.raises(DeadlineExceeded):
                await caller.channel.call("m", b"", 0.02)
            frames = [await peer.next() for _ in range(3)]
            assert [frame.kind for frame in frames if frame] == [HELLO, REQUEST, CANCEL]
            assert frames[1] and frames[2] and frames[1].id == frames[2].id

    play(story)


def test_the_remaining_time_travels_with_the_request(play: Play) -> None:
    async def story() -> None:
        async with raw_server() as (port, peers), calling(port, wait=False) as caller:
            peer = await peers.get()
            peer.say_hello()
            await caller.up()
            caller.channel.call("m", b"", 1.5)
            caller.channel.call("m", b"", 0.0001)
            frames = [await peer.next() for _ in range(3)]
            assert [frame.kind for frame in frames if frame] == [HELLO, REQUEST, REQUEST]
            assert [frame.deadline_ms for frame in frames if frame] == [0, 1500, 1]

    play(story)


def test_a_cancelled_future_does_no_harm(play: Play) -> None:
    async def story() -> None:
        held: list[Request] = []
        async with serving({"hold": held.append, "echo": echo}) as served, calling(served.port) as caller:
            call = caller.channel.call("hold", b"", WAIT_S)
            await until(lambda: len(held) == 1)
            call.cancel()
            held[0].reply()
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_too_many_calls_and_too_many_bytes_are_refused_before_they_are_sent(play: Play) -> None:
    async def story() -> None:
        tight = limits(max_in_flight=3, max_buffered_bytes=10_000, max_streams=1)
        async with (
            serving({"hold": lambda request: None}) as served,
            calling(served.port, limits=tight) as caller,
        ):
            channel = caller.channel
            channel.stream("hold", b"", lambda item: None, lambda error: None)
            with pytest.raises(Overloaded):
                channel.stream("hold", b"", lambda item: None, lambda error: None)
            channel.call("hold", b"x" * 6000, WAIT_S)
            with pytest.raises(Overloaded, match="6000 more would exceed the limit of 10000"):
                channel.call("hold", b"x" * 6000, WAIT_S)
            assert not channel.send("hold", b"x" * 6000)
            assert channel.counters.dropped_oneway == 1
            channel.call("hold", b"", WAIT_S)
            channel.call("hold", b"", WAIT_S)
            with pytest.raises(Overloaded, match=r"3 requests .* are unanswered"):
                channel.call("hold", b"", WAIT_S)
            assert channel.counters.overloaded == 3

    play(story)


def test_a_peer_that_does_not_read_makes_calls_fail_and_one_way_messages_drop_until_it_does(play: Play) -> None:
    async def story() -> None:
        tight = limits(write_high_bytes=64 * 1024, write_low_bytes=1024, max_buffered_bytes=300_000)
        async with raw_server() as (port, peers), calling(port, wait=False, limits=tight) as caller:
            peer = await peers.get()
            peer.say_hello()
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await caller.up()
            channel = caller.channel
            sent = 0
            async with asyncio.timeout(WAIT_S):
                while channel.send("m", b"x" * 50_000):
                    sent += 1
                    await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="the peer reads too slowly"):
                channel.call("m", b"x" * 50_000, WAIT_S)
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            received = 0
            while received < sent:
                frame = await peer.next()
                assert frame is not None
                received += len(frame.body) == 50_000
            await until(lambda: channel.waiting_bytes == 0)
            assert channel.send("m", b"x" * 50_000)

    play(story)


def test_a_message_that_is_too_large_raises_here_with_both_sizes_by_the_smaller_limit(play: Play) -> None:
    async def story() -> None:
        async with serving(limits=limits(max_frame_bytes=2048)) as served, calling(served.port) as caller:
            for ask in (
                lambda: caller.channel.call("echo", b"x" * 3000, WAIT_S),
                lambda: caller.channel.send("echo", b"x" * 3000),
                lambda: caller.channel.stream("echo", b"x" * 3000, lambda item: None, lambda error: None),
            ):
                with pytest.raises(FrameTooLarge, match=r"'echo' makes a frame of 30.. bytes, the limit .* is 2048"):
                    ask()
            assert await caller.channel.call("echo", b"x" * 2000, WAIT_S) == b"x" * 2000

    play(story)


def test_nobody_listening_is_reported_as_refused_and_poke_finds_the_peer_at_once(play: Play) -> None:
    async def story() -> None:
        port = free_port()
        patient = limits(backoff_first_s=60.0, backoff_max_s=60.0)
        async with calling(port, wait=False, limits=patient) as caller:
            reason, refused = await caller.down()
            assert refused and f"cannot connect to 127.0.0.1:{port}" in reason
            assert not caller.channel.send("echo", b"")
            with pytest.raises(NotConnected, match="cannot connect"):
                caller.channel.call("echo", b"", WAIT_S)
            with pytest.raises(NotConnected, match="cannot connect"):
                await caller.channel.wait_connected(0.01)
            async with serving(port=port) as served:
                caller.channel.poke()
                caller.channel.poke()
                assert (await caller.up()).instance_id == "server"
                caller.channel.poke()
                assert caller.channel.peer is not None and caller.channel.counters.connects == 2
                assert served.server.connections == 1

    play(story)


def test_a_channel_comes_back_by_itself_and_calls_under_way_fail(play: Play) -> None:
    async def story() -> None:
        port = free_port()
        async with serving({"hold": lambda request: None, "echo": echo}, port=port), calling(port) as caller:
            ends: list[NetError | None] = []
            call = caller.channel.call("hold", b"", WAIT_S)
            caller.channel.stream("hold", b"", lambda item: None, ends.append)
            connection: Any = caller.channel._up
            connection._transport.abort()
            with pytest.raises(ConnectionLost) as caught:
                await call
            assert not isinstance(caught.value, NotConnected)
            assert len(ends) == 1 and isinstance(ends[0], ConnectionLost)
            assert (await caller.down())[1] is False
            await caller.up()
            assert await caller.channel.call("echo", b"back", WAIT_S) == b"back"

    play(story)


def test_a_restarted_server_is_found_again(play: Play) -> None:
    async def story() -> None:
        port = free_port()
        caller = Caller(port)
        for life in range(3):
            async with serving(port=port, hello=Hello(instance_id="server", incarnation=life)):
                assert (await caller.up()).incarnation == life
                assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"
            while "shutting down" not in (await caller.down())[0]:
                pass  # attempts that came before the server did
        while not (await caller.down())[1]:
            pass  # until an attempt finds nobody listening
        caller.channel.close()

    play(story)


def test_waiting_for_a_connection_ends_with_it_or_with_close(play: Play) -> None:
    async def story() -> None:
        async with serving() as served:
            channel = Channel(f"127.0.0.1:{served.port}", Hello(), random.Random(1), limits=limits())
            assert (await channel.wait_connected(WAIT_S)).instance_id == "server"
            assert (await channel.wait_connected(WAIT_S)).instance_id == "server"
            assert "up" in repr(channel)
            channel.close()
        lonely = Channel(("127.0.0.1", free_port()), Hello(), random.Random(1), limits=limits())
        waiting = asyncio.ensure_future(lonely.wait_connected(WAIT_S))
        await asyncio.sleep(0)
        lonely.close("enough")
        lonely.close()
        with pytest.raises(NotConnected, match="enough"):
            await waiting
        with pytest.raises(NotConnected, match="enough"):
            await lonely.wait_connected(WAIT_S)

    play(story)


def test_closing_ends_calls_and_is_no_news_to_the_owner_nor_an_error_to_the_server(play: Play) -> None:
    async def story() -> None:
        async with serving({"hold": lambda request: None}) as served:
            caller = Caller(served.port)
            await caller.up()
            call = caller.channel.call("hold", b"", WAIT_S)
            caller.channel.close()
            with pytest.raises(ConnectionLost, match="channel was closed"):
                await call
            await until(lambda: served.server.connections == 0)
            assert caller.downs.empty() and served.errors.empty()
            assert not caller.channel.send("hold", b"")

    play(story)


def test_a_silent_peer_is_declared_dead_and_a_pinging_one_is_not(play: Play) -> None:
    async def story() -> None:
        quick = limits(keepalive_s=0.05, dead_after_s=0.2)
        async with raw_server() as (port, peers), calling(port, wait=False, limits=quick) as caller:
            peer = await peers.get()
            peer.say_hello()
            await caller.up()
            kinds = [frame.kind for frame in [await peer.next(), await peer.next()] if frame is not None]
            assert kinds == [HELLO, PING]
            reason, refused = await caller.down()
            assert "nothing heard" in reason and not refused
            assert caller.channel.counters.dead_peers == 1
        async with serving(limits=quick) as served, calling(served.port, limits=quick) as caller:
            start = served.server.counters.bytes_in
            await until(lambda: served.server.counters.bytes_in > start + 80)
            assert caller.downs.empty() and caller.channel.connected

    play(story)


def test_a_server_that_answers_garbage_or_nothing_is_left_with_a_reason(play: Play) -> None:
    async def story() -> None:
        for bytes_sent, reason in (
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP answer"),
            (b"\x15\x03\x03\x00\x02\x02\x28", "uses TLS"),
            (encode_frame(GOODBYE, 1, "", 0, b"go away"), "said goodbye: go away"),
            (b"", "no hello within 0.1 s"),
        ):
            # Garbage has time to arrive.
            patience = limits(hello_timeout_s=WAIT_S if bytes_sent else 0.1)
            async with raw_server() as (port, peers), calling(port, wait=False, limits=patience) as caller:
                peer = await peers.get()
                peer.write(bytes_sent)
                assert reason in (await caller.down())[0]
                assert caller.ups.empty()

    play(story)


def test_answers_nobody_asked_for_are_counted_and_frames_of_the_other_direction_end_the_connection(play: Play) -> None:
    async def story() -> None:
        async with raw_server() as (port, peers), calling(port, wait=False) as caller:
            peer = await peers.get()
            peer.say_hello()
            await caller.up()
            peer.write(encode_frame(RESPONSE, 99, "", 0, b"") + encode_frame(PUSH, 98, "", 0, b""))
            peer.write(encode_frame(PING, 7, "", 0, b""))
            frame = await peer.next()
            while frame is not None and frame.kind != PONG:
                frame = await peer.next()
            assert frame is not None and frame.id == 7
            assert caller.channel.counters.unknown_answers == 2 and caller.channel.connected
            peer.write(encode_frame(REQUEST, 1, "m", 0, b""))
            assert await peer.goodbye() == "REQUEST frames go the other way"
            assert "go the other way" in (await caller.down())[0]

    play(story)


def test_a_consumer_that_raises_ends_its_own_stream_only(play: Play) -> None:
    async def story() -> None:
        reasons: asyncio.Queue[str] = asyncio.Queue()

        def watch(request: Request) -> None:
            request.on_cancel(reasons.put_nowait)
            request.push(b"item")

        def fail(_: Any) -> None:
            raise ValueError("consumer bug")

        async with serving({"watch": watch, "echo": echo}) as served, calling(served.port) as caller:
            ends: list[NetError | None] = []
            caller.channel.stream("watch", b"", fail, ends.append)
            assert await asyncio.wait_for(reasons.get(), WAIT_S) == "cancelled by the caller"
            assert len(ends) == 1 and "consumer bug" in str(ends[0])
            assert "consumer bug" in (await caller.errors.get())[0]
            assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_callbacks_that_raise_are_reported_and_the_channel_lives(play: Play) -> None:
    async def story() -> None:
        errors: asyncio.Queue[str] = asyncio.Queue()

        def fail(*_: Any) -> None:
            raise ValueError("owner bug")

        port = free_port()
        channel = Channel(
            ("127.0.0.1", port),
            Hello(),
            random.Random(1),
            None,
            fail,
            fail,
            limits=limits(),
            on_error=lambda text, error: errors.put_nowait(text),
        )
        assert "on_down" in await asyncio.wait_for(errors.get(), WAIT_S)
        async with serving(port=port):
            await channel.wait_connected(WAIT_S)
            assert await channel.call("echo", b"fine", WAIT_S) == b"fine"
        channel.close()

    play(story)


def test_a_host_that_cannot_be_resolved_is_a_failure_like_others(play: Play) -> None:
    async def story() -> None:
        downs: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
        channel = Channel(
            ("bad host name.invalid", 1),
            Hello(),
            random.Random(1),
            on_down=lambda reason, refused: downs.put_nowait((reason, refused)),
        )
        reason, refused = await asyncio.wait_for(downs.get(), WAIT_S)
        assert "cannot connect" in reason and not refused
        channel.close()

    play(story)
