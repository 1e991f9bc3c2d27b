"""Rows that have grown past what an answer carries: they are named, with what to do; and others are not held up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.router.stage import TABLE, play
from tests.unit.node.router.test_reads import Store, big, users
from tests.unit.rows import cells, tables

from trimtab.loads.view import LoadView
from trimtab.net.errors import RpcError
from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.door import RowsDoor
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.executor import Executor
from trimtab.node.router.gets import MAX_REPLY_BYTES, Gets
from trimtab.node.router.large_rows import AROUND_BYTES
from trimtab.node.router.overload import Overload
from trimtab.node.router.paging import Paging
from trimtab.node.router.parcels import refusal_of
from trimtab.node.router.replica_door import Ages, ReplicaDoor
from trimtab.node.router.replica_reads import read_ranges
from trimtab.node.router.shown import Shown
from trimtab.node.waits import Waits
from trimtab.rows import protocol
from trimtab.rows.keys import slice_bounds
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import GetRequest, PutRequest, RangeRead, ReplicaRead, RowsReply, ScanRequest, SliceRequest
from trimtab.tablets.clock import HybridClock
from trimtab.tablets.consistency import Level

NOW_MS = 1_700_000_000_000
MOST = 1000  # of a row of a page
USERS = RowLayout(users())
LIST = RowLayout(tables.table(["int"], ["int"], ["blob"], ["blob"]), tables.USER_TYPES)


class Desk:
    """Gets and pages over one replica; a row of a page has at most MOST bytes, an answer a little more."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout, self.store, loads = layout, Store(), LoadView()
        reads: Any = SimpleNamespace(begin=self._read)
        routes: Any = SimpleNamespace(stamp=lambda: (1, 1), read=lambda *_: SimpleNamespace(local=False))
        unsettled, shown = Unsettled(loads, lambda: NOW_MS), Shown(lambda: NOW_MS, 500)
        own: Any = None
        self.gets = Gets(reads, own, routes, loads, unsettled, shown, lambda: NOW_MS)
        most = MOST + AROUND_BYTES
        self.paging = Paging(reads, routes, loads, unsettled, Waits(), shown, lambda: NOW_MS, answer_bytes=most)
        schemas: Any = SimpleNamespace(asked=lambda *_: layout, layout=lambda _table: layout)
        executor = Executor(
            schemas, loads, own, own, self.gets, self.paging, own, Waits(), limit_bytes=1 << 20, complain=pytest.fail
        )
        self.executor, self.door = executor, RowsDoor(executor, Overload(), most)

    def put(self, columns: list[int], *rows: list[bytes]) -> None:
        put = PutRequest(self.layout.table.id, 1, columns, list(rows))
        for pairs in pairs_of_put(self.layout, put, 5, NOW_MS).values():
            self.store.put(pairs)

    def _read(self, read: ReplicaRead, _deadline: float, done: Any) -> None:
        store: Any = self.store
        done(None, read_ranges(store, self.layout, read), False)

    async def pages(self, ask: Any) -> list[list[Any]]:
        """The rows, page by page."""
        found, page = [], b""
        while True:
            reply = await ask(page)
            assert isinstance(reply, RowsReply)
            found.append(list(reply.rows))
            page = reply.page
            if not page:
                return found

    async def scan(self, columns: list[int]) -> list[list[Any]]:
        deadline = asyncio.get_running_loop().time() + 5
        return await self.pages(
            lambda page: self.paging.scan(self.layout, ScanRequest(1, 1, columns, page=page), deadline)
        )

    async def slice(self, columns: list[int], *, reverse: bool) -> list[list[Any]]:
        deadline = asyncio.get_running_loop().time() + 5

        def ask(page: bytes) -> Any:
            asked = SliceRequest(1, 1, [cells.int_(1)], columns, reverse=reverse, page=page)
            return self.paging.slice(self.layout, asked, deadline)

        return await self.pages(ask)

    def asked(self, request: GetRequest) -> list[tuple[str, str]]:
        """What the door says: code and text of a refusal; nothing where the rows are answered."""
        told: list[tuple[str, str]] = []
        asking: Any = SimpleNamespace(
            method=protocol.GET,
            body=protocol.encode(request),
            connection=self,
            deadline=None,
            reply=lambda _body: None,
            fail=lambda code, text, _details: told.append((code, text)),
        )
        self.door.take(asking)
        return told


def test_a_get_of_a_row_that_no_answer_carries_names_it_and_says_what_to_do() -> None:
    """It was told to send less at a time."""

    async def story() -> None:
        desk = Desk(USERS)
        desk.put([1, 2], [big(41), bytes(2 * AROUND_BYTES)], [big(42), b"Ada"])
        ((code, text),) = desk.asked(GetRequest(TABLE, 1, [[big(41)]], [1, 2]))
        assert code == "too_large" and text.startswith("the row id=41 of shop.users makes an answer of 131")
        assert text.endswith("ask for fewer columns")
        assert desk.door.answers == {(protocol.GET, "too_large"): 1}
        ((_, text),) = desk.asked(GetRequest(TABLE, 1, [[big(42)], [big(41)]], [1, 2]))
        assert text.startswith("the row id=41 of shop.users")
        assert desk.asked(GetRequest(TABLE, 1, [[big(41)]], [1])) == []

    play(story)


