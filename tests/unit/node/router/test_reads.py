"""Reads: whom they ask, what they make of differences, and what is said when too few answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from tests.unit.node.router.stage import OWN, Topology, play

from trimtab.catalog.schema import Column, ColumnKind, Layout, Table, TableOptions
from trimtab.net.errors import ConnectionLost, RpcError
from trimtab.node.answering import Refused
from trimtab.node.router.deadlines import Deadlines
from trimtab.node.router.parcels import Parcels
from trimtab.node.router.reads import Reads
from trimtab.node.router.replica_reads import read_ranges
from trimtab.node.router.routes import Routes
from trimtab.node.router.schemas import Schemas
from trimtab.rows import protocol
from trimtab.rows.keys import after, row_key
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import (
    Failed,
    PutRequest,
    RangeRead,
    RangeRows,
    ReplicaRead,
    ReplicaRows,
    ReplicaWrite,
    ReplicaWritten,
)
from trimtab.rows.reading import rows_of
from trimtab.tablets.consistency import Level
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind, transition_key
from trimtab.tablets.transitions import encode as encode_transition
from trimtab.topology.grades import Grade


def big(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def users(retry: str = "none") -> Table:
    columns = (
        Column(1, "id", "bigint", ColumnKind.PARTITION, 0),
        Column(2, "name", "text", ColumnKind.REGULAR, 0),
    )
    return Table(7, "shop", "users", 1, columns, (Layout(1, (2,)),), 1, options=TableOptions(speculative_retry=retry))


class Store:
    """The pairs of one replica."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}
        self.readable = True

    def put(self, pairs: list[bytes]) -> None:
        self.pairs.update(zip(pairs[::2], pairs[1::2], strict=True))

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Any:
        found = sorted(pair for pair in self.pairs.items() if low <= pair[0] and (high is None or pair[0] < high))
        return iter(found[::-1] if reverse else found)

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return list(self.scan(low, high))[:limit]


class Peer:
    """Another replica behind a channel: it answers, is silent, refuses, or is away."""

    def __init__(self, shop: Shop, raft_id: int) -> None:
        self.shop = shop
        self.raft_id = raft_id
        self.store = Store()
        self.connected = True
        self.silent = False
        self.refuses = ""
        self.refuses_repair = ""
        self.asked: list[str] = []
        self.news = asyncio.Event()
        self.channel = self

    async def was_asked(self, what: str) -> None:
        for _ in range(100):
            if what in self.asked:
                return
            self.news.clear()
            await self.news.wait()
        raise AssertionError(f"it was never asked for {what}")

    def call(self, method: str, body: bytes, timeout_s: float) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        loop.call_later(0.001, self._answer, method, body, future)
        loop.call_later(timeout_s, lambda: future.done() or future.set_exception(ConnectionLost("too late")))
        return future

    def _answer(self, method: str, body: bytes, future: asyncio.Future[bytes]) -> None:
        if method == protocol.REPLICA_READ:
            read: ReplicaRead = protocol.decode_replica_read(body)
            self.asked.append("digest" if read.digest else "data")
            self.news.set()
            if self.silent:
                return
            if self.refuses:
                future.set_exception(RpcError(self.refuses, "it says no"))
                return
            rows = read_ranges(self.store, self.shop.layout, read)
            future.set_result(protocol.encode(ReplicaRows(rows)))
        else:
            results: list[Failed | None] = []
            for write in protocol.decode_replica_writes(body).writes:
                self.asked.append("repair")
                if self.refuses_repair:
                    results.append(Failed(self.refuses_repair, "it says no"))
                else:
                    self.store.put(write.pairs)
                    results.append(None)
            if not self.silent:
                future.set_result(protocol.encode(ReplicaWritten(results)))


