"""The rules of the queue, one story at a time; `test_random` takes them all at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.jobs.queues import Queue, refusal

from trimtab.jobs import rules, shapes
from trimtab.jobs.protocol import CreateJob, Progress
from trimtab.jobs.records import Command, JobKind, JobState

UNDO = (Command(JobKind.LOAD, {"step": 1}), Command(JobKind.LOAD, {"step": 2}))


@pytest.fixture
def queue() -> Queue:
    return Queue()


# Dependencies


def test_a_job_runs_only_when_all_that_it_waits_for_succeeded(queue: Queue) -> None:
    queue.enter()
    first, second = queue.create(), queue.create()
    third = queue.create(waits_for=(second, first))
    assert queue.states() == {1: "queued", 2: "queued", 3: "waiting"}
    for number in (second, first):
        queue.take(number)
        queue.govern()
        assert queue.jobs.jobs[third].state is JobState.WAITING
        queue.end(number)
    queue.govern()
    assert queue.jobs.jobs[third].state is JobState.QUEUED
    assert queue.jobs.jobs[third].waits_for == (1, 2)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_what_waits_for_a_job_that_did_not_succeed_fails_with_its_reason(queue: Queue, state: JobState) -> None:
    queue.enter()
    good, bad = queue.create(), queue.create()
    waits = queue.create(waits_for=(good, bad))
    after = queue.create(waits_for=(waits,))
    queue.take(bad)
    if state is JobState.CANCELLED:
        queue.steer(bad, "cancel", "thought again")
    queue.end(bad, state, error="no space")
    queue.govern()
    failed = queue.jobs.jobs[waits]
    reason = "failed: no space" if state is JobState.FAILED else "was cancelled: thought again"
    assert (failed.state, failed.error) == (JobState.FAILED, f"job {bad}, which it waits for, {reason}")
    assert queue.jobs.jobs[after].state is JobState.FAILED
    # Even where somebody would try: what it waits for has not succeeded.
    assert refusal(lambda: queue.take(waits))[0] == "conflict"


def test_a_dependency_that_nobody_can_read_is_waited_for_and_one_that_is_forgotten_never_counts(queue: Queue) -> None:
    first = queue.create()
    second = queue.create(waits_for=(first,))
    from trimtab.topology.records import job_key

    queue.jobs.change(job_key(first), b'{"number": 1, "state": "transcendent"}', 9)
    queue.govern()
    assert queue.jobs.jobs[second].state is JobState.WAITING
    queue.jobs.change(job_key(first), None, 10)
    assert refusal(lambda: queue.create(waits_for=(first,)))[0] == "not_found"
    admitted = rules.admit(queue.jobs, queue.jobs.jobs[second], 0)
    assert admitted is not None
    assert (admitted.state, admitted.error) == (
        JobState.FAILED,
        "job 1, which it waits for, is not known any more",
    )


# Asking


def test_asking_again_with_the_same_id_is_the_same_job(queue: Queue) -> None:
    number = queue.create(request_id="mine")
    same = rules.same_job(queue.jobs, "mine")
    assert same is not None
    assert same.number == number
    assert rules.same_job(queue.jobs, "yours") is None


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"request_id": ""}, "invalid", "needs a request id"),
        ({"request_id": "x" * 129}, "invalid", "1 to 128"),
        ({"waits_for": (7,)}, "not_found", "there is no task 7"),
        ({"waits_for": tuple(range(300))}, "invalid", "at most 256"),
        ({"undo": (Command(JobKind.COUNT),) * 17}, "invalid", "at most 16 undo"),
        ({"max_attempts": -1}, "invalid", "1 to 100 times"),
        ({"parameters": {"files": "x" * 70_000}}, "too_large", "name files by patterns"),
        ({"parameters": {"raw": b"bytes"}}, "invalid", "not plain JSON"),
        ({"parameters": {"ratio": float("nan")}}, "invalid", "not plain JSON"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(
    queue: Queue, asked: dict[str, Any], code: str, words: str
) -> None:
    found, text = refusal(lambda: queue.create(**asked))
    assert found == code
    assert words in text
    assert not queue.jobs.jobs


def test_the_queue_is_bounded(queue: Queue) -> None:
    for _ in range(rules.MAX_OPEN):
        queue.create()
    assert refusal(queue.create)[0] == "overloaded"
    queue.steer(1, "cancel")
    queue.create()


def test_requests_and_jobs_count_together(queue: Queue) -> None:
    from trimtab.topology.records import RequestKind, RequestRecord, encode, request_key

    queue.view.change(request_key(5), encode(RequestRecord(RequestKind.BARRIER)), 1)
    assert queue.create() == 6
    assert queue.view.next_request() == 7


# Steering


def test_pause_and_resume_before_and_while_it_runs(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    assert queue.steer(number, "pause").state is JobState.PAUSED
    assert rules.ready(queue.jobs, queue.now_ms) == []
    assert queue.steer(number, "resume").state is JobState.QUEUED
    queue.take(number)
    assert queue.steer(number, "pause").wanted == "pause"
    job = queue.end(number, JobState.PAUSED, checkpoint={"part": 3})
    assert (job.state, job.wanted, job.checkpoint, job.excused) == (JobState.PAUSED, "", {"part": 3}, 1)
    queue.steer(number, "resume")
    assert queue.take(number).checkpoint == {"part": 3}


def test_a_pause_that_was_taken_back_while_the_job_stopped_lets_it_go_on(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    queue.take(number)
    queue.steer(number, "pause")
    queue.steer(number, "resume")
    assert queue.end(number, JobState.PAUSED).state is JobState.QUEUED


def test_cancelling_ends_what_does_not_run_at_once_and_tells_the_driver_of_what_does(queue: Queue) -> None:
    queue.enter()
    first, second = queue.create(), queue.create()
    assert queue.steer(first, "cancel", "not needed").error == "not needed"
    assert queue.jobs.jobs[first].state is JobState.CANCELLED
    queue.take(second)
    assert queue.steer(second, "cancel").wanted == "cancel"
    assert refusal(lambda: queue.steer(second, "pause"))[1] == "job 2 is being cancelled"
    job = queue.end(second, JobState.FAILED, error="interrupted", again=True)
    assert (job.state, job.error) == (JobState.CANCELLED, "an operator cancelled it")
    assert refusal(lambda: queue.steer(second, "cancel"))[0] == "conflict"


def test_a_job_that_succeeded_before_it_could_be_cancelled_has_succeeded(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    queue.take(number)
    queue.steer(number, "cancel")
    job = queue.end(number, result={"rows": 5})
    assert (job.state, job.result, job.error) == (JobState.SUCCEEDED, {"rows": 5}, "")


def test_a_job_that_waits_can_be_cancelled_but_not_paused(queue: Queue) -> None:
    first = queue.create()
    second = queue.create(waits_for=(first,))
    assert refusal(lambda: queue.steer(second, "pause")) == (
        "conflict",
        "job 2 has not begun: it waits for 1; pause those, or cancel it",
    )
    assert refusal(lambda: queue.steer(second, "explode"))[1].startswith("'explode' is no order")
    assert queue.steer(second, "cancel").state is JobState.CANCELLED


# The driver


def test_one_driver_at_a_time_each_with_a_term_of_its_own(queue: Queue) -> None:
    assert queue.enter("d1").term == 1
    assert queue.enter("d1").term == 1
    assert refusal(lambda: queue.enter("d2"))[0] == "taken"
    queue.leave("d1", 1)
    assert refusal(lambda: queue.enter("d1"))[0] == "stale_term"
    assert queue.enter("d2").term == 2
    assert refusal(lambda: queue.enter("d3", lease_ms=1))[0] == "invalid"


def test_a_driver_whose_term_is_over_can_change_nothing(queue: Queue) -> None:
    queue.enter("d1")
    first, second = queue.create(), queue.create()
    queue.take(first)
    queue.pass_ms(10_001)
    queue.enter("d2")
    for deed in (
        lambda: queue.take(second, term=1),
        lambda: queue.note(first, {"x": 1}, term=1),
        lambda: queue.end(first, term=1),
    ):
        assert refusal(deed)[0] == "stale_term"
    assert rules.leave(queue.jobs, "d1", 1) is None


def test_a_silent_driver_is_gone_and_its_jobs_are_queued_again_after_a_rest(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    queue.take(number)
    queue.note(number, {"part": 2})
    queue.pass_ms(10_000)
    assert queue.jobs.living_driver is not None
    queue.pass_ms(1)
    job = queue.jobs.jobs[number]
    assert queue.jobs.living_driver is None
    assert (job.state, job.attempts, job.checkpoint) == (JobState.QUEUED, 1, {"part": 2})
    assert job.not_before_ms == queue.now_ms + 1_000
    assert "the driver d1 (term 1) was not heard from for 10.0 s: it is gone" in queue.told
    queue.enter("d2")
    assert refusal(lambda: queue.take(number, term=2))[0] == "conflict"
    queue.pass_ms(1_000, driver_lives=True)
    assert queue.take(number, term=2).attempts == 2


def test_a_job_that_takes_its_drivers_with_it_fails_in_the_end(queue: Queue) -> None:
    number = queue.create(max_attempts=3)
    for term in (1, 2, 3):
        queue.enter(f"d{term}")
        queue.take(number, term)
        queue.pass_ms(10_001)
        queue.pass_ms(60_000)
    job = queue.jobs.jobs[number]
    assert (job.state, job.error) == (JobState.FAILED, "its driver (term 3) is gone (tried 3 times)")


def test_a_driver_that_is_told_to_stop_puts_its_jobs_back_and_that_is_no_failure(queue: Queue) -> None:
    number = queue.create(max_attempts=1)
    for term in range(1, 5):
        queue.enter(f"d{term}")
        queue.take(number, term)
        job = queue.end(number, JobState.QUEUED, term, checkpoint={"part": term})
        assert (job.state, job.not_before_ms) == (JobState.QUEUED, 0)
        queue.leave(f"d{term}", term)
    queue.enter("d5")
    queue.take(number, 5)
    assert queue.end(number, JobState.FAILED, 5, error="no", again=True).state is JobState.FAILED


def test_what_was_wanted_of_a_job_whose_driver_is_gone_happens_to_it(queue: Queue) -> None:
    queue.enter()
    first, second = queue.create(), queue.create()
    for number, order in ((first, "cancel"), (second, "pause")):
        queue.take(number)
        queue.steer(number, order)
    queue.pass_ms(10_001)
    assert queue.states() == {first: "cancelled", second: "paused"}


def test_failures_are_tried_again_with_growing_rests_and_then_are_final(queue: Queue) -> None:
    queue.enter()
    number = queue.create(max_attempts=3)
    rests = []
    for _ in range(2):
        queue.take(number)
        job = queue.end(number, JobState.FAILED, error="no answer", again=True)
        assert job.state is JobState.QUEUED
        rests.append(job.not_before_ms - queue.now_ms)
        queue.pass_ms(rests[-1], driver_lives=True)
    queue.take(number)
    job = queue.end(number, JobState.FAILED, error="no answer", again=True)
    assert rests == [1_000, 2_000]
    assert (job.state, job.error) == (JobState.FAILED, "no answer (tried 3 times)")
    assert rules.backoff_ms(rules.changed(job, attempts=99)) == rules.MAX_BACKOFF_MS


def test_why_an_attempt_failed_is_shown_while_the_next_one_runs(queue: Queue) -> None:
    """A count ran for a quarter of an hour, in five attempts, and nothing said why."""
    queue.enter()
    number = queue.create()
    assert shapes.task(queue.take(number))["reason"] is None
    failed = queue.end(number, JobState.FAILED, error="i3: no answer", again=True)
    assert shapes.task(failed)["reason"] == "i3: no answer"
    queue.pass_ms(failed.not_before_ms - queue.now_ms, driver_lives=True)
    running = queue.take(number)
    assert shapes.task(running)["reason"] == "the attempt before failed: i3: no answer"
    assert shapes.task(queue.steer(number, "cancel", "not needed"))["reason"] == "not needed"
    assert queue.end(number, JobState.CANCELLED).error == "not needed"
    other = queue.create()
    queue.take(other)
    queue.end(other, JobState.FAILED, error="i3: no answer", again=True)
    queue.pass_ms(60_000, driver_lives=True)
    queue.take(other)
    assert queue.end(other, JobState.SUCCEEDED).error == ""


def test_a_failure_that_another_attempt_would_repeat_is_final_at_once(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    queue.take(number)
    job = queue.end(number, JobState.FAILED, error="there is no table shop.x")
    assert (job.state, job.error, job.ended_ms) == (JobState.FAILED, "there is no table shop.x", queue.now_ms)


def test_what_is_said_late_about_an_earlier_attempt_changes_nothing(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    queue.take(number)
    queue.end(number, JobState.FAILED, error="x", again=True, attempt=1)
    # The same once more, because its answer was lost.
    assert queue.end(number, JobState.FAILED, error="x", again=True, attempt=1).state is JobState.QUEUED
    queue.pass_ms(1_000, driver_lives=True)
    queue.take(number)
    assert refusal(lambda: queue.end(number, JobState.FAILED, error="x", again=True, attempt=1))[0] == "stale_term"
    assert refusal(lambda: queue.note(number, {"a": 1}, attempt=1))[0] == "stale_term"
    assert queue.jobs.jobs[number].state is JobState.RUNNING


def test_taking_what_one_runs_already_is_no_new_attempt(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    assert queue.take(number) == queue.take(number)


def test_a_driver_runs_only_so_many_jobs(queue: Queue) -> None:
    queue.enter()
    numbers = [queue.create() for _ in range(rules.MAX_RUNNING + 1)]
    for number in numbers[:-1]:
        queue.take(number)
    assert refusal(lambda: queue.take(numbers[-1]))[1] == "a driver runs at most 16 jobs at once"


def test_results_and_checkpoints_are_small_and_plain(queue: Queue) -> None:
    queue.enter()
    number = queue.create()
    queue.take(number)
    assert refusal(lambda: queue.note(number, {"x": "y" * 40_000}))[0] == "too_large"
    assert refusal(lambda: queue.end(number, result={"x": "y" * 40_000}))[0] == "too_large"
    assert refusal(lambda: queue.end(number, JobState.RUNNING))[0] == "invalid"
    job = queue.end(number, progress=Progress(number, 5, 10, 1, 2), error="x" * 5_000)
    assert (job.progress_bytes, job.total_bytes, job.progress_rows, job.total_rows) == (5, 10, 1, 2)


# Undoing and forgetting


def test_undo_commands_of_what_failed_half_way_run_one_after_the_other(queue: Queue) -> None:
    queue.enter()
    number = queue.create(undo=UNDO)
    queue.take(number)
    queue.end(number, JobState.FAILED, error="no space")
    queue.govern()
    assert queue.states() == {1: "failed", 2: "queued", 3: "waiting"}
    second, third = queue.jobs.jobs[2], queue.jobs.jobs[3]
    assert (second.undoes, third.undoes, third.waits_for) == (1, 1, (2,))
    assert (second.command, second.why) == (UNDO[0], "undoes job 1, which failed")
    assert queue.jobs.jobs[1].undone_by == (2, 3)
    assert "job 1 (count) failed: it is undone by 2, 3" in queue.told


def test_what_never_began_or_succeeded_has_nothing_to_undo(queue: Queue) -> None:
    queue.enter()
    first, second, third = (queue.create(undo=UNDO) for _ in range(3))
    queue.take(first)
    queue.end(first)
    queue.steer(second, "cancel")
    queue.take(third)
    queue.steer(third, "cancel")
    queue.end(third, JobState.CANCELLED)
    queue.govern()
    assert [job.undoes for job in queue.jobs.jobs.values() if job.undoes] == [third, third]


def test_of_jobs_that_ended_long_ago_only_the_newest_are_kept(queue: Queue) -> None:
    queue.enter()
    awaited = queue.create()
    queue.take(awaited)
    queue.end(awaited)
    paused = queue.create()
    queue.create(waits_for=(awaited, paused))
    queue.steer(paused, "pause")
    for _ in range(rules.KEEP_ENDED + 150):
        queue.steer(queue.create(), "cancel")
    queue.govern()
    kept = [number for number, job in queue.jobs.jobs.items() if job.state is JobState.CANCELLED]
    assert rules.KEEP_ENDED <= len(kept) <= rules.KEEP_ENDED + 100
    assert max(queue.jobs.jobs) == queue.view.next_request() - 1
    assert {awaited, paused} <= queue.jobs.jobs.keys()


def test_the_command_that_is_asked_for_may_be_of_any_kind() -> None:
    for kind in JobKind:
        assert rules.create(Queue().jobs, CreateJob(Command(kind), "r"), 1, 0).command.kind is kind


def test_an_order_to_what_is_not_there_calls_it_a_task_as_everywhere(queue: Queue) -> None:
    assert refusal(lambda: queue.steer(99, "cancel")) == (
        "not_found",
        "there is no task 99; `trimtab tasks list` shows those there are",
    )
