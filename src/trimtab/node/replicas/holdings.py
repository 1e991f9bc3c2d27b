"""What an instance holds of the tables: the log of mutations, the shelf of replicas, and what keeps them in order.

Put together here, in one place, for the instance; everything in it can be used without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimtab.loads.unsettled import unsettled_since_ms, unsettled_stamps
from trimtab.node.figures import Sample
from trimtab.node.replicas.folding import Folding
from trimtab.node.replicas.merging import Merging
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.row_cache import RowCache
from trimtab.node.replicas.shelf import Place, Shelf
from trimtab.node.replicas.snapshots import ReplicaSnapshots
from trimtab.rows.folding import FoldRule, rule_for
from trimtab.rows.layout import Layouts, RowLayout
from trimtab.storage.mutation_log import MutationLog
from trimtab.tablets.transitions import ADJUSTABLE
from trimtab.topology.grades import LADDER, Grade
from trimtab.topology.records import CATALOG, EPOCHS, TABLETS, TRANSITIONS

if TYPE_CHECKING:
    import asyncio

    from trimtab.node.instance import Instance

_ABOUT_REPLICAS = (CATALOG, TABLETS, TRANSITIONS, EPOCHS)
_KNOWS = LADDER[LADDER.index(Grade.RAFT_SYNCED) :]


class Holdings:
    """Of one instance. Made when its log is synced and it watches the metastore; started when that is loaded."""

    def __init__(self, instance: Instance, loop: asyncio.AbstractEventLoop) -> None:
        self._instance = instance
        self._layouts = Layouts()
        self.log = MutationLog.open(
            instance.log,
            new_id=lambda: instance.rng.getrandbits(63),
            call_soon=loop.call_soon,
            fatal=instance.fail,
        )
        self.shelf = Shelf(
            instance.disk,
            self.log,
            self.wanted,
            arriving=self.arriving,
            kept=instance.watching.loads.generations,
            epochs=instance.watching.loads.epoch_record,
            name=instance.settings.instance_id,
            row_cache=RowCache(instance.settings.limits.row_cache_bytes),
            settled=self.settled,
            fatal=instance.fail,
            story=instance.story,
            complain=instance.complaints.add,
        )
        flushing = self.shelf.flushing
        self.folding = Folding(
            self.copied,
            self._layout_of,
            self._rule_of,
            busy=lambda: flushing.unflushed_bytes >= flushing.bounds.total_bytes,
            complain=instance.complaints.add,
            defect=instance.fail,
        )
        self.merging = Merging(
            instance.disk,
            self.shelf.held,
            lambda: bool(instance.watching.loads.open_loads),
            complain=instance.complaints.add,
            defect=instance.fail,
        )
        self.snapshots = ReplicaSnapshots(
            instance.disk, wall_ms=instance.wall_ms, complain=instance.complaints.add, defect=instance.fail
        )
        instance.samplers.append(self.figures)

    def start(self) -> None:
        self._instance.watching.on_change.append(self._changed)
        self.shelf.start()
        self.folding.start()
        self.snapshots.start()

    def halt(self) -> None:
        """Acknowledge nothing any more."""
        self.log.close()
        self.folding.stop()
        self.merging.stop()

    def close(self) -> None:
        self.halt()
        self.snapshots.stop()
        self.shelf.close()

    def wanted(self) -> dict[Place, int]:
        """The replicas that belong here, as far as this instance knows, and their generations."""
        tables, loads = self._instance.watching.tables, self._instance.watching.loads
        return {
            (table, tablet): loads.generation(table)
            for table, tablets in tables.held_by(self._instance.raft_id).items()
            if table in tables.catalog.tables
            for tablet in tablets
        }

    def arriving(self) -> dict[Place, str | None]:
        """Of tablets that move here: the session that a replica is made for; None: it was to come, and does not."""
        tables, own = self._instance.watching.tables, self._instance.raft_id
        left_over = {
            (table, tablet): None
            for table, under_way in tables.transitions.items()
            for tablet, current in under_way.items()
            if own in current.leftovers and current.stage in ADJUSTABLE
        }
        return {**left_over, **tables.arriving_at(own)}

    def copied(self) -> list[Replica]:
        """The replicas that are more than the beginning of one."""
        return [replica for replica in self.shelf.held() if not replica.arriving]

    def settled(self) -> bool:
        """Whether this instance has been told, in this life, what there was when it came back, and understood it."""
        control, tables = self._instance.control, self._instance.watching.tables
        if control is None or tables.unreadable or tables.waits_for:
            return False
        record, life = control.standing.record, control.standing.incarnation
        if record is None or life is None:
            return False
        current = record.grades.current
        return current.grade in _KNOWS and current.incarnation >= life

    def _changed(self, keys: frozenset[bytes]) -> None:
        # Not only changes of tables: a new grade may settle what is removed.
        if (
            not keys
            or any(key.startswith((CATALOG, TABLETS, TRANSITIONS, EPOCHS)) for key in keys)
            or self.shelf.unsettled
        ):
            self.shelf.look()

    # Folding

    def _layout_of(self, table: int) -> RowLayout | None:
        catalog = self._instance.watching.tables.catalog
        found = catalog.tables.get(table)
        self._layouts.keep_only(catalog.tables)
        return None if found is None else self._layouts.of(found, catalog.types_of(found.keyspace))

    def _rule_of(self, replica: Replica, layout: RowLayout) -> FoldRule:
        timing, now_ms = self._instance.settings.timing, self._instance.wall_ms()
        # A write that began earlier than a hint lives is taken by no replica, from whomever it comes.
        oldest_pending_ms = now_ms - timing.hint_life_ms - 2 * timing.max_skew_ms
        loads, apart = self._instance.watching.loads, frozenset[int]()
        if loads.epochs or loads.sessions:
            # Rows that are being loaded may be older than a deletion that came meanwhile.
            if (begun_ms := unsettled_since_ms(loads, replica.table)) is not None:
                oldest_pending_ms = min(oldest_pending_ms, begun_ms - 2 * timing.max_skew_ms)
            apart = unsettled_stamps(loads, replica.table, now_ms)
        return rule_for(layout.table.options, now_ms, replica.repaired_through_ms, oldest_pending_ms, apart)

    # Figures

    def figures(self) -> Iterator[Sample]:
        tables, shelf, log, folding = self._instance.watching.tables, self.shelf, self.log, self.folding
        for table, count, disk_bytes, memory_bytes in shelf.figures():
            known = tables.catalog.tables.get(table)
            keyspace, name = (known.keyspace, known.name) if known is not None else ("", str(table))
            labels = (("keyspace", keyspace), ("table", name))
            yield Sample("table_replicas", "Tablet replicas of a table that are open here.", count, labels)
            yield Sample("table_disk_bytes", "What they take on disk.", disk_bytes, labels)
            yield Sample("table_memory_bytes", "What they take in memory: rows in no file yet.", memory_bytes, labels)
        replicas = shelf.held()
        rebuilding = sum(each.state is ReplicaState.REBUILDING for each in replicas)
        yield Sample("replicas_missing", "Replicas that should be open here and are not yet.", len(shelf.missing()))
        yield Sample("replicas_rebuilding", "Replicas that lost rows and are filled from others.", rebuilding)
        yield Sample("replicas_quarantined", "Damaged replicas put aside.", shelf.quarantined, counter=True)
        yield Sample("replica_flushes", "Flushes of replicas.", shelf.flushing.flushes, counter=True)
        yield Sample("mutations", "Writes of replicas that were logged.", log.appended, counter=True)
        yield Sample("mutation_bytes", "Their bytes.", log.appended_bytes, counter=True)
        refused = log.refused + shelf.flushing.refused
        yield Sample("mutations_refused", "Writes refused for want of space or of pace.", refused, counter=True)
        yield Sample("mutation_log_bytes", "What the log holds for replicas that have not flushed it.", log.bytes)
        yield Sample("folded_rows", "Rows that were folded.", folding.rows, counter=True)
        yield Sample("folded_versions", "Versions and deletions that folding removed.", folding.removed, counter=True)
        yield Sample("fold_walks", "Replicas that were folded from end to end.", folding.walks, counter=True)
        waiting = self.merging.put_off
        yield Sample("replicas_unmerged", "Replicas whose loaded files wait to be merged.", waiting)
        largest = folding.largest_partition_bytes
        yield Sample("largest_partition_bytes", "The largest partition here, if it is large at all.", largest)
        rows = shelf.row_cache
        yield Sample("row_cache_bytes", "What rows take that were read lately and are kept ready.", rows.bytes)
        yield Sample("row_cache_hits", "Rows that were answered from there.", rows.hits, counter=True)
        yield Sample("row_cache_misses", "Rows that had to be read from the store.", rows.misses, counter=True)
        yield Sample("replica_snapshots", "Snapshots of replicas that are kept.", len(self.snapshots.known()))
