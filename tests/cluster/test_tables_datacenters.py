"""Two data centres, each with its own replicas: what EACH_QUORUM and LOCAL_QUORUM promise while one of them is gone.

The majority of the voters is in the east, so the west can go without taking the leader's majority with it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import trimtab
from tests.cluster.instances import Instances, loopback
from tests.cluster.replica_reads import replicas_of
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.topology.grades import Grade

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

EAST, WEST = (1, 2, 3), (4, 5)


def start(cluster: Instances, *numbers: int) -> None:
    for number in numbers:
        cluster.start(number, options=["--failure-domain", f"dc={'east' if number in EAST else 'west'}"])


def connect(cluster: Instances, datacenter: str) -> trimtab.Database:
    numbers = EAST if datacenter == "east" else WEST
    return trimtab.connect([cluster.listen[each] for each in numbers], datacenter=datacenter, timeout=10)


def test_with_one_data_centre_gone_the_other_serves_at_local_quorum_and_each_quorum_says_what_is_missing(
    processes: Processes, tmp_path: Path
) -> None:
    cluster = Instances(processes, tmp_path, loopback(5))

    async def tell() -> None:
        start(cluster, *EAST, *WEST)
        await cluster.online()
        await cluster.vote(*EAST, *WEST)
        east, west = connect(cluster, "east"), connect(cluster, "west")
        with pytest.raises(trimtab.SchemaError, match=r"east.*west"):
            east.create_keyspace("shop", replication=3)
        east.create_keyspace("shop", replication={"east": 3, "west": 2})
        east.create_table("shop.t", {"id": "int", "v": "text"}, primary_key=["id"], tablets=4)
        here, there = east.table("shop.t"), west.table("shop.t")

        here.put_many(({"id": id, "v": "both"} for id in range(100)), consistency="EACH_QUORUM")
        assert [there.get(id=id, consistency="LOCAL_QUORUM") for id in range(0, 100, 20)] == [
            {"id": id, "v": "both"} for id in range(0, 100, 20)
        ]
        there.put({"id": 100, "v": "from the west"}, consistency="LOCAL_QUORUM")

        cluster.kill(*WEST)
        for number in WEST:
            await cluster.wait_for(partial(cluster.is_now, number, Grade.OFFLINE), f"i{number} is Offline")

        here.put({"id": 101, "v": "from the east"}, consistency="LOCAL_QUORUM")
        assert here.get(id=100, consistency="LOCAL_QUORUM") == {"id": 100, "v": "from the west"}
        assert here.get(id=101, consistency="LOCAL_QUORUM") == {"id": 101, "v": "from the east"}
        here.put({"id": 102, "v": "three of five"}, consistency="QUORUM")
        with pytest.raises(trimtab.Unavailable, match="in data centre west") as refused:
            here.put({"id": 103, "v": "nowhere"}, consistency="EACH_QUORUM")
        assert (refused.value.consistency, refused.value.required, refused.value.alive) == ("EACH_QUORUM", 2, 0)
        with pytest.raises(trimtab.Unavailable) as refused:
            here.put({"id": 103, "v": "nowhere"}, consistency="ALL")
        assert (refused.value.required, refused.value.alive) == (5, 3)
        assert here.get(id=103) is None

        start(cluster, *WEST)
        await cluster.online(*WEST)
        here.put({"id": 104, "v": "both again"}, consistency="EACH_QUORUM")
        rows = {row["id"]: row for row in here.scan(consistency="QUORUM")}
        assert rows.keys() == {*range(103), 104}
        for number in (*EAST, *WEST):
            async with replicas_of(cluster, number) as replicas:
                assert await replicas.rows("shop.t") == rows, f"of i{number}"
        east.close()
        west.close()

    run(tell())
