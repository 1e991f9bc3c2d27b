"""Tablets that come to this instance, or leave it, as the leader orders it: moves.prepare, moves.adopt, moves.clean.

prepare   the shelf makes a replica for the session as soon as the tables say so; this waits until it is there
adopt     the copy that was staged under the session is read, compared with its checksums, and becomes the replica:
          merged runs are ingested (`ingesting`), a copied store is put in its place (`swapping`); that begins as soon
          as a copy is whole (`staged_watch`), and the order waits for its end
clean     the shelf removes what does not belong here; this waits until nothing is left of it

The *guard*: an order may come late, and what it is about may have been given up meanwhile. So before every side effect,
and once more at the last moment before rows are taken, the stage and the session are looked at in this instance's own
view, and the session must be open. Rows that are taken at the very moment at which the session ends lie in a replica
of that session, which is dropped when the tables say so, and which nobody has read.

    given up under session 1, a deletion is repaired everywhere and forgotten, the copy of session 1 comes at last:
    it would bring back what was deleted

Whoever asks again joins what is under way. An answer comes when all is done or the time is nearly over; what takes
longer goes on, and who asks again finds it done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from trimtab.loads.view import LoadView
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.background import defect_of
from trimtab.node.figures import Sample
from trimtab.node.group import Group
from trimtab.node.replicas import staged_copies as copies
from trimtab.node.replicas.ingesting import ingest
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.replica_files import Name
from trimtab.node.replicas.shelf import Shelf
from trimtab.node.replicas.staged_copies import COPY, DAMAGED, Manifest
from trimtab.node.replicas.staged_watch import StagedWatch
from trimtab.node.replicas.staging import MARKER, ROOT, check_session, path_of
from trimtab.node.replicas.waiting import off_loop
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.storage.port import Disk, DiskFull, StorageError
from trimtab.tablets import move_protocol as protocol
from trimtab.tablets.move_protocol import MAX_PLACES, UNDER_WAY, MovesCall, MovesReply, MovingTablet, NotMoved
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import ADJUSTABLE, TabletTransition
from trimtab.tablets.view import TableView

STALE = "stale"
LOST = "lost"
_AT_ONCE = 4  # copies that are taken over side by side
_MARGIN_S = 0.15


class Arrivals:
    """Answers for one instance, whose raft id is `own`."""

    def __init__(
        self,
        own: int,
        disk: Disk,
        group: Group,
        tables: TableView,
        loads: LoadView,
        shelf: Shelf,
        waits: Waits,
        *,
        mend: Callable[[Replica], Awaitable[bool]],
        settled: Callable[[], bool],
        name: str,
        story: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._own = own
        self._disk = disk
        self._group = group
        self._tables = tables
        self._loads = loads
        self._shelf = shelf
        self._waits = waits
        self._mend = mend
        self._settled = settled
        self._name = name
        self._story = story
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._running: dict[MovingTablet, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._mending = asyncio.Semaphore(_AT_ONCE)
        # Flushes of replicas use the same threads: one copy is read at a time.
        self._reading = asyncio.Semaphore(1)
        self._watch = StagedWatch(disk, self._awaited, self._joined, defect=self._not_watched)
        self.adopted = 0
        self.adopted_bytes = 0
        self.cleaned = 0
        self.spoiled = 0

    def methods(self) -> dict[str, Method]:
        return {protocol.PREPARE: self.prepare, protocol.ADOPT: self.adopt, protocol.CLEAN: self.clean}

    def look(self) -> None:
        """Tablets may be on their way here."""
        self._watch.look()

    def stop(self) -> None:
        self._watch.stop()
        for task in self._running.values():
            task.cancel()

    def busy(self, session: str) -> bool:
        """Whether files of a session are being taken over."""
        return any(moving.session == session for moving in self._running)

    def figures(self) -> Iterator[Sample]:
        arriving = sum(each.arriving for each in self._shelf.held())
        yield Sample("replicas_arriving", "Replicas of tablets that move here, and are not copied yet.", arriving)
        yield Sample("copies_adopted", "Copies of replicas that were taken over.", self.adopted, counter=True)
        yield Sample("copy_bytes_adopted", "Their bytes.", self.adopted_bytes, counter=True)
        yield Sample("copies_spoiled", "Copies that were not what had been sent.", self.spoiled, counter=True)
        yield Sample("replicas_cleaned", "Replicas that were removed after a move.", self.cleaned, counter=True)

    # Orders

    async def prepare(self, asked: Asked) -> bytes:
        """Answered when a replica for each session is open, durably."""
        call = await self._order(asked)
        failpoints.hit("moves.prepare.before", self._name)
        failed, left = self._judged(call.tablets, partial(self._check, stages=ADJUSTABLE))
        await self._until_none(left, self._unprepared, asked.deadline, "replicas for tablets that move here")
        failed, done = self._judged(call.tablets, self._is_prepared, failed)
        failpoints.hit("moves.prepare.after", self._name)
        return self._reply(call, done, failed)

    async def adopt(self, asked: Asked) -> bytes:
        """Answered when each replica has its copy, durably, and can answer."""
        call = await self._order(asked)
        tasks = {moving: self._joined(moving, ordered=True) for moving in dict.fromkeys(call.tablets)}
        if tasks:
            left_s = asked.deadline - _MARGIN_S - self._loop.time()
            await asyncio.wait(tasks.values(), timeout=max(left_s, 0.0))
        done: list[MovingTablet] = []
        failed: list[NotMoved] = []
        for moving, task in tasks.items():
            refused = _outcome_of(task)
            if refused is None:
                done.append(moving)
            else:
                failed.append(NotMoved(moving, refused.code, refused.text))
        return self._reply(call, done, failed)

    async def clean(self, asked: Asked) -> bytes:
        """Answered when nothing is left of these tablets here."""
        call = await self._order(asked)
        failpoints.hit("moves.clean.before", self._name)
        failed, left = self._judged(call.tablets, self._check_leaving)
        leaving, here = list(left), len(self._remaining(left))
        await self._until_none(left, self._remaining, asked.deadline, "replicas that have moved away to be removed")
        self.cleaned += here - len(left)
        gone = [each for each in leaving if each not in set(left)]
        failed += map(self._not_cleaned, left)
        try:
            await off_loop(self._disk, partial(self._remove_traces, gone))
        except StorageError as error:
            failed += [NotMoved(each, "failed", f"what is left of it could not be removed: {error}") for each in gone]
        failed, done = self._judged(call.tablets, self._check_leaving, failed)
        failpoints.hit("moves.clean.after", self._name)
        return self._reply(call, done, failed)

    async def _order(self, asked: Asked) -> MovesCall:
        call: MovesCall = protocol.decode_call(asked.body)
        self._check_term(call.term)
        if len(call.tablets) > MAX_PLACES:
            raise Refused("invalid", f"an order is about {MAX_PLACES} tablets at most, not {len(call.tablets)}")
        machine = self._group.machine
        what = f"index {call.index} to be applied (at {machine.applied_index} now)"
        await self._waits.until(lambda: machine.applied_index >= call.index, asked.deadline - _MARGIN_S, what)
        return call

    def _check_term(self, term: int) -> None:
        known = self._group.raw.raft.term
        if term < known:
            raise Refused("stale_term", f"an order of term {term} came after term {known} had begun; it is not obeyed")

    def _reply(self, call: MovesCall, done: list[MovingTablet], failed: list[NotMoved]) -> bytes:
        self._check_term(call.term)
        answer: bytes = protocol.encode(MovesReply(done, failed))
        return answer

    @staticmethod
    def _judged(
        tablets: Iterable[MovingTablet],
        judge: Callable[[MovingTablet], object],
        failed: Iterable[NotMoved] = (),
    ) -> tuple[list[NotMoved], list[MovingTablet]]:
        """Those that are refused, after those that were before; and the others."""
        bad = {each.tablet: each for each in failed}
        good: list[MovingTablet] = []
        for moving in dict.fromkeys(tablets):
            if moving in bad:
                continue
            try:
                judge(moving)
                good.append(moving)
            except Refused as refused:
                bad[moving] = NotMoved(moving, refused.code, refused.text)
        return list(bad.values()), good

    async def _until_none(
        self,
        left: list[MovingTablet],
        remaining: Callable[[list[MovingTablet]], list[MovingTablet]],
        deadline: float,
        what: str,
    ) -> None:
        """Returns when none remains, or when the time is nearly over; `left` are those that do."""

        def none_left() -> bool:
            left[:] = remaining(left)
            return not left

        with suppress(WaitedTooLong):  # the answer tells which
            await self._shelf.until(none_left, deadline - _MARGIN_S, what)

    # What the own view says

    def _check(self, moving: MovingTablet, stages: Iterable[Stage]) -> TabletTransition:
        """The guard: the tablet moves here, by this very session, and is at one of these stages. Refused."""
        check_session(moving.session)
        current = self._tables.transition(moving.table, moving.tablet)
        if current is None or current.session != moving.session or moving.table not in self._tables.maps:
            raise Refused(STALE, f"{_title(moving)} is not moved by the session {moving.session}")
        stable = self._tables.maps[moving.table].replicas(moving.tablet)
        if self._own not in current.arriving(stable):
            raise Refused(STALE, f"{_title(moving)} does not move to {self._name}")
        if current.stage not in stages:
            raise Refused(STALE, f"{_title(moving)} is at the stage {current.stage.value}")
        return current

    def _guard(self, moving: MovingTablet) -> None:
        """Whether rows may be taken now. Refused."""
        self._check(moving, (Stage.STREAMING,))
        session = self._loads.sessions.get(moving.session)
        if session is None or session.table != moving.table:
            raise Refused(STALE, f"the session {moving.session} is closed, so nothing of it is taken over")

    def _check_leaving(self, moving: MovingTablet) -> None:
        try:
            holders = self._tables.holders(moving.table, moving.tablet)
        except LookupError:
            return  # the table is gone
        if self._own in holders:
            raise Refused(STALE, f"{_title(moving)} belongs to {self._name}, as far as that is known here")

    # prepare and clean

    def _replica(self, moving: MovingTablet) -> Replica | None:
        """The one for this session, of the generation that is served."""
        found = self._shelf.find(moving.table, moving.tablet, self._loads.generation(moving.table))
        fits = found is not None and not found.closed and found.meta.session == moving.session
        return found if fits and found is not None and found.state is not ReplicaState.REBUILDING else None

    def _unprepared(self, tablets: list[MovingTablet]) -> list[MovingTablet]:
        """Those that are being made: neither there, nor known to fail."""
        return [moving for moving in tablets if self._replica(moving) is None and self._failure(moving) is None]

    def _is_prepared(self, moving: MovingTablet) -> None:
        self._check(moving, ADJUSTABLE)
        if self._replica(moving) is not None:
            return
        if (error := self._failure(moving)) is not None:
            raise _refused(error, f"the replica of {_title(moving)} could not be made")
        raise Refused(UNDER_WAY, f"the replica of {_title(moving)} is being made; ask again")

    def _failure(self, moving: MovingTablet) -> StorageError | None:
        return self._shelf.failure((moving.table, moving.tablet))

    def _remaining(self, tablets: list[MovingTablet]) -> list[MovingTablet]:
        """Those of which anything is left here."""
        here = self._shelf.places() if self._shelf.ready else {(moving.table, moving.tablet) for moving in tablets}
        return [moving for moving in tablets if (moving.table, moving.tablet) in here]

    def _not_cleaned(self, moving: MovingTablet) -> NotMoved:
        if (error := self._failure(moving)) is None:
            return NotMoved(moving, UNDER_WAY, f"{_title(moving)} is being removed; ask again")
        refused = _refused(error, f"{_title(moving)} could not be removed")
        return NotMoved(moving, refused.code, refused.text)

    def _remove_traces(self, tablets: list[MovingTablet]) -> None:
        """What attempts at copying left; not on the loop."""
        self._shelf.swaps.remove_traces((moving.table, moving.tablet) for moving in tablets)
        for moving in tablets:
            if moving.session:
                self._disk.remove(f"{ROOT}/{check_session(moving.session)}/{moving.tablet}")

    # adopt

    def _awaited(self) -> list[MovingTablet]:
        """Those whose copies are on their way here. Nobody's, as long as what is known of that may be of earlier, and
        nobody can be asked for what was missed since.
        """
        found: list[MovingTablet] = []
        if not self._settled():
            return found
        for (table, tablet), session in self._tables.arriving_at(self._own).items():
            moving, current = MovingTablet(table, tablet, session), self._tables.transition(table, tablet)
            replica = self._replica(moving)
            if current is not None and current.stage is Stage.STREAMING and replica is not None and replica.arriving:
                found.append(moving)
        return found

    def _not_watched(self, error: BaseException) -> None:
        self._complain(f"copies are taken over only when their job has ended: {error!r}")

    def _joined(self, moving: MovingTablet, *, ordered: bool = False) -> asyncio.Task[None]:
        """What takes it over. `ordered`: by the leader, whose word this instance's view has caught up with."""
        task = self._running.get(moving)
        if task is None:
            task = self._loop.create_task(self._adopt(moving, ordered), name=f"arrival of {_title(moving)}")
            self._running[moving] = task
            task.add_done_callback(partial(self._ended, moving))
        return task

    def _ended(self, moving: MovingTablet, task: asyncio.Task[None]) -> None:
        self._running.pop(moving, None)
        if (error := defect_of(task)) is not None and not isinstance(error, Refused):
            self._complain(f"the copy of {_title(moving)} could not be taken over: {error!r}")

    async def _adopt(self, moving: MovingTablet, ordered: bool) -> None:
        self._check(moving, ADJUSTABLE if self._is_adopted(moving) else (Stage.STREAMING,))
        async with self._turns:
            replica = await self._made_whole(moving, ordered)
        if replica.was_away:
            # Not in turn: peers may be slow to answer, and the copies of others need none.
            async with self._mending:
                replica.was_away = False  # what is missed from here on counts anew
                replica.was_away = not await self._mend(replica) or replica.was_away
        self._check(moving, ADJUSTABLE)

    async def _made_whole(self, moving: MovingTablet, ordered: bool) -> Replica:
        """The replica, once it has its copy. Refused."""
        replica = self._replica(moving)
        if replica is None:
            raise Refused(UNDER_WAY, f"the replica of {_title(moving)} is being made; ask again")
        try:
            manifest = await self._verified(moving, replica, ordered) if replica.arriving else None
            with self._shelf.in_hand(replica):
                if manifest is not None:
                    await self._take_over(moving, replica, manifest)
                await self._shelf.copied(replica)
        except StorageError as error:
            raise _refused(error, f"the copy of {replica.title} could not be taken over") from error
        except Refused as refused:
            if refused.code == "not_ready":
                raise Refused(UNDER_WAY, refused.text) from refused
            raise
        return replica

    def _is_adopted(self, moving: MovingTablet) -> bool:
        replica = self._replica(moving)
        return replica is not None and replica.readable

    async def _verified(self, moving: MovingTablet, replica: Replica, ordered: bool) -> Manifest:
        """The newest copy that is whole, has all that did not come here by itself, and is what was sent. Refused."""
        failpoints.hit("moves.adopt.before", self._name)
        self._guard(moving)
        found = await off_loop(self._disk, partial(copies.staged_manifests, self._disk, moving.session, moving.tablet))
        try:
            manifest = self._chosen(found, replica)
        except Refused as refused:
            if not ordered:
                # It may be newer than what is known here.
                raise Refused(UNDER_WAY, refused.text) from refused
            if refused.code != UNDER_WAY:
                # Epochs and generations grow: what is too old now will not be used later either.
                for manifest in found:
                    await off_loop(self._disk, partial(self._remove_stream, moving, manifest))
            raise
        async with self._reading:
            wrong = await off_loop(self._disk, partial(copies.wrong_file, self._disk, moving.session, manifest))
        if wrong:
            await self._spoiled(moving, manifest, wrong)
        failpoints.hit("moves.adopt.verified", self._name)
        return manifest

    def _chosen(self, found: list[Manifest], replica: Replica) -> Manifest:
        loads, table = self._loads, replica.table
        if replica.meta.lost:
            raise Refused(LOST, f"the replica of {replica.title} lost what it had taken while it arrived")
        if replica.generation != loads.generation(table):
            raise Refused(UNDER_WAY, f"another generation of {replica.title} is served now; ask again")
        # Loads from before the replica was made it can't have taken over. What comes later it has, up to its marker.
        needed = loads.needed(table, loads.visible(table))
        epoch = max(replica.meta.floor, needed if replica.adopted < needed else 0)
        return copies.choose(found, replica.generation, epoch)

    async def _take_over(self, moving: MovingTablet, replica: Replica, manifest: Manifest) -> None:
        # To read it may have taken long.
        if self._replica(moving) is not replica:
            raise Refused(UNDER_WAY, f"the replica of {replica.title} is being made anew; ask again")
        self._guard(moving)
        self._chosen([manifest], replica)
        if manifest.kind == COPY:
            await self._swap(moving, replica, manifest)
        else:
            await self._ingest(moving, replica, manifest)
        self.adopted += 1
        self.adopted_bytes += manifest.size_bytes
        failpoints.hit("moves.adopt.after", self._name)

    async def _spoiled(self, moving: MovingTablet, manifest: Manifest, wrong: str) -> None:
        """Remove a copy that is not what was sent; Refused, always."""
        self.spoiled += 1
        self._story(f"the copy of {_title(moving)} that was staged here is damaged and is removed: {wrong}")
        await off_loop(self._disk, partial(self._remove_stream, moving, manifest))
        raise Refused(DAMAGED, wrong)

    def _remove_stream(self, moving: MovingTablet, manifest: Manifest) -> None:
        copies.remove_stream(self._disk, moving.session, moving.tablet, manifest.stream)

    async def _swap(self, moving: MovingTablet, replica: Replica, manifest: Manifest) -> None:
        name, swaps = Name.of(replica), self._shelf.swaps
        try:
            self._guard(moving)
            await swaps.link(name, manifest.links(moving.session))
            failpoints.hit("moves.adopt.linked", self._name)
            self._guard(moving)
            await swaps.swap(replica, manifest.epoch, partial(self._guard, moving))
        except Exception as error:
            await swaps.unlink(name)
            if isinstance(error, Refused) and error.code == DAMAGED:
                await self._spoiled(moving, manifest, error.text)
            raise

    async def _ingest(self, moving: MovingTablet, replica: Replica, manifest: Manifest) -> None:
        """Rows, marker and the word that it is whole come in one step."""
        epoch, seen = max(replica.adopted, manifest.epoch), replica.ingested
        meta = replace(
            replica.meta,
            state=ReplicaState.OPEN,
            repaired_through_ms=manifest.repaired_through_ms,
            forgot_us=max(replica.meta.forgot_us, manifest.forgot_us),
            floor=0,
        )

        def allowed() -> None:
            self._guard(moving)
            if replica.ingested != seen:
                raise Refused("not_ready", f"the replica of {replica.title} has just taken over other files; ask again")

        names = [path_of(moving.session, moving.tablet, file.name) for file in manifest.files]
        marker = (path_of(moving.session, moving.tablet, MARKER), epoch)
        self._guard(moving)
        try:
            await ingest(self._disk, replica, names, marker=marker, meta=meta, allowed=allowed)
        except Refused as refused:
            if refused.code == "corrupt":
                await self._spoiled(moving, manifest, refused.text)
            raise
        failpoints.hit("moves.adopt.swapped", self._name)


def _title(moving: MovingTablet) -> str:
    return f"tablet {moving.tablet} of table {moving.table}"


def _refused(error: StorageError, what: str) -> Refused:
    return Refused("disk_full" if isinstance(error, DiskFull) else "failed", f"{what}: {error}")


def _outcome_of(task: asyncio.Task[None]) -> Refused | None:
    """None: it is done."""
    if not task.done():
        return Refused(UNDER_WAY, "the copy is being taken over; ask again")
    if task.cancelled():
        return Refused("stopped", "this instance is stopping; ask again when it is back")
    error = task.exception()
    if error is None or isinstance(error, Refused):
        return error
    return Refused("failed", f"{type(error).__name__}: {error}"[:300])
