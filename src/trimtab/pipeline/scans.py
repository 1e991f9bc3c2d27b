"""What a job reads of a table: the same plan that the data source makes, for all tasks of the job.

One version of the schema, one epoch, one moment for what expires. A job that compares or copies replicas asks for all
of them (`every_replica`); one that reads rows asks for as many as its consistency level needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.client.errors import InvalidRequest
from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.tasks import connection_options
from trimtab.rows.tokens import keys_between
from trimtab.tablets.consistency import Level, goal

if TYPE_CHECKING:
    from trimtab.spark.planning import Known
    from trimtab.spark.scan_plan import ScanPart, ScanPartition, ScanPlan

UNKNOWN_BYTES = 4 << 20  # of a tablet whose size nobody has reported


@dataclass(frozen=True)
class Scan:
    """A plan, and its tablets one by one. `replicas` of each tablet, those that may be down included."""

    plan: ScanPlan
    parts: tuple[ScanPart, ...]
    known: Known
    partitions: tuple[ScanPartition, ...] = ()  # the same, small tablets of one instance together

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def tasks(self) -> list[ScanPartition]:
        """A task for each tablet."""
        from trimtab.spark.scan_plan import ScanPartition

        return [ScanPartition(self.plan, (part,)) for part in self.parts]


def scan_of(
    context: JobContext,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    consistency: str = "ONE",
    as_of_us: int = 0,
    tablets: Iterable[int] = (),
) -> Scan:
    """A plan to read a table (some of its tablets). `columns` None: those of the partition key, the least there is."""
    from trimtab.spark import planning
    from trimtab.spark.options import read_options

    given = connection_options(context) | {"table": table, "consistency": consistency}
    if as_of_us:
        given["asOf"] = str(as_of_us)
    known = planning.look(read_options(given))
    names = [column.name for column in known.plan.table.columns] if columns == () else columns
    if names is None:
        from trimtab.catalog.schema import ColumnKind

        names = [column.name for column in known.table.of_kind(ColumnKind.PARTITION)][:1]
    given["columns"] = ",".join(names)
    found = planning.partitions(given, planning.schema(given), [])
    parts = sorted((part for partition in found for part in partition.parts), key=lambda part: part.tablet)
    return Scan(found[0].plan, _chosen(table, parts, tuple(tablets)), known, tuple(found))


def check_reachable(scan: Scan) -> None:
    """That no replica is needed whose instance is known not to be Online. Tasks would wait for it for minutes;
    JobFailed says at once who it is. It may be on its way back, and the next attempt find it.
    """
    plan = scan.plan
    dc_of = {each.raft_id: each.dc for each in plan.holders.values()}
    for part in scan.parts:
        need = goal(plan.level, [part.holders], dc_of, plan.local_dc, for_write=False)
        up = [each for each in part.holders if each in plan.holders and plan.holders[each].online]
        if not need.possible(up):
            away = sorted(plan.name_of(each) for each in part.holders if each not in up)
            raise JobFailed(
                f"tablet {part.tablet} of {plan.table.full_name} can't be read: {need.describe(up, 'can be read')}; "
                f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not Online. Ask again when they are back, or "
                "for a lower level",
                again=True,
            )


def every_replica(scan: Scan) -> Scan:
    """The same, for whoever wants all replicas of every tablet as they lie."""
    parts = (
        replace(
            part,
            holders=tuple(scan.known.replicas[part.tablet]),
            ranges=(keys_between(None, None),),
            size_bytes=scan.known.sizes.get(part.tablet, UNKNOWN_BYTES),
        )
        for part in scan.parts
    )
    return Scan(replace(scan.plan, level=Level.ALL), tuple(parts), scan.known)


def _chosen(table: str, parts: Sequence[ScanPart], tablets: tuple[int, ...]) -> tuple[ScanPart, ...]:
    if not tablets:
        return tuple(parts)
    there = {part.tablet: part for part in parts}
    if unknown := sorted(set(tablets) - there.keys()):
        raise InvalidRequest(f"{table} has no tablet {unknown[0]}: it has {len(there)}, from 0 on")
    return tuple(there[tablet] for tablet in sorted(set(tablets)))
