"""How late the stamps are that reads have shown: what answers carry, so that who writes next writes later."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.router.stage import play
from tests.unit.node.router.test_paging import NOW_MS, Desk
from tests.unit.node.router.test_reads import Store, big, users

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.replicas.row_cache import CachedRows, RowCache
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.gets import Gets
from trimtab.node.router.replica_reads import read_cells
from trimtab.node.router.shown import Shown
from trimtab.rows.keys import inverted, row_key
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, GetRequest, Pairs, PutRequest, RangeRows, RowsReply

LAYOUT = RowLayout(users())
NOW_US = NOW_MS * 1000


def put(id: int, stamp_us: int) -> Pairs:
    request = PutRequest(7, 1, [1, 2], [[big(id), b"name"]])
    return [part for pairs in pairs_of_put(LAYOUT, request, stamp_us, NOW_MS).values() for part in pairs]


def delete(id: int, stamp_us: int) -> Pairs:
    request = DeleteRequest(7, 1, [big(id)], [])
    return [part for pairs in pairs_of_delete(LAYOUT, request, stamp_us, NOW_MS).values() for part in pairs]


class Kept(Store):
    """A replica that keeps rows ready."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = CachedRows(RowCache(1 << 20), 7)


class Node:
    """Gets over this node's own replica, or over others'."""

    def __init__(self, *, local: bool) -> None:
        self.store = Kept()
        self.shown = Shown(lambda: NOW_MS, 500)
        loads = LoadView()
        reads: Any = SimpleNamespace(begin=self._read)
        routes: Any = SimpleNamespace(stamp=lambda: (1, 1), read=lambda *_: SimpleNamespace(local=local))
        self.gets = Gets(reads, self, routes, loads, Unsettled(loads, lambda: NOW_MS), self.shown, lambda: NOW_MS)

    def read_cells(self, layout: Any, tablet: int, keys: Any, columns: Any, now_s: int, *, may_be_stale: bool) -> Any:
        return read_cells(self.store, layout, keys, columns, now_s, self.shown.version), False

    def _read(self, read: Any, _deadline: float, done: Any) -> None:
        found = [
            RangeRows([part for pair in self.store.scan(each.low, each.high) for part in pair]) for each in read.ranges
        ]
        done(None, found, False)

    def get(self, *ids: int) -> int:
        told: list[RowsReply | Refused] = []
        self.gets.begin(LAYOUT, GetRequest(7, 1, [[big(id)] for id in ids], [2]), 1.0, told.append)
        (reply,) = told
        assert isinstance(reply, RowsReply)
        return reply.stamp_us


@pytest.mark.parametrize("local", [True, False])
def test_no_get_shows_a_row_that_is_later_than_it_says(local: bool) -> None:
    node = Node(local=local)
    node.store.put(put(1, NOW_US + 100))
    node.store.put(put(2, NOW_US + 300))
    node.store.put(put(3, NOW_US - 5))
    assert node.get(1) == NOW_US + 100
    assert node.get(3, 1) == NOW_US + 100
    assert node.get(2, 3) == NOW_US + 300
    # Kept ready by now, where it is the own replica's.
    assert node.get(1) == node.get(1, 2, 3) == NOW_US + 300
    # That there is no row is something that was read, too.
    node.store.put(delete(4, NOW_US + 400))
    assert node.get(4) == NOW_US + 400


def test_nor_does_a_page() -> None:
    async def story() -> None:
        desk = Desk()
        assert (await desk.scan()).stamp_us == 0
        desk.rows = RangeRows([*put(1, NOW_US + 7)])
        assert (await desk.scan()).stamp_us == NOW_US + 7
        await asyncio.sleep(0)

    play(story)


def test_what_no_member_can_have_stamped_does_not_keep_its_readers_from_writing() -> None:
    shown = Shown(lambda: NOW_MS, 500)
    shown.version(row_key(LAYOUT, [big(1)]) + inverted(NOW_US + 1_000_001) + bytes(9))
    shown.pairs(put(1, NOW_US + 60_000_000))
    assert shown.newest_us == 0
    shown.version(row_key(LAYOUT, [big(1)]) + inverted(NOW_US + 1_000_000) + bytes(9))
    assert shown.newest_us == NOW_US + 1_000_000
