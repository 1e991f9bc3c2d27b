"""`trimtab limit`: what is asked of the cluster, and what is said."""

from __future__ import annotations

import pytest
from tests.unit.cli.operator import MadeUp, Operator

from trimtab.loads.protocol import LimitReply


class Limited(MadeUp):
    """Two instances are Online."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0

    async def find_leader(self) -> None:
        pass

    async def limit(self, rate_bytes_s: int | None = None) -> LimitReply:
        self.asked.append((rate_bytes_s,))
        self.rate = self.rate if rate_bytes_s is None else rate_bytes_s
        return LimitReply(self.rate, self.rate // 2, 2)


def test_the_limit_is_shown_set_and_removed(operator: Operator) -> None:
    cluster = Limited()
    assert operator(cluster, "limit") == (0, "Bulk transfers are not limited.\n", "")
    code, out, _ = operator(cluster, "limit", "10MB/s")
    assert code == 0
    assert out == "Bulk transfers are limited to 10 MB/s: 5 MB/s for each of 2 instances that are Online.\n"
    assert operator.json(cluster, "limit") == {"rate_bytes_s": 10**7, "share_bytes_s": 5 * 10**6, "online": 2}
    assert operator(cluster, "limit", "off")[1] == "Bulk transfers are not limited.\n"
    assert cluster.asked == [(None,), (10**7,), (None,), (0,)]


@pytest.mark.parametrize("rate", ["fast", "10MB/h", "1", "0.5", "0.1B/s", "nan", "inf", "1e400", "1e-5MB/s"])
def test_what_is_no_limit_is_wrong_usage(operator: Operator, rate: str) -> None:
    cluster = Limited()
    code, _, err = operator(cluster, "limit", rate)
    assert code == 2 and ("is no rate" in err or "at least" in err)
    assert cluster.asked == []


@pytest.mark.parametrize("rate", ["99999999999999999999GB/s", "9" * 5_000, "2000000GB/s"])
def test_a_limit_that_is_too_large_is_told_as_such(operator: Operator, rate: str) -> None:
    cluster = Limited()
    code, out, err = operator(cluster, "limit", rate)
    assert (code, out) == (2, "") and "a limit is at most 1000000000000000 bytes a second" in err
    assert cluster.asked == []
