"""Rebuilding an instance: repairs of what it holds, table by table, until all are done."""

from __future__ import annotations

import pytest
from tests.unit.governor.holdings import HEAL_AFTER_MS, Holding, holding

from trimtab.catalog.commands import DropTable
from trimtab.governor import rebuilds
from trimtab.governor.rebuilds import MAX_JOBS
from trimtab.jobs.records import JobKind, JobState
from trimtab.topology.records import RequestKind, RequestRecord, RequestState
from trimtab.topology.states import NodeState

REBUILD = RequestKind.REBUILD


def begun(world: Holding, name: str, source: str = "") -> int:
    number = world.put_request(RequestRecord(REBUILD, raft_id=world.id_of(name), asked_ms=world.now_ms, source=source))
    world.run()
    return number


def test_everything_that_an_instance_shares_is_compared_and_then_it_is_normal() -> None:
    world = holding(4)
    world.create(3, "users", "orders")
    number = begun(world, "i2")
    assert world.row("i2").state is NodeState.REBUILDING
    request = world.view.requests[number]
    assert (request.state, request.tablets, len(request.jobs)) == (RequestState.RUNNING, 12, 2)
    jobs = world.jobs.open_jobs()
    assert [job.command.kind for job in jobs] == [JobKind.REPAIR] * 2
    assert [job.command.parameters for job in jobs] == [
        {"table": f"shop.{name}", "tablets": world.tables.maps[table].of(2), "targets": [[2]] * 6}
        for table, name in ((1, "users"), (2, "orders"))
    ]
    assert jobs[0].why == "rebuild of i2: shop.users"
    world.run()
    assert world.view.requests[number].state is RequestState.RUNNING, "the jobs have yet to be done"
    world.end_jobs()
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert world.row("i2").state is NodeState.NORMAL
    world.assert_settled()


def test_what_nobody_else_has_is_told_for_it_is_as_doubtful_as_before() -> None:
    world = holding(3)
    world.create(2, "alone", "shared")
    for tablet, (first, _) in [*world.tables.maps[1]]:
        world.place(1, tablet, (first,))
    number = begun(world, "i1")
    world.end_jobs()
    world.run()
    request = world.view.requests[number]
    mine = len(world.tables.maps[1].of(1))
    assert mine and request.state is RequestState.DONE
    told = f"{mine} of its tablets (shop.alone) have no other replica to be compared with; they are as they were"
    assert request.reason == told


def test_where_nothing_can_be_compared_the_rebuild_fails() -> None:
    world = holding(3)
    world.create(1)
    number = begun(world, "i1")
    request = world.view.requests[number]
    assert request.state is RequestState.FAILED and request.reason.endswith("to be compared with; nothing was done")
    assert world.row("i1").state is NodeState.NORMAL
    assert not world.jobs.jobs
    world.assert_settled()


def test_a_few_tables_at_a_time() -> None:
    world = holding(3)
    names = [f"t{number:02d}" for number in range(MAX_JOBS + 3)]
    world.create(2, *names, tablets=4)
    number = begun(world, "i1")
    assert len(world.jobs.open) == MAX_JOBS
    world.end_jobs()
    world.run()
    assert len(world.jobs.open) == 3
    world.end_jobs()
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert {job.command.parameters["table"] for job in world.jobs.jobs.values()} == {f"shop.{name}" for name in names}


def test_large_tables_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    world = holding(2)
    world.create(2, tablets=16)
    monkeypatch.setattr(rebuilds, "MAX_JOB_TABLETS", 6)
    begun(world, "i1")
    found = [job.command.parameters["tablets"] for job in world.jobs.open_jobs()]
    assert found == [[*range(6)], [*range(6, 12)], [*range(12, 16)]]


def test_it_reads_from_one_data_centre_where_that_is_wanted() -> None:
    world = holding(3)
    for number in (4, 5):
        world.join(f"i{number}", domain={"host": f"h{number}", "dc": "dc2"})
    world.run()
    world.create({"dc1": 2, "dc2": 2})
    begun(world, "i4", source="dc1")
    (job,) = world.jobs.open_jobs()
    assert job.command.parameters["sources"] == [1, 2, 3]
    assert job.command.parameters["targets"] == [[4]] * 8
    assert job.command.parameters["tablets"] == [*range(8)]


def test_a_job_that_fails_fails_the_rebuild_and_the_instance_is_normal_again() -> None:
    world = holding(3)
    world.create(3)
    number = begun(world, "i2")
    (job,) = world.end_jobs(JobState.FAILED, "no disk has room")
    world.run()
    request = world.view.requests[number]
    assert (request.state, request.reason) == (RequestState.FAILED, f"job {job.number} failed: no disk has room")
    assert world.row("i2").state is NodeState.NORMAL
    world.assert_settled()


def test_tablets_that_a_job_could_not_do_fail_it_too() -> None:
    world = holding(3)
    world.create(3)
    number = begun(world, "i2")
    (job,) = world.end_jobs(failed=[[3, "i1 and i3 are silent"]])
    world.run()
    request = world.view.requests[number]
    assert (request.state, request.reason) == (
        RequestState.FAILED,
        f"job {job.number} has not done 1 tablet: i1 and i3 are silent",
    )


def test_a_cancelled_rebuild_cancels_its_jobs() -> None:
    world = holding(3)
    world.create(3)
    number = begun(world, "i2")
    world.cancel(number)
    world.run()
    assert world.view.requests[number].state is RequestState.CANCELLED
    assert [job.state for job in world.jobs.jobs.values()] == [JobState.CANCELLED]
    assert world.row("i2").state is NodeState.NORMAL
    world.assert_settled()


def test_an_instance_that_dies_for_good_is_not_rebuilt() -> None:
    world = holding(4)
    world.create(3)
    number = begun(world, "i2")
    world.kill("i2")
    world.pass_time(20_000)
    assert world.view.requests[number].state is RequestState.RUNNING
    world.pass_time(HEAL_AFTER_MS)
    request = world.view.requests[number]
    assert (request.state, request.reason) == (RequestState.FAILED, "i2 is dead, so it can't be rebuilt")
    assert world.row("i2").state is NodeState.NORMAL


def test_a_new_leader_goes_on_with_a_rebuild_and_asks_for_nothing_twice() -> None:
    world = holding(3)
    world.create(3)
    number = begun(world, "i2")
    before = set(world.jobs.jobs)
    world.elect()
    world.pass_time(7_000)
    assert set(world.jobs.jobs) == before
    world.end_jobs()
    world.pass_time(1_000)
    assert world.view.requests[number].state is RequestState.DONE


def test_a_table_that_is_dropped_meanwhile_is_no_matter() -> None:
    world = holding(3)
    world.create(3, "users", "orders")
    number = begun(world, "i2")
    world.schema(DropTable("shop", "orders"))
    world.end_jobs()
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
