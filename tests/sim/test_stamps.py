"""Clocks of machines that are wrong: nothing is acknowledged that something older covers."""

from __future__ import annotations

import pytest

from tests.sim.governed_world import leader, others, view
from tests.sim.test_rows import Shop, instance, shop
from trimtab.net.errors import RpcError
from trimtab.tablets.consistency import Level
from trimtab.topology.common_time import OwnClock
from trimtab.topology.records import EventRecord


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


def test_what_is_written_after_a_read_wins_over_it_though_a_slow_clock_that_holds_no_replica_stamps_it() -> None:
    """It sees no write of others but those it reads, so nothing else brings its clock forward."""
    with shop(4, 3) as rows:
        before = rows.put(rows.machines[0], 1, "zero")
        holds = rows.holding(rows.user(1, "zero"), 1)
        (slow,) = (machine for machine in rows.machines if machine.name not in holds)
        fast = next(machine for machine in rows.machines if machine.name in holds)
        fast.process.jump_wall_clock(150)
        slow.process.jump_wall_clock(-150)
        first = rows.put(fast, 1, "first", after_us=before.timestamp_us)
        shown_us = rows.get_many(slow, [1]).stamp_us
        assert shown_us >= first.timestamp_us > slow.process.wall_ms() * 1000
        assert rows.put(slow, 1, "second", after_us=shown_us).timestamp_us > first.timestamp_us
        assert rows.get(fast, 1) == "second"


def test_a_coordinator_whose_clock_is_behind_is_told_so_and_acknowledges_nothing() -> None:
    """By the replicas' answers, where it does not know the cluster's time."""
    with shop() as rows:
        a, b, c = rows.machines
        told: list[str] = []
        control = instance(c).control
        assert control is not None
        control.router.parcels._complain = told.append
        control.clock_watch._clock = OwnClock(10**9)
        c.process.jump_wall_clock(-8_000)
        code, numbers = rows.refusal(rows.put, c, 1, "zero")
        assert code == "write_failed" and set(numbers["reasons"].values()) == {"skew"}
        rows.put(b, 1, "first")
        assert rows.refusal(rows.put, c, 1, "second")[0] == "write_failed"
        assert rows.get(a, 1) == "first"
        assert any("behind that of" in text for text in told)
        rows.put(a, 1, "third")
        assert rows.get(c, 1) == "third"


@pytest.mark.parametrize("jump_ms", [60_000, -60_000])
@pytest.mark.parametrize("leads", [False, True])
def test_a_machine_whose_clock_jumps_takes_no_writes_until_it_is_set_right(jump_ms: int, leads: bool) -> None:
    with shop() as rows:
        cluster = rows.cluster
        victim = leader(cluster) if leads else others(cluster, leader(cluster))[0]
        other, name = others(cluster, victim)[0], instance(victim).settings.instance_id
        before = rows.put(victim, 1, "before")
        cluster.world.run(cluster.world.now + 2)  # two heartbeats of everybody: the cluster's time is known
        victim.process.jump_wall_clock(jump_ms)
        for level in (Level.QUORUM, Level.ONE, Level.ANY):
            refused = rows.user(1, "from another time", level)
            where = "ahead of" if jump_ms > 0 else "behind"
            with pytest.raises(RpcError, match=f"60.0 s {where} .*NTP") as error:
                rows.write(victim, refused)
            assert error.value.code == "skew"
        assert rows.refusal(rows.put, victim, 1, "mine", timestamp_us=before.timestamp_us + 1)[0] == "skew"
        # Reads go on, and everybody else goes on writing.
        assert rows.get(victim, 1) == "before"
        rows.put(other, 2, "meanwhile")
        cluster.world.run(cluster.world.now + 5)
        assert rows.get(victim, 2) == "meanwhile"
        rows.put(other, 3, "later", Level.QUORUM)
        assert rows.holding(refused, 1) == []
        assert [event.instances for event in clock_events(rows)] == [[name]]
        assert any(f"the clock of {name} is" in line for line in waiting(rows))
        assert sum("this machine's clock is" in line for _, who, line in cluster.world.story if who == victim.name) == 1
        victim.process.jump_wall_clock(-jump_ms)
        assert rows.put(victim, 1, "after").timestamp_us > before.timestamp_us
        assert rows.get(other, 1) == "after"
        cluster.world.run(cluster.world.now + 2)
        assert waiting(rows) == [] and len(clock_events(rows)) == 1


def test_a_machine_that_comes_back_with_a_wrong_clock_takes_no_writes() -> None:
    with shop() as rows:
        victim = others(rows.cluster, leader(rows.cluster))[0]
        rows.put(victim, 1, "before")
        victim.crash(power=True)
        victim.process.jump_wall_clock(3_600_000)
        victim.start()
        rows.cluster.settle(60)
        assert rows.refusal(rows.put, victim, 1, "from the future")[0] == "skew"
        rows.cluster.world.run(rows.cluster.world.now + 10)
        assert rows.holding(rows.user(1, "from the future"), 1) == []
        assert rows.get(victim, 1) == "before"


def clock_events(rows: Shop) -> list[EventRecord]:
    return [event for event in view(rows.cluster).events.values() if event.kind == "clock"]


def waiting(rows: Shop) -> list[str]:
    control = instance(leader(rows.cluster)).control
    assert control is not None
    return list(control.outlook.waiting())
