"""The tables as one value: the schema, and where the replicas of every tablet are; kept up to date from the metastore.

The schema is the snapshot and all updates after it, applied in the order of their versions; an update whose predecessor
is missing waits for it. An update that can't be read (perhaps a newer release wrote it) is not skipped: the schema
stays at the version before it, everything later waits, and `waits_for` says so. So two instances that are at the same
version have the same schema, whatever each of them can read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.catalog import keys, updates
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.updates import Update
from trimtab.tablets.records import Chunk, chunk_of
from trimtab.tablets.selectors import ReplicaSets, replica_sets
from trimtab.tablets.tablet_map import TabletMap
from trimtab.topology.records import TABLETS

_NO_MAP = TabletMap()


@dataclass
class TableView:
    """`revisions` has the modification revision of each key that was read; `unreadable` why one could not be.

    `made` are the requests that became versions, as far back as updates are kept.
    """

    catalog: Catalog = field(default_factory=Catalog)
    maps: dict[int, TabletMap] = field(default_factory=dict)
    announced: int = 0  # the newest version there is, whether its update could be applied or not
    made: dict[str, int] = field(default_factory=dict)
    revisions: dict[bytes, int] = field(default_factory=dict)
    unreadable: dict[bytes, str] = field(default_factory=dict)
    _coming: dict[int, Update] = field(default_factory=dict)
    _requests: dict[int, str] = field(default_factory=dict)

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value (None: it was deleted). Keys that are not about tables are ignored."""
        if not key.startswith((keys.CATALOG, TABLETS)):
            return
        self.unreadable.pop(key, None)
        if value is None:
            self.revisions.pop(key, None)
        else:
            self.revisions[key] = revision
        try:
            if key.startswith(TABLETS):
                self._take_tablets(key, value)
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
            elif key.startswith((keys.CATALOG, TABLETS)):
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
        return replica_sets(None, self.maps[table].replicas(tablet))

    def held_by(self, raft_id: int) -> dict[int, list[int]]:
        """The tablets whose replicas an instance holds, by table id."""
        held = {table: tablets.of(raft_id) for table, tablets in sorted(self.maps.items())}
        return {table: tablets for table, tablets in held.items() if tablets}

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
