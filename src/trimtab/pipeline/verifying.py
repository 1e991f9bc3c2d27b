"""`verify`: whether all replicas of a table hold the same, and if not, which rows differ and who lacks them.

A task takes copies of all replicas of a tablet, at one epoch, and compares checksums of ranges of tokens; ranges that
differ are merged row by row (`differences`). A write that is under way is on some replicas and not yet on others, which
is no difference. So what differs is looked at twice: after `settle_s` fresh copies are taken, and only what a replica
still lacks of what it lacked before counts. What began after the first look is not even asked about. Of a tablet with
more differences than can be held between the looks the rest is given up, and told: such replicas are not called equal.

A tablet that moved away from where its replicas were sought is looked at again, where they are now; twice at most.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trimtab.client.errors import Error
from trimtab.pipeline import tasks
from trimtab.pipeline.differences import RowDifference, differences, told
from trimtab.pipeline.parameters import VerifyParameters, parse
from trimtab.pipeline.replica_copies import Copies, copies_of
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.scans import Scan, every_replica, scan_of
from trimtab.pipeline.tasks import Done, attempt_number
from trimtab.rows.deletions import Pair
from trimtab.rows.errors import BadRow
from trimtab.rows.layout import RowLayout
from trimtab.spark.instances import Instances, tls_context
from trimtab.spark.scan_plan import ScanFailed, ScanPart, ScanPlan
from trimtab.storage.port import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_BYTES = 128 << 20  # of differences between the two looks, of one tablet; the rest is given up
MAX_TOLD_BYTES = 16_000  # of the job's result, for differences
_TURNS = 3  # of tablets that move while they are looked at
_AS_IF = -1  # what a replica lacked before, as if it were a replica


@dataclass(frozen=True)
class VerifyTask:
    """Some tablets, so that their second looks wait together."""

    plan: ScanPlan
    parts: tuple[ScanPart, ...]
    settle_s: float
    limit: int


@dataclass
class Verdict:
    """On one tablet. `unclear`: why nothing can be said of it. `given_up`: so many of the ranges that differ were not
    looked at again, or not wholly: there was no room for what differs.
    """

    tablet: int
    pairs: int = 0
    ranges: int = 0
    differing_ranges: int = 0
    differences: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    unclear: str = ""
    given_up: int = 0

    @property
    def good(self) -> bool:
        return not (self.differences or self.damaged or self.silent or self.unclear or self.given_up)


@dataclass
class _FirstLook:
    """What a tablet's replicas lacked, by span of keys."""

    part: ScanPart
    verdict: Verdict
    found: dict[tuple[bytes, bytes], list[RowDifference]] = field(default_factory=dict)


