"""The tables as one value: the schema, where the replicas of every tablet are, and which tablets are under way.

The schema is the snapshot and all updates after it, applied in the order of their versions; an update whose predecessor
is missing waits for it. An update that can't be read (perhaps a newer release wrote it) is not skipped: the schema
stays at the version before it, everything later waits, and `waits_for` says so. So two instances that are at the same
version have the same schema, whatever each of them can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trimtab.catalog import keys, updates
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.updates import Update
from trimtab.tablets.records import Chunk, chunk_keys, chunk_of
from trimtab.tablets.selectors import Replicas, ReplicaSets, replica_sets
from trimtab.tablets.tablet_map import TabletMap
from trimtab.tablets.transitions import (
    ADJUSTABLE,
    RebalanceRecord,
    TabletTransition,
    decode_rebalance,
    decode_transition,
    holders,
    place_of,
    rebalance_key,
    table_of,
    transition_key,
)
from trimtab.topology.records import REBALANCE, TABLETS, TRANSITIONS

_NO_MAP = TabletMap()
_PREFIXES = (keys.CATALOG, TABLETS, TRANSITIONS, REBALANCE)
Place = tuple[int, int]  # table, tablet


@dataclass
class TableView:
    """`revisions` has the modification revision of each key that was read; `unreadable` why one could not be.

    `made` are the requests that became versions, as far back as updates are kept.
    `transitions` has the tablets that are given other replicas, by table.
    """

    catalog: Catalog = field(default_factory=Catalog)
    maps: dict[int, TabletMap] = field(default_factory=dict)
    transitions: dict[int, dict[int, TabletTransition]] = field(default_factory=dict)
    rebalances: dict[int, RebalanceRecord] = field(default_factory=dict)
    announced: int = 0  # the newest version there is, whether its update could be applied or not
    made: dict[str, int] = field(default_factory=dict)
    revisions: dict[bytes, int] = field(default_factory=dict)
    unreadable: dict[bytes, str] = field(default_factory=dict)
    _coming: dict[int, Update] = field(default_factory=dict)
    _requests: dict[int, str] = field(default_factory=dict)

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value (None: it was deleted). Keys that are not about tables are ignored."""
        if not key.startswith(_PREFIXES):
            return
        self.unreadable.pop(key, None)
        if value is None:
            self.revisions.pop(key, None)
        else:
            self.revisions[key] = revision
        try:
            if key.startswith(TABLETS):
                self._take_tablets(key, value)
            elif key.startswith(TRANSITIONS):
                self._take_transition(key, value)
            elif key.startswith(REBALANCE):
                self._take_rebalance(key, value)
            elif key.startswith(keys.UPDATES):
                self._take_update(key, value)
            elif key == keys.VERSION_KEY:
                self.announced = keys.parse_version(value or b"0")
        except ValueError as error:
            if value is not None:
                self.unreadable[key] = str(error)

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = TableView()
        snapshot: dict[bytes, bytes] = {}
        others = []
        for key, value, revision in entries:
            if key.startswith(keys.SNAPSHOT):
                snapshot[key] = value
                fresh.revisions[key] = revision
            elif key.startswith(_PREFIXES):
                others.append((key, value, revision))
        try:
            if snapshot:
                fresh.catalog = Catalog.from_snapshot(keys.joined_snapshot(snapshot))
        except ValueError as error:
            fresh.unreadable[keys.SNAPSHOT] = str(error)
        for key, value, revision in others:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)

    def _take_tablets(self, key: bytes, value: bytes | None) -> None:
        table, number = chunk_of(key)
        tablets = self.maps.get(table) or TabletMap()
        tablets.change(number, None if value is None else Chunk(value))
        if tablets:
            self.maps[table] = tablets
        else:
            self.maps.pop(table, None)

    def _take_transition(self, key: bytes, value: bytes | None) -> None:
        table, tablet = place_of(key)
        # One that can't be read stays as it was known before: its sets go on taking writes.
        current = decode_transition(value) if value is not None else None
        under_way = self.transitions.setdefault(table, {})
        under_way.pop(tablet, None)
        if current is not None:
            under_way[tablet] = current
        if not under_way:
            del self.transitions[table]

    def _take_rebalance(self, key: bytes, value: bytes | None) -> None:
        table = table_of(key)
        record = decode_rebalance(value) if value is not None else None
        self.rebalances.pop(table, None)
        if record is not None:
            self.rebalances[table] = record

    def _take_update(self, key: bytes, value: bytes | None) -> None:
        version = keys.version_of(key)
        if value is None:
            # A snapshot stands for it now.
            self._coming.pop(version, None)
            self.made.pop(self._requests.pop(version, ""), None)
            return
        update = updates.decode(value)
        if update.version != version:
            raise ValueError(f"it holds the update to version {update.version}")
        if update.request:
            self.made[update.request] = version
            self._requests[version] = update.request
        if version > self.catalog.version:
            self._coming[version] = update
        self._catch_up()

    def _catch_up(self) -> None:
        """Apply what has come, in the order of versions; not beyond what is missing or can't be applied."""
        while (update := self._coming.get(self.catalog.version + 1)) is not None:
            try:
                self.catalog = self.catalog.apply(update)
            except ValueError as error:
                self.unreadable[keys.update_key(update.version)] = str(error)
                return
            del self._coming[update.version]

    # Looking

    def map(self, table: int) -> TabletMap:
        """Where the table's tablets are; an empty map where nothing is known of it."""
        return self.maps.get(table, _NO_MAP)

    def sets(self, table: int, tablet: int) -> ReplicaSets:
        """Who takes writes of a tablet, and who answers its reads; KeyError where nothing is known of it."""
        stable, current = self.maps[table].replicas(tablet), self.transition(table, tablet)
        return replica_sets(None, stable) if current is None else replica_sets(current.stage, stable, current.pending)

    def transition(self, table: int, tablet: int) -> TabletTransition | None:
        """What is under way with a tablet; None: nothing."""
        under_way = self.transitions.get(table)
        return under_way.get(tablet) if under_way else None

    def holders(self, table: int, tablet: int) -> Replicas:
        """Who has a replica of a tablet now, or should: while it moves that is more than who answers."""
        return holders(self.maps[table].replicas(tablet), self.transition(table, tablet))

    def held(self, table: int) -> TabletMap:
        """Who has a replica of each tablet now, or should."""
        return self._overlaid(table, self.holders)

    def reading(self, table: int) -> TabletMap:
        """Who answers the reads of each tablet now."""
        return self._overlaid(table, lambda *place: self.sets(*place).reads)

    def _overlaid(self, table: int, of: Callable[[int, int], Replicas]) -> TabletMap:
        tablets, under_way = self.map(table), self.transitions.get(table)
        if not under_way:
            return tablets
        return tablets.with_changes({tablet: of(table, tablet) for tablet in under_way if tablet < tablets.count})

    def placed(self, table: int) -> int:
        """The revision at which anything of where its replicas are, or go, was written last."""
        keys = [*chunk_keys(table, self.map(table).count), rebalance_key(table)]
        keys += [transition_key(table, tablet) for tablet in self.transitions.get(table, ())]
        return max(self.revisions.get(key, 0) for key in keys)

    def held_by(self, raft_id: int) -> dict[int, list[int]]:
        """The tablets of which an instance should have a directory now, by table id."""
        held = {}
        for table, tablets in sorted(self.maps.items()):
            numbers = tablets.of(raft_id)
            if under_way := self.transitions.get(table):
                moving = {tablet for tablet in under_way if tablet < tablets.count}
                here = {tablet for tablet in moving if raft_id in self.holders(table, tablet)}
                numbers = sorted({*numbers} - moving | here)
            if numbers:
                held[table] = numbers
        return held

    def arriving_at(self, raft_id: int) -> dict[Place, str]:
        """The tablets of which an instance gets a replica that has not been copied yet, and the session of each."""
        return {
            (table, tablet): current.session
            for table, under_way in self.transitions.items()
            for tablet, current in under_way.items()
            if raft_id in current.pending and current.stage in ADJUSTABLE and not current.locked
            if table in self.maps and tablet < self.maps[table].count
            if raft_id not in self.maps[table].replicas(tablet)
        }

    def loads(self) -> dict[int, int]:
        """How many replicas each instance holds, of all tables."""
        counts: dict[int, int] = {}
        for tablets in self.maps.values():
            for raft_id, number in tablets.loads().items():
                counts[raft_id] = counts.get(raft_id, 0) + number
        return counts

    def holdings(self, raft_id: int) -> str:
        """What an instance holds, in words; empty: nothing."""
        held = {table: number for table, tablets in self.maps.items() if (number := tablets.loads().get(raft_id))}
        shown = [f"{self.name_of(table)} ({number})" for table, number in sorted(held.items())[:5]]
        if len(held) > len(shown):
            shown.append(f"{len(held) - len(shown)} more tables")
        total = sum(held.values())
        return f"{total} tablet replica{'s' if total != 1 else ''} of {', '.join(shown)}" if held else ""

    def name_of(self, table: int) -> str:
        known = self.catalog.tables.get(table)
        return known.full_name if known is not None else f"table {table}"

    @property
    def waits_for(self) -> str:
        """Why the schema here is older than the newest one; empty: it is not."""
        if self.announced <= self.catalog.version:
            return ""
        key = keys.update_key(self.catalog.version + 1)
        why = self.unreadable.get(key, "its update is not here")
        return (
            f"the schema stays at version {self.catalog.version} of {self.announced}: version "
            f"{self.catalog.version + 1} can't be applied ({why}); does this instance run an older release?"
        )