def test_a_get_of_rows_that_are_too_much_together_names_the_largest() -> None:
    async def story() -> None:
        desk = Desk(USERS)
        desk.put([1, 2], *([big(key), bytes(AROUND_BYTES // 2 + key)] for key in (1, 2, 3)))
        ((code, text),) = desk.asked(GetRequest(TABLE, 1, [[big(key)] for key in (1, 3, 2)], [2]))
        assert code == "too_large" and "the largest is id=3: ask for fewer keys or fewer columns" in text

    play(story)


def test_a_row_that_is_asked_for_again_and_again_counts_as_often() -> None:
    """The rows were measured once, and the answer was five hundred times as large."""

    async def story() -> None:
        desk = Desk(USERS)
        desk.put([1, 2], [big(1), bytes(MAX_REPLY_BYTES // 400)])
        answers: list[Any] = []
        desk.gets.begin(USERS, GetRequest(TABLE, 1, [[big(1)]] * 500, [2]), 5.0, answers.append)
        desk.gets.begin(USERS, GetRequest(TABLE, 1, [[big(1)]] * 300, [2]), 5.0, answers.append)
        refused, answered = answers
        assert isinstance(refused, Refused) and refused.code == "too_large"
        assert isinstance(answered, RowsReply) and len(answered.rows) == 300

    play(story)


def test_a_scan_comes_to_the_row_that_no_page_carries_and_names_it() -> None:
    async def story() -> None:
        desk = Desk(USERS)
        for key in range(20):
            desk.put([1, 2], [big(key), bytes(300)])
        assert sorted(row[0] for page in await desk.scan([1, 2]) for row in page) == [big(key) for key in range(20)]
        assert max(map(len, await desk.scan([1, 2]))) == 3
        desk.put([1, 2], [big(41), bytes(MOST)])
        with pytest.raises(
            Refused, match=r"the row id=41 of shop.users .* limit is 1000: ask for fewer columns"
        ) as told:
            await desk.scan([1, 2])
        assert told.value.code == "too_large"
        assert len((await desk.scan([1]))[0]) > 3

    play(story)


@pytest.mark.parametrize("reverse", [False, True])
def test_static_cells_that_come_with_every_row_end_a_page_in_time(reverse: bool) -> None:
    """A thousand rows with a static cell of a megabyte made an answer of a gigabyte."""

    async def story() -> None:
        desk = Desk(LIST)
        table = LIST.table
        names = {column.name: column.id for column in table.columns}
        p, c, v, s = (names[name] for name in ("p0", "c0", "v0", "s0"))
        desk.put([p, s], [cells.int_(1), bytes(300)])
        for key in range(10):
            desk.put([p, c, v], [cells.int_(1), cells.int_(key), b"x"])
        wanted = [cells.int_(key) for key in range(10)]
        pages = await desk.slice([c, s], reverse=reverse)
        assert [len(page) for page in pages] == [3, 3, 3, 1]
        assert [row[0] for page in pages for row in page] == (wanted[::-1] if reverse else wanted)
        assert [[row[0] for row in page] for page in await desk.slice([c], reverse=reverse)] == [
            wanted[::-1] if reverse else wanted
        ]
        assert [row[0] for page in await desk.scan([c, s]) for row in page] == wanted

    play(story)


def test_a_replica_names_the_row_that_it_can_not_send_to_another_instance() -> None:
    async def story() -> None:
        desk, nothing = Desk(LIST), SimpleNamespace()
        names = {column.name: column.id for column in LIST.table.columns}
        for key, size in ((1, 10), (7, 5000), (9, 20)):
            row = [cells.int_(3), cells.int_(key), bytes(size)]
            desk.put([names["p0"], names["c0"], names["v0"]], row)
        replica: Any = SimpleNamespace(
            readable=True, forgot_us=0, scan=desk.store.scan, read=desk.store.read, generation=1, adopted=0
        )
        serving: Any = SimpleNamespace(admit_read=lambda *_, **__: False, release_read=lambda *_, **__: False)
        parts: Any = nothing
        nothing.version, nothing.layout = 1, lambda _table: LIST
        nothing.get = lambda _table, _tablet: replica
        door = ReplicaDoor(
            1,
            parts,
            parts,
            LoadView(),
            parts,
            serving,
            Waits(),
            HybridClock(500),
            Ages(),
            Shown(lambda: NOW_MS, 500),
            wall_ms=lambda: NOW_MS,
            judged_ms=lambda: NOW_MS,
            barrier=parts,
            trusted=lambda _hello: True,
            complain=pytest.fail,
            answer_bytes=2000,
        )
        low, high = slice_bounds(LIST, [cells.int_(3)], None, None)
        told: list[Any] = []
        for limit in (1, 9):
            read = ReplicaRead(1, 1, 1, 0, Level.QUORUM, [RangeRead(low, high, limit)], now_s=NOW_MS // 1000)
            request: Any = SimpleNamespace(
                method=protocol.REPLICA_READ,
                body=protocol.encode(read),
                peer=None,
                reply=told.append,
                fail=lambda code, text, _details: told.append(Refused(code, text)),
            )
            door.take_read(request)
        answered, refused = told
        assert len(protocol.decode_replica_rows(answered).ranges[0].pairs) == 2
        assert refused.code == "too_large" and refused.text.startswith("the row p0=3, c0=7 of shop.things makes")
        assert refused.text.endswith("ask for fewer columns, at an instance that holds a replica of it")
        # Whoever asked all replicas is told just that.
        failure = refusal_of(RpcError(refused.code, refused.text))
        said = refusals.failed(False, Level.QUORUM, 2, 0, "", {2: (failure.code, failure.text)})
        assert (said.code, said.text) == (refused.code, refused.text)

    play(story)