def verify(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    given = parse(VerifyParameters, parameters)
    scan = every_replica(scan_of(context, given.table, tablets=given.tablets))
    verdicts: dict[int, Verdict] = {}
    sought = {part.tablet: set(part.holders) for part in scan.parts}
    parts, done = scan.parts, Done()
    for turns_left in reversed(range(_TURNS)):
        context.progress(total_bytes=done.bytes + _all_bytes(parts), phase="comparing replicas")
        made = [VerifyTask(scan.plan, some, given.settle_s, given.limit) for some in grouped(context, parts)]
        found = [verdict for some in tasks.run(context, made, verify_tablets, before=done) for verdict in some]
        done.add(_all_bytes(parts), sum(verdict.pairs for verdict in found))
        verdicts |= {verdict.tablet: verdict for verdict in found}
        unmet = [tablet for tablet, verdict in sorted(verdicts.items()) if verdict.unclear or verdict.silent]
        now = _planned_again(context, scan, unmet) if unmet and turns_left else None
        if now is None:
            break
        parts = tuple(part for part in now.parts if set(part.holders) != sought[part.tablet])
        if not parts:
            break
        sought |= {part.tablet: set(part.holders) for part in parts}
        scan = now
    return summary(given.table, scan, [verdicts[tablet] for tablet in sorted(verdicts)], given.limit)


def _planned_again(context: JobContext, scan: Scan, tablets: Sequence[int]) -> Scan | None:
    """Where these tablets are now; None: nobody can tell, or the table is another one, so what was found is told."""
    try:
        now = every_replica(scan_of(context, scan.plan.table.full_name, tablets=tablets))
    except (Error, ScanFailed):
        return None
    return now if now.plan.table.id == scan.plan.table.id else None


def grouped(context: JobContext, parts: Sequence[ScanPart], per_core: int = 4) -> list[tuple[ScanPart, ...]]:
    """Tablets in a few groups for each core: enough to share out evenly, few enough to be worth a task."""
    count = min(len(parts), per_core * max(1, context.session.sparkContext.defaultParallelism))
    return [tuple(parts[at::count]) for at in range(count)]


def _all_bytes(parts: Iterable[ScanPart]) -> int:
    return sum(part.size_bytes * len(part.holders) for part in parts)


def summary(table: str, scan: Scan, verdicts: Sequence[Verdict], limit: int) -> dict[str, Any]:
    """The job's result: small enough for the queue, however much there is to say."""
    name = scan.plan.name_of
    listed: list[dict[str, Any]] = []
    room = MAX_TOLD_BYTES
    for each in (difference for verdict in verdicts for difference in verdict.listed):
        room -= len(json.dumps(each))
        if len(listed) == limit or room < 0:
            break
        listed.append(each)
    troubles = [
        f"tablet {verdict.tablet} at {name(raft_id)}: {why}"
        for verdict in verdicts
        for raft_id, why in (verdict.damaged | verdict.silent).items()
    ]
    troubles += [f"tablet {verdict.tablet}: {verdict.unclear}" for verdict in verdicts if verdict.unclear]
    troubles += [
        f"tablet {verdict.tablet}: {verdict.given_up} of {verdict.differing_ranges} ranges that differ were given up: "
        f"what differs is more than {HELD_BYTES >> 20} MiB; `trimtab repair {table}` first"
        for verdict in verdicts
        if verdict.given_up
    ]
    return {
        "table": table,
        "equal": all(verdict.good for verdict in verdicts),
        "tablets": len(verdicts),
        "epoch": scan.plan.epoch,
        "ranges": sum(verdict.ranges for verdict in verdicts),
        "versions": sum(verdict.pairs for verdict in verdicts),
        "differing_tablets": [verdict.tablet for verdict in verdicts if verdict.differences][:500],
        "differences": sum(verdict.differences for verdict in verdicts),
        "more": any(verdict.given_up for verdict in verdicts),
        "listed": listed,
        "damaged": sum(len(verdict.damaged) for verdict in verdicts),
        "unclear": sum(bool(verdict.unclear or verdict.silent) for verdict in verdicts),
        "troubles": [each[:300] for each in troubles[:20]],
    }


# In a task


def verify_tablets(task: VerifyTask, done: Done) -> list[Verdict]:
    plan, layout = task.plan, RowLayout(task.plan.table, task.plan.types)
    looks = []
    with Instances(tls_context(plan.connection)) as instances:
        for part in task.parts:
            looks.append(_look(plan, layout, part, instances))
            done.add(part.size_bytes * len(part.holders), looks[-1].verdict.pairs)
        again = [look for look in looks if look.found]
        if again:
            time.sleep(task.settle_s)
        for look in again:
            try:
                _look_again(plan, layout, look, instances, task.limit)
            except (ScanFailed, StorageError, BadRow) as error:
                look.verdict.unclear = str(error)
    return [look.verdict for look in looks]


def _look(plan: ScanPlan, layout: RowLayout, part: ScanPart, instances: Instances) -> _FirstLook:
    verdict = Verdict(part.tablet)
    look = _FirstLook(part, verdict)
    try:
        with copies_of(plan, part, instances, attempt_number()) as copies:
            spans, verdict.ranges, verdict.pairs, verdict.damaged = copies.differing_spans(plan.table.tablets)
            verdict.silent = dict(copies.silent)
            verdict.differing_ranges = len(spans)
            verdict.given_up = _hold(look, spans, lambda span: _compared(layout, copies, span, verdict.damaged))
    except (ScanFailed, StorageError, BadRow) as error:
        verdict.unclear = str(error)
    return look


def _hold(
    look: _FirstLook,
    spans: Sequence[tuple[bytes, bytes]],
    compared: Callable[[tuple[bytes, bytes]], Iterable[RowDifference]],
) -> int:
    """Keep what differs for the second look, as far as there is room; how many spans are not kept whole."""
    held_bytes = 0
    for number, span in enumerate(spans):
        for each in compared(span):
            held_bytes += each.size_bytes
            if held_bytes > HELD_BYTES:
                return len(spans) - number
            look.found.setdefault(span, []).append(each)
    return 0


def _compared(
    layout: RowLayout, copies: Copies, span: tuple[bytes, bytes], damaged: Iterable[int]
) -> Iterator[RowDifference]:
    whole = {raft_id: copy for raft_id, copy in copies.by_holder.items() if raft_id not in damaged}
    yield from differences(layout, {raft_id: copy.pairs(*span) for raft_id, copy in whole.items()}, copies.forget_ms)


def _look_again(plan: ScanPlan, layout: RowLayout, look: _FirstLook, instances: Instances, limit: int) -> None:
    """What each replica still lacks of what it lacked before."""
    verdict, names = look.verdict, {raft_id: plan.name_of(raft_id) for raft_id in look.part.holders}
    with copies_of(plan, look.part, instances, attempt_number()) as copies:
        for span, before in look.found.items():
            still: dict[bytes, tuple[RowDifference, list[int]]] = {}
            for raft_id, copy in copies.by_holder.items():
                asked = {each.row_key: each for each in before if raft_id in each.lacking}
                if not asked:
                    continue
                lacked: list[Pair] = sorted(pair for each in asked.values() for pair in each.pairs)
                compared = {raft_id: copy.pairs(*span), _AS_IF: lacked}
                for found in differences(layout, compared, copies.forget_ms):
                    if raft_id in found.lacking and found.row_key in asked:
                        still.setdefault(found.row_key, (asked[found.row_key], []))[1].append(raft_id)
            verdict.differences += len(still)
            for difference, lacking in list(still.values())[: max(0, limit - len(verdict.listed))]:
                shown = RowDifference(difference.row_key, difference.pairs, tuple(lacking))
                verdict.listed.append(told(layout, verdict.tablet, shown, names))