class Shop:
    """Instance 1 routes; replicas are on some of 1..5."""

    def __init__(
        self, replicas: tuple[int, ...] = (1, 2, 3), dcs: dict[int, str] | None = None, retry: str = "none"
    ) -> None:
        self.topology = Topology(5, replicas, dcs)
        table = users(retry)
        object.__setattr__(self.topology.tables.catalog, "tables", {7: table})
        self.layout = RowLayout(table)
        self.peers = {raft_id: Peer(self, raft_id) for raft_id in (2, 3, 4, 5)}
        self.store = Store()
        self.own_refuses = ""
        self.holds_own = OWN in replicas
        links: Any = self.peers
        self.reads = Reads(
            OWN,
            Routes(OWN, self.topology.view, self.topology.tables, self.topology.loads),
            Schemas(self.topology.tables),
            self.topology.loads,
            self,
            links,
            Parcels(links, 100_000),
            self.topology.serving,
            self.topology.open,
            self.topology.waits,
            Deadlines(),
            spawn=self._spawn,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def moves(self, pending: tuple[int, ...], stage: Stage) -> None:
        record = TabletTransition(pending, TransitionKind.REBUILD, stage, session="s")
        self.topology.tables.change(transition_key(7, 0), encode_transition(record), 2)

    # The own replica

    def ready(self, _table: int, _tablet: int) -> bool:
        return self.holds_own

    def read(self, read: ReplicaRead) -> ReplicaRows:
        if self.own_refuses:
            raise Refused(self.own_refuses, "it says no")
        return ReplicaRows(read_ranges(self.store, self.layout, read))

    def write(self, write: ReplicaWrite, _topology: int, _deadline: float, answered: Any) -> None:
        self.store.put(write.pairs)
        asyncio.get_running_loop().call_soon(answered, OWN, None)

    # Rows

    def holds(self, raft_id: int, id: int, name: str, stamp_us: int) -> None:
        request = PutRequest(7, 1, [1, 2], [[big(id), name.encode()]])
        (pairs,) = pairs_of_put(self.layout, request, stamp_us, 1).values()
        (self.store if raft_id == OWN else self.peers[raft_id].store).put(pairs)

    def everybody_holds(self, id: int, name: str, stamp_us: int) -> None:
        for raft_id in (1, 2, 3, 4, 5):
            self.holds(raft_id, id, name, stamp_us)

    def has(self, raft_id: int, name: str) -> bool:
        store = self.store if raft_id == OWN else self.peers[raft_id].store
        return any(name.encode() in value for value in store.pairs.values())

    async def get(self, id: int, level: Level, timeout_s: float = 1.0, as_of_us: int = 0) -> str | None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[RangeRows]] = loop.create_future()

        def done(refused: Refused | None, ranges: list[RangeRows], _stale: bool) -> None:
            assert not future.done(), "it was answered twice"
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result(ranges)

        key = row_key(self.layout, [big(id)])
        read = ReplicaRead(5, 0, 7, 0, level, [RangeRead(key, after(key), 1, False, True)], False, 1, as_of_us)
        self.reads.begin(read, loop.time() + timeout_s, done)
        (found,) = await future
        rows = rows_of(self.layout, found.pairs, [2], 1)
        return rows.cells[0][0].decode() if rows.cells and rows.cells[0][0] is not None else None

    async def refusal(self, level: Level) -> tuple[str, dict[str, Any]]:
        with pytest.raises(Refused) as refused:
            await self.get(1, level)
        details = refused.value.details
        return refused.value.code, msgspec.msgpack.decode(details) if details else {}

    @property
    def asked(self) -> dict[int, list[str]]:
        return {raft_id: peer.asked for raft_id, peer in self.peers.items() if peer.asked}


def test_one_answers_from_the_own_replica_and_asks_nobody() -> None:
    async def story() -> None:
        shop = Shop()
        shop.everybody_holds(1, "x", 10)
        assert await shop.get(1, Level.ONE) == "x"
        assert shop.asked == {}
        shop.own_refuses = "corrupt"
        assert await shop.get(1, Level.ONE) == "x"
        assert list(shop.asked.values()) == [["data"]]

    play(story)


LEVELS = [
    (Level.ONE, 1),
    (Level.TWO, 2),
    (Level.THREE, 3),
    (Level.QUORUM, 3),
    (Level.ALL, 5),
    (Level.LOCAL_ONE, 1),
    (Level.LOCAL_QUORUM, 2),
    (Level.EACH_QUORUM, 4),
]


