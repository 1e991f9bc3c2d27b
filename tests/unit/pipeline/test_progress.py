"""Rates and the time that is left, from what a job says."""

from __future__ import annotations

from trimtab.pipeline.progress import MAX_SAMPLES, UNKNOWN, Meter


def test_the_rate_is_that_of_the_last_while_and_the_time_left_follows_from_it() -> None:
    meter = Meter(7)
    meter.set(total_bytes=10_000, phase="reading")
    meter.now(0.0)
    meter.set(bytes_done=1_000, rows_done=10)
    told = meter.now(1.0)
    assert (told.number, told.progress_bytes, told.total_bytes, told.progress_rows) == (7, 1_000, 10_000, 10)
    assert (told.rate_bytes_s, told.eta_s, told.phase) == (1_000.0, 9.0, "reading")
    # It is slowed down: after a while the old rate is forgotten.
    for second in range(2, 60):
        meter.add(100, 1)
        told = meter.now(float(second))
    assert told.rate_bytes_s == 100.0
    assert len(meter._samples) <= MAX_SAMPLES


def test_rows_count_where_bytes_are_not_known_and_nothing_is_claimed_where_neither_is() -> None:
    meter = Meter(1)
    assert meter.now(0.0).eta_s == UNKNOWN
    meter.set(rows_done=5)
    assert meter.now(1.0).eta_s == UNKNOWN
    meter.set(total_rows=25)
    assert meter.now(2.0).eta_s == 8.0
    meter.set(rows_done=25)
    assert meter.now(3.0).eta_s == 0.0


def test_a_job_that_stands_still_or_begins_anew_has_no_rate() -> None:
    meter = Meter(1)
    meter.set(bytes_done=500, total_bytes=1_000)
    meter.now(0.0)
    assert (meter.now(1.0).rate_bytes_s, meter.now(1.0).eta_s) == (0.0, UNKNOWN)
    meter.set(bytes_done=0)
    assert meter.now(2.0).rate_bytes_s == 0.0
