from __future__ import annotations

import pytest
from tests.unit.http.made_up import ONLINE, MadeUpCluster

from trimtab.http.port import unready
from trimtab.topology.grades import Grade, Grades, Standing


def test_an_online_instance_with_a_lease_is_ready() -> None:
    assert unready(MadeUpCluster().health()) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lease_ms": 0}, "it has no lease: the leader has not answered its heartbeats"),
        ({"lease_ms": 0, "leader": ""}, "no leader is known"),
        ({"out": "it is stopping"}, "it is stopping"),
        ({"known": False}, "it has just started"),
        ({"grades": Grades()}, "it is told to be Offline, and is Offline"),
        (
            {"grades": Grades(Standing(Grade.ONLINE, 1), Standing(Grade.OFFLINE, 1))},
            "told to be Offline, and is Online",
        ),
        ({"grades": Grades(Standing(Grade.ONLINE, 1), Standing(Grade.ONLINE, 2))}, "Online of an earlier incarnation"),
        (
            {"grades": Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.ONLINE, 2))},
            "its way to Online, and is Offline",
        ),
        ({"grades": Grades(Standing(Grade.REPLICATED, 2), Standing(Grade.ONLINE, 2))}, "and is Replicated"),
        ({"grades": Grades(ONLINE.current, Standing(Grade.EXPELLED, 1))}, "told to be Expelled"),
    ],
)
def test_whatever_keeps_an_instance_from_serving_is_the_reason(changes: dict[str, object], reason: str) -> None:
    cluster = MadeUpCluster()
    cluster.stand(**changes)
    assert reason in unready(cluster.health())