@pytest.mark.parametrize(("level", "needed"), LEVELS)
def test_as_many_are_asked_as_the_level_needs_and_only_one_for_its_rows(level: Level, needed: int) -> None:
    async def story() -> None:
        shop = Shop((1, 2, 3, 4, 5), {4: "dc2", 5: "dc2"})
        shop.everybody_holds(1, "x", 10)
        assert await shop.get(1, level) == "x"
        assert sum(map(len, shop.asked.values())) == needed - 1
        assert all(asked == ["digest"] for asked in shop.asked.values())
        assert shop.reads.repaired == 0
        if level is Level.LOCAL_QUORUM:
            assert set(shop.asked) <= {2, 3}
        if level is Level.EACH_QUORUM:
            assert {4, 5} <= set(shop.asked)

    play(story)


def test_a_difference_is_merged_and_repaired_before_the_answer_leaves() -> None:
    async def story() -> None:
        shop = Shop()
        shop.everybody_holds(1, "old", 10)
        shop.holds(OWN, 1, "new", 20)
        assert await shop.get(1, Level.QUORUM) == "new"
        assert sum(shop.has(raft_id, "new") for raft_id in (1, 2, 3)) == 2
        assert shop.reads.repaired == 1
        shop = Shop()
        shop.everybody_holds(1, "old", 10)
        for raft_id in (2, 3):
            shop.holds(raft_id, 1, "new", 20)
        assert await shop.get(1, Level.QUORUM) == "new"
        assert shop.has(OWN, "new")

    play(story)


@pytest.mark.parametrize("stage", [Stage.STREAMING, Stage.WRITE_BOTH_READ_NEW])
def test_while_a_tablet_moves_a_difference_is_repaired_in_both_sets(stage: Stage) -> None:
    async def story() -> None:
        shop = Shop()
        shop.moves((1, 4, 5), stage)
        shop.everybody_holds(1, "old", 10)
        # Its coordinator died; what is seen once must be seen by whoever answers next.
        shop.holds(OWN, 1, "new", 20)
        assert await shop.get(1, Level.QUORUM) == "new"
        for replicas in ((1, 2, 3), (1, 4, 5)):
            assert sum(shop.has(raft_id, "new") for raft_id in replicas) >= 2

    play(story)


def test_one_of_the_new_set_that_can_not_be_repaired_is_replaced_or_the_read_fails() -> None:
    async def story() -> None:
        shop = Shop()
        shop.moves((1, 2, 4), Stage.STREAMING)
        shop.everybody_holds(1, "old", 10)
        shop.holds(OWN, 1, "new", 20)
        shop.peers[4].connected = False
        assert await shop.get(1, Level.QUORUM) == "new"
        assert shop.has(2, "new")
        shop = Shop((1, 2, 3))
        shop.moves((1, 4, 5), Stage.STREAMING)
        shop.everybody_holds(1, "old", 10)
        shop.holds(OWN, 1, "new", 20)
        for raft_id in (4, 5):
            shop.peers[raft_id].refuses_repair = "disk_full"
        code, numbers = await shop.refusal(Level.QUORUM)
        assert code == "disk_full" and numbers["required"] == 2 and numbers["received"] == 1

    play(story)


def test_a_read_as_of_a_time_gives_nobody_what_was_there_then() -> None:
    async def story() -> None:
        shop = Shop()
        shop.holds(2, 1, "deleted since", 10)
        assert await shop.get(1, Level.ALL, as_of_us=11) == "deleted since"
        assert not shop.has(OWN, "deleted since") and not shop.has(3, "deleted since")
        assert await shop.get(1, Level.ALL, as_of_us=9) is None
        assert await shop.get(1, Level.ALL) == "deleted since"
        assert shop.has(OWN, "deleted since") and shop.has(3, "deleted since")

    play(story)


def test_one_that_can_not_be_repaired_is_replaced_by_another_or_the_read_fails() -> None:
    async def story() -> None:
        shop = Shop()
        shop.everybody_holds(1, "old", 10)
        shop.holds(OWN, 1, "new", 20)
        shop.peers[2].refuses_repair = "disk_full"
        assert await shop.get(1, Level.QUORUM) == "new"
        assert shop.has(3, "new") and not shop.has(2, "new")
        shop = Shop()
        shop.everybody_holds(1, "old", 10)
        shop.holds(OWN, 1, "new", 20)
        for raft_id in (2, 3):
            shop.peers[raft_id].refuses_repair = "not_ready"
        code, numbers = await shop.refusal(Level.QUORUM)
        assert code == "read_failed" and numbers["required"] == 2 and numbers["received"] == 1

    play(story)


