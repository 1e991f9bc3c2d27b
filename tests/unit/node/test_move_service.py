"""The doors of moving, by themselves: what is passed on, decided, written, told and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.tablets.moving_tables import USERS, MovingTables

from trimtab.jobs import records as job_records
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.jobs.view import JobView
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.leader_door import Decision
from trimtab.node.move_service import MoveService
from trimtab.tablets import move_protocol, moves_shown
from trimtab.tablets.move_protocol import MoveReply, MoveRequest, SettingsReply, SettingsRequest
from trimtab.tablets.moves_shown import JobShown, MovesShown, ShowMoves
from trimtab.tablets.rebalance_settings import SETTINGS_KEY, RebalanceSettings, RebalanceView
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, Proposal, TabletTransition, TransitionKind, encode, transition_key
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import SESSIONS, VERSION_KEY, instance_key, job_key
from trimtab.topology.records import encode as encode_record


class Desk(MovingTables):
    """A leader with the service, whose door writes at once; another may be asked instead (`elsewhere`)."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs, self.rebalance = JobView(), RebalanceView()
        self.elsewhere: bytes | None = None
        self.passed: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.barriers = 0
        self.now_ms = 1_000
        self.office = SimpleNamespace(term=3, leads=True)
        self.proposals: list[Proposal] = []
        self.problems: list[str] = []
        self.waits: list[str] = []
        self.spared: list[tuple[int, int]] = []
        self.watching = SimpleNamespace(
            view=self.view, tables=self.tables, jobs=self.jobs, rebalance=self.rebalance, revision=self.revision
        )
        self.service = MoveService(
            self.watching,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.office,  # type: ignore[arg-type]
            name="i1",
            rng=Random(1),
            wall_ms=lambda: self.now_ms,
            alive=lambda _raft_id: True,
            barrier=self._barrier,
            job_of=lambda _number: JobShown("running", False, 50, 100, 10.0, 5.0),
            size_of=lambda _table, _tablet: 1_000,
            totals=dict,
            proposals=lambda: self.proposals,
            problems=lambda: self.problems,
            waits=lambda: self.waits,
            spare=self.spared.extend,
        )

    def put(self, puts: Any, deletes: Any = ()) -> None:
        super().put(puts, deletes)
        for view in (getattr(self, "jobs", None), getattr(self, "rebalance", None)):
            for key, value in [*puts.items(), *((key, None) for key in deletes)]:
                if view is not None:
                    view.change(key, value, self.revision)
        if hasattr(self, "watching"):
            self.watching.revision = self.revision
            self.service.changed(frozenset([*puts, *deletes]))

    async def _barrier(self, _timeout_s: float) -> None:
        self.barriers += 1

    # As the leader's door

    def left_s(self, deadline: float) -> float:
        return deadline - asyncio.get_running_loop().time()

    async def pass_on(self, method: str, _body: bytes, _deadline: float, *, forwarded: bool) -> bytes | None:
        self.passed.append(method)
        return None if forwarded else self.elsewhere

    async def decide(self, look: Callable[[], Decision], kind: str, _names: object) -> None:
        decided = look()
        if decided is not None:
            write, texts = decided
            assert all(self.store.get(key, (b"", 0))[1] == at for key, at in write.expect.items())
            assert write.puts.keys() | set(write.deletes) <= write.expect.keys()
            self.put(write.puts, write.deletes)
            self.events += [(kind, text) for text in texts]

    async def ask(self, method: str, request: Any) -> bytes:
        asked = Asked(move_protocol.encode(request), asyncio.get_running_loop().time() + 5, Hello())
        return await self.service.methods()[method](asked)

    async def move(self, *fields: Any, **more: Any) -> MoveReply:
        return move_protocol.decode_move_reply(await self.ask(move_protocol.ASK, MoveRequest(*fields, **more)))

    async def settings(self, wanted: RebalanceSettings | None = None) -> SettingsReply:
        answer = await self.ask(move_protocol.SETTINGS, SettingsRequest(wanted))
        return move_protocol.decode_settings_reply(answer)

    async def show(self, **fields: Any) -> MovesShown:
        return moves_shown.decode_shown(await self.ask(moves_shown.SHOW, ShowMoves(**fields)))


