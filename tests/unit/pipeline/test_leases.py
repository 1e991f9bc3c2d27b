"""Until when a driver may run jobs, by its own clock."""

from __future__ import annotations

from trimtab.pipeline.leases import DriverLease, boot_s


def test_a_lease_counts_from_when_the_beat_was_sent_that_was_confirmed() -> None:
    now = [100.0]
    lease = DriverLease(10_000, 100.0, lambda: now[0])
    now[0] = 104.0
    lease.confirm(101.0)
    assert (lease.left_s(), lease.over) == (7.0, False)
    # An answer that comes late to an earlier beat takes nothing away.
    lease.confirm(100.5)
    assert lease.left_s() == 7.0
    now[0] = 111.0
    assert (lease.left_s(), lease.over) == (0.0, True)


def test_what_was_surrendered_does_not_come_back() -> None:
    lease = DriverLease(10_000, boot_s())
    assert not lease.over
    lease.surrender()
    lease.confirm(boot_s())
    assert lease.over
