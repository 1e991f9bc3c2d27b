"""One rate for all threads of a child, and what a change of it does."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.bulk.serving import fetch_ticket, serving

from trimtab.bulk.pace import BURST_S, Pace, Stopping


class Clock:
    """Time passes only while somebody waits; at `at_s` something happens."""

    def __init__(self) -> None:
        self.now = 100.0
        self.at_s = math.inf
        self.happens: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout_s: float) -> None:
        self.now += timeout_s
        if self.now >= self.at_s:
            self.now, self.at_s = self.at_s, math.inf
            self.happens()


def paced(rate_bytes_s: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Pace:
    pace = Pace(rate_bytes_s, clock)
    monkeypatch.setattr(pace._news, "wait", clock.wait)
    return pace


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(0)
    for _ in range(1_000):
        pace.take(1 << 30)


def test_so_many_bytes_a_second_go_through_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pace = paced(2_000_000, clock, monkeypatch)
    began, moved = clock.now, 0
    while clock.now - began < 0.5:
        pace.take(pace.piece_bytes)
        moved += pace.piece_bytes
    took_s = clock.now - began
    assert 0.8 < moved / (2_000_000 * (took_s + 0.1)) < 1.2


def test_threads_share_the_rate() -> None:
    pace = Pace(4_000_000)

    def move() -> None:
        for _ in range(30):
            pace.take(20_000)

    began = time.monotonic()
    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # All but what goes at once; each with a rate of its own would take a twentieth of a second.
    assert 0.45 < time.monotonic() - began < 30


def test_credit_of_a_quiet_hour_is_no_more_than_an_instant_of_the_rate() -> None:
    clock = Clock()
    pace = Pace(1_000_000, clock)
    clock.now += 3_600
    pace.take(100_000)
    assert pace._tokens <= 0


@pytest.mark.parametrize(("before", "after"), [(64_000, 50_000_000), (10**9, 1_000_000), (64_000, 0)])
def test_a_changed_rate_holds_at_once(before: int, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pace = paced(before, clock, monkeypatch)
    pace.take(10_000_000)  # a debt that the old rate pays off for long
    began, moved = clock.now, 0
    clock.at_s, clock.happens = began + 0.1, lambda: pace.set_rate(after)
    while clock.now - began < 0.6:
        pace.take(50_000)
        moved += 50_000
        if moved > 200_000_000:
            break
    assert moved > 100_000
    if after == 1_000_000:
        # Before the change nobody was held back by a debt of a hundredth of a second.
        assert moved < 10**9 * 0.25 and clock.now - began < 2


@pytest.mark.parametrize("before", [0, 64_000, 4_000_000, 10**9])
@pytest.mark.parametrize("after", [16_000, 200_000, 50_000_000])
def test_what_passes_since_a_change_is_what_the_new_rate_gives(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    pace = paced(before, clock, monkeypatch)
    for _ in range(5):
        pace.take(pace.piece_bytes)
    pace.set_rate(after)
    since, passed = clock.now, 0
    while True:
        piece = pace.piece_bytes
        pace.take(piece)
        if clock.now - since > 1:
            break
        passed += piece
    # What goes at once; and the first take of all may leave a debt.
    assert passed <= after * (1 + BURST_S) + piece
    assert passed >= after * (1 - 2 * BURST_S) - piece


def test_whoever_waits_is_let_go_when_it_ends() -> None:
    pace = Pace(64_000)
    pace.take(10_000_000)
    threading.Timer(0.05, pace.stop).start()
    with pytest.raises(Stopping):
        pace.take(1)


def test_a_transfer_obeys_a_new_rate(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served, served.client() as client:
        served.pace.set_rate(500_000)
        path = served.snapshot_file("a", bytes(20_000_000))
        began = time.monotonic()
        threading.Timer(0.4, served.pace.set_rate, (0,)).start()
        client.fetch_to(tmp_path / "back", path, fetch_ticket())
        took_s = time.monotonic() - began
    assert 0.4 <= took_s < 20, "40 s at the first rate"
