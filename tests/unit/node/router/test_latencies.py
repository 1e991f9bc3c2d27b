"""Who is asked first, and when another one is asked as well."""

from __future__ import annotations

from trimtab.node.router.latencies import Latencies


def test_the_mean_follows_what_is_measured_and_one_that_fails_is_asked_later() -> None:
    latencies = Latencies()
    assert latencies.mean_s(2) == 0.0
    for _ in range(50):
        latencies.answered(2, 7, 0.010)
    assert abs(latencies.mean_s(2) - 0.010) < 1e-9
    latencies.failed(2)
    assert latencies.mean_s(2) >= 1.0
    for _ in range(50):
        latencies.answered(2, 7, 0.010)
    assert latencies.mean_s(2) < 0.012


def test_patience_is_what_the_table_says() -> None:
    latencies = Latencies()
    assert latencies.patience_s(7, "none") is None
    assert latencies.patience_s(7, "always") == 0.0
    assert latencies.patience_s(7, "25ms") == 0.025
    assert latencies.patience_s(7, "p99") == 0.05
    for number in range(200):
        latencies.answered(2, 7, 0.100 if number % 50 == 0 else 0.002)
    assert latencies.patience_s(7, "p50") == 0.002
    assert latencies.patience_s(7, "p99") == 0.100
    assert latencies.patience_s(8, "p99") == 0.05
    assert latencies.patience_s(7, "whatever comes") == latencies.patience_s(7, "p99")
