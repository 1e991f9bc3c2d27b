"""Copies of replicas, as tasks read them: asked for at enough instances, opened where they lie or downloaded.

A copy is asked for by a name of the task's own, kept by a lease that a thread renews, and given back in the end. Where
the file `proof` of a copy reads as the instance says, the task sees the same disk and opens the copy there; else its
files are downloaded, several at a time, into a folder that is gone afterwards.

An instance that can't be reached, or is not ready, is passed over for the next that holds the tablet. When none is left
they are all asked again, until the time is up; then the error names what each of them said.

An instance has room for so many copies. Where it is full the task waits for others to be done, for much longer than for
one that is not ready; and holds no copy elsewhere meanwhile, because those who are waited for may be waiting for that
one. What was downloaded needs the copy no more.

Tablets may move while they are read. Each instance is told which replicas the task believes to answer for a tablet, and
says so if others do by now. Then the task looks where they are, and begins anew with that tablet.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from trimtab.bulk.client import BulkClient, BulkError
from trimtab.loads import protocol
from trimtab.loads.protocol import ReleaseSnapshot, RenewSnapshot, SnapshotReply, SnapshotRequest, SnapshotTablet
from trimtab.net.errors import NetError, RpcError
from trimtab.rows import protocol as rows_protocol
from trimtab.rows.protocol import SchemaReply, SchemaRequest
from trimtab.spark.instances import Instances, tls_context
from trimtab.spark.scan_plan import Holder, ScanFailed, ScanPart, ScanPlan, ScanStats
from trimtab.spark.work_folder import WorkFolder
from trimtab.storage.port import StorageError
from trimtab.storage.sst import Snapshot
from trimtab.tablets.consistency import goal
from trimtab.tablets.tablet_map import TabletMap

LEASE_MS = 60_000
FULL_S = 1800.0  # for others that read to be done
_ASK_S = 10.0
_PAUSE_S = 0.2
_DOWNLOADS = 4  # at a time, in one task
_FULL_PAUSE_S = 1.0, 5.0  # many may wait, and not all should ask at once
_MOVED = "moved"
_FULL = "overloaded"
_FINAL = frozenset({"not_found", "invalid", "unknown_method", "forbidden"})


@dataclass
class Wanted:
    """A part, and the replicas of it that are open: by raft id, with the stamps to be left out.

    `reading`: who answers for it, as far as it is known. `holders`: who of these is asked.
    """

    part: ScanPart
    reading: tuple[int, ...]
    holders: tuple[int, ...]
    open: dict[int, tuple[Snapshot, frozenset[int]]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


class ReplicaSnapshots:
    """`with ReplicaSnapshots(plan, parts, attempt, stats) as snapshots: snapshots.of(part)`."""

    def __init__(self, plan: ScanPlan, parts: Sequence[ScanPart], attempt: int, stats: ScanStats) -> None:
        self._plan = plan
        self._stats = stats
        self._attempt = attempt
        self._wanted = [Wanted(part, part.holders, part.holders) for part in parts]
        self._holders = dict(plan.holders)
        self._tls = tls_context(plan.connection)
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None
        self._dc_of = {each.raft_id: each.dc for each in plan.holders.values()}
        self._silent: set[int] = set()  # who did not answer lately
        self._full = False  # somebody has no room for copies
        self._in_place: list[tuple[int, Sequence[Wanted], contextlib.ExitStack]] = []  # open copies, by instance

    def __enter__(self) -> ReplicaSnapshots:
        try:
            self._instances = self._stack.enter_context(Instances(self._tls))
            self._open_all()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def of(self, part: ScanPart) -> list[tuple[Snapshot, frozenset[int]]]:
        """The open replicas of a part: as many as its consistency level needs."""
        return list(next(each for each in self._wanted if each.part is part).open.values())

    # Asking

    def _open_all(self) -> None:
        deadline = time.monotonic() + self._plan.connection.timeout_s
        full_until = time.monotonic() + FULL_S
        while lacking := [each for each in self._wanted if not self._enough(each)]:
            turns: dict[int, list[Wanted]] = {}
            for each in lacking:
                candidate = self._next(each)
                if candidate is not None:
                    turns.setdefault(candidate, []).append(each)
            if not turns:
                if self._full and time.monotonic() < full_until:
                    self._stand_back()
                    deadline = time.monotonic() + self._plan.connection.timeout_s
                self._wait_or_fail(lacking, deadline)
                continue
            for raft_id, some in turns.items():
                self._ask(raft_id, some)

    def _enough(self, wanted: Wanted) -> bool:
        level = goal(self._plan.level, [wanted.holders], self._dc_of, self._plan.local_dc, for_write=False)
        return bool(wanted.open) and level.reached(wanted.open)

    def _next(self, wanted: Wanted) -> int | None:
        """Whom to ask next. A task that is tried again begins with another one than the attempt before."""
        holders = wanted.holders
        turn = self._attempt % len(holders) if holders else 0
        for raft_id in (*holders[turn:], *holders[:turn]):
            if raft_id not in wanted.open and raft_id not in wanted.refused:
                return raft_id
        return None

    def _wait_or_fail(self, lacking: Sequence[Wanted], deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise ScanFailed(self._explain(lacking[0]))
        time.sleep(_PAUSE_S)
        if self._silent:
            # They may have left the cluster; the others know who holds their tablets now.
            any(self._look_again(raft_id, lacking) for raft_id in [*self._holders] if raft_id not in self._silent)
            self._silent.clear()
        for each in lacking:
            each.refused.clear()

    def _stand_back(self) -> None:
        """Somebody is full: give back what is held, and wait a while."""
        for raft_id, some, copy in self._in_place:
            copy.close()
            for each in some:
                each.open.pop(raft_id, None)
        self._in_place.clear()
        self._full = False
        time.sleep(random.uniform(*_FULL_PAUSE_S))

    def _explain(self, wanted: Wanted) -> str:
        table, part = self._plan.table.full_name, wanted.part
        said = "; ".join(f"{self._plan.name_of(raft_id)}: {why}" for raft_id, why in wanted.refused.items())
        need = goal(self._plan.level, [wanted.holders], self._dc_of, self._plan.local_dc, for_write=False)
        words = need.describe(wanted.open, "could be read")
        return f"tablet {part.tablet} of {table} can't be read: {words}. {said or 'nobody holds it'}"

    def _ask(self, raft_id: int, some: list[Wanted]) -> None:
        tablets = sorted({each.part.tablet for each in some})
        try:
            self._open(raft_id, some, tablets)
        except RpcError as error:
            if error.code in _FINAL:
                raise ScanFailed(self._final(error)) from error
            if error.code == _MOVED and self._look_again(raft_id, some):
                return
            self._full = self._full or error.code == _FULL
            if len(tablets) > 1 and error.code != _FULL:
                # One of them may be all that is not ready.
                for each in some:
                    self._ask(raft_id, [each])
                return
            self._refuse(raft_id, some, error.text)
        except (NetError, BulkError, StorageError, OSError, TimeoutError) as error:
            if isinstance(error, NetError | TimeoutError):
                self._silent.add(raft_id)
            self._refuse(raft_id, some, str(error) or type(error).__name__)

    def _look_again(self, raft_id: int, some: Sequence[Wanted]) -> bool:
        """Whether any of these tablets is held by others, as an instance knows it; they are begun anew."""
        try:
            body = rows_protocol.encode(SchemaRequest((0, 0)))
            answer = self._instances.call(self._holders[raft_id].address, rows_protocol.SCHEMA, body, _ASK_S)
            reply: SchemaReply = rows_protocol.decode_schema_reply(answer)
            table = self._plan.table.id
            tablets = TabletMap.unpacked(reply.reading.get(table) or reply.tablets.get(table, []))
        except (NetError, TimeoutError, ValueError):
            return False
        for number, (name, address, dc, _online) in reply.instances.items():
            self._holders[number] = Holder(number, name, address, dc)
            self._dc_of[number] = dc
        changed = False
        for each in some:
            try:
                replicas = tablets.replicas(each.part.tablet)
            except KeyError:
                continue
            there = tuple(raft_id for raft_id in replicas if raft_id in reply.instances)
            if set(there) != set(each.reading):
                self._moved(each, there)
                changed = True
        return changed

    def _moved(self, wanted: Wanted, there: tuple[int, ...]) -> None:
        """Others hold it: it is begun anew. What is open of it is closed in the end, with everything else."""
        wanted.reading = wanted.holders = there
        wanted.open, wanted.refused = {}, {}

    def _refuse(self, raft_id: int, some: Sequence[Wanted], why: str) -> None:
        self._stats.add("refusals")
        for each in some:
            each.refused[raft_id] = why

    def _final(self, error: RpcError) -> str:
        table = self._plan.table.full_name
        if error.code == "not_found":
            return f"{table} was dropped while it was read"
        return f"{table} can't be read: {error.text}"

    def _open(self, raft_id: int, some: Sequence[Wanted], tablets: list[int]) -> None:
        holder = self._holders[raft_id]
        name = f"scan-{secrets.token_hex(12)}"
        read_from = {each.part.tablet: sorted(each.reading) for each in some}
        request = SnapshotRequest(
            self._plan.table.id,
            tablets,
            self._plan.epoch,
            LEASE_MS,
            name,
            self._plan.as_of_us,
            reading=[read_from[tablet] for tablet in tablets],
        )
        timeout_s = min(_ASK_S + len(tablets), self._plan.connection.timeout_s)
        answer = self._instances.call(holder.address, protocol.SNAPSHOT, protocol.encode(request), timeout_s)
        reply: SnapshotReply = protocol.decode_snapshot_reply(answer)
        with contextlib.ExitStack() as copy:
            # Closed last: what was opened is closed before the copy is given back.
            lease = copy.enter_context(contextlib.ExitStack())
            lease.callback(self._release, holder.address, name)
            renewal = protocol.encode(RenewSnapshot(name, LEASE_MS))
            self._instances.keep(name, holder.address, protocol.SNAPSHOT_RENEW, renewal, LEASE_MS / 3000)
            self._stats.add("snapshots")
            in_place = same_disk(Path(reply.directory), reply)
            if in_place:
                self._stats.add("opened_tablets", len(reply.tablets))
                paths = {each.tablet: Path(reply.directory) / each.path for each in reply.tablets}
            else:
                paths = self._downloaded(reply)
                lease.close()
            opened = {tablet: copy.enter_context(Snapshot(path)) for tablet, path in paths.items()}
            kept = self._stack.enter_context(copy.pop_all())
        if in_place:
            self._in_place.append((raft_id, some, kept))
        hidden = frozenset(reply.hidden)
        for wanted in some:
            wanted.open[raft_id] = opened[wanted.part.tablet], hidden

    def _release(self, address: str, name: str) -> None:
        self._instances.let_go(name)
        # Whoever can't be told forgets it when the lease is over.
        with contextlib.suppress(NetError, TimeoutError):
            body = protocol.encode(ReleaseSnapshot(name))
            self._instances.call(address, protocol.SNAPSHOT_RELEASE, body, _ASK_S)

    # Files

    def _downloaded(self, reply: SnapshotReply) -> dict[int, Path]:
        if not reply.bulk_address:
            raise ScanFailed(
                f"the snapshot {reply.name} lies on another host, and its instance has no bulk server to fetch it from"
            )
        if self._folder is None:
            self._folder = self._stack.enter_context(WorkFolder())
        folder = self._folder / reply.name
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            fetched = [
                pool.submit(self._fetch, reply, each, name, size_bytes, folder / str(each.tablet))
                for each in reply.tablets
                for name, size_bytes in each.files
            ]
            for each_file in fetched:
                self._stats.add("fetched_bytes", each_file.result())
        self._stats.add("fetched_tablets", len(reply.tablets))
        return {each.tablet: folder / str(each.tablet) for each in reply.tablets}

    def _fetch(self, reply: SnapshotReply, tablet: SnapshotTablet, name: str, size_bytes: int, folder: Path) -> int:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with BulkClient(reply.bulk_address, self._tls) as client:
            return client.fetch_to(target, f"{tablet.path}/{name}", reply.ticket, size_bytes=size_bytes)


def same_disk(directory: Path, reply: SnapshotReply) -> bool:
    """Whether the files that the instance speaks of are those that can be read here, by this user."""
    if not reply.proof:
        return False
    try:
        if (directory / "snapshots" / reply.name / "proof").read_text() != reply.proof:
            return False
        return all(
            (directory / each.path / name).stat() and os.access(directory / each.path / name, os.R_OK)
            for each in reply.tablets
            for name, _ in each.files
        )
    except (OSError, ValueError):
        return False
