"""Clocks of machines that are wrong: nothing is acknowledged that something older covers."""

from __future__ import annotations

from tests.sim.test_rows import instance, shop


def test_a_machine_that_returns_with_its_clock_set_back_stamps_nothing_until_it_has_caught_up() -> None:
    with shop(1, 1) as rows:
        (a,) = rows.machines
        before = rows.put(a, 1, "old")
        a.crash(power=True)
        a.process.jump_wall_clock(-10_000)
        a.start()
        rows.cluster.settle(60)
        assert rows.refusal(rows.put, a, 1, "new")[0] == "not_ready"
        assert rows.get(a, 1) == "old"
        # A stamp of the client's own says what it wants.
        assert rows.put(a, 2, "mine", timestamp_us=5).timestamp_us == 5
        rows.cluster.world.run(12.0)
        assert rows.put(a, 1, "new").timestamp_us > before.timestamp_us
        assert rows.get(a, 1) == "new"


def test_after_a_quick_restart_stamps_go_on_at_once() -> None:
    with shop(1, 1) as rows:
        (a,) = rows.machines
        before = rows.put(a, 1, "old")
        a.crash(power=False)
        a.start()
        rows.cluster.settle(60)
        assert rows.put(a, 1, "new").timestamp_us > before.timestamp_us
        assert rows.get(a, 1) == "new"


def test_a_coordinator_whose_clock_is_behind_is_told_so_and_acknowledges_nothing() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        told: list[str] = []
        control = instance(c).control
        assert control is not None
        control.router.parcels._complain = told.append
        c.process.jump_wall_clock(-8_000)
        code, numbers = rows.refusal(rows.put, c, 1, "zero")
        assert code == "write_failed" and set(numbers["reasons"].values()) == {"skew"}
        rows.put(b, 1, "first")
        assert rows.refusal(rows.put, c, 1, "second")[0] == "write_failed"
        assert rows.get(a, 1) == "first"
        assert any("behind that of" in text for text in told)
        rows.put(a, 1, "third")
        assert rows.get(c, 1) == "third"


def test_a_coordinator_whose_clock_is_ahead_brings_nothing_from_the_future_to_the_others() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        c.process.jump_wall_clock(3_600_000)
        assert rows.refusal(rows.put, c, 1, "from the future")[0] == "write_failed"
        rows.cluster.world.run(10.0)
        held = rows.holding(rows.user(1, "from the future"), 1)
        assert not {a.name, b.name} & set(held)
