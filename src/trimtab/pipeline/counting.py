"""`count`: how many rows a table has, of one epoch and one moment, by reading the tablets' snapshots in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.pipeline import tasks
from trimtab.pipeline.parameters import CountParameters, parse
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.scans import check_reachable, scan_of
from trimtab.pipeline.tasks import Done, attempt_number

if TYPE_CHECKING:
    from trimtab.spark.scan_plan import ScanPartition


def count(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    told = parse(CountParameters, parameters)
    scan = scan_of(context, told.table, consistency=told.consistency, as_of_us=told.as_of_us)
    check_reachable(scan)
    context.progress(total_bytes=scan.size_bytes, phase="counting")
    rows = sum(tasks.run(context, scan.partitions, count_partition))
    return {
        "table": told.table,
        "rows": rows,
        "tablets": len(scan.parts),
        "epoch": scan.plan.epoch,
        "as_of_us": told.as_of_us,
        "consistency": told.consistency,
    }


def count_partition(partition: ScanPartition, done: Done) -> int:
    """In a task: the live rows of some tablets."""
    from trimtab.spark.reading import read_partition
    from trimtab.spark.scan_plan import ScanStats

    rows = sum(int(batch.num_rows) for batch in read_partition(partition, attempt_number(), ScanStats()))
    done.add(sum(part.size_bytes for part in partition.parts), rows)
    return rows
