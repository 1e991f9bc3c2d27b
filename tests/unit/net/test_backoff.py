from __future__ import annotations

import random

from trimtab.net.backoff import Backoff


def test_the_first_retry_is_fast_and_waits_grow_to_the_cap() -> None:
    for seed in range(50):
        backoff = Backoff(random.Random(seed), 0.035, 2.0)
        waits = [backoff.next_s() for _ in range(40)]
        assert 0.02 <= waits[0] <= 0.05
        assert max(waits) <= 2.0
        assert min(waits[10:]) >= 1.2
        backoff.reset()
        assert backoff.next_s() <= 0.05


def test_two_peers_do_not_wait_alike_but_a_seed_does() -> None:
    def waits(seed: int) -> list[float]:
        backoff = Backoff(random.Random(seed), 0.035, 2.0)
        return [backoff.next_s() for _ in range(5)]

    assert waits(1) != waits(2)
    assert waits(1) == waits(1)
