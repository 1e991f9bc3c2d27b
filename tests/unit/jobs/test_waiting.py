"""What operators are told while jobs wait."""

from __future__ import annotations

from tests.unit.jobs.queues import Queue

from trimtab.governor.waiting import waiting


def about_drivers(queue: Queue) -> list[str]:
    return [text for text in waiting(queue.state()) if "driver" in text]


def test_jobs_that_nobody_runs_are_told_of_until_a_driver_enters() -> None:
    queue = Queue()
    queue.create()
    how = "the leader starts one, or `trimtab pipeline` does"
    assert about_drivers(queue) == [f"1 job waits for a driver; none runs yet ({how})"]
    queue.create()
    assert about_drivers(queue)[0].startswith("2 jobs wait for a driver; none runs yet")
    queue.enter()
    assert about_drivers(queue) == []
