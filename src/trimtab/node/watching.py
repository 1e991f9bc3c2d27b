"""The topology, tables, loads and jobs as this instance has applied them: views in step with the metastore.

Whenever an entry has been applied, the views already show what it changed: whoever proposed a change and was told that
it is done finds it here. All changes of a revision are in the views before anybody is told of them, and revisions come
in order. After a snapshot was installed the views begin anew from what that brought.

`on_change` is told afterwards, on the loop, of several changes at once. `on_record` is told of each changed record at
the very moment, for what can't wait: a member's address must be known before the next message goes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from trimtab.jobs.repair_schedule import RepairSchedule
from trimtab.jobs.view import JobView
from trimtab.loads.bulk_settings import BulkSettings
from trimtab.loads.view import LoadView
from trimtab.metastore.errors import Compacted
from trimtab.metastore.layout import prefix_end
from trimtab.metastore.limits import MAX_RANGE_LIMIT
from trimtab.metastore.watch import Changes, Prefix, Watcher
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.tablets.rebalance_settings import RebalanceView
from trimtab.tablets.view import TableView
from trimtab.topology.records import SYSTEM_PREFIXES
from trimtab.topology.view import View

Changed = Callable[[frozenset[bytes]], None]


class Watching:
    """The views of one instance. `fatal` is told of what must not happen: a view that can't be kept in step."""

    def __init__(
        self,
        machine: MetastoreMachine,
        *,
        on_record: Callable[[bytes, bytes | None], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.view = View()
        self.tables = TableView()
        self.loads = LoadView()
        self.jobs = JobView()
        self.bulk = BulkSettings()
        self.repairs = RepairSchedule()
        self.rebalance = RebalanceView()
        self.revision = 0
        # Each is told which keys changed; none, when everything began anew.
        self.on_change: list[Changed] = []
        self._machine = machine
        self._on_record = on_record
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._watchers: list[Watcher] = []
        self._changed: set[bytes] = set()
        self._anew = False
        self._telling: asyncio.Handle | None = None

    def load(self) -> None:
        """Begin anew from what the machine holds now: at the start, and after a snapshot was installed."""
        for watcher in self._watchers:
            watcher.cancel()
        metastore = self._machine.metastore
        entries = list(self._entries())
        self.view.load(entries)
        self.tables.load(entries)
        self.loads.load(entries)
        self.jobs.load(entries)
        self.bulk.load(entries)
        self.repairs.load(entries)
        self.rebalance.load(entries)
        self.revision = metastore.revision
        for key, value, _revision in entries:
            self._on_record(key, value)
        self._watchers = [metastore.watch(Prefix(prefix), self._take, self._ended) for prefix in SYSTEM_PREFIXES]
        self._anew = True
        self._tell_soon()

    def close(self) -> None:
        """Tell nobody any more."""
        self.on_change.clear()
        for watcher in self._watchers:
            watcher.cancel()
        if self._telling is not None:
            self._telling.cancel()

    def _entries(self) -> Iterator[tuple[bytes, bytes, int]]:
        metastore = self._machine.metastore
        for prefix in SYSTEM_PREFIXES:
            low: bytes | None = prefix
            while low is not None:
                page = metastore.range(low, prefix_end(prefix), limit=MAX_RANGE_LIMIT)
                for entry in page.entries:
                    yield entry.key, entry.value, entry.mod_revision
                low = page.next_key

    def _take(self, changes: Changes) -> bool:
        self.revision = max(self.revision, changes.revision)
        for change in changes.changes:
            value = change.new.value if change.new is not None else None
            self.view.change(change.key, value, changes.revision)
            self.tables.change(change.key, value, changes.revision)
            self.loads.change(change.key, value, changes.revision)
            self.jobs.change(change.key, value, changes.revision)
            self.bulk.change(change.key, value, changes.revision)
            self.repairs.change(change.key, value, changes.revision)
            self.rebalance.change(change.key, value, changes.revision)
            self._changed.add(change.key)
            self._on_record(change.key, value)
        self._tell_soon()
        return True

    def _ended(self, error: Exception) -> None:
        # A snapshot that leaves no history is installed: what it brought is loaded when it is in place.
        if not isinstance(error, Compacted):
            self._fatal(error)

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        changed = frozenset() if self._anew else frozenset(self._changed)
        self._changed.clear()
        self._anew = False
        for told in list(self.on_change):
            told(changed)
