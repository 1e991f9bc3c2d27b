"""What a reader at an epoch sees of a replica."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from trimtab.loads.records import EpochRecord, LoadKind, LoadRecord, LoadState, encode, epoch_key, load_key
from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router.epochs import Unsettled, Veiled, at_epoch, is_coming, plain
from trimtab.rows.keys import inverted

TABLE = 7
Pair = tuple[bytes, bytes]


def key(number: int, stamp: int) -> bytes:
    return number.to_bytes(8, "big") + b"k\x40" + inverted(stamp) + b"\x02" + bytes(8)


class Rows:
    """A replica in memory: row numbers with the stamps of their versions."""

    def __init__(self, *rows: tuple[int, int], generation: int = 1, adopted: int = 0) -> None:
        self.pairs = sorted((key(*row), b"v") for row in rows)
        self.generation = generation
        self.adopted = adopted
        self.readable = True
        self.rows = Veiled.rows

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[Pair]:
        found = [pair for pair in self.pairs if low <= pair[0] and (high is None or pair[0] < high)]
        return iter(found[::-1] if reverse else found)

    def read(self, low: bytes, high: bytes, limit: int) -> list[Pair]:
        return list(self.scan(low, high))[:limit]


class Shelf:
    def __init__(self, *replicas: Rows) -> None:
        self.replicas = {each.generation: each for each in replicas}

    def find(self, _table: int, _tablet: int, generation: int) -> Rows | None:
        return self.replicas.get(generation)


def view(record: EpochRecord | None = None, *loads: LoadRecord) -> LoadView:
    made = LoadView()
    if record is not None:
        made.change(epoch_key(TABLE), encode(record), 1)
    for load in loads:
        made.change(load_key(TABLE, load.id), encode(load), 1)
    return made


def load(epoch: int, stamp: int, state: LoadState = LoadState.PUBLISHED, **more: int) -> LoadRecord:
    kind = LoadKind.OVERWRITE if "generation" in more else LoadKind.APPEND
    return LoadRecord(f"load-{epoch}", TABLE, kind, state, stamp, epoch=epoch, **more)


def seen(loads: LoadView, replica: Rows, epoch: int, *others: Rows) -> list[int]:
    found, hidden = at_epoch(loads, Shelf(replica, *others), replica, TABLE, 0, epoch)
    readable = Veiled(found, hidden) if hidden else found
    return [int.from_bytes(each[:8], "big") for each, _ in readable.scan(b"", None)]


def test_a_table_that_was_never_loaded_is_read_as_it_is() -> None:
    replica = Rows((1, 5), (2, 999))
    assert plain(view(), replica, TABLE) and seen(view(), replica, -1) == [1, 2]


def test_rows_of_later_loads_are_left_out_forwards_backwards_and_at_once() -> None:
    loads = view(EpochRecord(3, 2), load(1, 999), load(2, 1999), load(3, 2999, LoadState.COMMITTED))
    replica = Rows((1, 5), (2, 999), (3, 1999), (4, 2999), adopted=3)
    assert not plain(loads, replica, TABLE)
    assert [seen(loads, replica, epoch) for epoch in (0, 1, 2, -1)] == [[1], [1, 2], [1, 2, 3], [1, 2, 3]]
    found, hidden = at_epoch(loads, Shelf(), replica, TABLE, 0, 1)
    veiled = Veiled(found, hidden)
    assert [pair[0][7] for pair in veiled.scan(b"", None, reverse=True)] == [2, 1]
    assert [pair[0][7] for pair in veiled.read(b"", b"\xff", 10)] == [1, 2]
    assert veiled.rows.find([b"a", b"b"], 1) == [None, None]


def test_where_nothing_is_hidden_and_the_replica_has_all_it_is_read_as_it_is() -> None:
    loads = view(EpochRecord(2, 2), load(1, 999), load(2, 1999))
    assert plain(loads, Rows(adopted=2), TABLE)
    assert not plain(loads, Rows(adopted=1), TABLE) and not plain(loads, Rows(generation=2, adopted=2), TABLE)


def test_a_replica_that_lacks_a_load_does_not_answer_at_its_epoch() -> None:
    loads = view(EpochRecord(2, 2), load(1, 999), load(2, 1999))
    with pytest.raises(Refused, match="has loads up to epoch 1 only, not yet 2") as refused:
        seen(loads, Rows(adopted=1), 2)
    assert refused.value.code == "not_ready"
    assert seen(loads, Rows((1, 999), adopted=1), 1) == [1]


def test_the_generation_of_an_epoch_is_read_and_a_rollback_needs_nothing_new() -> None:
    record = EpochRecord(3, 2, ((0, 1), (2, 2)), 3)
    loads = view(record, load(1, 999), load(2, 1999, generation=2))
    old, new = Rows((1, 5), adopted=1), Rows((2, 1999), generation=2, adopted=2)
    assert (seen(loads, new, 1, old), seen(loads, new, 2, old), seen(loads, old, -1, new)) == ([1], [2], [2])
    with pytest.raises(Refused, match="generation 1 is not open here"):
        seen(loads, new, 1)
    back = view(replace(record, visible=3, generations=((2, 2), (3, 1)), returns=((3, 1, 5),)), load(1, 999))
    assert seen(back, new, 3, old) == [1]
    with pytest.raises(Refused, match="epoch 1 of table 7 is not kept any more"):
        seen(back, new, 1, old)


def test_generations_come_and_go() -> None:
    loads = view(EpochRecord(2, 1, ((0, 1),), 3), load(2, 1999, LoadState.COMMITTED, generation=2))
    assert [is_coming(loads, TABLE, generation) for generation in (1, 2, 3)] == [False, True, True]
    gone = view(EpochRecord(3, 3, ((2, 2), (3, 1)), 3), load(2, 1999, LoadState.ROLLED_BACK, generation=2))
    assert [is_coming(gone, TABLE, generation) for generation in (1, 2, 3)] == [False, False, True]


def test_what_is_not_settled_is_looked_up_anew_when_something_changed_or_time_has_passed() -> None:
    now = [1_000_000_000]
    loads = view(EpochRecord(1, 0), load(1, 999, LoadState.COMMITTED))
    unsettled = Unsettled(loads, lambda: now[0])
    assert (unsettled.stamps(TABLE), unsettled.stamps(8)) == ([999], [])
    loads.change(load_key(TABLE, "load-1"), encode(load(1, 999, published_ms=now[0])), 2)
    loads.change(epoch_key(TABLE), encode(EpochRecord(1, 1)), 2)
    assert unsettled.stamps(TABLE) == [999]
    now[0] += 3_600_000
    assert unsettled.stamps(TABLE) == []
