"""`stream`: replicas carried to other instances' `staging/<session>/<tablet>/`, for whoever opened the sessions.

    one source       its snapshot as it is: all files of the store (a small one as a run of its pairs)
    several sources  the merge of their snapshots: every pair that any of them has, once, as sorted runs

The driver takes the snapshots (`held_sources`), many tablets in a call, at the table's committed epoch; tasks of a few
Spark jobs carry them (`carrying`), balanced by bytes. Tasks only control: bytes go from disk to socket. Who opened the
session takes the files over, and only while it is open; until then nobody uses them.

Each copy has a session and fails by itself. The job succeeds when every copy was tried to its end; its result lists
those that failed, with a code:

    no_session    the session is closed: nobody wants the copy any more
    source_gone   a source holds no such replica any more, or its snapshot vanished
    target_gone   the target is not known, or its bulk server does not come back
    not_ready     a source did not answer in time, or has not taken over all loads yet
    disk_full     the target has no room
    damaged       a source's files can't be read
    failed        something else, as the text says

What is done is noted; whoever takes the job over goes on with the rest, and of that nothing is sent twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.client.loads import BlockingLoads
from trimtab.pipeline import tasks
from trimtab.pipeline.carrying import CarryTask, carry
from trimtab.pipeline.copies import NO_SESSION, NOT_READY, TARGET_GONE, Carried, Carry
from trimtab.pipeline.failures import Cancelled, JobFailed, Paused, Stopped
from trimtab.pipeline.held_sources import Found, Group, HeldSources, grouped
from trimtab.pipeline.parameters import StreamCopy, StreamParameters, parse
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.tasks import Done

TICKET_MS = 24 * 3_600_000
PAUSED_MS = 3_600_000  # for so long the snapshots of a paused job are kept
RESULT_BYTES = 28_000  # what the queue keeps of a result, with some room
NOTE_EVERY_S = 1.0
TELL_MANIFESTS = 64
_PER_CORE = 3  # tasks, so that they can be shared out evenly
_LEAST_BYTES = 4 << 20  # worth a task
_EACH_BYTES = 96 << 10  # what a copy costs besides its bytes, in bytes
_MOST_TEXT = 200


@dataclass
class _Progress:
    """Which copies are done, as it is noted, and what became of the others."""

    count: int
    done: int = 0  # a bit for each
    done_bytes: int = 0
    results: dict[int, Carried] = field(default_factory=dict)
    _noted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, noted: dict[str, Any], table: int, count: int) -> _Progress:
        if noted.get("table") != table or noted.get("count") != count:
            return cls(count)
        done = int(str(noted["done"]), 16)
        return cls(count, done, int(noted["bytes"]), _noted=done)

    def is_done(self, number: int) -> bool:
        return bool(self.done >> number & 1)

    def finish(self, finished: Sequence[Any]) -> None:
        """Copies (number, bytes) that tasks have finished; heard from any thread, more than once perhaps."""
        with self._lock:
            for number, size_bytes in finished:
                if not self.is_done(int(number)):
                    self.done |= 1 << int(number)
                    self.done_bytes += int(size_bytes)

    def note(self, table: int) -> dict[str, Any] | None:
        """What to write down; None: nothing new."""
        with self._lock:
            if self.done == self._noted:
                return None
            self._noted = self.done
            return {"table": table, "count": self.count, "done": f"{self.done:x}", "bytes": self.done_bytes}


def stream(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    given = parse(StreamParameters, parameters)
    with BlockingLoads(list(context.peers), tls=context.tls, timeout_s=tasks.CLIENT_S) as loads:
        return _Stream(context, given, loads).run()


class _Stream:
    """One attempt."""

    def __init__(self, context: JobContext, given: StreamParameters, loads: BlockingLoads) -> None:
        self._context = context
        self._given = given
        self._loads = loads
        table = loads.catalog.find(given.table)
        if table is None:
            raise NotFound(f"there is no table {given.table}")
        self._table = table
        for copy in given.copies:
            if copy.tablet >= table.tablets:
                text = f"{given.table} has no tablet {copy.tablet}: it has {table.tablets}, from 0 on"
                raise InvalidRequest(text)
        self._progress = _Progress.of(context.noted, table.id, len(given.copies))
        self._earlier_bytes = self._progress.done_bytes
        self._carried = Done(self._earlier_bytes)

    def run(self) -> dict[str, Any]:
        table, progress = self._table.id, self._progress
        shown = self._loads.show(table, "-")
        self._epoch = shown.committed.get(table, shown.epochs.get(table, (0, 1))[0])
        self._tickets = self._loads.tickets(sorted({self._session(copy) for copy in self._given.copies}), TICKET_MS)
        wanted = self._wanted()
        self._context.progress(bytes=progress.done_bytes, phase="copying")
        over = threading.Event()
        noting = threading.Thread(target=self._note, args=(over,), name="trimtab-noting", daemon=True)
        noting.start()
        try:
            with HeldSources(self._loads, table, self._epoch) as sources:
                try:
                    self._copy(sources, wanted)
                    self._context.check()
                except BaseException:
                    self._stopped(sources)
                    raise
                sources.release()
        except BaseException:
            # Whoever goes on need not do again what is done; nothing is noted where somebody else has the job already.
            # A note that fails costs work and no more: what is told is why the attempt ended.
            if (note := progress.note(table)) is not None:
                with suppress(Exception):
                    self._context.checkpoint(note)
            raise
        finally:
            over.set()
        return self._told()

    def _stopped(self, sources: HeldSources) -> None:
        """Whoever goes on finds the same snapshots, which may be much later; with what was cancelled nobody does."""
        match self._context.stopping:
            case Cancelled():
                sources.release()
            case Paused():
                sources.keep(PAUSED_MS)

    def _session(self, copy: StreamCopy) -> str:
        return copy.session or self._given.session

    def _wanted(self) -> dict[int, StreamCopy]:
        """Copies that can be made, by number; the others have failed already."""
        wanted = {}
        for number, copy in enumerate(self._given.copies):
            if self._progress.is_done(number):
                continue
            if self._session(copy) not in self._tickets.tickets:
                self._fail(number, NO_SESSION, f"the session {self._session(copy)} is not open")
            elif copy.target not in self._loads.instances:
                self._fail(number, TARGET_GONE, f"there is no instance {copy.target} to copy it to")
            elif not self._tickets.bulk.get(copy.target):
                name = self._loads.instances[copy.target].instance_id
                self._fail(number, TARGET_GONE, f"{name} has no bulk server to copy it to")
            else:
                wanted[number] = copy
        return wanted

    def _fail(self, number: int, code: str, text: str) -> None:
        copy = self._given.copies[number]
        self._progress.results[number] = Carried(number, copy.tablet, copy.target, code, text)

    def _copy(self, sources: HeldSources, wanted: dict[int, StreamCopy]) -> None:
        """Wave by wave: what can be copied is, while others are asked again."""
        asked = [(copy.tablet, tuple(copy.sources), self._session(copy)) for copy in self._given.copies]
        tablets = {copy.tablet for copy in wanted.values()}
        sources.ask(grouped(asked, tablets, str(self._context.number), self._table.id))
        while sources.asking:
            self._context.check()
            came = sources.came()
            carries = [each for group, found in came for each in self._carries(group, found, wanted)]
            again = [group for group, _ in came if group.wanted and not sources.is_over(group)]
            for group, _ in came:
                if group.wanted and group not in again:
                    self._give_up(group, wanted)
            sources.ask(again)
            self._carry(carries)

    def _carries(self, group: Group, found: Found, wanted: dict[int, StreamCopy]) -> Iterable[Carry]:
        for number, copy in wanted.items():
            if copy.tablet in found and tuple(sorted(copy.sources)) == group.sources:
                yield Carry(
                    number,
                    self._given.table,
                    copy.tablet,
                    copy.target,
                    self._loads.instances[copy.target].instance_id,
                    self._session(copy),
                    self._tickets.tickets[self._session(copy)],
                    self._tickets.bulk[copy.target],
                    found[copy.tablet],
                )

    def _give_up(self, group: Group, wanted: dict[int, StreamCopy]) -> None:
        for number, copy in wanted.items():
            if copy.tablet in group.wanted and tuple(sorted(copy.sources)) == group.sources:
                self._fail(number, *group.why.get(copy.tablet, (NOT_READY, "its source did not answer in time")))

    def _carry(self, carries: list[Carry]) -> None:
        if not carries:
            return
        progress = self._progress
        self._carried.bytes = progress.done_bytes
        total_bytes = sum(each.size_bytes for each in carries)
        self._context.progress(total_bytes=progress.done_bytes + total_bytes)
        cores = self._context.session.sparkContext.defaultParallelism
        made = [CarryTask(some, self._context.tls_files) for some in shared_out(carries, cores)]
        found = tasks.run(self._context, made, carry, before=self._carried, finished=progress.finish)
        for each in (each for some in found for each in some):
            progress.results[each.number] = each
        by_number = {each.number: each.size_bytes for each in carries}
        progress.finish([(n, by_number[n]) for n, each in progress.results.items() if not each.code and n in by_number])

    def _note(self, over: threading.Event) -> None:
        while not over.wait(NOTE_EVERY_S):
            if (note := self._progress.note(self._table.id)) is not None:
                # It is told to stop, or what it notes is refused: the job's own thread finds that out.
                with suppress(Stopped, JobFailed):
                    self._context.checkpoint(note)

    def _told(self) -> dict[str, Any]:
        """The job's result: small enough for the queue, however much there is to say."""
        results = sorted(self._progress.results.values(), key=lambda each: each.number)
        good = [each for each in results if not each.code]
        bad = [each for each in results if each.code]
        untried = {*range(len(self._given.copies))} - self._progress.results.keys()
        if lost := [number for number in untried if not self._progress.is_done(number)]:
            raise JobFailed(f"{len(lost)} copies were not tried", again=True)
        told: dict[str, Any] = {
            "table": self._given.table,
            "copies": len(self._given.copies) - len(bad),
            "files": sum(each.files for each in good),
            "bytes": self._earlier_bytes + sum(each.size_bytes for each in good),
            "sent_bytes": sum(each.sent_bytes for each in good),
            "epoch": self._epoch,
            "failed": [],
            "manifests": [[each.tablet, each.target, each.manifest] for each in good[:TELL_MANIFESTS]],
        }
        room = RESULT_BYTES - len(json.dumps(told))
        texts = max((room - 64 * len(bad)) // max(len(bad), 1), 0)
        told["failed"] = [[each.tablet, each.target, each.code, each.text[: min(texts, _MOST_TEXT)]] for each in bad]
        if len(json.dumps(told)) > RESULT_BYTES:
            told["manifests"] = []
            told["failed"] = [[each.tablet, each.target, each.code, ""] for each in bad]
        return told


def shared_out(carries: Sequence[Carry], cores: int) -> list[tuple[Carry, ...]]:
    """Tasks of about the same size, each with copies to one target: they share its connections."""
    by_target: dict[str, list[Carry]] = {}
    for each in carries:
        by_target.setdefault(each.address, []).append(each)
    total_bytes = sum(map(_weight, carries))
    goal_bytes = max(total_bytes // (_PER_CORE * max(cores, 1)), _LEAST_BYTES)
    made: list[tuple[int, tuple[Carry, ...]]] = []
    for some in by_target.values():
        count = min(-(-sum(map(_weight, some)) // goal_bytes), len(some))
        bins: list[tuple[int, list[Carry]]] = [(0, []) for _ in range(count)]
        for each in sorted(some, key=_weight, reverse=True):
            least = min(range(count), key=lambda at: bins[at][0])
            bins[least] = bins[least][0] + _weight(each), [*bins[least][1], each]
        made += [(weight, tuple(held)) for weight, held in bins]
    # The largest first: what is left at the end is short.
    return [held for _, held in sorted(made, key=lambda each: each[0], reverse=True)]


def _weight(each: Carry) -> int:
    return each.size_bytes * len(each.sources) + _EACH_BYTES
