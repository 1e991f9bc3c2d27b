"""Many rows in few messages: rows and keys sorted into requests by the member that should get them.

A request holds rows whose tablets share a replica, so that whoever gets it has them itself. Rows of one request get one
stamp. Therefore a key that occurs twice is never in two requests that are under way at the same time: whoever drives a
`RowBatches` waits for the first to end, and the later row is stamped later and wins, as it would one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trimtab.client.asks import Ask
from trimtab.client.consistency import checked_row
from trimtab.client.known import Known
from trimtab.client.members import Member, Members
from trimtab.client.plans import TablePlan
from trimtab.client.reads import GetSome
from trimtab.client.writes import PutSome
from trimtab.tablets.ring import tablet_of

MAX_ROWS = 128  # in one request
MAX_BYTES = 256 * 1024
MAX_BATCHES = 16  # requests of one put_many under way
KEYS_AT_ONCE = 4_096  # of one get_many
MAX_KEYS = 250  # in one request

_ANYBODY = 0  # no raft id

Key = tuple[bytes | None, ...]
Placed = tuple[Mapping[str, Any], TablePlan, list[bytes | None], Key]


class _Open:
    """A request that is still being filled."""

    __slots__ = ("ask", "bytes", "cells", "keys", "plan")

    def __init__(self, ask: PutSome, plan: TablePlan) -> None:
        self.ask = ask
        self.plan = plan
        self.cells: list[list[bytes | None]] = []
        self.keys: list[Key] = []
        self.bytes = 0


class RowBatches:
    """Rows of one put_many. `add` gives a request when one is full, `rest` all others at the end."""

    def __init__(self, name: str, known: Callable[[], Known], members: Members, make: Callable[[], PutSome]) -> None:
        self._name = name
        self._known = known
        self._members = members
        self._make = make
        self._open: dict[tuple[tuple[str, ...], int], _Open] = {}
        self._plan: TablePlan | None = None
        self._unfinished: set[Key] = set()
        self._keys: dict[Ask[Any], list[Key]] = {}

    def placed(self, row: Mapping[str, Any]) -> Placed:
        """A row made ready; InvalidRequest if it is wrong."""
        plan = self._known().plan(self._name)
        checked_row(row)
        writing = plan.writing(row)
        cells = plan.cells(writing, row)
        return row, plan, cells, tuple(cells[at] for at in writing.key)

    def conflicts(self, key: Key, plan: TablePlan) -> bool:
        """Whether everything so far has to end before this row may be added."""
        return key in self._unfinished or (self._plan is not None and plan is not self._plan)

    def add(self, row: Mapping[str, Any], plan: TablePlan, cells: list[bytes | None], key: Key) -> PutSome | None:
        self._plan = plan
        partition: Any = key[: plan.partition_count]
        holders = self._members.holding(plan.table.id, tablet_of(plan.token(partition), plan.table.tablets))
        first = holders[0] if holders else None
        group = (tuple(row), first.raft_id if first is not None else 0)
        batch = self._open.get(group)
        size = sum([len(cell) for cell in cells if cell is not None])
        full = None
        if batch is not None and (len(batch.cells) >= MAX_ROWS or batch.bytes + size > MAX_BYTES):
            full, batch = self._closed(batch), None
        if batch is None:
            batch = self._open[group] = _Open(self._make(), plan)
            batch.ask.prefer = first
        batch.ask.rows.append(row)
        batch.cells.append(cells)
        batch.keys.append(key)
        batch.bytes += size
        self._unfinished.add(key)
        return full

    def rest(self) -> list[PutSome]:
        batches, self._open = self._open, {}
        return [self._closed(batch) for batch in batches.values()]

    def ended(self, ask: Ask[Any]) -> None:
        """A request is over: its keys may come again."""
        self._unfinished.difference_update(self._keys.pop(ask, ()))

    def forget(self) -> None:
        """Everything has ended."""
        self._plan = None

    def _closed(self, batch: _Open) -> PutSome:
        batch.ask.send(batch.plan, batch.cells)
        self._keys[batch.ask] = batch.keys
        return batch.ask


def key_batches(
    plan: TablePlan, members: Members, keys: Sequence[Mapping[str, Any]], make: Callable[[], GetSome]
) -> list[GetSome]:
    """Requests for these keys. A key goes where a request for one of its members has room, so that they are few."""
    every_cells = plan.keys_cells(keys)
    if members.hold_all(plan.table.id):
        asks = []
        for begin in range(0, len(keys), MAX_KEYS):
            ask = make()
            ask.keys = keys[begin : begin + MAX_KEYS]
            ask.places = range(begin, begin + len(ask.keys))
            ask.send(plan, every_cells[begin : begin + MAX_KEYS])
            asks.append(ask)
        return asks
    return _by_member(plan, members, keys, every_cells, make)


def _by_member(
    plan: TablePlan,
    members: Members,
    keys: Sequence[Mapping[str, Any]],
    every_cells: list[list[bytes]],
    make: Callable[[], GetSome],
) -> list[GetSome]:
    batches: list[_Filling] = []
    room: dict[int, _Filling] = {}
    near: dict[int, Sequence[Member]] = {}
    table, count = plan.table, plan.partition_count
    for place, (key, cells) in enumerate(zip(keys, every_cells, strict=True)):
        tablet = tablet_of(plan.token(cells[:count]), table.tablets)
        holders = near.get(tablet)
        if holders is None:
            held = members.holding(table.id, tablet)
            holders = near[tablet] = [each for each in held if each.near] or held
        for holder in holders:
            if (batch := room.get(holder.raft_id)) is not None:
                break
        else:
            batch = room.get(_ANYBODY) if not holders else None
        if batch is None:
            batch = _Filling(make())
            batches.append(batch)
            if holders:
                batch.ask.prefer = holders[len(batches) % len(holders)]
            room[batch.place] = batch
        batch.keys.append(key)
        batch.places.append(place)
        batch.cells.append(cells)
        if len(batch.keys) >= MAX_KEYS:
            del room[batch.place]
    return [batch.closed(plan) for batch in batches]


class _Filling:
    """A request for keys that is still being filled."""

    __slots__ = ("ask", "cells", "keys", "places")

    def __init__(self, ask: GetSome) -> None:
        self.ask = ask
        self.keys: list[Mapping[str, Any]] = []
        self.places: list[int] = []
        self.cells: list[list[bytes]] = []

    @property
    def place(self) -> int:
        return self.ask.prefer.raft_id if self.ask.prefer is not None else _ANYBODY

    def closed(self, plan: TablePlan) -> GetSome:
        self.ask.keys, self.ask.places = self.keys, self.places
        self.ask.send(plan, self.cells)
        return self.ask