def on_desk(story: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        await story(Desk())

    asyncio.run(tell())


def test_a_move_is_written_once_and_told_with_its_why() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.move(USERS, 0, 1, 4, why="a hot one") == MoveReply("pending", [4, 2, 3])
        current = desk.tables.transition(USERS, 0)
        assert current is not None
        assert (current.pending, current.cause, current.version) == ((4, 2, 3), Cause.OPERATOR, 8)
        assert current.session.startswith("move-1-0-") and current.size_bytes == 1_000
        assert desk.events == [
            ("move", "tablet 0 of shop.users moves from i1 to i4: an operator asked for it: a hot one")
        ]
        # Asked again, because no answer came.
        assert await desk.move(USERS, 0, 1, 4) == MoveReply("pending", [4, 2, 3])
        assert desk.tables.transition(USERS, 0) == current and len(desk.events) == 1

    on_desk(story)


def test_another_target_takes_the_place_of_the_first_and_an_undo_ends_both() -> None:
    async def story(desk: Desk) -> None:
        await desk.move(USERS, 0, 1, 4)
        assert await desk.move(USERS, 0, 1, 5) == MoveReply("adjusted", [5, 2, 3])
        assert desk.events[-1][1].startswith("tablet 0 of shop.users moves from i1 to i5 now, not to i4: ")
        assert await desk.move(USERS, 0) == MoveReply("undone", [1, 2, 3])
        current = desk.tables.transition(USERS, 0)
        assert current is not None and current.stage is Stage.CLEANUP_TARGET and current.leftovers == (4,)
        assert desk.events[-1][1] == "the move of tablet 0 of shop.users to i5 is undone: an operator asked for it"
        assert await desk.move(USERS, 0) == MoveReply("undone", [1, 2, 3])
        assert len(desk.events) == 3

    on_desk(story)


def test_after_the_lock_a_move_is_planned_and_can_be_given_up() -> None:
    async def story(desk: Desk) -> None:
        desk.under_way(0, (4, 2, 3), Stage.USE_NEW, locked=True)
        assert await desk.move(USERS, 0, 4, 5) == MoveReply("planned", [5, 2, 3])
        assert "when it has arrived where it goes now" in desk.events[-1][1]
        assert await desk.move(USERS, 0) == MoveReply("unplanned", [4, 2, 3])
        with pytest.raises(Refused, match="only goes forward"):
            await desk.move(USERS, 0)

    on_desk(story)


@pytest.mark.parametrize(("cause", "spared"), [(Cause.BALANCE, [(USERS, 0)]), (Cause.DRAIN, []), (Cause.OPERATOR, [])])
def test_what_balancing_wanted_and_an_operator_undoes_is_not_wanted_again_at_once(
    cause: Cause, spared: list[tuple[int, int]]
) -> None:
    async def story(desk: Desk) -> None:
        record = TabletTransition((4, 2, 3), TransitionKind.MIGRATION, session="s", cause=cause)
        desk.put({transition_key(USERS, 0): encode(record)})
        assert (await desk.move(USERS, 0)).outcome == "undone"
        assert desk.spared == spared
        await desk.move(USERS, 1, 1, 4)
        assert desk.spared == spared, "who moves a tablet undoes nothing"

    on_desk(story)


def test_an_undone_copy_loses_its_session_and_a_job_that_does_nothing_else() -> None:
    async def story(desk: Desk) -> None:
        for number in (7, 8):
            job = JobRecord(number, Command(JobKind.STREAM), JobState.QUEUED)
            desk.put({job_key(number): job_records.encode(job)})
        desk.under_way(0, (4, 2, 3), Stage.STREAMING, job=7)
        desk.under_way(1, (4, 2, 3), Stage.STREAMING, job=8)
        desk.under_way(2, (2, 3, 5), Stage.STREAMING, job=8)
        desk.put({SESSIONS + b"s0": b"{}"})
        await desk.move(USERS, 0)
        assert SESSIONS + b"s0" not in desk.store
        assert desk.jobs.jobs[7].state is JobState.CANCELLED
        await desk.move(USERS, 1)
        assert desk.jobs.jobs[8].state is JobState.QUEUED, "another tablet is copied by it"

    on_desk(story)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ((9, 0, 1, 4), "not_found"),
        ((USERS, 99, 1, 4), "not_found"),
        ((USERS, 0, 1, 99), "not_found"),
        ((USERS, 0, 5, 4), "conflict"),
        ((-1, 0, 1, 4), "not_found"),
        ((0, 0, 1, 4), "not_found"),
        ((1 << 63, 0, 1, 4), "not_found"),
        ((USERS, -1, 1, 4), "not_found"),
        ((USERS, 1 << 63, 1, 4), "not_found"),
        ((USERS, 0, 0, 4), "not_found"),
        ((USERS, 0, -1, 4), "not_found"),
        ((USERS, 0, 1, -4), "not_found"),
        ((USERS, 0, 1, 1), "invalid"),
        ((USERS, 0), "conflict"),
    ],
)
def test_what_can_t_be_is_refused_and_nothing_is_written(request_: tuple[int, ...], code: str) -> None:
    async def story(desk: Desk) -> None:
        before = dict(desk.store)
        with pytest.raises(Refused) as told:
            await desk.move(*request_)
        assert told.value.code == code and desk.store == before and desk.events == []

    on_desk(story)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"table": USERS}),
        msgspec.msgpack.encode([USERS]),
        msgspec.msgpack.encode([USERS, "0", 1, 4]),
        msgspec.msgpack.encode([USERS, 0, 1, 4, "yes"]),
        msgspec.msgpack.encode([USERS, 0, 1, 4, False, b"\xff"]),
    ],
)
def test_what_is_no_request_is_refused_and_nothing_is_written(body: bytes) -> None:
    async def story(desk: Desk) -> None:
        before = dict(desk.store)
        for method in (move_protocol.ASK, move_protocol.SETTINGS):
            asked = Asked(body, asyncio.get_running_loop().time() + 5, Hello())
            with pytest.raises((msgspec.DecodeError, RecursionError)):
                await desk.service.methods()[method](asked)
        assert desk.store == before and desk.events == []

    on_desk(story)


