"""What operators are told while jobs wait."""

from __future__ import annotations

from tests.unit.jobs.queues import Queue

from trimtab.governor.waiting import waiting


def about_drivers(queue: Queue) -> list[str]:
    return [text for text in waiting(queue.state()) if "driver" in text]


def test_jobs_that_nobody_runs_are_told_of_until_a_driver_enters() -> None:
    queue = Queue()
    queue.create()
    assert about_drivers(queue) == ["1 job waits for a driver; none runs (trimtab pipeline starts one)"]
    queue.create()
    assert about_drivers(queue)[0].startswith("2 jobs wait for a driver; none runs")
    queue.enter()
    assert about_drivers(queue) == []
