"""Sizes of replicas, from every instance to the leader, and from the leader to whoever asks.

Once a second an instance looks at some of its replicas and reports what changed; every few seconds it reports anyway,
because the answer tells it how much everybody holds: so each member can show that. Where there is another leader it
begins anew. Reports are bounded; what does not fit goes with the next one. One that fails is made up by a later one.

What a size means, and what the leader keeps, is in `tablets.sizes`. Balancing decides by it (`balancing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from trimtab.net.errors import NetError
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.background import telling
from trimtab.node.calls import Calls
from trimtab.node.errors import GroupError, NotLeader
from trimtab.node.group import Group
from trimtab.node.leader_door import LeaderDoor
from trimtab.node.office import Office
from trimtab.node.waits import WaitedTooLong
from trimtab.tablets import sizes
from trimtab.tablets.sizes import SizeLedger, SizesNoted, SizesReport
from trimtab.tablets.view import TableView
from trimtab.topology.view import View

EVERY_S = 1.0
ANYWAY_S = 5.0
TIMEOUT_S = 2.0
MAX_LOOKED_AT = 1_000  # in one turn: asking a replica for its size takes microseconds, and others wait meanwhile

Place = tuple[int, int]


class Measured(Protocol):
    """A replica."""

    table: int
    tablet: int
    closed: bool

    @property
    def held_bytes(self) -> int: ...


class SizeReports:
    """Of one instance: it reports, and keeps the ledger while it leads. `held` are its replicas.

    `free_bytes`: what its disk has left for more, told with every report.
    """

    def __init__(
        self,
        raft_id: int,
        uuid: str,
        group: Group,
        view: View,
        tables: TableView,
        office: Office,
        door: LeaderDoor,
        calls: Calls,
        *,
        held: Callable[[], Iterable[Measured]],
        free_bytes: Callable[[], int],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._raft_id = raft_id
        self._uuid = uuid
        self._group = group
        self._view = view
        self._tables = tables
        self._office = office
        self._door = door
        self._calls = calls
        self._held = held
        self._free_bytes = free_bytes
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        # As the one who reports
        self._sizes: dict[Place, int] = {}
        self._told: dict[Place, int] = {}
        self._told_to = (0, 0)  # leader and term
        self._told_s = 0.0
        self._anew = True
        self._looked_at = 0
        self._totals: Mapping[int, int] = {}
        # As the leader
        self._ledger = SizeLedger()
        self._ledger_term = 0
        self._kept = (0, 0)

    def methods(self) -> dict[str, Method]:
        return {sizes.REPORT: self.note, sizes.SIZES: self.show}

    def start(self) -> None:
        self._task = self._loop.create_task(self._report_again_and_again())
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def totals(self) -> dict[int, int]:
        """How many bytes each member holds, as far as it is known here."""
        known = {**self._totals, **(self._ledger.totals() if self._governs() else {})}
        return {raft_id: size for raft_id, size in known.items() if raft_id in self._view.members()}

    def size_of(self, table: int, tablet: int) -> int:
        """The bytes of a tablet, where this instance leads and was told; else sizes.GONE."""
        try:
            replicas = self._tables.maps[table].replicas(tablet)
        except KeyError:
            return sizes.GONE
        return self._ledger.size(table, tablet, replicas) if self._governs() else sizes.GONE

    def ledger(self) -> SizeLedger:
        """What instances have told this leader; nothing where it does not lead."""
        return self._ledger if self._governs() else SizeLedger()

    # Reporting

    async def _report_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.report()

    async def report(self) -> None:
        """Tell the leader what changed; nothing where there is none, or nothing to tell."""
        raft = self._group.raw.raft
        if not raft.lead:
            return
        if self._told_to != (raft.lead, raft.term):
            self._told_to = (raft.lead, raft.term)
            self._begin_anew()
        changed = self._changed()
        if not changed and not self._anew and self._loop.time() - self._told_s < ANYWAY_S:
            return
        by_table: dict[int, dict[int, int]] = {}
        for (table, tablet), size in changed.items():
            by_table.setdefault(table, {})[tablet] = size
        report = SizesReport(self._raft_id, self._uuid, raft.term, by_table, self._anew, self._free_bytes())
        asked_of = self._told_to
        try:
            answer = await self._calls.ask(raft.lead, sizes.REPORT, sizes.encode(report), TIMEOUT_S)
            noted = sizes.decode_noted(answer)
        except (NetError, GroupError, WaitedTooLong, Refused, msgspec.DecodeError):
            # It may have arrived: sizes are absolute, and the same are told again with the next one.
            return
        if asked_of != self._told_to:
            return
        self._told_s = self._loop.time()
        self._totals = noted.totals
        if noted.again:
            self._begin_anew()
            return
        self._anew = False
        for place, size in changed.items():
            if size == sizes.GONE:
                self._told.pop(place, None)
            else:
                self._told[place] = size

    def _begin_anew(self) -> None:
        self._told.clear()
        self._anew = True

    def _changed(self) -> dict[Place, int]:
        """What the leader does not know yet, as much as goes into a report."""
        replicas = [replica for replica in self._held() if not replica.closed]
        first = self._looked_at if self._looked_at < len(replicas) else 0
        for replica in replicas[first : first + MAX_LOOKED_AT]:
            self._sizes[replica.table, replica.tablet] = replica.held_bytes
        self._looked_at = first + MAX_LOOKED_AT
        here = {(replica.table, replica.tablet) for replica in replicas}
        for place in [place for place in self._sizes if place not in here]:
            del self._sizes[place]
        changed: dict[Place, int] = {place: sizes.GONE for place in self._told if place not in here}
        changed |= {place: size for place, size in self._sizes.items() if self._told.get(place) != size}
        return dict(list(changed.items())[: sizes.MAX_REPORTED])

    # Leading

    def _governs(self) -> bool:
        """Whether this instance leads; its ledger is that of its term then."""
        if not self._office.leads:
            return False
        term = self._group.raw.raft.term
        if term != self._ledger_term:
            self._ledger_term = term
            self._ledger.clear()
        versions = (self._tables.catalog.version, self._view.version)
        if versions != self._kept:
            self._kept = versions
            self._ledger.keep_only(self._view.members(), self._tables.maps)
        return True

    async def note(self, asked: Asked) -> bytes:
        """An instance reports."""
        report = sizes.decode_report(asked.body)
        raft = self._group.raw.raft
        if report.term < raft.term:
            raise Refused("stale_term", f"a report for the leader of term {report.term} came in term {raft.term}")
        if not self._governs():
            raise NotLeader(raft.lead if raft.lead != self._raft_id else 0)
        record = self._view.members().get(report.raft_id)
        if asked.peer.raft_id != report.raft_id or record is None or record.uuid != report.uuid:
            raise Refused("invalid", f"member {report.raft_id} does not speak for itself, or is none")
        if sum(map(len, report.sizes.values())) > sizes.MAX_REPORTED:
            raise Refused("invalid", f"a report has at most {sizes.MAX_REPORTED} sizes")
        counts = {table: self._tables.map(table).count for table in report.sizes}
        known = self._ledger.take(report, counts)
        body: bytes = sizes.encode(SizesNoted(not known, self._ledger.totals()))
        return body

    async def show(self, asked: Asked) -> bytes:
        """Somebody asks how large tablets are; the leader answers."""
        request = sizes.decode_request(asked.body)
        onward = sizes.encode(msgspec.structs.replace(request, forwarded=True))
        answer = await self._door.pass_on(sizes.SIZES, onward, asked.deadline, forwarded=request.forwarded)
        if answer is not None:
            return answer
        if not self._governs():
            raise NotLeader(0)
        maps = self._tables.maps
        chosen = {request.table: self._tables.map(request.table)} if request.table else maps
        body: bytes = sizes.encode(self._ledger.page(chosen, request.start))
        return body
