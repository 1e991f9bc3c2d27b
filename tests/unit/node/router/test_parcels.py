"""Writes for one replica leave as one message a turn, and each is answered once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.unit.node.router.stage import play

from trimtab.net.errors import ConnectionLost, NotConnected
from trimtab.node.router import parcels as parcels_module
from trimtab.node.router.parcels import Parcels, weight
from trimtab.rows import protocol
from trimtab.rows.protocol import Failed, ReplicaWrite, ReplicaWritten, WriteKind


class Channel:
    def __init__(self) -> None:
        self.connected = True
        self.messages: list[protocol.ReplicaWrites] = []
        self.futures: list[asyncio.Future[bytes]] = []

    def call(self, method: str, body: bytes, _timeout_s: float) -> asyncio.Future[bytes]:
        assert method == protocol.REPLICA_WRITE
        if not self.connected:
            raise NotConnected("nobody there")
        self.messages.append(protocol.decode_replica_writes(body))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


class Link:
    def __init__(self) -> None:
        self.channel = Channel()


class Answers:
    def __init__(self) -> None:
        self.came: list[tuple[int, Failed | None]] = []

    def __call__(self, raft_id: int, failure: Failed | None) -> None:
        self.came.append((raft_id, failure))


def write(tablet: int, bytes_: int = 10) -> ReplicaWrite:
    return ReplicaWrite(1, tablet, [b"k" * 20, b"v" * bytes_], 1)


def send(parcels: Parcels, raft_id: int, each: ReplicaWrite, answered: Any, topology: int = 5) -> bool:
    deadline = asyncio.get_running_loop().time() + 1
    return parcels.send(raft_id, each, weight(each), topology, 1, deadline, answered)


def test_what_arises_in_a_turn_is_one_message_for_each_replica_and_results_come_in_step() -> None:
    async def story() -> None:
        links = {2: Link(), 3: Link()}
        parcels, first, second = Parcels(links, 10_000), Answers(), Answers()  # type: ignore[arg-type]
        send(parcels, 2, write(1), first)
        send(parcels, 2, write(2), second)
        send(parcels, 3, write(1), first)
        assert not links[2].channel.messages
        await asyncio.sleep(0)
        assert [[each.tablet for each in message.writes] for message in links[2].channel.messages] == [[1, 2]]
        assert len(links[3].channel.messages) == 1
        refusal = Failed("disk_full", "no space")
        links[2].channel.futures[0].set_result(protocol.encode(ReplicaWritten([None, refusal])))
        await asyncio.sleep(0)
        assert first.came == [(2, None)] and second.came == [(2, refusal)]

    play(story)


def test_acknowledgements_don_t_count_if_the_replica_s_clock_shows_that_this_one_is_far_behind() -> None:
    async def story() -> None:
        link, fresh, hint, told = Link(), Answers(), Answers(), []
        parcels = Parcels({2: link}, 10_000, wall_ms=lambda: 1_000, max_skew_ms=500, complain=told.append)  # type: ignore[dict-item]
        for now_ms in (1_500, 1_501, 0):
            send(parcels, 2, write(1), fresh)
            send(parcels, 2, msgspec.structs.replace(write(2), kind=WriteKind.REPAIR), hint)
            await asyncio.sleep(0)
            link.channel.futures[-1].set_result(protocol.encode(ReplicaWritten([None, None], now_ms)))
            await asyncio.sleep(0)
        assert [failure and failure.code for _, failure in fresh.came] == [None, "skew", None]
        assert [failure for _, failure in hint.came] == [None, None, None]
        assert len(told) == 1 and "501 ms behind that of instance 2" in told[0]

    play(story)


def test_a_parcel_has_one_topology_and_stays_within_its_limit() -> None:
    async def story() -> None:
        link, answers = Link(), Answers()
        parcels = Parcels({2: link}, 3_000)  # type: ignore[dict-item]
        send(parcels, 2, write(1), answers, topology=5)
        send(parcels, 2, write(2), answers, topology=6)
        send(parcels, 2, write(3, 2_500), answers, topology=6)
        send(parcels, 2, write(4, 2_500), answers, topology=6)
        await asyncio.sleep(0)
        sent = [(message.topology, [each.tablet for each in message.writes]) for message in link.channel.messages]
        assert sent == [(5, [1]), (6, [2, 3]), (6, [4])]

    play(story)


def test_a_lost_connection_and_a_wrong_answer_leave_nobody_waiting() -> None:
    async def story() -> None:
        link, answers = Link(), Answers()
        parcels = Parcels({2: link}, 3_000)  # type: ignore[dict-item]
        send(parcels, 2, write(1), answers)
        await asyncio.sleep(0)
        link.channel.futures[0].set_exception(ConnectionLost("it broke"))
        send(parcels, 2, write(1), answers)
        await asyncio.sleep(0)
        link.channel.futures[1].set_result(protocol.encode(ReplicaWritten([])))
        await asyncio.sleep(0)
        link.channel.connected = False
        send(parcels, 2, write(1), answers)
        send(parcels, 9, write(1), answers)
        await asyncio.sleep(0)
        codes = [(raft_id, failure and failure.code) for raft_id, failure in answers.came]
        assert codes == [(2, "no_answer"), (2, "no_answer"), (2, "not_sent"), (9, "not_sent")]

    play(story)


def test_what_waits_for_a_replica_that_stands_still_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(parcels_module, "MAX_WAITING_WRITES", 2)

    async def story() -> None:
        link, answers = Link(), Answers()
        parcels = Parcels({2: link}, 3_000)  # type: ignore[dict-item]
        assert send(parcels, 2, write(1), answers) and send(parcels, 2, write(1), answers)
        assert not send(parcels, 2, write(1), answers)
        await asyncio.sleep(0)
        link.channel.futures[0].set_result(protocol.encode(ReplicaWritten([None, None])))
        await asyncio.sleep(0)
        assert send(parcels, 2, write(1), answers)

    play(story)
