"""Whether what a job reads can be read at all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.rows import tables

from trimtab.pipeline.failures import JobFailed, again
from trimtab.pipeline.scans import Scan, check_reachable
from trimtab.spark.options import Connection
from trimtab.spark.scan_plan import Holder, ScanPart, ScanPlan
from trimtab.tablets.consistency import Level

TABLE = tables.table(["int"], [], ["text"])


def scan(level: Level, *offline: int) -> Scan:
    """Of two tablets, one of them on i4 and i5 alone."""
    holders = {each: Holder(each, f"i{each}", f"h:{each}", "dc1", each not in offline) for each in range(1, 6)}
    plan = ScanPlan(Connection("h:1"), TABLE, {}, ("p0",), ("p0",), 4, 0, level, "dc1", holders)
    known: Any = None
    return Scan(plan, (ScanPart(0, (), (1, 2, 3)), ScanPart(1, (), (4, 5))), known)


@pytest.mark.parametrize(
    ("level", "offline", "says"),
    [
        (Level.ALL, (), ""),
        (Level.QUORUM, (3,), ""),
        (Level.ONE, (2, 3, 5), ""),
        (Level.ALL, (3,), "tablet 0 of shop.things can't be read: ALL needs 3 of 3 replicas, 2 can be read; i3 is not"),
        (Level.LOCAL_QUORUM, (2, 3), "LOCAL_QUORUM needs 2 of 3 replicas in data centre dc1, 1 can be read; i2, i3 "),
        (Level.QUORUM, (5,), "tablet 1 of shop.things can't be read: QUORUM needs 2 of 2 replicas, 1 can be read; i5 "),
        (Level.ONE, (4, 5), "ONE needs 1 of 2 replicas, 0 can be read; i4, i5 are not Online"),
    ],
)
def test_a_level_that_those_who_are_online_can_not_reach_is_told_at_once(
    level: Level, offline: tuple[int, ...], says: str
) -> None:
    """Counting at ALL waited for a dead instance for a quarter of an hour, in five attempts."""
    if not says:
        check_reachable(scan(level, *offline))
        return
    with pytest.raises(JobFailed) as failed:
        check_reachable(scan(level, *offline))
    assert says in str(failed.value)
    assert again(failed.value), "they may be on their way back"
