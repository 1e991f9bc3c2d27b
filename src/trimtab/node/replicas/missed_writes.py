"""Everything about writes that a replica missed, put together for one instance.

    hints         what others did not acknowledge to this coordinator
    catching_up   what this instance missed while it was away, before it may serve
    repair        a replica against another one; mending: against enough of them
    rebuilding    replicas that lost their data
    own_misses    what own replicas did not take of writes that this instance coordinated
    rounds        all replicas of a tablet against each other, so that deletions can be forgotten

`start` comes when the metastore is loaded. Nothing is answered here before it is durable that this life may come to owe
hints to others (see `hints`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from trimtab.loads.unsettled import unsettled_stamps
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.figures import Sample
from trimtab.node.replicas.catching_up import FAILURES, CatchingUp
from trimtab.node.replicas.held import HeldReplica
from trimtab.node.replicas.hints import PREFIX, HintBounds, Hints
from trimtab.node.replicas.mending import Hopeless, Mending
from trimtab.node.replicas.own_misses import OwnMisses
from trimtab.node.replicas.promises import has_others
from trimtab.node.replicas.rebuilding import Lost, Rebuilding
from trimtab.node.replicas.repair import Repair, RepairService, Subject
from trimtab.node.replicas.repair_jobs import RepairJobs
from trimtab.node.replicas.repair_rounds import Kept, RepairRounds
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.shelf import Shelf
from trimtab.node.router.schemas import Schemas
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.repair_protocol import DoneReply, StatusReply
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.port import StorageError
from trimtab.tablets.domains import domain_of
from trimtab.topology.grades import Grade

if TYPE_CHECKING:
    from trimtab.node.control import ClusterControl
    from trimtab.node.instance import Instance

_SYNCED = (Grade.RAFT_SYNCED, Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE)
_DOWN = (Grade.OFFLINE, Grade.EXPELLED)
_CAUGHT_UP = (Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE)
_FOREVER_S = 1e9
_TELL_EVERY_S = 10.0
_TELL_TIMEOUT_S = 2.0
_MAX_WAIT_S = 10.0
_CLOSE_S = 2.0
_KNOWN_WAIT_S = 10.0


class MissedWrites:
    """Of one instance. What the parts want to know of it they ask here."""

    def __init__(
        self, instance: Instance, control: ClusterControl, shelf: Shelf, log: MutationLog, schemas: Schemas
    ) -> None:
        self._instance = instance
        self._control = control
        self._shelf = shelf
        self._schemas = schemas
        self._view = instance.watching.view
        self._tables = instance.watching.tables
        self._loads = instance.watching.loads
        self._loop = asyncio.get_running_loop()
        self._own = instance.raft_id
        self._telling: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._knows_others = False
        timing, limits, story, fatal = (
            instance.settings.timing,
            instance.settings.limits,
            instance.story,
            instance.fail,
        )
        self.hints = Hints(
            log.records(PREFIX),
            self,
            HintBounds(limits.hint_bytes, limits.hint_count, timing.hint_life_ms),
            life=instance.hello.incarnation,
            story=story,
            defect=fatal,
        )
        self.repair = Repair(
            control.calls.ask,
            catalog=lambda: self._tables.catalog.version,
            wall_ms=instance.wall_ms,
            hint_life_ms=timing.hint_life_ms,
            known=self._loads_known,
        )
        self.service = RepairService(
            self._find,
            synced=self.settled,
            catalog=lambda: self._tables.catalog.version,
            committed=lambda table: self._loads.epoch_record(table).committed,
        )
        self.mending = Mending(self._own, self.repair, self, story=story)
        self.catching_up = CatchingUp(
            self,
            self.hints,
            control.waits,
            climb=self._climb,
            grace_s=timing.catchup_grace_ms / 1000,
            story=story,
            defect=fatal,
        )
        self.rebuilding = Rebuilding(self.mending, lost=self._lost, ready=self.settled, story=story, defect=fatal)
        self.own_misses = OwnMisses(
            self.mending, self._find_open, waits=self._waits_for_move, ready=self.settled, defect=fatal
        )
        self.hints.own, self.hints.own_missed = self._own, self.own_misses.note
        self.rounds = RepairRounds(
            self._own,
            self,
            self.repair,
            every_ms=timing.repair_every_ms,
            hint_life_ms=timing.hint_life_ms,
            max_skew_ms=timing.max_skew_ms,
            complain=instance.complaints.add,
            defect=fatal,
        )
        self.repair_jobs = RepairJobs(
            self, self._find_counted, schemas.layout, hint_life_ms=timing.hint_life_ms, max_skew_ms=timing.max_skew_ms
        )
        shelf.on_rebuild = lambda _replica: self.rebuilding.wake()
        instance.samplers.append(self.figures)

    # Life

    def start(self) -> None:
        others = [raft_id for raft_id in self._view.members() if raft_id != self._own]
        self.catching_up.lost_own = self.hints.open(others)
        self.hints.start()
        self.rebuilding.start()
        self.rounds.start()
        self._timer = self._loop.call_later(_TELL_EVERY_S, self._tell_marked)

    def changed(self) -> None:
        """The view changed: somebody may take writes now, or has left."""
        for raft_id in self._view.instances:
            if raft_id != self._own and self.takes_writes(raft_id):
                self.hints.wake(raft_id)
        self.catching_up.note_gone()
        if not self._knows_others and self.settled():
            self._knows_others = True
            self.hints.know_others(self.others())

    async def close(self) -> None:
        """An orderly end: if nothing is owed that is not a hint, the next life need not mark anybody."""
        serving = self._control.serving
        serving.closed = serving.closed or "this instance is shutting down; ask another"
        self.stop()
        try:
            async with asyncio.timeout(_CLOSE_S):
                owes = len(self._control.open_requests) or self.catching_up.lost_own or len(self.own_misses)
                await self.hints.close(clean=not owes)
        except (TimeoutError, StorageError) as error:
            self._instance.story(f"it could not be written down that this instance owes nobody anything: {error!r}")

    def stop(self) -> None:
        """An end of whatever kind: nothing more is begun."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._telling.values():
            task.cancel()
        self.catching_up.stop()
        self.rebuilding.stop()
        self.own_misses.stop()
        self.rounds.stop()
        self.hints.stop()

    def methods(self) -> dict[str, Method]:
        methods = {
            protocol.STATUS: self._status,
            protocol.DONE: self._done,
            protocol.MISSED: self._missed,
            **self.service.methods(),
            **self.rounds.methods(),
        }
        members_only = {name: self._for_members(method) for name, method in methods.items()}
        return members_only | self.repair_jobs.methods()

    def figures(self) -> Iterator[Sample]:
        hints, taken, rounds = self.hints, self.repair.taken, self.rounds
        yield Sample("hints", "Writes that are kept for others who missed them.", hints.held_count)
        yield Sample("hint_bytes", "Their bytes.", hints.held_bytes)
        yield Sample("hints_added", "Hints that were made.", hints.added, counter=True)
        yield Sample("hints_pushed", "Hints that reached their target.", hints.pushed, counter=True)
        yield Sample("hints_dropped", "Hints that were too many or too old.", hints.dropped, counter=True)
        yield Sample("own_misses", "Writes that own replicas did not take.", self.own_misses.noted, counter=True)
        yield Sample("missed_marks", "Others that missed more than there are hints of.", len(hints.marked()))
        yield Sample("repairs", "Comparisons of a replica with another one.", taken.comparisons, counter=True)
        yield Sample("repaired_pairs", "Pairs that replicas took from others.", taken.pairs, counter=True)
        yield Sample("repaired_bytes", "Their bytes.", taken.bytes, counter=True)
        yield Sample("repair_rounds", "Rounds of repair of a tablet that were completed.", rounds.done, counter=True)
        yield Sample("repair_rounds_failed", "Rounds that were not.", rounds.failed, counter=True)
        yield Sample("repair_job_pairs", "Pairs that jobs brought.", self.repair_jobs.pairs, counter=True)
        yield Sample("repair_jobs", "Replicas whose repair a job completed.", self.repair_jobs.done, counter=True)
        yield Sample("replicas_rebuilt", "Replicas that were filled again.", self.rebuilding.rebuilt, counter=True)

    # What others ask

    async def _status(self, asked: Asked) -> bytes:
        request = protocol.decode_status(asked.body)
        target = asked.peer.raft_id
        if not self.hints.opened:
            raise Refused("not_ready", "this instance has just started and does not know its hints yet; ask again")
        self.hints.wake(target)
        if self.hints.held_for(target)[0]:
            left_s = min(request.wait_ms / 1000, asked.deadline - self._loop.time() - 0.2, _MAX_WAIT_S)
            await self.hints.emptied(target, max(left_s, 0.0))
        count, bytes_ = self.hints.held_for(target)
        since_ms, mark = self.hints.mark_of(target)
        return protocol.encode(StatusReply(count, bytes_, since_ms, mark))

    async def _done(self, asked: Asked) -> bytes:
        request = protocol.decode_done(asked.body)
        return protocol.encode(DoneReply(self.hints.clear_mark(asked.peer.raft_id, request.mark)))

    async def _missed(self, asked: Asked) -> bytes:
        self.catching_up.missed()
        return b""

    def _for_members(self, method: Method) -> Method:
        """Whoever is no member has no business with what replicas hold."""

        async def asked_by(asked: Asked) -> bytes:
            peer = asked.peer
            own = peer == self._instance.hello
            if not own and not (self.is_member(peer.raft_id) and self._instance.admission.speaks_for(peer)):
                raise Refused("not_member", "only members ask for what replicas missed")
            return await method(asked)

        return asked_by

    def _tell_marked(self) -> None:
        """Those that are marked and up are told so: while they don't know, they don't look for what they missed."""
        self._timer = self._loop.call_later(_TELL_EVERY_S, self._tell_marked)
        self.look_at_loads()
        for raft_id in self.hints.marked():
            if raft_id not in self._telling and self._stands(raft_id, _CAUGHT_UP) and self._connected(raft_id):
                self._telling[raft_id] = self._loop.create_task(self._tell(raft_id))

    async def _tell(self, raft_id: int) -> None:
        try:
            await self.ask(raft_id, protocol.MISSED, b"", _TELL_TIMEOUT_S)
        except FAILURES:
            pass  # it is told again, as long as it is marked
        finally:
            self._telling.pop(raft_id, None)

    # What the parts ask about the others

    def wall_ms(self) -> int:
        return self._instance.wall_ms()

    def judged_ms(self) -> int:
        return self._control.clock_watch.judged_ms()

    def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> Awaitable[bytes]:
        return self._control.calls.ask(raft_id, method, body, timeout_s)

    def is_member(self, raft_id: int) -> bool:
        record = self._view.instances.get(raft_id)
        return record is not None and not record.left

    def takes_writes(self, raft_id: int) -> bool:
        return self._connected(raft_id) and self._stands(raft_id, _SYNCED)

    def online(self, raft_id: int) -> bool:
        return self._stands(raft_id, (Grade.ONLINE,))

    def others(self) -> Mapping[int, str]:
        return {raft_id: record.instance_id for raft_id, record in self._view.members().items() if raft_id != self._own}

    def gone(self) -> Mapping[int, int]:
        return {
            raft_id: record.grades.current.incarnation
            for raft_id, record in self._view.instances.items()
            if record.left or record.grades.current.grade in _DOWN
        }

    def holds_any(self) -> bool:
        return bool(self._shelf.held())

    def dc_of(self) -> Mapping[int, str]:
        return {raft_id: domain_of(record).dc for raft_id, record in self._view.instances.items()}

    def likely(self, raft_ids: Iterable[int]) -> list[int]:
        dc_of = self.dc_of()
        near = dc_of.get(self._own)
        found = [raft_id for raft_id in raft_ids if self._connected(raft_id) and self._stands(raft_id, _SYNCED)]
        return sorted(found, key=lambda each: (not self._stands(each, _CAUGHT_UP), dc_of.get(each) != near, each))

    def left(self, raft_ids: Iterable[int]) -> list[int]:
        instances = self._view.instances
        return [raft_id for raft_id in raft_ids if raft_id in instances and instances[raft_id].left]

    def name_of(self, raft_id: int) -> str:
        record = self._view.instances.get(raft_id)
        return record.instance_id if record is not None else f"member {raft_id}"

    def has_table(self, table: int) -> bool:
        return self._schemas.exists(table)

    def versions(self) -> tuple[int, int]:
        return self._view.version, self._tables.catalog.version

    def replicas(self, table: int, tablet: int) -> tuple[int, ...]:
        """Those that answer reads: whatever was acknowledged is on a quorum of them, at every stage of a move."""
        try:
            return self._tables.sets(table, tablet).reads
        except LookupError:
            return ()

    def moving(self, table: int, tablet: int) -> bool:
        return has_others(self._tables, table, tablet)

    def _waits_for_move(self, table: int, tablet: int) -> bool:
        """Whether the own replica is no one to be repaired now, but may be soon."""
        return self._own not in self.replicas(table, tablet) and self._shelf.get(table, tablet) is not None

    def _connected(self, raft_id: int) -> bool:
        link = self._instance.host.links.get(raft_id)
        return link is not None and link.channel.connected

    def _stands(self, raft_id: int, grades: tuple[Grade, ...]) -> bool:
        record = self._view.instances.get(raft_id)
        return (
            record is not None
            and not record.left
            and record.grades.current.grade in grades
            and not record.grades.must_climb
        )

    # What the parts ask about this instance

    def settled(self) -> bool:
        """Whether it is RaftSynced, in the life that it lives."""
        return self._in_this_life(_SYNCED)

    def stands(self) -> bool:
        return self._in_this_life(_CAUGHT_UP) and self._control.lease_left_ms() > 0

    def _in_this_life(self, grades: tuple[Grade, ...]) -> bool:
        record, life = self._view.instances.get(self._own), self._control.standing.incarnation
        if record is None or life is None:
            return False
        current = record.grades.current
        return current.incarnation >= life and current.grade in grades

    def _climb(self) -> int:
        record = self._view.instances.get(self._own)
        return record.grades.current.incarnation if record is not None else 0

    async def opened(self) -> None:
        await self.hints.sync()
        await self._shelf.all_open(self._loop.time() + _FOREVER_S)

    async def repair_all(self, why: str, *, gentle: bool) -> None:
        for replica in self._shelf.held():
            if self._waits_for_move(replica.table, replica.tablet):
                # Nobody reads it yet, or any more, and `mend` passes it by; but whoever holds a mark forgets it now.
                # Where its copy is not ordered yet, the order finds that it was away. The order may have been obeyed:
                #
                #   4 and 5 arrive; 4 has adopted, and the leader knows; a write passes 4 by, and 4 is marked;
                #   5 adopts; everybody reads the new set, and 4 lacks what nobody remembers
                replica.was_away = True
                self.own_misses.note(replica.table, replica.tablet)
        subjects: list[Subject] = [
            held for replica in self._shelf.held() if replica.readable and (held := self._held(replica)) is not None
        ]
        await self.mending.mend_all(subjects, gentle=gentle)

    async def fetch_loads(self, *, gentle: bool) -> None:
        tried: set[tuple[str, int]] = set()
        while True:
            lacking = [held for replica in self._shelf.held() if (held := self._lacking(replica)) is not None]
            # Another load may have become visible meanwhile. What was tried in vain is not tried again and again.
            subjects: list[Subject] = [held for held in lacking if (held.name, held.needs) not in tried]
            if not subjects:
                return
            tried.update((subject.name, subject.needs) for subject in subjects)
            self._instance.story(f"{len(subjects)} replicas lack loads and take them from others")
            await self.mending.mend_all(subjects, gentle=gentle)

    def look_at_loads(self) -> None:
        """An epoch may have become visible: replicas that lack something of it fetch it."""
        for replica in self._shelf.held():
            if replica.arriving:
                continue  # what it lacks comes with its copy
            visible = self._loads.visible(replica.table)
            if replica.adopted < visible and replica.generation == self._loads.generation(replica.table):
                if replica.adopted >= self._loads.needed(replica.table, visible):
                    # A rollback brings no rows.
                    replica.set_adopted(visible, lambda _error: None)
                elif replica.readable:
                    self.catching_up.missed()

    async def mend_load(self, replica: Replica, epoch: int) -> None:
        """Take a load that is being taken over from others that have it; Refused where nobody has."""
        held = self._held(replica, needs=epoch)
        try:
            # Who has taken the load over has all of it.
            if held is None or not await self.mending.mend(held, intact=True, gentle=False):
                raise Refused("not_ready", f"the replica of {replica.title} was closed meanwhile, or moves")
        except Hopeless as error:
            raise Refused("lost", str(error)) from error

    async def mend_arrived(self, replica: Replica) -> bool:
        """Its copy is of a time before this instance was away, and nobody need have kept hints for it: it takes what
        others have of that. Whether enough of them could be asked.

        Where they could not, no move waits for them: they may be down for long, and a quorum of the new set has what
        was acknowledged. It is noted, and made up for as soon as it is read.
        """
        held = self._held(replica)
        if held is None or await self.mending.mend_now(held):
            return True
        self.own_misses.note(replica.table, replica.tablet)
        return False

    async def _loads_known(self, table: int, epoch: int) -> None:
        deadline, what = self._loop.time() + _KNOWN_WAIT_S, f"epoch {epoch} of table {table} to be known here"
        await self._control.waits.until(lambda: self._loads.epoch_record(table).committed >= epoch, deadline, what)

    def repairing(self) -> str:
        return self.mending.progress()

    def kept(self) -> list[Kept]:
        held = (self._held(replica) for replica in self._shelf.held() if replica.readable)
        return [each for each in held if each is not None]

    def find(self, table: int, tablet: int) -> Kept:
        found = self._find(table, tablet, 0)
        if not found.answers:
            raise Refused("rebuilding", f"{found.name} is being rebuilt here")
        if self.moving(table, tablet):
            raise Refused("moving", f"{found.name} is on the move; a round of repair would promise too much")
        return found

    def _find(self, table: int, tablet: int, generation: int) -> HeldReplica:
        replica = self._shelf.find(table, tablet, generation or self._loads.generation(table))
        held = self._held(replica) if replica is not None else None
        if held is None:
            raise Refused("not_ready", f"there is no open replica of tablet {tablet} of table {table} here")
        return held

    def _find_open(self, table: int, tablet: int) -> Subject | None:
        replica = self._shelf.get(table, tablet)
        return self._held(replica) if replica is not None and replica.readable else None

    def _find_counted(self, table: int, tablet: int) -> tuple[Replica, int] | None:
        replica, found = self._shelf.get(table, tablet), self._tables.catalog.tables.get(table)
        return (replica, found.tablets) if replica is not None and found is not None else None

    def _lost(self) -> list[Lost]:
        held = (self._held(replica) for replica in self._shelf.held() if replica.state is ReplicaState.REBUILDING)
        return [each for each in held if each is not None]

    def _lacking(self, replica: Replica) -> HeldReplica | None:
        """A replica that lacks a load that is visible; None: it lacks none, or is being rebuilt."""
        held = self._held(replica) if replica.readable else None
        return held if held is not None and held.needs else None

    def _held(self, replica: Replica, needs: int = 0) -> HeldReplica | None:
        """None: its table is gone."""
        table = self._tables.catalog.tables.get(replica.table)
        if table is None or not self._tables.map(replica.table).count:
            return None
        visible = self._loads.visible(replica.table)
        if replica.generation == self._loads.generation(replica.table):
            needed = self._loads.needed(replica.table, visible)
            needs = needs or (needed if replica.adopted < needed else 0)
        return HeldReplica(
            replica,
            self._schemas.layout,
            table.tablets,
            table.full_name,
            needs=needs,
            reaches=visible,
            apart=lambda table: unsettled_stamps(self._loads, table, self.wall_ms()),
        )
