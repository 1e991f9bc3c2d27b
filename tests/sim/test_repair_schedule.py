"""Repairs that the leader asks for by itself: when they are due, one table at a time, whoever leads."""

from __future__ import annotations

import pytest

from tests.sim.test_missed_writes import Rows, _control, cluster_of
from trimtab.jobs import protocol
from trimtab.jobs.protocol import ScheduleReply, ScheduleRequest
from trimtab.jobs.records import JobKind, JobRecord
from trimtab.jobs.repair_schedule import DEFAULT_INTERVAL_S
from trimtab.net.errors import RpcError
from trimtab.sim.machines import Machine


def ask(rows: Rows, machine: Machine, interval_s: int = -1) -> int:
    answer = rows.ask(machine, protocol.SCHEDULE, protocol.encode(ScheduleRequest(interval_s)))
    reply: ScheduleReply = protocol.decode_schedule_reply(answer)
    return reply.interval_s


def repairs(machine: Machine) -> list[JobRecord]:
    assert machine.instance is not None
    jobs = machine.instance.watching.jobs.jobs.values()
    return [job for job in jobs if job.command.kind is JobKind.REPAIR]


def test_a_repair_is_asked_for_when_it_is_due_and_one_at_a_time() -> None:
    with cluster_of() as rows:
        first, second, _ = rows.machines
        assert ask(rows, first) == DEFAULT_INTERVAL_S
        assert ask(rows, second, 60) == ask(rows, first) == 60
        world = rows.cluster.world
        world.run(world.now + 50)
        assert not repairs(first), "a new table has its time first"
        rows.cluster.until(lambda: repairs(first), 60)
        world.run(world.now + 40)
        (job,) = repairs(first)
        assert job.command.parameters == {"table": "shop.users"}, "the other table waits until this one is done"
        assert "it is scheduled" in job.why


def test_a_leader_that_takes_over_keeps_the_times() -> None:
    with cluster_of() as rows:
        ask(rows, rows.machines[0], 60)
        world = rows.cluster.world
        world.run(world.now + 30)
        leader = rows.cluster.leader()
        assert leader is not None
        noted = _control(leader)._instance.watching.repairs.times
        assert len(noted.tables) == 2
        leader.crash(power=False)
        others = [each for each in rows.machines if each is not leader]
        rows.cluster.until(lambda: rows.cluster.leader() in others, 30)
        assert _control(others[0])._instance.watching.repairs.times == noted
        # What is set anew is looked at soon; else the next look of this one would be minutes away.
        assert ask(rows, others[0], 90) == 90
        rows.cluster.until(lambda: repairs(others[0]), 150)


@pytest.mark.parametrize("interval_s", [1, 10**10])
def test_an_interval_that_makes_no_sense_is_refused(interval_s: int) -> None:
    with cluster_of() as rows:
        with pytest.raises(RpcError, match="are repaired every"):
            ask(rows, rows.machines[0], interval_s)
        assert ask(rows, rows.machines[0], 0) == 0
