"""`analyze`: what tablets are made of: rows, partitions and bytes, where keys lie, which partitions are large."""

from __future__ import annotations

import json
from typing import Any

from trimtab.pipeline import tasks
from trimtab.pipeline.parameters import AnalyzeParameters, parse
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.scans import Scan, scan_of
from trimtab.pipeline.tasks import Done, attempt_number
from trimtab.spark.analysis import AnalyzedTablet, analyze_tablet, largest_of
from trimtab.spark.scan_plan import ScanPartition

MAX_TOLD_BYTES = 20_000  # of the job's result: what is known of the smallest tablets is left out
MAX_LARGEST_BYTES = 8_000
HISTOGRAM = 16  # parts of the whole ring, in the result


def analyze(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    given = parse(AnalyzeParameters, parameters)
    scan = scan_of(context, given.table, tablets=given.tablets)
    context.progress(total_bytes=scan.size_bytes, phase="reading tablets")
    found = tasks.run(context, scan.tasks(), _Analyze(given.top))
    return summary(given.table, scan, found, given.top)


class _Analyze:
    """In a task."""

    def __init__(self, top: int) -> None:
        self.top = top

    def __call__(self, partition: ScanPartition, done: Done) -> AnalyzedTablet:
        found = analyze_tablet(partition, attempt_number(), self.top)
        done.add(partition.parts[0].size_bytes, found.rows)
        return found


def summary(table: str, scan: Scan, found: list[AnalyzedTablet], top: int) -> dict[str, Any]:
    """Small enough for the queue, however many tablets there are: the largest are told one by one."""
    tablets = {}
    room = MAX_TOLD_BYTES
    for each in sorted(found, key=lambda each: (-each.size_bytes, each.tablet)):
        told = each.short()
        room -= len(json.dumps(told)) + len(str(each.tablet)) + 6
        if room < 0:
            break
        tablets[str(each.tablet)] = told
    largest = largest_of(found, top)
    while largest and len(json.dumps(largest)) > MAX_LARGEST_BYTES:
        largest.pop()
    return {
        "table": table,
        "version": scan.plan.table.version,
        "epoch": scan.plan.epoch,
        "rows": sum(each.rows for each in found),
        "partitions": sum(each.partitions for each in found),
        "versions": sum(each.versions for each in found),
        "deletions": sum(each.deletions for each in found),
        "bytes": sum(each.size_bytes for each in found),
        "tablets": tablets,
        "left_out": len(found) - len(tablets),
        "largest": largest,
        "histogram": _whole_ring(found, scan.plan.table.tablets),
    }


def _whole_ring(found: list[AnalyzedTablet], tablets: int) -> list[int]:
    """Partitions in equal parts of all tokens."""
    parts = [0] * HISTOGRAM
    for each in found:
        bins = len(each.histogram)
        for at, count in enumerate(each.histogram):
            parts[(each.tablet * bins + at) * HISTOGRAM // (tablets * bins)] += count
    return parts
