"""The leader forgets history that is older than promised, not oftener than needed, and never too early."""

from __future__ import annotations

import itertools

from trimtab.node.history import HistoryKeeping

HOUR_S = 3_600


def run(keeping: HistoryKeeping, *, hours: float, leads: bool = True, revision_every_s: int = 1) -> dict[int, int]:
    """Housekeeping every second with a new revision now and then: what is compacted up to, by time."""
    compacted, proposed = 0, {}
    for now in range(int(hours * HOUR_S)):
        if (old := keeping.look(now, now // revision_every_s, compacted, leads=leads)) is not None:
            proposed[now] = compacted = old
    return proposed


def test_nothing_is_forgotten_in_the_first_hour() -> None:
    assert run(HistoryKeeping(HOUR_S * 1000), hours=1) == {}


def test_then_everything_older_than_an_hour_goes_once_a_minute() -> None:
    proposed = run(HistoryKeeping(HOUR_S * 1000), hours=2)
    assert all(now - old >= HOUR_S for now, old in proposed.items())
    assert all(now - old < HOUR_S + 61 for now, old in proposed.items())
    times = list(proposed)
    assert 55 <= len(times) <= 60
    assert all(late - early >= 60 for early, late in itertools.pairwise(times))


def test_a_follower_proposes_nothing_but_knows_what_is_old_when_it_leads() -> None:
    keeping = HistoryKeeping(HOUR_S * 1000)
    assert run(keeping, hours=2, leads=False) == {}
    assert keeping.look(2 * HOUR_S, 2 * HOUR_S, 0, leads=True) == HOUR_S


def test_a_metastore_at_rest_is_left_alone() -> None:
    assert run(HistoryKeeping(HOUR_S * 1000), hours=3, revision_every_s=100 * HOUR_S) == {}


def test_what_failed_is_proposed_again_a_minute_later() -> None:
    keeping = HistoryKeeping(HOUR_S * 1000)
    run(keeping, hours=2, leads=False)
    now = 2 * HOUR_S
    assert keeping.look(now, now, 0, leads=True) is not None
    assert keeping.look(now + 59, now, 0, leads=True) is None
    assert keeping.look(now + 60, now, 0, leads=True) is not None


def test_zero_keeps_everything() -> None:
    assert run(HistoryKeeping(0), hours=2) == {}


def test_what_is_remembered_is_bounded() -> None:
    keeping = HistoryKeeping(HOUR_S * 1000)
    run(keeping, hours=4, leads=False)
    assert len(keeping._samples) <= 62
