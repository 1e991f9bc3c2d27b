"""`repair`: makes all replicas of a table's tablets equal, and moves the time up to which deletions may be forgotten.

A task compares copies of all replicas of a tablet (`replica_copies`), merges the ranges that differ, and sends each
replica just the rows that it lacks, through its node: logged, synced and applied like any write. When every replica has
taken part, each stores how far the repair reaches; who was silent is repaired later, and until then the time stays.

A job may name the replicas that matter (`targets`: those that stay when others go) and whose rows are wanted
(`sources`). A tablet is done when all its targets were compared with each other and with a read quorum of all replicas
(of those that are sources, where some are named): every acknowledged write is on each target then. Of a tablet that is
not done the result says why, under `failed`, as for copies: [tablet, 0, code, text]. A row that is too large for a
frame is left out, the others are sent; its tablet is not done, and the instances' own rounds bring it.

Everything may be done twice: rows are pairs that are put. So a job that is taken over goes on after the tablets that it
noted, and repeats at most a few. This is the one kind of repair that runs by schedule; the rounds that nodes do among
themselves (`node.replicas.repair_rounds`) stand in where no job has come for a long time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.net.errors import NetError, RpcError
from trimtab.pipeline import tasks
from trimtab.pipeline.copies import DAMAGED, FAILED, NOT_READY
from trimtab.pipeline.differences import differences
from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.parameters import RepairParameters, parse
from trimtab.pipeline.replica_copies import PATIENCE_S, Copies, copies_of
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.scans import every_replica, scan_of
from trimtab.pipeline.tasks import Done, attempt_number
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.deletions import Pair
from trimtab.rows.errors import BadRow
from trimtab.rows.layout import RowLayout
from trimtab.rows.repair_protocol import EndReply, EndRequest, RowsRequest
from trimtab.spark.instances import Instances, tls_context
from trimtab.spark.scan_plan import ScanFailed, ScanPart, ScanPlan
from trimtab.storage.port import StorageError
from trimtab.tablets.quorums import missing

BATCH_BYTES = 256 << 10
BATCH_PAIRS = 2_000
MOST_BYTES = 900 << 10  # of one row: what goes into one frame
AT_ONCE = 64  # tablets in one Spark job; what is done is noted after each
AGAIN_S = 20.0  # for a replica that is just restarting, where it is known who matters
MOST_FAILED = 300  # told one by one
_CALL_S = 20.0
_TRIES = 3
_PAUSE_S = 1.0
_TEXT = 70  # characters, of what is noted of each
_AGAIN = frozenset({"overloaded", "not_ready", "not_whole", "disk_full", "no_answer"})


@dataclass(frozen=True)
class RepairTask:
    """`targets` must be compared; none: all that take part. `sources`: whose rows are wanted; none: everybody's."""

    plan: ScanPlan
    part: ScanPart
    targets: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()

    @property
    def taking_part(self) -> tuple[int, ...]:
        """Whose rows are not wanted is not even asked."""
        wanted = {*self.sources, *self.targets}
        return tuple(each for each in self.part.holders if each in wanted) if self.sources else self.part.holders

    @property
    def patient(self) -> bool:
        return bool(self.targets or self.sources)


@dataclass
class Repaired:
    """One tablet. `through_ms` 0: it did not move. `code` and `why` say what kept it from being done."""

    tablet: int
    pairs: int = 0
    sent_pairs: int = 0
    sent_bytes: int = 0
    through_ms: int = 0
    code: str = ""
    why: str = ""
    lacked: dict[int, int] = field(default_factory=dict)


