"""What the leader sees: who lives, who is lost, and who may go with what it has."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.unit.governor.holdings import Holding, holding

from trimtab.governor.state import Heard, MoveFacts, Patience
from trimtab.node.outlook import Outlook
from trimtab.tablets.departures import Problem
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import RequestKind

DOWN = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))
LEAVE, REMOVE = RequestKind.LEAVE, RequestKind.REMOVE


async def outlook(world: Holding, *, leads: bool = True, **ages_ms: int) -> Outlook:
    """Of i1; the others were heard from so long ago."""
    heard = {world.id_of(name): Heard(age_ms) for name, age_ms in ages_ms.items()}
    watching = SimpleNamespace(
        view=world.view,
        tables=world.tables,
        rebalance=SimpleNamespace(settings=RebalanceSettings(heal_after_ms=60_000)),
    )
    instance: Any = SimpleNamespace(raft_id=1, cluster=None, watching=watching, wall_ms=lambda: world.now_ms)
    control: Any = SimpleNamespace(
        office=SimpleNamespace(leads=leads, in_office_ms=1_000), desk=SimpleNamespace(heard=lambda: heard)
    )
    return Outlook(instance, control, Patience())


def test_who_was_heard_from_lately_lives_and_so_does_the_leader_itself() -> None:
    async def story() -> None:
        found = await outlook(holding(3), i2=5_999, i3=6_000)
        assert [found.alive(raft_id) for raft_id in (1, 2, 3, 4)] == [True, True, False, False]
        assert set(found.heard() or {}) == {2, 3}
        assert (await outlook(holding(1), leads=False)).heard() is None

    asyncio.run(story())


def test_who_is_lost_is_not_counted_among_those_who_could_take_over() -> None:
    async def story() -> None:
        world = holding(4)
        world.create(3)
        found = await outlook(world, i2=0, i3=0, i4=0)
        assert (found.holds(4), found.lost()) == ("6 tablet replicas of shop.users (6)", frozenset())
        assert found.keeps(4, LEAVE) is None
        world.put_row(3, grades=DOWN, weight=0.0, down_ms=world.now_ms - 60_000)
        found = await outlook(world, i2=0, i4=0)
        assert found.lost() == {3}
        assert "has 2: h1 (i1), h2 (i2)" in str(found.keeps(4, LEAVE))
        # It has been heard from again.
        assert (await outlook(world, i2=0, i3=0, i4=0)).keeps(4, LEAVE) is None

    asyncio.run(story())


def test_others_that_are_asked_to_go_are_not_counted_either() -> None:
    async def story() -> None:
        world = holding(4)
        world.create(3)
        world.ask(LEAVE, "i3")
        found = await outlook(world, i2=0, i3=0, i4=0)
        assert "needs 3 distinct hosts for 3 replicas and has 2" in str(found.keeps(4, LEAVE))

    asyncio.run(story())


def test_the_only_copy_keeps_a_dead_instance() -> None:
    async def story() -> None:
        world = holding(3)
        world.create(1)
        found = await outlook(world, i2=0)
        assert "has the only copy of" in str(found.keeps(3, REMOVE))
        assert found.keeps(3, LEAVE) is None

    asyncio.run(story())


def test_what_the_planner_can_not_do_is_a_problem_but_for_what_every_member_tells() -> None:
    async def story() -> None:
        found = await outlook(holding(3), leads=False)
        lost = Problem("1 tablet of shop.users can't be read or written", 1, unserved=True)
        control: Any = found._control
        control.balancing = SimpleNamespace(problems=(lost, Problem("dc1 is uneven")))
        control.move_memory = SimpleNamespace(facts=MoveFacts)
        assert found.problems() == ("dc1 is uneven",)
        assert found.kept_moves() == (), "it does not lead"

    asyncio.run(story())