def test_a_long_why_is_cut() -> None:
    async def story(desk: Desk) -> None:
        await desk.move(USERS, 0, 1, 4, why="a\nb " * 100_000)
        (told,) = (text for _, text in desk.events)
        assert len(told) < 500 and "\n" not in told

    on_desk(story)


def test_whoever_does_not_lead_passes_it_on() -> None:
    async def story(desk: Desk) -> None:
        desk.elsewhere = move_protocol.encode(MoveReply("pending", [9]))
        assert await desk.move(USERS, 0, 1, 4) == MoveReply("pending", [9])
        assert desk.tables.transition(USERS, 0) is None and desk.passed == [move_protocol.ASK]
        # What was passed on to it is decided by it.
        assert await desk.move(USERS, 0, 1, 4, forwarded=True) == MoveReply("pending", [4, 2, 3])

    on_desk(story)


def test_settings_are_told_and_changed_by_whoever_looked_at_them() -> None:
    async def story(desk: Desk) -> None:
        desk.problems = ["tablet 3 has lost all its replicas"]
        told = await desk.settings()
        assert told == SettingsReply(RebalanceSettings(), "", desk.problems) and desk.barriers == 1
        off = await desk.settings(RebalanceSettings(enabled=False, heal_after_ms=30_000))
        assert not off.settings.enabled and off.settings.set_ms == 1_000 and "off" in off.still
        assert desk.events == [("rebalance", "balancing is off, instances that are down are waited for 30 s")]
        # The same again is no change; another, of one who has not seen this, is refused.
        await desk.settings(RebalanceSettings(enabled=False, heal_after_ms=30_000))
        with pytest.raises(Refused, match="somebody else has changed") as told_no:
            await desk.settings(RebalanceSettings(window=(60, 120)))
        assert told_no.value.code == "conflict" and len(desk.events) == 1
        night = RebalanceSettings(window=(22 * 60, 6 * 60), set_ms=1_000)
        assert (await desk.settings(night)).settings.set_ms == 1_001
        assert "balancing may begin moves from 22:00 to 06:00 UTC" in desk.events[-1][1]

    on_desk(story)


