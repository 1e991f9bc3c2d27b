"""What needs exact times: keepalive, dead peers, pauses, deadlines and backoff, on a loop with virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from tests.unit.net.virtual_loop import VirtualLoop

from trimtab.net.client import Channel
from trimtab.net.errors import ConnectionLost, DeadlineExceeded
from trimtab.net.frames import FORMAT, HELLO, encode_frame
from trimtab.net.hello import Hello, encode_greeting
from trimtab.net.limits import Limits
from trimtab.net.server import Request, Server

PORT = 3301


class Pair:
    """A server and a channel on one virtual loop."""

    def __init__(self, *, listen: bool = True, limits: Limits | None = None, seed: int = 1) -> None:
        self.loop = VirtualLoop()
        self.held: list[Request] = []
        self.errors: list[str] = []
        self.ups: list[float] = []
        self.downs: list[tuple[float, str, bool]] = []
        limits = limits or Limits()
        handlers = {"echo": lambda request: request.reply(request.body), "hold": self.held.append}
        self.server = Server(
            handlers, Hello(instance_id="server"), limits, on_error=lambda text, error: self.errors.append(text)
        )
        if listen:
            self.listen()
        self.channel: Channel = self.loop.run(self._open(limits, seed))

    def listen(self) -> None:
        self.loop.run(self.server.start("10.0.0.1", PORT))

    async def _open(self, limits: Limits, seed: int) -> Channel:
        return Channel(
            ("10.0.0.1", PORT),
            Hello(instance_id="caller"),
            random.Random(seed),
            None,
            lambda hello: self.ups.append(self.loop.now),
            lambda reason, refused: self.downs.append((self.loop.now, reason, refused)),
            limits=limits,
        )

    def call(self, method: str, body: bytes = b"", timeout_s: float = 5.0) -> asyncio.Future[bytes]:
        return self.channel.call(method, body, timeout_s)


def test_the_package_runs_on_a_loop_with_nothing_but_the_promised_methods() -> None:
    pair = Pair()
    pair.loop.run_for(0.01)
    assert pair.channel.connected
    call = pair.call("echo", b"hi")
    pair.loop.run_for(0.01)
    assert call.result() == b"hi"
    pair.channel.close()
    pair.server.close()
    pair.loop.run_for(1)
    assert pair.server.connections == 0 and pair.errors == [] and pair.downs == []


def test_one_write_per_loop_turn_on_each_side() -> None:
    pair = Pair()
    pair.loop.run_for(0.01)
    near, far = pair.loop.links[0]
    near.writes.clear()
    far.writes.clear()
    calls = [pair.call("echo", bytes([n])) for n in range(64)]
    pair.loop.run_for(0.01)
    assert [call.result() for call in calls] == [bytes([n]) for n in range(64)]
    assert len(near.writes) == 1 and len(far.writes) == 1


def test_an_idle_connection_stays_up_by_pings_and_a_busy_one_sends_none() -> None:
    pair = Pair()
    pair.loop.run_for(60)
    near, far = pair.loop.links[0]
    assert pair.channel.connected and len(pair.loop.links) == 1
    assert 25 <= len(near.writes) <= 130 and 25 <= len(far.writes) <= 130
    near.writes.clear()
    for _ in range(100):
        pair.call("echo")
        pair.loop.run_for(0.1)
    assert len(near.writes) == 100


@pytest.mark.parametrize("one_way", [True, False])
def test_a_link_cut_without_a_word_is_noticed_by_both_sides_in_time(one_way: bool) -> None:
    pair = Pair()
    pair.loop.run_for(0.5)
    near, far = pair.loop.links[0]
    call = pair.call("hold", timeout_s=60)
    pair.loop.run_for(0.01)
    cut_at = pair.loop.now
    far.cut = True
    near.cut = not one_way
    pair.loop.listeners.clear()
    pair.loop.run_for(10)
    lost_at, reason, refused = pair.downs[0]
    assert 4 <= lost_at - cut_at <= 5.1 and "nothing heard from 10.0.0.1:3301" in reason and not refused
    with pytest.raises(ConnectionLost, match="nothing heard"):
        call.result()
    assert pair.held[0].done
    assert pair.server.connections == 0
    assert all(refused for _, _, refused in pair.downs[1:])


def test_a_pause_of_our_own_process_is_not_held_against_the_peer() -> None:
    pair = Pair()
    pair.loop.run_for(0.5)
    pair.loop.stall(30)
    pair.loop.run_for(5)
    assert pair.downs == [] and pair.channel.connected and len(pair.loop.links) == 1


def test_a_server_that_is_full_and_answers_nothing_still_counts_as_alive() -> None:
    pair = Pair(limits=Limits(max_server_in_flight=2))
    pair.loop.run_for(0.1)
    calls = [pair.call("hold", timeout_s=100) for _ in range(5)]
    pair.loop.run_for(30)
    assert pair.channel.connected and len(pair.held) == 2 and pair.downs == []
    for _ in range(5):
        for request in list(pair.held):
            request.reply()
        pair.loop.run_for(0.1)
    assert all(call.done() for call in calls)


def test_a_transport_that_stays_full_ends_the_connection() -> None:
    pair = Pair(limits=Limits(write_stall_s=10, dead_after_s=60))
    pair.loop.run_for(0.1)
    connection: Any = pair.channel._up
    connection.pause_writing()
    assert pair.channel.send("echo", b"waits")
    pair.loop.run_for(5)
    assert pair.channel.connected and pair.channel.waiting_bytes > 0
    pair.loop.run_for(10)
    assert "has not read what we sent" in pair.downs[0][1]
    assert pair.channel.connected, "and a new connection was made"


def test_what_waited_for_a_full_transport_leaves_in_one_write_when_it_can() -> None:
    pair = Pair()
    pair.loop.run_for(0.1)
    near, _ = pair.loop.links[0]
    connection: Any = pair.channel._up
    near.writes.clear()
    connection.pause_writing()
    calls = [pair.call("echo", b"x") for _ in range(10)]
    pair.loop.run_for(0.1)
    assert near.writes == [] and not any(call.done() for call in calls)
    connection.resume_writing()
    pair.loop.run_for(0.1)
    assert len(near.writes) == 1 and all(call.result() == b"x" for call in calls)


def test_each_call_ends_at_its_own_deadline_and_one_timer_serves_all() -> None:
    pair = Pair()
    pair.loop.run_for(0.1)
    start = pair.loop.now
    ended: dict[int, float] = {}
    rng = random.Random(5)
    waits = [rng.uniform(0.01, 3.0) for _ in range(300)]
    for number, wait_s in enumerate(waits):
        call = pair.call("hold", timeout_s=wait_s)
        call.add_done_callback(lambda future, n=number: ended.setdefault(n, pair.loop.now))  # type: ignore[misc]
    turns = pair.loop.turns
    pair.loop.run_for(4)
    assert len(ended) == 300
    assert all(-1e-6 <= ended[n] - start - wait_s <= 0.006 for n, wait_s in enumerate(waits))
    assert pair.loop.turns - turns < 300 + 700 + 300, "timers, sending and hearing, and telling the peer of each end"
    with pytest.raises(DeadlineExceeded):
        call.result()


def test_retries_start_fast_slow_down_and_report_every_attempt_as_refused() -> None:
    pair = Pair(listen=False)
    pair.loop.run_for(30)
    times = [when for when, _, refused in pair.downs if refused]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert len(times) == len(pair.downs)
    assert 0.02 <= gaps[0] <= 0.05
    assert all(gap <= 2.001 for gap in gaps) and min(gaps[8:]) >= 1.1
    pair.listen()
    pair.loop.run_for(2.1)
    assert pair.channel.connected


def test_a_stable_connection_forgives_earlier_failures_and_a_flapping_one_does_not() -> None:
    pair = Pair(listen=False)
    pair.loop.run_for(10)
    pair.listen()
    pair.loop.run_for(2.1)
    pair.loop.links[-1][1].abort()
    pair.loop.run_for(5)
    assert pair.ups[1] - pair.downs[-1][0] > 1.0, "it lived less than stable_after_s"
    pair.loop.run_for(10)
    pair.loop.links[-1][1].abort()
    pair.loop.run_for(1)
    assert pair.ups[2] - pair.downs[-1][0] < 0.06


def test_poke_ends_a_backoff_at_once() -> None:
    pair = Pair(listen=False)
    pair.loop.run_for(20)
    pair.listen()
    attempts = pair.channel.counters.connects
    asyncio._set_running_loop(pair.loop)  # type: ignore[arg-type]
    pair.channel.poke()
    asyncio._set_running_loop(None)
    pair.loop.run_for(0.01)
    assert pair.channel.connected and pair.channel.counters.connects == attempts + 1


def test_a_connect_that_never_finishes_is_given_up() -> None:
    pair = Pair(listen=False)
    hanging: list[asyncio.Future[None]] = []

    async def never(factory: Any, host: str, port: int) -> Any:
        hanging.append(pair.loop.create_future())
        await hanging[-1]

    pair.loop.create_connection = never  # type: ignore[method-assign]
    pair.downs.clear()
    pair.loop.run_for(3.2)
    assert [(reason, refused) for _, reason, refused in pair.downs] == [
        ("no connection to 10.0.0.1:3301 within 3 s", False)
    ]
    assert hanging[0].cancelled()
    pair.channel.close()
    pair.loop.run_for(1)
    assert all(attempt.cancelled() for attempt in hanging)


def test_a_producer_that_pushes_without_end_in_one_turn_is_told_to_wait() -> None:
    pair = Pair(limits=Limits(max_push_buffered_bytes=10_000))
    pair.loop.run_for(0.1)
    items: list[bytes] = []
    ends: list[Any] = []
    pair.channel.stream("hold", b"", items.append, ends.append)
    pair.loop.run_for(0.1)
    stream = pair.held[0]
    sent = 0

    def pump() -> None:
        nonlocal sent
        while sent < 1000:
            if not stream.push(b"x" * 1000):
                stream.on_writable(pump)
                return
            sent += 1
        stream.reply()

    pump()
    assert 9 <= sent <= 11
    pair.loop.run_for(1)
    assert len(items) == 1000 and ends == [None]


@pytest.mark.parametrize("seed", range(25))
def test_random_frames_and_garbage_end_their_own_connection_only(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair()
    pair.loop.run_for(0.1)
    for _ in range(20):
        link, _ = pair.loop.run(pair.loop.create_connection(asyncio.Protocol, "10.0.0.1", PORT))
        if rng.random() < 0.8:
            link.write(encode_frame(HELLO, 0, FORMAT, 0, encode_greeting(Hello(), 4096)))
        for _ in range(rng.randrange(20)):
            kind, id = rng.randrange(14), rng.randrange(5)
            method = rng.choice(["", "echo", "hold", "nope"])
            data = encode_frame(kind, id, method, rng.randrange(3), rng.randbytes(rng.randrange(50)))
            if rng.random() < 0.1:
                data = rng.randbytes(rng.randrange(1, 50))
            cut = rng.randrange(len(data) + 1)
            if not link.is_closing():
                link.write(data[:cut])
                link.write(data[cut:])
            pair.loop.run_for(0.01)
        link.cut = rng.random() < 0.3
        if not link.cut:
            link.close()
    pair.loop.run_for(15)
    call = pair.call("echo", b"fine")
    pair.loop.run_for(0.1)
    assert call.result() == b"fine" and pair.downs == []
    assert pair.server.connections == 1 and pair.server.counters.handler_errors == 0


def test_a_handler_that_asks_late_whether_anyone_still_waits_is_told_at_once() -> None:
    pair = Pair()
    pair.loop.run_for(0.1)
    pair.call("hold")
    pair.call("hold")
    pair.loop.run_for(0.1)
    cancelled, answered = pair.held
    answered.reply()
    pair.channel.close("enough")
    pair.loop.run_for(1)
    reasons: list[str] = []
    cancelled.on_cancel(reasons.append)
    answered.on_cancel(reasons.append)
    assert len(reasons) == 1 and "said goodbye: enough" in reasons[0]


def test_the_same_seed_gives_the_same_story_to_the_byte() -> None:
    def story() -> list[Any]:
        pair = Pair(listen=False, seed=9)
        pair.loop.run_for(3)
        pair.listen()
        pair.loop.run_for(3)
        pair.call("echo", b"x")
        pair.loop.run_for(3)
        return [pair.downs, pair.ups, [link.writes for both in pair.loop.links for link in both]]

    assert story() == story()
