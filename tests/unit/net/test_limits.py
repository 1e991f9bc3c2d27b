from __future__ import annotations

import pytest

from trimtab.net.limits import Limits


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_in_flight": 0}, "max_in_flight must be positive"),
        ({"max_frame_bytes": 100}, "at least 1024"),
        ({"max_frame_bytes": 2**32}, "32-bit"),
        ({"write_low_bytes": 2 * 1024 * 1024}, "below write_high_bytes"),
        ({"dead_after_s": 2.5}, "three times keepalive_s"),
    ],
)
def test_limits_that_cannot_work_are_refused_when_they_are_made(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Limits(**changes)
