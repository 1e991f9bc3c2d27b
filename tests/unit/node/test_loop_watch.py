"""A blocked loop is measured, counted and, when it was long, told."""

import asyncio

import pytest

from trimtab.node.loop_watch import BUCKETS_S, LoopWatch


class Loop:
    """Time passes only where the test says so: what is due is called then, and not before."""

    def __init__(self):
        self.now_s = 100.0
        self._timers = []

    def time(self):
        return self.now_s

    def call_at(self, when_s, call):
        self._timers.append(timer := Timer(when_s, call))
        return timer

    def block(self, seconds):
        """The very thing that is measured."""
        self.now_s += seconds
        due = [timer for timer in self._timers if timer.when_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer.when_s > self.now_s]
        for timer in due:
            timer.call()

    def rest(self, seconds):
        """So long nobody keeps anybody from running."""
        until_s = self.now_s + seconds
        while self._timers and (next_s := min(timer.when_s for timer in self._timers)) <= until_s:
            self.block(next_s - self.now_s)
        self.now_s = until_s


class Timer:
    def __init__(self, when_s, call):
        self.when_s, self.call = when_s, call

    def cancel(self):
        self.call = lambda: None


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_a_long_block_is_counted_and_told_and_a_short_one_only_counted(loop):
    told = []
    watch = LoopWatch(told.append, every_s=0.001)
    watch.start()
    loop.rest(0.01)
    assert watch.count >= 9 and watch.longest_s < 0.001
    loop.block(0.03)
    loop.rest(0.005)
    assert told == []
    assert 0.025 < watch.longest_lately_s == watch.longest_s
    assert sum(watch.buckets[BUCKETS_S.index(0.05) :]) >= 1
    loop.block(0.25)
    loop.rest(0.005)
    assert len(told) == 1
    assert "nothing could run here for 2" in told[0]
    assert sum(watch.buckets) == watch.count
    watch.stop()
    count = watch.count
    loop.rest(0.01)
    assert watch.count == count


def test_waiting_for_a_processor_is_told_apart(loop):
    told = []
    watch = LoopWatch(told.append, every_s=0.001, waited_s=lambda delay_s: 0.96 * delay_s)
    watch.start()
    loop.rest(0.005)
    loop.block(0.25)
    loop.rest(0.005)
    assert watch.longest_s < 0.2 < watch.starved_s
    assert len(told) == 1 and "for a processor" in told[0]
    watch.stop()