def repair(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    given = parse(RepairParameters, parameters)
    scan = every_replica(scan_of(context, given.table, tablets=given.tablets))
    targets = dict(zip(given.tablets, map(tuple, given.targets), strict=False))
    noted = dict(context.noted) if context.noted.get("table") == scan.plan.table.id else {}
    begun = _Sums.of(noted)
    parts = [part for part in scan.parts if part.tablet >= begun.next]
    total_bytes = sum(map(_bytes_of, scan.parts))
    before = Done(sum(_bytes_of(part) for part in scan.parts if part.tablet < begun.next))
    context.progress(total_bytes=total_bytes, bytes=before.bytes, phase="repairing")
    for start in range(0, len(parts), AT_ONCE):
        some = parts[start : start + AT_ONCE]
        made = [RepairTask(scan.plan, part, targets.get(part.tablet, ()), tuple(given.sources)) for part in some]
        found = tasks.run(context, made, repair_tablet, before=before)
        for each in found:
            begun.add(each, scan.plan)
        good = {each.tablet for each in found if not each.why}
        before.add(sum(_bytes_of(part) for part in some if part.tablet in good), sum(each.pairs for each in found))
        begun.next = some[-1].tablet + 1
        context.checkpoint({"table": scan.plan.table.id, **begun.note()})
    if (given.targets or given.sources) and begun.incomplete > len(begun.failed):
        raise JobFailed(f"{begun.incomplete} tablets could not be repaired: {begun.troubles[0]}", again=True)
    return {"table": given.table, "tablets": len(scan.parts), **begun.told()}


@dataclass
class _Sums:
    """Over all tablets so far; small enough to be noted."""

    next: int = 0
    repaired: int = 0
    sent_pairs: int = 0
    sent_bytes: int = 0
    through_ms: int = 0
    lacked: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    incomplete: int = 0
    failed: list[list[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> _Sums:
        return cls(**{name: value for name, value in noted.items() if name != "table"})

    def note(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def add(self, found: Repaired, plan: ScanPlan) -> None:
        self.sent_pairs += found.sent_pairs
        self.sent_bytes += found.sent_bytes
        for raft_id, count in found.lacked.items():
            name = plan.name_of(raft_id)
            self.lacked[name] = self.lacked.get(name, 0) + count
        if found.why:
            self.incomplete += 1
            if len(self.failed) < MOST_FAILED:
                self.failed.append([found.tablet, 0, found.code, found.why[:_TEXT]])
            if len(self.troubles) < 20:
                self.troubles.append(f"tablet {found.tablet}: {found.why}"[:300])
        else:
            self.repaired += 1
            if found.through_ms:
                self.through_ms = min(self.through_ms or found.through_ms, found.through_ms)

    def told(self) -> dict[str, Any]:
        return {
            "repaired_tablets": self.repaired,
            "incomplete_tablets": self.incomplete,
            "rows_sent": self.sent_pairs,
            "bytes_sent": self.sent_bytes,
            "rows_lacked": self.lacked,
            "repaired_through_ms": self.through_ms,
            "troubles": self.troubles,
            "failed": self.failed,
        }


# In a task


def repair_tablet(task: RepairTask, done: Done) -> Repaired:
    until_s = time.monotonic() + AGAIN_S
    while True:
        found = _repaired(task)
        if not found.why or not task.patient or time.monotonic() >= until_s or done.stopping:
            break
        time.sleep(_PAUSE_S)
    if not found.why:
        done.add(_bytes_of(task.part), found.pairs)
    return found


def _bytes_of(part: ScanPart) -> int:
    return part.size_bytes * len(part.holders)


def _repaired(task: RepairTask) -> Repaired:
    plan, part = task.plan, task.part
    found = Repaired(part.tablet)
    layout = RowLayout(plan.table, plan.types)
    with Instances(tls_context(plan.connection)) as instances:
        try:
            # One alone is enough where all others go, and it has met every acknowledged write.
            least, patience_s = 1 if task.targets else 2, 0.0 if task.patient else PATIENCE_S
            asked, attempt = task.taking_part, attempt_number()
            with copies_of(plan, part, instances, attempt, asked=asked, least=least, patience_s=patience_s) as copies:
                spans, _, found.pairs, damaged = copies.differing_spans(plan.table.tablets)
                senders = {raft_id: _Sender(plan, copies, raft_id, instances) for raft_id in copies.by_holder}
                for span in spans:
                    whole = {each: copy for each, copy in copies.by_holder.items() if each not in damaged}
                    held = {raft_id: copy.pairs(*span) for raft_id, copy in whole.items()}
                    for difference in differences(layout, held, copies.forget_ms):
                        for raft_id in difference.lacking:
                            senders[raft_id].add(difference.pairs)
                            found.lacked[raft_id] = found.lacked.get(raft_id, 0) + 1
                for sender in senders.values():
                    sender.flush()
                    found.sent_pairs += sender.pairs
                    found.sent_bytes += sender.bytes
            silent = dict(copies.silent) | damaged
            compared = [raft_id for raft_id in copies.by_holder if raft_id not in damaged]
            found.why = unmet(task, compared, silent)
            if found.why:
                found.code = DAMAGED if damaged else NOT_READY
            elif left_out := _left_out(task, senders.values()):
                found.code, found.why = FAILED, left_out
            elif len(compared) == len(part.holders) and not any(each.too_large for each in senders.values()):
                found.through_ms = _end(plan, copies, instances)
        except (ScanFailed, NetError, TimeoutError) as error:
            found.code, found.why = NOT_READY, str(error) or type(error).__name__
        except (StorageError, BadRow) as error:
            found.code, found.why = FAILED, str(error) or type(error).__name__
    return found


def unmet(task: RepairTask, compared: Collection[int], silent: Mapping[int, str]) -> str:
    """Why a tablet is not done though these were compared; empty: it is."""
    plan, part = task.plan, task.part
    targets = task.targets or task.taking_part
    if lacking := [raft_id for raft_id in targets if raft_id not in compared]:
        return "; ".join(f"{plan.name_of(each)}: {silent.get(each, 'it has no replica of it')}" for each in lacking)
    dc_of = {each.raft_id: each.dc for each in plan.holders.values()}
    if not task.sources:
        short = missing(0, part.holders, compared, dc_of, intact=False)
        return f"a read quorum {short}" if short else ""
    return _unmet_sources(task, compared, dc_of, silent)


def _unmet_sources(
    task: RepairTask, compared: Collection[int], dc_of: Mapping[int, str], silent: Mapping[int, str]
) -> str:
    """The same, where only some are sources: a read quorum of each data centre that has any, as far as they reach."""
    sources = [raft_id for raft_id in task.part.holders if raft_id in task.sources]
    if not sources:
        return "none of its replicas is on an instance that rows are wanted from"
    by_dc: dict[str, list[int]] = {}
    for raft_id in sources:
        by_dc.setdefault(dc_of.get(raft_id, ""), []).append(raft_id)
    for dc, some in by_dc.items():
        factor = sum(dc_of.get(raft_id, "") == dc for raft_id in task.part.holders)
        needed = min(factor - factor // 2, len(some))
        if sum(raft_id in compared for raft_id in some) < needed:
            said = "; ".join(f"{task.plan.name_of(each)}: {silent[each]}" for each in some if each in silent)
            return f"{needed} of {len(some)} sources in data centre {dc} are needed: {said}"
    return ""


def _left_out(task: RepairTask, senders: Iterable[_Sender]) -> str:
    """Which rows those that matter still lack, because they are too large to be sent; empty: none."""
    wanted = task.targets or task.taking_part
    short = [f"{each.name} ({each.too_large})" for each in senders if each.too_large and each.raft_id in wanted]
    rule = f"rows of more than {MOST_BYTES >> 10} KiB are lacking at"
    return f"{rule} {', '.join(short)}: the instances' own rounds of repair bring them" if short else ""


class _Sender:
    """Rows on their way to one replica, some at a time. `too_large`: so many can't be sent."""

    def __init__(self, plan: ScanPlan, copies: Copies, raft_id: int, instances: Instances) -> None:
        self._plan, self._copies, self._instances = plan, copies, instances
        self.raft_id = raft_id
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.pairs = 0
        self.bytes = 0
        self.too_large = 0

    @property
    def name(self) -> str:
        return self._plan.name_of(self.raft_id)

    def add(self, pairs: Iterable[Pair]) -> None:
        for key, value in pairs:
            size_bytes = len(key) + len(value)
            if size_bytes > MOST_BYTES:
                self.too_large += 1
                continue
            if self._held and (self._held_bytes + size_bytes > BATCH_BYTES or len(self._held) >= 2 * BATCH_PAIRS):
                self.flush()
            self._held += (key, value)
            self._held_bytes += size_bytes

    def flush(self) -> None:
        if not self._held:
            return
        copies = self._copies
        generation = copies.begun[self.raft_id].generation
        request = RowsRequest(self._plan.table.id, copies.part.tablet, generation, copies.begun_ms, self._held)
        ask(self._plan, self._instances, self.raft_id, protocol.ROWS, protocol.encode(request))
        self.pairs += len(self._held) // 2
        self.bytes += self._held_bytes
        self._held, self._held_bytes = [], 0


def _end(plan: ScanPlan, copies: Copies, instances: Instances) -> int:
    """Let every replica store how far it is repaired; the least of them."""
    least = 0
    for raft_id, begun in copies.begun.items():
        request = EndRequest(plan.table.id, copies.part.tablet, begun.generation, tuple(copies.begun), copies.begun_ms)
        answer = ask(plan, instances, raft_id, protocol.END, protocol.encode(request))
        reply: EndReply = protocol.decode_end_reply(answer)
        least = min(least or reply.repaired_through_ms, reply.repaired_through_ms)
    return least


def ask(plan: ScanPlan, instances: Instances, raft_id: int, method: str, body: bytes) -> bytes:
    """An instance's answer; asked again a few times where that may help."""
    for left in reversed(range(_TRIES)):
        try:
            return instances.call(plan.holders[raft_id].address, method, body, _CALL_S)
        except RpcError as error:
            if error.code not in _AGAIN or not left:
                raise
        except (NetError, TimeoutError):
            if not left:
                raise
    raise AssertionError("every try returns or raises")
