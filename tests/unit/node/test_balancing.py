"""When the leader plans, when it does not, and what it makes of a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.governor.holdings import Holding, holding

from trimtab.node import balancing
from trimtab.node.balancing import Balancing
from trimtab.tablets.departures import Problem
from trimtab.tablets.rebalance_settings import SETTINGS_KEY
from trimtab.tablets.replanning import Outline
from trimtab.tablets.selectors import Stage
from trimtab.tablets.sizes import GONE, SizeLedger, SizesReport
from trimtab.tablets.transitions import Cause, Proposal, TabletTransition, TransitionKind, transition_key
from trimtab.topology.records import RequestKind, instance_key, request_key

KIB = 1 << 10
MIB = 1 << 20


class Leader:
    """Its planner says what a test wants, and notes what it was asked."""

    def __init__(self, world: Holding) -> None:
        self.world = world
        self.ledger = SizeLedger()
        self.lost: frozenset[int] = frozenset()
        self.asked: list[Outline] = []
        self.says: tuple[tuple[Proposal, ...], tuple[str, ...]] = ((), ())
        self.woken = 0
        self.held_up: list[Callable[[], None]] = []
        self.hold = False
        self.complaints: list[str] = []
        self.clock_s = 0.0
        self.takes_s = 0.0
        watching = SimpleNamespace(view=world.view, tables=world.tables, revision=7)
        instance: Any = SimpleNamespace(
            watching=watching,
            disk=SimpleNamespace(start=self._start),
            boot_s=lambda: self.clock_s,
            complaints=SimpleNamespace(add=self.complaints.append),
        )
        sizes: Any = SimpleNamespace(ledger=lambda: self.ledger)
        self.avoided: frozenset[int] = frozenset()
        self.balancing = Balancing(
            instance,
            sizes,
            lost=lambda: self.lost,
            avoided=lambda: self.avoided,
            wake=self._wake,
            planner=self._plan,
        )

    def _wake(self) -> None:
        self.woken += 1

    def _plan(self, seen: Outline) -> tuple[tuple[Proposal, ...], tuple[str, ...]]:
        self.asked.append(seen)
        self.clock_s += self.takes_s
        return self.says

    def _start(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                done(work(), None)
            except Exception as error:
                done(None, error)

        if self.hold:
            self.held_up.append(run)
        else:
            run()

    def tell(self, size: int = MIB, free_bytes: int = GONE) -> None:
        """Everybody reports what it has."""
        counts = {table: tablets.count for table, tablets in self.world.tables.maps.items()}
        for raft_id in self.world.view.members():
            held = {
                table: dict.fromkeys(tablets.of(raft_id), size) for table, tablets in self.world.tables.maps.items()
            }
            self.ledger.take(SizesReport(raft_id, "", 1, held, True, free_bytes), counts)

    async def look(self, term: int = 1) -> int:
        """One turn of the governor; how many plans have been made since the beginning."""
        self.balancing.look(term)
        for _ in range(5):
            await asyncio.sleep(0)
        return len(self.asked)


def proposal(cause: Cause = Cause.BALANCE) -> Proposal:
    return Proposal(1, 0, (1, 2), cause, "a test", 7)


def run(story: Callable[[Leader], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, tables: bool = True) -> None:
    monkeypatch.setattr(balancing, "EVERY_S", 0.0)
    monkeypatch.setattr(balancing, "SIZES_EVERY_S", 0.0)
    world = holding(3)
    if tables:
        world.create(2)

    async def main() -> None:
        leader = Leader(world)
        if tables:
            leader.tell()
        try:
            await story(leader)
        finally:
            leader.balancing.stop()

    asyncio.run(main())


def test_it_plans_once_and_again_only_when_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        assert await leader.look() == 1
        assert leader.balancing.current and leader.woken == 1
        assert leader.asked[0].trigger == 7
        for _ in range(20):
            assert await leader.look() == 1, "nothing changed"
        for keys in (
            {instance_key(1)},
            {request_key(1)},
            {b"tablets/" + b"0" * 20 + b"/000001"},
            {b"catalog/version"},
            {SETTINGS_KEY},
            set(),
        ):
            before = len(leader.asked)
            leader.balancing.changed(frozenset(keys))
            assert not leader.balancing.current
            assert await leader.look() == before + 1, keys
            assert leader.balancing.current
        before = len(leader.asked)
        leader.balancing.changed(frozenset((b"jobs/1", b"events/2", b"settings/bulk", b"rebalance/" + b"0" * 20)))
        assert await leader.look() == before

    run(story, monkeypatch)


def test_stages_of_tablets_under_way_are_no_reason_to_plan_but_targets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        assert await leader.look() == 1
        key = transition_key(1, 0)
        moving = TabletTransition((1, 3), TransitionKind.MIGRATION)
        expected = 1
        for change, plans in (
            (moving, 1),
            (msgspec.structs.replace(moving, stage=Stage.STREAMING), 0),
            (msgspec.structs.replace(moving, stage=Stage.WRITE_BOTH_READ_NEW, locked=True), 0),
            (msgspec.structs.replace(moving, planned=(2, 3)), 1),
            (msgspec.structs.replace(moving, stage=Stage.CLEANUP_TARGET), 1),
        ):
            leader.world.under_way(1, 0, change)
            leader.balancing.changed(frozenset((key,)))
            expected += plans
            assert await leader.look() == expected, change
        leader.world.place(1, 0, leader.world.tables.maps[1].replicas(0))
        leader.balancing.changed(frozenset((key,)))
        assert await leader.look() == expected + 1

    run(story, monkeypatch)


def test_whoever_is_lost_by_now_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        assert await leader.look() == 1
        leader.lost = frozenset((3,))
        assert await leader.look() == 2
        assert leader.asked[-1].lost == {3}
        assert await leader.look() == 2

    run(story, monkeypatch)


def test_who_leaves_is_drained_and_who_is_removed_is_lost_and_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.world.ask(RequestKind.LEAVE, "i3")
        leader.world.ask(RequestKind.REMOVE, "i2")
        leader.lost = frozenset((2,))
        await leader.look()
        assert (leader.asked[0].draining, leader.asked[0].lost) == ({3}, {2})

    run(story, monkeypatch)


def test_sizes_count_when_they_shift_by_more_than_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.tell(1000 * MIB)
        assert await leader.look() == 1
        leader.tell(1010 * MIB)
        assert await leader.look() == 1, "one percent"
        leader.tell(1100 * MIB)
        assert await leader.look() == 2
        leader.tell(1101 * MIB)
        assert await leader.look() == 2

    run(story, monkeypatch)


def test_space_that_somebody_made_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.tell(free_bytes=0)
        assert await leader.look() == 1
        leader.tell(free_bytes=10 * MIB)
        assert await leader.look() == 1, "not enough to matter"
        leader.tell(free_bytes=1000 * MIB)
        assert await leader.look() == 2
        leader.tell(free_bytes=990 * MIB)
        assert await leader.look() == 2, "one percent"

    run(story, monkeypatch)


def test_nearly_empty_tablets_are_no_reason_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.tell(10 * KIB)
        assert await leader.look() == 1
        leader.tell(100 * KIB)
        assert await leader.look() == 1

    run(story, monkeypatch)


def test_a_new_leader_waits_for_sizes_before_it_balances_but_not_with_what_is_urgent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(leader: Leader) -> None:
        leader.ledger.clear()
        heal, balance = proposal(Cause.HEAL), proposal()._replace(tablet=1)
        leader.says = ((heal, balance), ())
        assert await leader.look() == 1
        assert leader.balancing.proposals == (heal,)
        assert not leader.balancing.current, "nothing may be concluded from what is missing"
        leader.tell()
        assert await leader.look() == 2
        assert leader.balancing.proposals == (heal, balance)
        assert leader.balancing.current

    run(story, monkeypatch)


def test_it_does_not_wait_for_ever_for_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.ledger.clear()
        leader.says = ((proposal(),), ())
        monkeypatch.setattr(balancing, "TELL_S", 1e9)
        await leader.look()
        assert leader.balancing.proposals == ()
        monkeypatch.setattr(balancing, "TELL_S", 0.0)
        await leader.look()
        assert leader.balancing.proposals == (proposal(),)

    run(story, monkeypatch)


def test_one_turn_at_a_time_and_what_came_meanwhile_is_planned_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.hold = True
        assert await leader.look() == 0
        leader.balancing.changed(frozenset((instance_key(1),)))
        assert await leader.look() == 0 and len(leader.held_up) == 1
        leader.says = ((proposal(),), ())
        leader.held_up.pop()()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert leader.balancing.proposals and not leader.balancing.current
        leader.hold = False
        assert await leader.look() == 2
        assert leader.balancing.current

    run(story, monkeypatch)


def test_after_a_long_turn_it_rests_unless_there_is_reason_to_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.takes_s = 60.0
        chunk = frozenset((b"tablets/" + b"0" * 20 + b"/000001",))
        assert await leader.look() == 1
        leader.balancing.changed(chunk)
        assert await leader.look() == 1, "it rests"
        assert not leader.balancing.current
        leader.balancing.changed(frozenset((instance_key(2),)))
        assert await leader.look() == 2
        leader.lost = frozenset((3,))
        assert await leader.look() == 3
        # Also where that came while it planned.
        leader.hold = True
        leader.balancing.changed(frozenset((instance_key(2),)))
        await leader.look()
        leader.balancing.changed(frozenset((request_key(2),)))
        leader.held_up.pop()()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leader.hold = False
        assert await leader.look() == 5

    run(story, monkeypatch)


def test_reasons_that_changed_take_their_proposals_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.says = ((proposal(Cause.DRAIN),), ("no disk has room",))
        await leader.look()
        assert leader.balancing.proposals
        leader.balancing.changed(frozenset((b"tablets/" + b"0" * 20 + b"/000001",)))
        assert leader.balancing.proposals, "each says which set it was computed on"
        leader.balancing.changed(frozenset((request_key(5),)))
        assert leader.balancing.proposals == ()
        assert leader.balancing.problems == (Problem("no disk has room"),)

    run(story, monkeypatch)


def test_a_term_that_is_over_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        leader.says = ((proposal(),), ("why not",))
        await leader.look(term=1)
        assert leader.balancing.proposals
        assert await leader.look(term=0) == 1
        assert leader.balancing.proposals == () and leader.balancing.problems == ()
        leader.balancing.changed(frozenset((instance_key(1),)))
        assert await leader.look(term=0) == 1
        assert await leader.look(term=3) == 2
        # A plan of an earlier term does not count when it comes.
        leader.hold = True
        leader.balancing.changed(frozenset((instance_key(1),)))
        await leader.look(term=3)
        await leader.look(term=4)
        leader.held_up.pop(0)()
        for _ in range(3):
            await asyncio.sleep(0)
        assert leader.balancing.proposals == ()
        assert not leader.complaints

    run(story, monkeypatch)


def test_a_planner_with_a_defect_is_told_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        def broken(_seen: Outline) -> Any:
            leader.asked.append(_seen)
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(leader.balancing, "_planner", broken)
        await leader.look()
        assert leader.complaints == ["the planner of tablets met a defect: ZeroDivisionError('a defect')"]
        assert await leader.look() == 1, "it rests"

    run(story, monkeypatch)


def test_without_tables_there_is_nothing_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        assert await leader.look() == 0
        assert leader.balancing.current

    run(story, monkeypatch, tables=False)


def test_whoever_could_not_take_tablets_is_a_reason_to_plan_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader) -> None:
        assert await leader.look() == 1 and await leader.look() == 1
        leader.avoided = frozenset({2})
        assert await leader.look() == 2 and leader.asked[-1].avoided == {2} and leader.balancing.current
        leader.avoided = frozenset()
        assert await leader.look() == 3 and not leader.asked[-1].avoided

    run(story, monkeypatch)
