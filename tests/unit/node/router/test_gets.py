"""Rows by their keys: by which time they are judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.unit.node.router.stage import TABLE, play
from tests.unit.node.router.test_reads import users
from tests.unit.rows.cells import bigint

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.gets import Gets
from trimtab.node.router.shown import Shown
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import GetRequest, PutRequest, RangeRows, ReplicaRead, RowsReply

NOW_MS = 1_700_000_000_000
LAYOUT = RowLayout(users())


def test_a_get_as_of_a_time_shows_what_has_expired_since() -> None:
    written = PutRequest(TABLE, 1, [1, 2], [[bigint(1), b"Ada"]], ttl_s=10)
    (pairs,) = pairs_of_put(LAYOUT, written, (NOW_MS - 60_000) * 1000, NOW_MS - 60_000).values()

    async def story() -> None:
        def read(asked: ReplicaRead, _deadline: float, done: Any) -> None:
            done(None, [RangeRows(pairs) for _ in asked.ranges], False)

        def rows(keys: int, as_of_us: int) -> list[Any]:
            answers: list[RowsReply | Refused] = []
            request = GetRequest(TABLE, 1, [[bigint(1)]] * keys, [2], as_of_us=as_of_us)
            gets.begin(LAYOUT, request, 5.0, answers.append)
            (answer,) = answers
            assert isinstance(answer, RowsReply)
            return [row and list(row) for row in answer.rows]

        loads = LoadView()
        reads: Any = SimpleNamespace(begin=read)
        routes: Any = SimpleNamespace(stamp=lambda: (1, 1), read=lambda *_: SimpleNamespace(local=False))
        own: Any = None
        gets = Gets(
            reads, own, routes, loads, Unsettled(loads, lambda: NOW_MS), Shown(lambda: NOW_MS, 500), lambda: NOW_MS
        )
        for keys in (1, 2):
            assert rows(keys, (NOW_MS - 55_000) * 1000) == [[b"Ada"]] * keys
            assert rows(keys, (NOW_MS - 50_000) * 1000) == rows(keys, 0) == [None] * keys

    play(story)
