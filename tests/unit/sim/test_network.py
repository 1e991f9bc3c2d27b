"""The simulated network, seen through ordinary asyncio protocols that send length-prefixed frames."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from trimtab.sim.transport import DOUBLED_KINDS, LOSSY_KINDS
from trimtab.sim.world import Process, World

LOSSY = min(DOUBLED_KINDS)
ORDERED = next(kind for kind in range(20) if kind not in LOSSY_KINDS)


def frame(number: int, kind: int = LOSSY, size: int = 8) -> bytes:
    body = bytes((0x95, kind)) + number.to_bytes(4, "big") + bytes(size)
    return len(body).to_bytes(4, "big") + body


class Peer(asyncio.Protocol):
    """Collects what it hears, whole frames only."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.numbers: list[int] = []
        self.lost: list[BaseException | None] = []
        self.chunks = 0
        self.paused: list[bool] = []
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.chunks += 1
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                break
            self.numbers.append(int.from_bytes(self._buffer[6:10], "big"))
            self._buffer = self._buffer[4 + size :]

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)


class Pair:
    """Two processes and one connection from `a` to `b`."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.a = self.world.process("a", "10.0.0.1")
        self.b = self.world.process("b", "10.0.0.2")
        self.accepted: list[Peer] = []
        self.a.start()
        self.listen()
        self.client = self.connect()

    def listen(self) -> None:
        def accept() -> Peer:
            self.accepted.append(Peer())
            return self.accepted[-1]

        self.b.start()
        loop = self.b.loop
        assert loop is not None
        self.world.run_until_done(self.b.spawn(loop.create_server(accept, "10.0.0.2", 3301)), self.world.now + 1)

    def connect(self) -> Peer:
        return connect(self.world, self.a)

    @property
    def server(self) -> Peer:
        return self.accepted[-1]

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)


def connect(world: World, process: Process, host: str = "10.0.0.2", port: int = 3301) -> Peer:
    loop = process.loop
    assert loop is not None
    made = world.run_until_done(process.spawn(loop.create_connection(Peer, host, port)), world.now + 30)
    world.run(world.now + 0.1)
    protocol: Peer = made[1]
    return protocol


def test_frames_arrive_in_order_after_a_latency() -> None:
    pair = Pair()
    began = pair.world.now
    for number in range(100):
        pair.client.transport.write(frame(number))
    assert pair.server.numbers == []
    pair.wait(1)
    assert pair.server.numbers == list(range(100))
    assert pair.world.now > began
    assert pair.server.chunks > 100  # some chunks came in two pieces
    assert pair.client.transport.get_extra_info("peername") == ("10.0.0.2", 3301)


def test_a_frame_written_in_pieces_arrives_whole() -> None:
    pair = Pair()
    data = frame(7)
    for byte in data:
        pair.client.transport.write(bytes((byte,)))
    pair.wait(1)
    assert pair.server.numbers == [7]


def test_a_lossy_link_loses_about_its_rate_and_never_ordered_frames() -> None:
    pair = Pair()
    pair.world.network.link("10.0.0.1", "10.0.0.2").loss_rate = 0.3
    for number in range(1000):
        pair.client.transport.write(frame(number))
    pair.wait(1)
    assert 600 < len(pair.server.numbers) < 800
    assert pair.server.numbers == sorted(pair.server.numbers)
    pair.server.numbers.clear()
    for number in range(200):
        pair.client.transport.write(frame(number, ORDERED))
    pair.wait(1)
    assert pair.server.numbers == list(range(200))


def test_a_link_may_double_reorder_and_delay() -> None:
    pair = Pair()
    link = pair.world.network.link("10.0.0.1", "10.0.0.2")
    link.duplicate_rate = link.reorder_rate = link.delay_rate = 0.2
    link.delay_s = 0.5
    for number in range(200):
        pair.client.transport.write(frame(number))
        pair.wait(0.001)
    pair.wait(2)
    got = pair.server.numbers
    assert sorted(set(got)) == list(range(200))
    assert len(got) > 200
    assert got != sorted(got)


def test_a_one_way_partition_cuts_one_way() -> None:
    pair = Pair()
    pair.world.network.block("10.0.0.1", "10.0.0.2")
    pair.client.transport.write(frame(1))
    pair.server.transport.write(frame(2))
    pair.wait(1)
    assert (pair.server.numbers, pair.client.numbers) == ([], [2])
    pair.world.network.unblock("10.0.0.1", "10.0.0.2")
    pair.client.transport.write(frame(3))
    pair.wait(1)
    assert pair.server.numbers == [3]


def test_an_ordered_frame_lost_in_a_partition_breaks_the_connection() -> None:
    pair = Pair()
    pair.world.network.block("10.0.0.1", "10.0.0.2")
    pair.client.transport.write(frame(1, ORDERED))
    pair.wait(0.5)
    pair.world.network.unblock("10.0.0.1", "10.0.0.2")
    pair.client.transport.write(frame(2, ORDERED))
    pair.wait(10)
    assert pair.server.numbers == []
    assert len(pair.client.lost) == len(pair.server.lost) == 1


def test_a_clog_holds_everything_and_lets_it_go_in_a_burst() -> None:
    pair = Pair()
    pair.world.network.clog("10.0.0.1", "10.0.0.2")
    for number in range(50):
        pair.client.transport.write(frame(number))
    pair.wait(5)
    assert pair.server.numbers == []
    pair.world.network.unclog("10.0.0.1", "10.0.0.2")
    pair.wait(0.01)
    assert pair.server.numbers == list(range(50))


def test_closing_tells_both_sides_after_what_was_written() -> None:
    pair = Pair()
    pair.client.transport.write(frame(1))
    pair.client.transport.close()
    pair.client.transport.write(frame(2))
    pair.wait(1)
    assert pair.server.numbers == [1]
    assert pair.client.lost == [None]
    assert len(pair.server.lost) == 1


def test_connecting_is_refused_where_nobody_listens_and_times_out_through_a_cut() -> None:
    pair = Pair()
    with pytest.raises(ConnectionRefusedError) as refused:
        connect(pair.world, pair.a, port=9)
    assert refused.value.errno == errno.ECONNREFUSED
    pair.b.kill()
    with pytest.raises(ConnectionRefusedError):
        pair.connect()
    pair.listen()
    pair.world.network.block("10.0.0.2", "10.0.0.1")
    began = pair.world.now
    with pytest.raises(TimeoutError):
        pair.connect()
    assert pair.world.now - began >= 3.0


def test_a_killed_process_resets_its_connections() -> None:
    pair = Pair()
    pair.b.kill()
    pair.wait(1)
    assert [type(error) for error in pair.client.lost] == [ConnectionResetError]


def test_behind_a_partition_a_death_is_silent_until_somebody_writes_through_a_healed_link() -> None:
    pair = Pair()
    pair.world.network.block("10.0.0.2", "10.0.0.1")
    pair.b.kill()
    pair.wait(60)
    pair.client.transport.write(frame(1))
    pair.wait(1)
    assert pair.client.lost == []
    pair.world.network.heal()
    pair.listen()
    pair.client.transport.write(frame(2))
    pair.wait(1)
    assert [type(error) for error in pair.client.lost] == [ConnectionResetError]


def test_a_paused_process_is_connected_to_and_hears_it_all_when_it_wakes() -> None:
    pair = Pair()
    pair.b.pause()
    second = pair.connect()
    second.transport.write(frame(1))
    pair.wait(5)
    assert len(pair.accepted) == 1
    pair.b.resume()
    pair.wait(1)
    assert len(pair.accepted) == 2
    assert pair.server.numbers == [1]


def test_a_reader_that_pauses_is_not_disturbed_and_misses_nothing() -> None:
    pair = Pair()
    pair.server.transport.pause_reading()
    for number in range(10):
        pair.client.transport.write(frame(number))
    pair.wait(1)
    assert pair.server.numbers == []
    pair.server.transport.resume_reading()
    pair.wait(1)
    assert pair.server.numbers == list(range(10))


def test_a_writer_is_asked_to_pause_when_too_much_is_on_the_way() -> None:
    pair = Pair()
    pair.world.network.link("10.0.0.1", "10.0.0.2")
    for number in range(20):
        pair.client.transport.write(frame(number, size=10_000))
    assert pair.client.transport.get_write_buffer_size() > 64 * 1024
    pair.wait(1)
    assert pair.client.paused == [True, False]
    assert pair.client.transport.get_write_buffer_size() == 0


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    pair = Pair()
    assert pair.a.loop is not None
    task = pair.a.spawn(pair.a.loop.create_connection(Peer, "10.0.0.2", 3301))
    pair.world.run(pair.world.now)
    task.cancel()
    pair.wait(1)
    assert task.cancelled()
    assert len(pair.accepted) == 1


def test_a_port_can_be_bound_once_and_again_after_its_owner_died() -> None:
    pair = Pair()
    assert pair.b.loop is not None
    task = pair.b.spawn(pair.b.loop.create_server(Peer, "10.0.0.2", 3301))
    with pytest.raises(OSError, match="in use"):
        pair.world.run_until_done(task, pair.world.now + 1)
    pair.b.kill()
    pair.listen()
    assert pair.connect() is not None


def test_resetting_connections_tells_both_sides_once() -> None:
    pair = Pair()
    pair.world.network.reset_connections("10.0.0.2", "10.0.0.1")
    pair.wait(1)
    assert len(pair.client.lost) == len(pair.server.lost) == 1
