"""The schedule of repairs: one table at a time, the one that waits longest first, none before its time."""

from __future__ import annotations

import pytest

from trimtab.jobs.records import Command, JobKind, JobRecord, JobState, encode
from trimtab.jobs.repair_schedule import (
    DEFAULT_INTERVAL_S,
    INTERVAL_KEY,
    MIN_INTERVAL_S,
    TIMES_KEY,
    RepairInterval,
    RepairSchedule,
    RepairTimes,
    next_turn,
    wrong_interval,
)
from trimtab.jobs.repair_schedule import encode as encode_schedule
from trimtab.jobs.view import JobView
from trimtab.topology.records import job_key

DAY_MS = 86_400_000
NOW = 1_700_000_000_000
TABLES = {7: "shop.users", 9: "shop.visits"}


def schedule(interval_s: int = 86_400, **times: int) -> RepairSchedule:
    made = RepairSchedule()
    made.change(INTERVAL_KEY, encode_schedule(RepairInterval(interval_s)), 1)
    tables = {int(name.removeprefix("t")): since_ms for name, since_ms in times.items()}
    made.change(TIMES_KEY, encode_schedule(RepairTimes(tables)), 2)
    return made


def test_a_table_is_noticed_first_and_repaired_an_interval_later() -> None:
    fresh = RepairSchedule()
    assert fresh.interval_s == DEFAULT_INTERVAL_S
    turn = next_turn(fresh, JobView(), TABLES, 5, NOW)
    assert turn is not None and turn.job is None and turn.times.tables == {7: NOW, 9: NOW}
    known = schedule(t7=NOW, t9=NOW)
    assert next_turn(known, JobView(), TABLES, 5, NOW + DAY_MS - 1) is None
    turn = next_turn(known, JobView(), TABLES, 5, NOW + DAY_MS)
    assert turn is not None and turn.job is not None
    assert turn.job.command == Command(JobKind.REPAIR, {"table": "shop.users"})
    assert (turn.job.number, turn.job.state) == (5, JobState.QUEUED)
    assert turn.times.tables == {7: NOW + DAY_MS, 9: NOW}


def test_one_table_at_a_time_and_the_one_that_waits_longest_first() -> None:
    known = schedule(t7=NOW - DAY_MS, t9=NOW - 2 * DAY_MS)
    turn = next_turn(known, JobView(), TABLES, 5, NOW)
    assert turn is not None and turn.job is not None and turn.job.command.parameters == {"table": "shop.visits"}
    jobs = JobView()
    jobs.change(job_key(5), encode(turn.job), 3)
    assert next_turn(known, jobs, TABLES, 6, NOW) is None
    other = JobRecord(4, Command(JobKind.COUNT, {"table": "shop.users"}), JobState.QUEUED)
    jobs = JobView()
    jobs.change(job_key(4), encode(other), 3)
    assert next_turn(known, jobs, TABLES, 6, NOW) is not None


def test_tables_that_are_gone_are_forgotten_and_never_means_never() -> None:
    turn = next_turn(schedule(t7=NOW, t8=NOW), JobView(), {7: "shop.users"}, 5, NOW)
    assert turn is not None and turn.times.tables == {7: NOW}
    assert next_turn(schedule(0, t7=1), JobView(), {7: "shop.users"}, 5, NOW) is None


def test_a_clock_that_was_ahead_does_not_keep_a_table_from_its_turn() -> None:
    turn = next_turn(schedule(t7=NOW + 100 * DAY_MS), JobView(), {7: "shop.users"}, 5, NOW)
    assert turn is not None and turn.times.tables == {7: NOW}


@pytest.mark.parametrize(("interval_s", "good"), [(0, True), (MIN_INTERVAL_S, True), (-1, False), (1, False)])
def test_intervals_are_checked(interval_s: int, good: bool) -> None:
    assert bool(wrong_interval(interval_s)) is not good


def test_what_can_not_be_read_counts_as_not_set() -> None:
    made = RepairSchedule()
    made.change(INTERVAL_KEY, b"{", 1)
    made.change(TIMES_KEY, b"[]", 1)
    assert (made.interval_s, made.times.tables) == (DEFAULT_INTERVAL_S, {})
    made.load([(INTERVAL_KEY, encode_schedule(RepairInterval(90)), 4)])
    assert (made.interval_s, made.revisions) == (90, {INTERVAL_KEY: 4})