def test_settings_that_make_no_sense_change_nothing() -> None:
    async def story(desk: Desk) -> None:
        for wrong in (
            RebalanceSettings(window=(5, 5)),
            RebalanceSettings(heal_after_ms=1),
            RebalanceSettings(moving=0),
        ):
            with pytest.raises(Refused) as told:
                await desk.settings(wrong)
            assert told.value.code == "invalid"
        assert SETTINGS_KEY not in desk.store and desk.passed == []

    on_desk(story)


def test_what_is_under_way_is_shown_with_what_only_the_leader_knows() -> None:
    async def story(desk: Desk) -> None:
        desk.under_way(0, (4, 2, 3), Stage.STREAMING, job=7)
        desk.proposals = [Proposal(USERS, 1, (1, 2, 5), Cause.BALANCE, "", 9, 30)]
        found = await desk.show()
        assert found.told and [(each.tablet, each.progress_bytes) for each in found.moves] == [(0, 500)]
        assert [each.tablets for each in found.upcoming] == [1]
        assert desk.service.moving().sentences == [
            "1 tablet is being moved to i4: 0.5 of 1.0 KiB, about 50 s left",
            "1 tablet (30 B) will be moved next",
        ]
        desk.office.leads = False
        local = await desk.show(local=True)
        assert not local.told and not local.upcoming and len(local.moves) == 1
        with pytest.raises(Refused, match="no table with the id 77"):
            await desk.show(table=77)

    on_desk(story)


def test_what_ended_is_counted() -> None:
    async def story(desk: Desk) -> None:
        desk.under_way(0, (4, 2, 3), Stage.END_MIGRATION, size_bytes=70)
        desk.under_way(1, (4, 2, 3), Stage.REVERT_MIGRATION, size_bytes=70)
        desk.under_way(2, (2, 3, 5), Stage.STREAMING)
        desk.put({VERSION_KEY: b"9"}, [transition_key(USERS, 0), transition_key(USERS, 1)])
        figures = {(each.name, each.labels): each.value for each in desk.service.figures() if hasattr(each, "value")}
        assert figures["moves", (("stage", "streaming"),)] == 1
        assert figures["moves", (("stage", "cleanup"),)] == 0
        assert (figures["moves_ended", ()], figures["moves_undone", ()], figures["moved_bytes", ()]) == (1, 1, 70)
        assert figures["rebalance_active", ()] == 1

    on_desk(story)


def test_what_nobody_serves_is_told_at_once_by_every_member_and_once() -> None:
    async def story(desk: Desk) -> None:
        first = desk.tables.maps[USERS].replicas(0)
        for raft_id in first:
            record = desk.view.instances[raft_id]
            down = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))
            desk.put({instance_key(raft_id): encode_record(msgspec.structs.replace(record, grades=down))})
        desk.problems = ["dc1 is uneven"]
        found = await desk.show()
        assert "can't be read or written" in found.problems[0] and found.problems[1:] == ["dc1 is uneven"]
        assert (await desk.settings()).problems == found.problems
        assert desk.service.moving().unserved_tablets > 0
        desk.office.leads = False
        assert desk.service.shown().problems == found.problems[:1]

    on_desk(story)


def test_what_keeps_tablets_is_told_with_the_settings_as_status_tells_it() -> None:
    """`status` had lines that `rebalance status` knew nothing of."""

    async def story(desk: Desk) -> None:
        desk.problems = ["i2 can't make room", "dc1 is uneven"]
        desk.waits = ["i2 can't make room", "tablet 0 of shop.users: can't move yet: i3 is down"]
        assert (await desk.settings()).problems == [*desk.problems, desk.waits[1]]

    on_desk(story)
