"""The loads as one value: sessions, loads and epochs of all tables, kept up to date from the metastore.

Whoever reads a table asks here which epoch it can see, which generation of the table that is, and which stamps are to
be left out at that epoch. All changes of a revision are taken together, so a load that is published becomes visible,
and its session closed, between two reads of one instance.

    epoch given    every load that was committed has one; each is one larger than the one before (of the same table)
    visible        the newest epoch whose load every living replica has; loads become visible in the order of epochs
    hidden         rows of a load whose epoch is newer than the reader's: they may be on disk here, or not yet
    needed         what a replica must have taken over (its marker) before it answers at an epoch

A record that can't be read (a newer release wrote it) stays as it was before, and `unreadable` says why.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.loads.records import (
    SCAN_LIFE_MS,
    EpochRecord,
    LoadKind,
    LoadRecord,
    LoadState,
    SessionRecord,
    decode_epoch,
    decode_load,
    decode_session,
    epoch_key,
    load_key,
)
from trimtab.topology.records import EPOCHS, LOADS, SESSIONS, number_of

_NO_EPOCHS = EpochRecord()
_NO_STAMPS: frozenset[int] = frozenset()
# Replicas may hold rows of loads in these states; rows of an overwrite that was rolled back are in its generation.
_ON_DISK = frozenset((LoadState.COMMITTED, LoadState.PUBLISHED, LoadState.ROLLED_BACK))


@dataclass
class LoadView:
    """`revisions` has the modification revision of each key that was read; `unreadable` why one could not be."""

    loads: dict[tuple[int, str], LoadRecord] = field(default_factory=dict)
    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    revisions: dict[bytes, int] = field(default_factory=dict)
    unreadable: dict[bytes, str] = field(default_factory=dict)
    open_loads: dict[tuple[int, str], LoadRecord] = field(default_factory=dict)  # those that have not ended
    _by_table: dict[int, dict[str, LoadRecord]] = field(default_factory=dict)
    # (epoch, stamp) of the loads whose rows may be on disk, in the order of epochs; made when it is asked for.
    _stamps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value (None: it was deleted). Keys that are not about loads are ignored."""
        if not key.startswith((SESSIONS, LOADS, EPOCHS)):
            return
        self.unreadable.pop(key, None)
        if value is None:
            self.revisions.pop(key, None)
        else:
            self.revisions[key] = revision
        try:
            if key.startswith(LOADS):
                self._take_load(key, value)
            elif key.startswith(EPOCHS):
                self._take_epoch(key, value)
            else:
                self._take_session(key, value)
        except ValueError as error:
            if value is not None:
                self.unreadable[key] = str(error)

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = LoadView()
        for key, value, revision in entries:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)

    def _take_load(self, key: bytes, value: bytes | None) -> None:
        table, id = load_of(key)
        if value is None:
            self.loads.pop((table, id), None)
            self.open_loads.pop((table, id), None)
            of_table = self._by_table.get(table, {})
            of_table.pop(id, None)
            if not of_table:
                self._by_table.pop(table, None)
        else:
            record = decode_load(value)
            if (record.table, record.id) != (table, id):
                raise ValueError(f"it holds load {record.id} of table {record.table}")
            self.loads[table, id] = self._by_table.setdefault(table, {})[id] = record
            if record.state.final:
                self.open_loads.pop((table, id), None)
            else:
                self.open_loads[table, id] = record
        self._stamps.pop(table, None)

    def _take_epoch(self, key: bytes, value: bytes | None) -> None:
        table = table_of_epoch(key)
        if value is None:
            self.epochs.pop(table, None)
        else:
            self.epochs[table] = decode_epoch(value)

    def _take_session(self, key: bytes, value: bytes | None) -> None:
        id = key.removeprefix(SESSIONS).decode()
        if value is None:
            self.sessions.pop(id, None)
        else:
            self.sessions[id] = decode_session(value)

    # Loads

    def of_table(self, table: int) -> list[LoadRecord]:
        """All loads of a table that are remembered, in the order of beginning."""
        return sorted(self._by_table.get(table, {}).values(), key=_begun)

    def count(self, table: int) -> int:
        """How many loads of a table are remembered."""
        return len(self._by_table.get(table, ()))

    @property
    def tables(self) -> frozenset[int]:
        """The tables of which there is any record."""
        return frozenset(self._by_table) | frozenset(self.epochs)

    def unread(self, table: int) -> str:
        """Which record about a table can't be read here, and why; empty: all can."""
        if not self.unreadable:
            return ""
        about = load_key(table, "")
        for key, why in sorted(self.unreadable.items()):
            if key == epoch_key(table) or key.startswith(about):
                return f"{key.decode(errors='replace')} can't be read here ({why})"
        return ""

    def epoch_record(self, table: int) -> EpochRecord:
        return self.epochs.get(table, _NO_EPOCHS)

    def revision_of(self, key: bytes) -> int:
        """Of a key's newest value; 0: there is none."""
        return self.revisions.get(key, 0)

    # Reading

    def visible(self, table: int) -> int:
        """The newest epoch that can be read; 0: no load ever was published."""
        known = self.epochs.get(table)
        return known.visible if known is not None else 0

    def generation(self, table: int, epoch: int | None = None) -> int:
        """The generation that is served, or that was at an epoch.

        The oldest one that is kept, where the epoch is older: `readable` tells whether that is the right one.
        """
        generations = self.epoch_record(table).generations
        if epoch is None:
            return generations[-1][1]
        at = bisect_right(generations, epoch, key=_first)
        return generations[max(at - 1, 0)][1]

    def generations(self, table: int) -> frozenset[int]:
        """Those whose replicas stay on disk: the served one, the one before, and those that are being taken over."""
        kept = {generation for _first_epoch, generation in self.epoch_record(table).generations}
        coming = self._by_table.get(table, {}).values()
        kept.update(load.generation for load in coming if load.state is LoadState.COMMITTED)
        return frozenset(kept)

    def hidden(self, table: int, epoch: int) -> frozenset[int]:
        """The stamps whose rows a reader at this epoch leaves out."""
        stamps = self._stamps.get(table)
        if stamps is None:
            if table not in self._by_table:
                return _NO_STAMPS
            stamps = self._stamps[table] = _stamps_of(self._by_table[table].values())
        if not stamps or stamps[-1][0] <= epoch:
            return _NO_STAMPS
        return frozenset(stamp for _epoch, stamp in stamps[bisect_right(stamps, epoch, key=_first) :])

    def needed(self, table: int, epoch: int) -> int:
        """The marker that a replica must have to answer at this epoch; a rollback needs no more than what it shows."""
        for returned, needed, _at_ms in self.epoch_record(table).returns:
            if returned == epoch:
                return needed
        return epoch

    def readable(self, table: int, epoch: int, now_ms: int) -> bool:
        """Whether a scan may still read at this epoch: it is visible, and was the newest within SCAN_LIFE_MS."""
        visible = self.visible(table)
        if epoch >= visible:
            return epoch == visible
        if self.epoch_record(table).generations[0][0] > epoch:
            return False
        over_ms = self._visible_since_ms(table, epoch + 1)
        return over_ms is not None and now_ms < over_ms + SCAN_LIFE_MS

    def swapping(self, table: int) -> bool:
        """Whether another generation may be served from now on: an overwrite is committed that can't be seen yet, or
        a rollback is about to be written.
        """
        known = self.epochs.get(table)
        if known is None:
            return False
        if known.returning_ms:
            return True
        return known.committed != known.visible and any(
            load.kind is LoadKind.OVERWRITE and load.state is LoadState.COMMITTED
            for load in self._by_table.get(table, {}).values()
        )

    def whole_since_us(self, table: int) -> int:
        """Since when what is served is what the table held: rows from before an overwrite are not in it. 0: always."""
        served = self.generation(table)
        for load in self._by_table.get(table, {}).values():
            if load.kind is LoadKind.OVERWRITE and load.generation == served and load.published_ms:
                return load.published_ms * 1000
        return 0

    def oldest_unsettled_us(self, table: int, now_ms: int) -> int | None:
        """The smallest stamp of a load that some reader may still have to leave out; None: there is none."""
        stamps = [
            load.stamp_us
            for load in self._by_table.get(table, {}).values()
            if load.epoch
            and (
                load.state is LoadState.COMMITTED
                or (load.state in _ON_DISK and now_ms < load.published_ms + SCAN_LIFE_MS)
            )
        ]
        return min(stamps, default=None)

    def _visible_since_ms(self, table: int, epoch: int) -> int | None:
        """When an epoch became visible; None: so long ago that nobody remembers."""
        for returned, _needed, at_ms in self.epoch_record(table).returns:
            if returned == epoch:
                return at_ms
        for load in self._by_table.get(table, {}).values():
            if load.epoch == epoch and load.published_ms:
                return load.published_ms
        return None


def load_of(key: bytes) -> tuple[int, str]:
    """Table and id of the load under this key; ValueError where it names none."""
    table, slash, id = key.removeprefix(LOADS).partition(b"/")
    if slash and table.isdigit() and id and key == load_key(int(table), id.decode()):
        return int(table), id.decode()
    raise ValueError(f"the metastore key {key!r} names no load of a table")


def table_of_epoch(key: bytes) -> int:
    """The table whose epochs are under this key; ValueError where it names none."""
    table = number_of(key, EPOCHS)
    if key != epoch_key(table):
        raise ValueError(f"the metastore key {key!r} names no table")
    return table


def _stamps_of(loads: Iterable[LoadRecord]) -> list[tuple[int, int]]:
    return sorted((load.epoch, load.stamp_us) for load in loads if load.epoch and load.state in _ON_DISK)


def _begun(load: LoadRecord) -> tuple[int, int, str]:
    return load.begun_ms, load.stamp_us, load.id


def _first(pair: tuple[int, int]) -> int:
    return pair[0]