def test_while_the_repair_is_not_acknowledged_nothing_is_answered() -> None:
    async def story() -> None:
        shop = Shop((1, 2))
        shop.everybody_holds(1, "old", 10)
        shop.holds(OWN, 1, "new", 20)
        reading = asyncio.ensure_future(shop.get(1, Level.QUORUM, timeout_s=2.0))
        # The digest and the rows are answered; the acknowledgement of the repair never comes.
        await shop.peers[2].was_asked("data")
        shop.peers[2].silent = True
        await asyncio.sleep(1.0)
        assert not reading.done()
        with pytest.raises(Refused) as refused:
            await reading
        assert refused.value.code == "read_timeout"

    play(story)


def test_one_that_refuses_is_replaced_by_another() -> None:
    async def story() -> None:
        shop = Shop()
        shop.everybody_holds(1, "x", 10)
        shop.peers[2].refuses = "not_ready"
        assert await shop.get(1, Level.QUORUM) == "x"
        shop.peers[3].refuses = "not_ready"
        code, numbers = await shop.refusal(Level.QUORUM)
        assert code == "read_failed"
        assert numbers["reasons"] == {"2": "not_ready", "3": "not_ready"}
        assert (numbers["required"], numbers["received"]) == (2, 1)

    play(story)


def test_one_that_is_slow_is_helped_by_another_when_the_table_says_so() -> None:
    async def story() -> None:
        shop = Shop(retry="50ms")
        shop.everybody_holds(1, "x", 10)
        for raft_id in (2, 3):
            other = 5 - raft_id
            shop.peers[raft_id].silent, shop.peers[other].silent = True, False
            assert await shop.get(1, Level.QUORUM) == "x"
        assert shop.reads.speculated == 1
        shop = Shop(retry="none")
        shop.everybody_holds(1, "x", 10)
        shop.peers[2].silent = shop.peers[3].silent = True
        code, numbers = await shop.refusal(Level.QUORUM)
        assert (code, numbers["required"], numbers["received"]) == ("read_timeout", 2, 1)
        assert shop.reads.speculated == 0 and len(shop.topology.open) == 0

    play(story)


def test_the_rows_are_asked_for_elsewhere_when_the_one_who_should_send_them_fails() -> None:
    async def story() -> None:
        shop = Shop((2, 3))
        shop.everybody_holds(1, "x", 10)
        shop.peers[2].refuses = "corrupt"
        code, numbers = await shop.refusal(Level.QUORUM)
        assert code == "corrupt" and numbers["required"] == 2
        shop = Shop((2, 3, 4))
        shop.everybody_holds(1, "x", 10)
        shop.peers[2].refuses = "corrupt"
        assert await shop.get(1, Level.QUORUM) == "x"

    play(story)


def test_too_few_that_may_answer_are_unavailable_and_nobody_is_asked() -> None:
    async def story() -> None:
        shop = Shop()
        shop.peers[2].connected = False
        shop.topology.stand(3, Grade.RAFT_SYNCED)
        code, numbers = await shop.refusal(Level.QUORUM)
        assert (code, numbers) == ("unavailable", {"consistency": "QUORUM", "required": 2, "alive": 1})
        assert shop.asked == {}
        shop.topology.lease_ms = 0
        assert (await shop.refusal(Level.QUORUM))[0] == "no_lease"

    play(story)


def test_the_fastest_of_the_same_data_centre_is_asked_first() -> None:
    async def story() -> None:
        shop = Shop((2, 3, 4), {2: "dc2"})
        shop.everybody_holds(1, "x", 10)
        shop.reads.latencies.answered(3, 7, 0.020)
        shop.reads.latencies.answered(4, 7, 0.002)
        shop.reads.latencies.answered(2, 7, 0.001)
        assert await shop.get(1, Level.ONE) == "x"
        assert shop.asked == {4: ["data"]}

    play(story)
