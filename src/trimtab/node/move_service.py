"""The doors of moving: an operator's own moves, how balancing is set, and what is under way.

    moves.ask        a replica from one instance to another, or an end of what is under way with a tablet
    moves.settings   on or off, the window, after how long an instance is not waited for: told, and changed
    moves.show       the tablets under way, how far each is, and what follows

Any member may be asked; the leader decides (`tablets.move_rules`) and writes on the condition that everything it looked
at is as it was. Asking again is harmless: what is so already is not written. The record that is written is all there
is: whoever leads next carries it out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any

import msgspec

from trimtab.governor.steps import Write
from trimtab.jobs import records as job_records
from trimtab.jobs import rules as job_rules
from trimtab.jobs.protocol import SteerJob
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.figures import Distribution, Sample
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.node.office import Office
from trimtab.node.watching import Watching
from trimtab.tablets import move_protocol, moves_shown, rebalance_settings
from trimtab.tablets.move_changes import Proposed, begun_write
from trimtab.tablets.move_protocol import MoveReply, MoveRequest, SettingsReply
from trimtab.tablets.move_rules import MoveRefused, MoveScene, asked_move, goes_to, lost_of
from trimtab.tablets.moves_shown import JobOf, MovesShown
from trimtab.tablets.moving_words import duration, moving_view
from trimtab.tablets.outages import Outage, outages
from trimtab.tablets.rebalance_settings import SETTINGS_KEY, RebalanceSettings, clock_text, wrong_settings
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, Outcome, Proposal, TabletTransition, goes_back, same
from trimtab.topology.protocol import MovingView
from trimtab.topology.records import TRANSITIONS, instance_key, job_key

_MARGIN_S = 0.1
_EVENTS = "move"
_SETTINGS_EVENTS = "rebalance"
Place = tuple[int, int]


class MoveService:
    """Answers for one instance.

    `alive` is the leader's knowledge of who was heard from lately; `job_of` tells how far a job is; `size_of` how large
    a tablet is and `totals` what each instance holds, as far as that is known. `proposals` and `problems` are those of
    the leader's planning, and `waits` why what it wants does not begin or go on; `spare` keeps balancing from tablets
    whose moves an operator undid.
    """

    def __init__(
        self,
        watching: Watching,
        door: LeaderDoor,
        office: Office,
        *,
        name: str,
        rng: Random,
        wall_ms: Callable[[], int],
        alive: Callable[[int], bool],
        barrier: Callable[[float], Awaitable[None]],
        job_of: JobOf,
        size_of: Callable[[int, int], int],
        totals: Callable[[], dict[int, int]],
        proposals: Callable[[], Sequence[Proposal]] = tuple,
        problems: Callable[[], Iterable[str]] = tuple,
        waits: Callable[[], Iterable[str]] = tuple,
        spare: Callable[[Sequence[Place]], None] = lambda _places: None,
    ) -> None:
        self._watching = watching
        self._door = door
        self._office = office
        self._name = name
        self._rng = rng
        self._wall_ms = wall_ms
        self._alive = alive
        self._barrier = barrier
        self._job_of = job_of
        self._size_of = size_of
        self._totals = totals
        self._proposals = proposals
        self._problems = problems
        self._waits = waits
        self._spare = spare
        self._outages: tuple[int, tuple[Outage, ...]] = (-1, ())
        # Of each tablet under way when it was last looked at, for counting: its session, stage and bytes.
        self._seen: dict[Place, tuple[str, Stage, int]] = {}
        self._ended = self._undone = self._moved_bytes = 0

    def methods(self) -> dict[str, Method]:
        return {
            move_protocol.ASK: self.ask,
            move_protocol.SETTINGS: self.settings,
            moves_shown.SHOW: self.show,
        }

    # Looking

    async def show(self, asked: Asked) -> bytes:
        """What is under way. `local`: as it is known here."""
        request = moves_shown.decode_show(asked.body)
        if not request.local:
            if (answer := await self._pass_on(moves_shown.SHOW, request, asked)) is not None:
                return answer
            await self._barrier(self._door.left_s(asked.deadline))
        if request.table and request.table not in self._watching.tables.catalog.tables:
            raise Refused("not_found", f"there is no table with the id {request.table} (any more); was it dropped?")
        body: bytes = moves_shown.encode(self.shown(request.table, max(request.tablet, -1)))
        return body

    def shown(self, table: int = 0, tablet: int = -1) -> MovesShown:
        """As it is known here; all of it where this instance leads."""
        leads = self._office.leads
        found = moves_shown.shown(
            self._watching.tables,
            table=table,
            only=tablet,
            proposals=self._proposals() if leads else (),
            job_of=self._job_of,
            size_of=self._size_of,
        )
        return msgspec.structs.replace(
            found,
            settings=self._watching.rebalance.settings,
            still=self._still(),
            problems=[*(each.text for each in self._unserved()), *(self._problems() if leads else ())],
            told=leads,
        )

    def moving(self) -> MovingView:
        """The same at a glance, in sentences too."""
        tables = self._watching.tables
        loads = tables.loads()
        proposals = self._proposals() if self._office.leads else ()
        found = moving_view(self.shown(), self._watching.view, lambda raft_id: loads.get(raft_id, 0), proposals)
        unserved = sum(each.unread for each in self._unserved())
        return msgspec.structs.replace(found, unserved_tablets=unserved)

    def _unserved(self) -> tuple[Outage, ...]:
        """Looked for once while nothing is written: it takes a look at every tablet of those that are down."""
        if self._outages[0] != self._watching.revision:
            self._outages = self._watching.revision, outages(self._watching.view, self._watching.tables)
        return self._outages[1]

    def _still(self) -> str:
        return self._watching.rebalance.settings.keeps_still(self._wall_ms())

    # An operator's move

    async def ask(self, asked: Asked) -> bytes:
        """Make a move pending, or planned where one is under way; or undo."""
        request: MoveRequest = move_protocol.decode_move(asked.body)
        if (answer := await self._pass_on(move_protocol.ASK, request, asked)) is not None:
            return answer
        became: Proposed | None = None
        before: TabletTransition | None = None

        def look() -> Decision:
            nonlocal became, before
            became = None
            scene = self._scene(request)
            before = scene.tables.transition(request.table, request.tablet)
            proposal = _refusing(lambda: asked_move(scene, request, self._watching.revision))
            if proposal is None:
                return None
            made = begun_write(
                scene.view,
                scene.tables,
                [proposal],
                term=self._office.term,
                now_ms=self._wall_ms(),
                new_session=self._new_session,
                lost=lost_of(scene, (request.source,)),
            )
            (became,) = made.proposed
            if became.outcome is Outcome.STALE:
                raise Refused("overloaded", "the tablet changed at this very moment; try again")
            if not made.puts:
                return None
            expect, puts = dict(made.expect), dict(made.puts)
            if request.to:
                # The target was found to stay, and nobody may have asked it to go meanwhile.
                expect |= scene.view.unused(scene.view.next_request())
                for raft_id in (request.source, request.to):
                    expect[instance_key(raft_id)] = scene.view.revisions.get(instance_key(raft_id), 0)
            self._cancel_copy(became, expect, puts)
            failpoints.hit("move.ask.before", self._name)
            return Write(expect, puts, tuple(made.deletes)), (self._told(scene, request, became),)

        view = self._watching.view
        names = [view.instances[each].instance_id for each in (request.source, request.to) if each in view.instances]
        await self._door.decide(look, _EVENTS, names)
        undone = became is not None and became.outcome is Outcome.UNDONE
        if undone and before is not None and before.cause is Cause.BALANCE:
            self._spare([(request.table, request.tablet)])
        failpoints.hit("move.ask.after", self._name)
        return self._asked(request, became)

    def _scene(self, request: MoveRequest) -> MoveScene:
        watching = self._watching
        size = max(self._size_of(request.table, request.tablet), 0)
        return MoveScene(watching.view, watching.tables, self._alive, size, self._totals())

    def _new_session(self, proposal: Proposal) -> str:
        return f"move-{proposal.table}-{proposal.tablet}-{self._rng.getrandbits(64):016x}"

    def _cancel_copy(self, became: Proposed, expect: dict[bytes, int], puts: dict[bytes, bytes]) -> None:
        """The job that copies for what is given up ends too, if it does nothing else."""
        watching, place = self._watching, (became.proposal.table, became.proposal.tablet)
        before = watching.tables.transition(*place)
        if before is None or not before.job or became.outcome not in (Outcome.UNDONE, Outcome.ADJUSTED):
            return
        shared = any(
            current.job == before.job and (table, tablet) != place
            for table, under_way in watching.tables.transitions.items()
            for tablet, current in under_way.items()
        )
        job = watching.jobs.jobs.get(before.job)
        if shared or job is None or job.state.final:
            return
        order = SteerJob(before.job, job_rules.CANCEL, "the tablet does not go there any more")
        try:
            cancelled = job_rules.steer(watching.jobs, order, self._wall_ms())
        except job_rules.JobRefused:
            return  # it ends by itself: its session is closed
        expect[job_key(before.job)] = watching.jobs.revision(job_key(before.job))
        puts[job_key(before.job)] = job_records.encode(cancelled)

    def _asked(self, request: MoveRequest, became: Proposed | None) -> bytes:
        """The answer: what became of it, or that it is so already."""
        tables = self._watching.tables
        try:
            stable, current = (
                tables.maps[request.table].replicas(request.tablet),
                tables.transition(request.table, request.tablet),
            )
        except KeyError:
            raise Refused("not_found", "the table was dropped meanwhile") from None
        if became is not None:
            outcome = became.outcome
        elif current is not None:
            outcome = Outcome.UNDONE if goes_back(current) else Outcome.PENDING
        else:
            outcome = Outcome.NOTHING
        body: bytes = move_protocol.encode(MoveReply(outcome.value, list(goes_to(stable, current))))
        return body

    def _told(self, scene: MoveScene, request: MoveRequest, became: Proposed) -> str:
        title = f"tablet {request.tablet} of {scene.tables.name_of(request.table)}"
        why = became.proposal.why + (" (forced)" if request.force else "")
        before = scene.tables.transition(request.table, request.tablet)
        from_to = f"from {scene.name(request.source)} to {scene.name(request.to)}" if request.to else ""
        match became.outcome:
            case Outcome.UNDONE:
                return f"the move of {title} to {_new_ones(scene, became.stable, before)} is undone: {why}"
            case Outcome.UNPLANNED:
                return f"what was planned for {title} is given up: {why}"
            case Outcome.PLANNED:
                where = from_to or f"back to {scene.names(became.stable)}"
                return f"{title} moves {where} when it has arrived where it goes now: {why}"
            case Outcome.ADJUSTED:
                return f"{title} moves {from_to} now, not to {_new_ones(scene, became.stable, before)}: {why}"
            case _:
                return f"{title} moves {from_to}: {why}"

    # How balancing is set

    async def settings(self, asked: Asked) -> bytes:
        """Told, after they were changed where others are given."""
        request = move_protocol.decode_settings(asked.body)
        wanted = request.settings
        if wanted is not None and (wrong := wrong_settings(wanted)):
            raise Refused("invalid", wrong)
        if (answer := await self._pass_on(move_protocol.SETTINGS, request, asked)) is not None:
            return answer
        if wanted is None:
            await self._barrier(self._door.left_s(asked.deadline))
        else:
            await self._door.decide(lambda: self._set(wanted), _SETTINGS_EVENTS, ())
        found = self._watching.rebalance.settings
        told = (*(each.text for each in self._unserved()), *self._problems(), *self._waits())
        reply = SettingsReply(found, self._still(), list(dict.fromkeys(told)))
        body: bytes = move_protocol.encode(reply)
        return body

    def _set(self, wanted: RebalanceSettings) -> Decision:
        known = self._watching.rebalance
        before = known.settings
        if _timeless(before) == _timeless(wanted):
            return None
        if wanted.set_ms != before.set_ms:
            raise Refused("conflict", "somebody else has changed how balancing is set; look at it and try again")
        after = msgspec.structs.replace(wanted, set_ms=max(self._wall_ms(), before.set_ms + 1))
        write = Write({SETTINGS_KEY: known.revision}, {SETTINGS_KEY: rebalance_settings.encode(after)})
        return write, (", ".join(changed_words(before, after)),)

    async def _pass_on(self, method: str, request: Any, asked: Asked) -> bytes | None:
        onward: bytes = msgspec.msgpack.encode(msgspec.structs.replace(request, forwarded=True))
        return await self._door.pass_on(method, onward, asked.deadline, forwarded=request.forwarded)

    # Counting

    def changed(self, keys: frozenset[bytes]) -> None:
        """The views changed: take note of what has ended since they were looked at before."""
        if keys and not any(key.startswith(TRANSITIONS) for key in keys):
            return
        now = {
            (table, tablet): (current.session, current.stage, current.size_bytes)
            for table, under_way in self._watching.tables.transitions.items()
            for tablet, current in under_way.items()
        }
        # No keys: everything began anew, perhaps long after what was seen before.
        for place, (session, stage, size) in self._seen.items() if keys else ():
            if place in now and now[place][0] == session:
                continue
            if stage in (Stage.CLEANUP, Stage.END_MIGRATION, Stage.USE_NEW):
                self._ended += 1
                self._moved_bytes += size
            else:
                self._undone += 1
        self._seen = now

    def figures(self) -> Iterable[Sample | Distribution]:
        """Tablets under way by stage, and those that arrived or went back, as this instance has seen it."""
        counts = dict.fromkeys(Stage, 0)
        for _session, stage, _size in self._seen.values():
            counts[stage] += 1
        for stage, count in counts.items():
            yield Sample("moves", "Tablets under way by stage.", count, (("stage", stage.value),))
        ended = "Tablets that arrived, seen here since the start."
        yield Sample("moves_ended", ended, self._ended, counter=True)
        undone = "Tablets whose target was given up, seen here since the start."
        yield Sample("moves_undone", undone, self._undone, counter=True)
        size = "Bytes of a replica of each tablet that arrived, seen here since the start."
        yield Sample("moved_bytes", size, self._moved_bytes, counter=True)
        still = "1 while balancing may begin moves: it is on, and within its window."
        yield Sample("rebalance_active", still, float(not self._still()))


def changed_words(before: RebalanceSettings, after: RebalanceSettings) -> list[str]:
    """What a change of the settings comes to."""
    words = []
    if before.enabled != after.enabled:
        words.append(f"balancing is {'on' if after.enabled else 'off'}")
    if before.window != after.window:
        words.append(f"balancing may begin moves {window_words(after)}")
    if before.heal_after_ms != after.heal_after_ms:
        words.append(f"instances that are down are waited for {duration(after.heal_after_ms / 1000)}")
    if (before.moving, before.moving_bytes) != (after.moving, after.moving_bytes):
        words.append(f"at most {after.moving} tablets move at a time, {after.moving_bytes} bytes of an instance")
    return words


def window_words(settings: RebalanceSettings) -> str:
    if not settings.window:
        return "at any time"
    return f"from {clock_text(settings.window[0])} to {clock_text(settings.window[1])} UTC"


def _new_ones(scene: MoveScene, stable: tuple[int, ...], before: TabletTransition | None) -> str:
    if before is None or same(before.pending, stable):
        return scene.names(stable)
    return scene.names(before.arriving(stable) or before.pending)


def _timeless(settings: RebalanceSettings) -> RebalanceSettings:
    return msgspec.structs.replace(settings, set_ms=0)


def _refusing(judge: Callable[[], Proposal | None]) -> Proposal | None:
    try:
        return judge()
    except MoveRefused as error:
        raise Refused(error.code, str(error)) from error
