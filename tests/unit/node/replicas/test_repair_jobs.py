"""A replica's part in the repair that a job does: what it takes, what it refuses, and how far it says it reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.unit.rows import cells, tables

from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.replicas import repair_jobs
from trimtab.node.replicas.repair_jobs import RepairJobs
from trimtab.node.replicas.replica import Replica
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.keys import PUT, TAIL, tail
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import PutRequest
from trimtab.rows.repair_protocol import BeginReply, BeginRequest, EndRequest, RowsRequest
from trimtab.rows.tokens import token_of_key
from trimtab.rows.values import PLAIN, CellState, Collection, Row, encode_row
from trimtab.tablets.missed import repaired_through
from trimtab.tablets.ring import tablet_of

NOW = 1_700_000_000_000
HINT_LIFE, SKEW = 10_000, 100
LAYOUT = RowLayout(tables.table(["int"], [], ["text"]), tables.USER_TYPES)
SETS = RowLayout(tables.table(["int"], [], ["set<text>", "text"]), tables.USER_TYPES)


def put(stamp_us: int, layout: RowLayout = LAYOUT, *values: bytes) -> list[bytes]:
    given = list(values or [b"a"])
    request = PutRequest(1, 1, [1, *range(2, 2 + len(given))], [[cells.int_(7), *given]])
    return next(iter(pairs_of_put(layout, request, stamp_us, NOW).values()))


PAIRS = put(5)
TABLETS = 4
TABLET = tablet_of(token_of_key(PAIRS[0]), TABLETS)


class FakeReplica:
    table = 1
    title = "tablet 0 of shop.users"
    generation = 2
    repaired_through_ms = 1
    readable = True

    def __init__(self) -> None:
        self.taken: list[list[bytes]] = []

    def write(self, pairs: list[bytes], done: Callable[[BaseException | None], None], *, repair: bool) -> None:
        assert repair
        self.taken.append(pairs)
        done(None)

    def change_meta(self, *, repaired_through_ms: int) -> bool:
        self.repaired_through_ms = repaired_through_ms
        return True


class Around:
    standing = True
    on_the_move = False

    def stands(self) -> bool:
        return self.standing

    now_ms = NOW

    def wall_ms(self) -> int:
        return self.now_ms

    def judged_ms(self) -> int:
        return self.now_ms

    def replicas(self, table: int, tablet: int) -> tuple[int, ...]:
        return (3, 1, 2)

    def moving(self, table: int, tablet: int) -> bool:
        return self.on_the_move


class Stage:
    def __init__(self, layout: RowLayout = LAYOUT) -> None:
        self.around, self.replica = Around(), FakeReplica()
        self.jobs = RepairJobs(
            self.around,
            lambda table, tablet: (cast(Replica, self.replica), TABLETS) if table == 1 else None,
            lambda _table: layout,
            hint_life_ms=HINT_LIFE,
            max_skew_ms=SKEW,
        )

    def ask(self, method: str, request: Any) -> bytes:
        return asyncio.run(self.jobs.methods()[method](Asked(protocol.encode(request), 0.0, Hello())))

    def put(self, pairs: list[bytes], *, taken_ms: int = NOW, generation: int = 2, tablet: int = TABLET) -> bytes:
        return self.ask(protocol.ROWS, RowsRequest(1, tablet, generation, taken_ms, pairs))

    def begin(self, table: int = 1) -> BeginReply:
        reply: BeginReply = protocol.decode_begin_reply(self.ask(protocol.BEGIN, BeginRequest(table, 0)))
        return reply


def test_a_job_is_told_which_replica_it_is_and_what_it_brings_is_taken() -> None:
    stage = Stage()
    begun = stage.begin()
    assert (begun.generation, begun.repaired_through_ms, begun.now_ms) == (2, 1, NOW)
    stage.put(PAIRS)
    assert stage.replica.taken == [PAIRS] and stage.jobs.pairs == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"taken_ms": NOW - HINT_LIFE}, "too_late"),
        ({"taken_ms": NOW + SKEW + 1}, "too_late"),
        ({"generation": 1}, "moved"),
        ({"tablet": (TABLET + 1) % TABLETS}, "invalid"),
        ({"pairs": []}, "invalid"),
        ({"pairs": PAIRS[:1]}, "invalid"),
        ({"pairs": [PAIRS[0], b"something else"]}, "corrupt"),
        ({"pairs": [PAIRS[0][:12], PAIRS[1]]}, "invalid"),
    ],
)
def test_what_may_be_wrong_is_refused_and_nothing_is_taken(change: dict[str, Any], code: str) -> None:
    stage = Stage()
    with pytest.raises(Refused) as refused:
        stage.put(**{"pairs": PAIRS} | change)
    assert refused.value.code == code and not stage.replica.taken


LATEST_US = (NOW + 2 * SKEW) * 1000
SET = b"\0\0\0\1\0\0\0\1x"


def sets(row: Row) -> list[bytes]:
    stamp_us, value = encode_row(SETS.regular, row) or (0, b"")
    assert stamp_us == 5, "the key says nothing of it"
    return [PAIRS[0][:-TAIL] + tail(stamp_us, PUT, value), value]


def test_no_stamp_of_the_future_is_taken_wherever_it_stands_in_a_row() -> None:
    """Whoever could put one would win over all that is written until then."""
    years_us = LATEST_US + 3 * 365 * 86_400 * 10**6
    cell, element, deletion = (Row() for _ in range(3))
    for row in (cell, element, deletion):
        row.marker = CellState(5, PLAIN, 0)
    cell.cells[3] = CellState(years_us, PLAIN, 0, b"a")
    element.collections[2] = Collection()
    element.collections[2].elements[b"x"] = CellState(years_us, PLAIN, 0)
    deletion.collections[2] = Collection((years_us, 1))
    for layout, pairs in (
        (LAYOUT, put(LATEST_US + 1)),
        (LAYOUT, [*put(LATEST_US), *put(years_us)]),
        (SETS, sets(cell)),
        (SETS, sets(element)),
        (SETS, sets(deletion)),
    ):
        stage = Stage(layout)
        with pytest.raises(Refused, match="the latest there can be") as refused:
            stage.put(pairs)
        assert refused.value.code == "skew" and not stage.replica.taken
    for layout, pairs in ((LAYOUT, put(LATEST_US)), (SETS, put(LATEST_US, SETS, SET, b"a"))):
        stage = Stage(layout)
        stage.put(pairs)
        assert stage.replica.taken == [pairs]


def test_rows_that_can_not_be_read_are_not_taken() -> None:
    for value, code in ((b"", "corrupt"), (b"\x01\x00", "corrupt"), (b"\x02\x00\x63" + bytes(20), "not_ready")):
        stage = Stage(SETS)
        with pytest.raises(Refused) as refused:
            stage.put([PAIRS[0][:-TAIL] + tail(5, PUT, value), value])
        assert refused.value.code == code and not stage.replica.taken


def test_a_repair_ends_only_where_it_began_and_not_later_than_it_did() -> None:
    """Else anybody could have deletions forgotten that nobody has compared."""
    stage = Stage()
    with pytest.raises(Refused, match=r"no repair of .* has begun here") as refused:
        stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW))
    assert refused.value.code == "not_begun"
    assert stage.begin().now_ms == NOW
    stage.around.now_ms += 50
    with pytest.raises(Refused, match=f"began here at {NOW}, not as late as {NOW + 50}"):
        stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW + 50))
    with pytest.raises(Refused, match="has begun here"):
        stage.ask(protocol.END, EndRequest(1, 1, 2, (1, 2, 3), NOW))
    assert stage.replica.repaired_through_ms == 1
    stage.begin()  # as a job does once more when it has the copies
    for _ in range(2):  # an answer may be lost
        stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW))
    assert stage.replica.repaired_through_ms == repaired_through(NOW, HINT_LIFE, SKEW)
    stage.replica.generation = 3
    with pytest.raises(Refused, match="has begun here"):
        stage.ask(protocol.END, EndRequest(1, 0, 3, (1, 2, 3), NOW))


def test_only_so_many_begins_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_jobs, "MAX_BEGUN", 2)
    stage = Stage()
    for tablet in (0, 1, 0, 2):
        stage.ask(protocol.BEGIN, BeginRequest(1, tablet))
    stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW))
    with pytest.raises(Refused, match="has begun here"):
        stage.ask(protocol.END, EndRequest(1, 1, 2, (1, 2, 3), NOW))


def test_how_far_it_reaches_follows_from_the_begin_and_never_goes_back() -> None:
    stage = Stage()
    stage.begin()
    reply = protocol.decode_end_reply(stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW)))
    assert reply.repaired_through_ms == repaired_through(NOW, HINT_LIFE, SKEW) == stage.replica.repaired_through_ms
    stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW - 5_000))
    assert stage.replica.repaired_through_ms == repaired_through(NOW, HINT_LIFE, SKEW)


def test_a_repair_of_other_replicas_or_of_the_future_promises_nothing() -> None:
    stage = Stage()
    stage.begin()
    for request, code in (
        (EndRequest(1, 0, 2, (1, 2), NOW), "moved"),
        (EndRequest(1, 0, 1, (1, 2, 3), NOW), "moved"),
        (EndRequest(1, 0, 2, (1, 2, 3), NOW + 1), "invalid"),
        (EndRequest(5, 0, 2, (1, 2, 3), NOW), "not_whole"),
    ):
        with pytest.raises(Refused) as refused:
            stage.ask(protocol.END, request)
        assert refused.value.code == code
    stage.around.on_the_move = True
    with pytest.raises(Refused, match="on the move"):
        stage.ask(protocol.END, EndRequest(1, 0, 2, (1, 2, 3), NOW))
    stage.put(PAIRS)  # rows do no harm
    stage.around.standing = False
    with pytest.raises(Refused, match="no lease"):
        stage.put(PAIRS)
    stage.around.standing, stage.replica.readable = True, False
    with pytest.raises(Refused, match="whole"):
        stage.put(PAIRS)
    assert stage.replica.repaired_through_ms == 1
