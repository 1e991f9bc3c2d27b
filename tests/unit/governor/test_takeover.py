"""A leader may die anywhere: before a step, between its deed and its write, after it. The end is the same."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from tests.unit.governor.driver import MAX_STEPS, World, cluster

from trimtab.topology.records import RequestKind

Scene = Callable[[], World]


def joining() -> World:
    world = cluster(3)
    world.join("i4")
    world.join("i5")
    return world


def leaving() -> World:
    world = cluster(5)
    world.ask(RequestKind.LEAVE, "i1")
    world.ask(RequestKind.LEAVE, "i5")
    return world


def removing() -> World:
    world = cluster(5)
    world.kill("i5")
    world.pass_time(7_000)
    world.ask(RequestKind.REMOVE, "i5")
    return world


def replacing() -> World:
    world = cluster(5)
    world.kill("i4")
    world.pass_time(7_000)
    world.join("i4", replaces="i4")
    return world


def dying() -> World:
    world = cluster(6)
    world.process("i3").up = False
    world.now_ms += 8_000
    return world


def returning() -> World:
    world = cluster(4)
    world.restart("i2")
    world.restart("i3")
    return world


def rebuilding() -> World:
    world = cluster(3)
    world.ask(RequestKind.REBUILD, "i3")
    world.ask(RequestKind.BARRIER)
    return world


def cancelling() -> World:
    world = cluster(5)
    number = world.ask(RequestKind.LEAVE, "i4")
    world.ask(RequestKind.LEAVE, "i5")
    world.run(until=lambda: world.view.transition is not None)
    world.cancel(number)
    return world


SCENES: list[Scene] = [joining, leaving, removing, replacing, dying, returning, rebuilding, cancelling]


def play(scene: Scene, at: int, how: str) -> tuple[World, bool]:
    """The scene, with the leader lost at the step with that number; and whether there was such a step."""
    world = scene()
    lost = False
    for number in range(MAX_STEPS):
        world.behave()
        step = world.next_step()
        if step is None:
            break
        if number == at:
            lost = True
            if how == "before":
                world.elect()
            elif how == "half":
                world.half(step)
            else:
                world.carry_out(step)
                world.elect()
        else:
            world.carry_out(step)
    world.pass_time(10_000)
    return world, lost


@functools.cache
def summary_undisturbed(scene: Scene) -> object:
    """How a scene ends where no leader is lost."""
    world, _ = play(scene, -1, "")
    world.assert_settled()
    return world.summary()


@pytest.mark.parametrize("how", ["before", "half", "after"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_leader_dies_at_any_step_and_the_end_is_the_same(scene: Scene, how: str) -> None:
    for at in range(MAX_STEPS):
        world, lost = play(scene, at, how)
        world.assert_settled()
        assert world.summary() == summary_undisturbed(scene), f"after the leader was lost at step {at}"
        if not lost:
            assert at >= 3, "there were steps to lose"
            return


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("seed", range(25))
def test_steps_end_in_any_order_and_some_are_lost(scene: Scene, seed: int) -> None:
    world = scene()
    world.random.seed(seed)
    world.shuffle(100, lose=0.3)
    world.in_flight.clear()
    world.pass_time(20_000)
    world.assert_settled()
    assert world.summary() == summary_undisturbed(scene)
