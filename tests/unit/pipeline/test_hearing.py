"""What tasks say while they run, and that they hear when they are to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trimtab.pipeline import hearing
from trimtab.pipeline.hearing import Done, Ear, Hearing, Saying


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "EVERY_S", 0.01)


@pytest.fixture
def heard() -> Iterator[tuple[Hearing, list[Any]]]:
    finished: list[Any] = []
    made = Hearing("127.0.0.1", finished.extend)
    yield made, finished
    made.close()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_bytes_are_seen_while_a_task_runs_and_those_of_its_last_attempt_count(
    heard: tuple[Hearing, list[Any]],
) -> None:
    driver, finished = heard
    one, other = Done(), Done()
    with Saying(driver.ear, 0, one), Saying(driver.ear, 1, other):
        one.add(10, 1)
        other.add(5)
        one.finish([3, 100])
        until(lambda: driver.sums() == (15, 1) and finished == [[3, 100]])
    again = Done()
    with Saying(driver.ear, 0, again):
        again.add(2)
        until(lambda: driver.sums() == (7, 0))


def test_a_task_that_is_told_to_stop_does_what_it_was_given_for_that(heard: tuple[Hearing, list[Any]]) -> None:
    driver, _ = heard
    done, stopped = Done(), threading.Event()
    done.on_stop(stopped.set)
    with Saying(driver.ear, 0, done, end=lambda code: None):
        done.add(1)
        until(lambda: driver.sums() == (1, 0))
        driver.stop()
        assert stopped.wait(60) and done.stopping
    late = Done()
    with Saying(driver.ear, 1, late, end=lambda code: None):
        until(lambda: late.stopping)


def test_a_task_that_does_not_stop_ends_with_its_process_and_so_it_does_without_a_driver(
    heard: tuple[Hearing, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "_STOP_S", 0.05)
    driver, _ = heard
    ended: list[int] = []
    done = Done()
    with Saying(driver.ear, 0, done, end=ended.append):
        done.add(1)
        until(lambda: driver.sums() == (1, 0))
        driver.close()
        until(lambda: ended == [1])


def test_a_task_without_a_way_to_its_driver_just_runs() -> None:
    done = Done()
    with Saying(Ear("127.0.0.1", 1, "x"), 0, done):
        done.add(7)
    with Saying(None, 0, done):
        done.add(1)
    assert done.bytes == 8


def test_strangers_are_not_heard(heard: tuple[Hearing, list[Any]]) -> None:
    driver, _ = heard
    assert driver.ear is not None
    done = Done()
    with Saying(Ear(driver.ear.host, driver.ear.port, "wrong"), 0, done, end=lambda code: None):
        done.add(1)
        until(lambda: done.stopping)
    assert driver.sums() == (0, 0)


def test_a_driver_that_can_not_listen_hears_nothing() -> None:
    driver = Hearing("127.0.0.1", lambda things: None, bind="192.0.2.1")
    assert driver.ear is None and driver.sums() == (0, 0)
    driver.stop()
    driver.close()
