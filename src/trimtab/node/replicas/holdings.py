"""What an instance holds of the tables: the log of mutations, the shelf of replicas, and what keeps them in order.

Put together here, in one place, for the instance; everything in it can be used without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.node.replicas.shelf import Place, Shelf
from trimtab.storage.mutation_log import MutationLog
from trimtab.topology.grades import LADDER, Grade
from trimtab.topology.records import CATALOG, TABLETS

if TYPE_CHECKING:
    import asyncio

    from trimtab.node.instance import Instance

_KNOWS = LADDER[LADDER.index(Grade.RAFT_SYNCED) :]


class Holdings:
    """Of one instance. Made when its log is synced and it watches the metastore; started when that is loaded."""

    def __init__(self, instance: Instance, loop: asyncio.AbstractEventLoop) -> None:
        self._instance = instance
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
            settled=self.settled,
            fatal=instance.fail,
            story=instance.story,
            complain=instance.complaints.add,
        )

    def start(self) -> None:
        self._instance.watching.on_change.append(self._changed)
        self.shelf.start()

    def halt(self) -> None:
        """Acknowledge nothing any more."""
        self.log.close()

    def close(self) -> None:
        self.halt()
        self.shelf.close()

    def wanted(self) -> dict[Place, int]:
        """The replicas that belong here, as far as this instance knows, and their generations."""
        tables = self._instance.watching.tables
        return {
            (table, tablet): tables.catalog.tables[table].generation
            for table, tablets in tables.held_by(self._instance.raft_id).items()
            if table in tables.catalog.tables
            for tablet in tablets
        }

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
        if not keys or any(key.startswith((CATALOG, TABLETS)) for key in keys) or self.shelf.unsettled:
            self.shelf.look()
