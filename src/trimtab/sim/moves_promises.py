"""What was promised about a tablet, looked for in its replicas themselves: every write that was acknowledged at QUORUM.

Whenever reads go over to another set of replicas, and whenever a move ends, a quorum of that set has to hold all of it.
And a replica that was made of a read quorum holds everything that was acknowledged before, by itself.
A replica *has* a cell if what a read of it alone would show is no less than the greatest that was acknowledged; where
it shows nothing, something may have deleted it. Of a replica that does not run nobody can say anything: it counts as if
it had everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.catalog.schema import ColumnKind, Table
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import row_key
from trimtab.rows.layout import RowLayout
from trimtab.rows.projection import rows_of
from trimtab.rows.protocol import RangeRead
from trimtab.rows.reading import NO_LIMITS, read_range
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.tables_history import Cells, Outcome, Put, Row, TablesHistory, Write
from trimtab.sim.tables_judge import PLAIN, Element, Judge
from trimtab.sim.tables_workload import cell
from trimtab.tablets.consistency import quorum_of

_ALL_ROWS = 1 << 40
_FIRST, _LAST = bytes(8), b"\xff" * 64
Held = Mapping[Row, Cells]


class Promises:
    """Of the tables that ordinary clients write."""

    def __init__(self, cluster: GovernedCluster, history: TablesHistory) -> None:
        self._cluster = cluster
        self._history = history
        self._layouts: dict[tuple[int, int], RowLayout] = {}
        self._tablets: dict[tuple[int, int], int] = {}
        self.checked = 0

    def kept(self, table: Table, tablet: int, replicas: tuple[int, ...], when: str) -> None:
        """Violation: less than a quorum of these replicas has something that was acknowledged."""
        self._look(table, tablet, replicas, when, len(replicas) - quorum_of(len(replicas)), self._cluster.world.now)

    def whole(self, table: Table, tablet: int, replicas: tuple[int, ...], when: str, since_s: float) -> None:
        """Violation: one of these replicas, made of a read quorum, lacks what was acknowledged before it was."""
        self._look(table, tablet, replicas, when, 0, since_s)

    def _look(
        self, table: Table, tablet: int, replicas: tuple[int, ...], when: str, may_lack: int, before_s: float
    ) -> None:
        try:
            held = {raft_id: found for raft_id in replicas if (found := self._held(table, tablet, raft_id)) is not None}
        except BadRow as error:
            raise Violation(f"{when}, tablet {tablet} of {table.full_name} holds what can't be: {error}") from error
        if len(held) <= may_lack:
            return
        self.checked += 1
        judge = Judge(TablesHistory(self._history.replication, self._history.skew_s, self._writes(table, tablet)))
        now_s = self._cluster.world.now
        for row, column in judge.places():
            if row.table != table.id or self._tablet(table, row.partition) != tablet:
                continue
            elements = judge.elements(row, column)
            promised = [each for each in elements if _is_acknowledged(each.write, before_s) and each.stamp_us]
            if not promised:
                continue
            top = promised[0]
            for each in promised[1:]:
                top = each if each.beats(top) else top
            lacking = [
                raft_id for raft_id, cells in held.items() if not _has(cells.get(row), column, top, elements, now_s)
            ]
            if len(lacking) > may_lack:
                raise Violation(
                    f"{when}, tablet {tablet} of {table.full_name}: {row}, column {column}: {lacking} of {replicas} "
                    f"lack what was acknowledged: {top.write}",
                    "\n".join(f"{raft_id}: {held[raft_id].get(row)}" for raft_id in sorted(held)),
                )

    def _writes(self, table: Table, tablet: int) -> list[Write]:
        return [
            write
            for write in self._history.writes
            if write.outcome is not Outcome.REFUSED
            and any(
                self._tablet(table, part.row.partition if isinstance(part, Put) else part.partition) == tablet
                for part in write.parts
                if (part.row.table if isinstance(part, Put) else part.table) == table.id
            )
        ]

    def _tablet(self, table: Table, partition: int) -> int:
        known = self._tablets.get((table.id, partition))
        if known is None:
            layout = self._layout(table)
            key = row_key(layout, [cell(partition), *([cell(0)] if layout.clustering else [])])
            known = self._tablets[table.id, partition] = int.from_bytes(key[:8]) >> (65 - table.tablets.bit_length())
        return known

    def _layout(self, table: Table) -> RowLayout:
        known = self._layouts.get((table.id, table.version))
        if known is None:
            known = self._layouts[table.id, table.version] = RowLayout(table)
        return known

    def _held(self, table: Table, tablet: int, raft_id: int) -> Held | None:
        """All that a replica would show; None: it does not run, or knows itself that it lacks something."""
        machine = self._cluster.of_raft_id(raft_id)
        holdings = getattr(machine.instance, "holdings", None) if machine is not None else None
        replica = holdings.shelf.get(table.id, tablet) if holdings is not None else None
        if replica is None or not replica.readable:
            return None
        assert machine is not None
        layout, now_s = self._layout(table), machine.process.wall_ms() // 1000
        keys = [column.id for column in (*table.of_kind(ColumnKind.PARTITION), *table.of_kind(ColumnKind.CLUSTERING))]
        regular = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
        pairs = read_range(layout, replica.scan, RangeRead(_FIRST, _LAST, _ALL_ROWS), now_s, limits=NO_LIMITS).pairs
        rows = rows_of(layout, pairs, [*keys, *regular], now_s, with_meta=True)
        found = {}
        for cells, metas in zip(rows.cells, rows.metas, strict=True):
            key = [int.from_bytes(each or b"", "big", signed=True) for each in cells[: len(keys)]]
            found[Row(table.id, *key)] = {
                id: (value, meta.writetime_us if meta is not None else 0)
                for id, value, meta in zip(regular, cells[len(keys) :], metas[len(keys) :], strict=True)
            }
        return found


def _is_acknowledged(write: Write, before_s: float) -> bool:
    return write.outcome is Outcome.ACKED and write.returned_s is not None and write.returned_s <= before_s


def _has(cells: Cells | None, column: int, top: Element, elements: list[Element], now_s: float) -> bool:
    value, stamp_us = (cells or {}).get(column, (None, 0))
    if value is not None:
        return not top.beats(Element(top.write, stamp_us, PLAIN, value)) or stamp_us == top.stamp_us
    return top.may_be_gone(now_s) or any(
        each.may_be_gone(now_s) and (not each.stamp_us or not top.beats(each)) for each in elements
    )
