"""Two data centres, each with its own replicas: what EACH_QUORUM and LOCAL_QUORUM promise while one of them is gone.

The majority of the voters is in the east, so the west can go without taking the leader's majority with it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import trimtab
from tests.cluster.instances import Instances, loopback
from tests.cluster.patience import create_keyspace, create_table, patiently, scanned
from tests.cluster.replica_reads import await_rows
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.topology.grades import Grade

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

EAST, WEST = (1, 2, 3), (4, 5)


def start(cluster: Instances, *numbers: int) -> None:
    for number in numbers:
        cluster.start(number, options=["--failure-domain", f"dc={'east' if number in EAST else 'west'}"])


def connect(cluster: Instances, datacenter: str) -> trimtab.Database:
    numbers = EAST if datacenter == "east" else WEST
    return trimtab.connect([cluster.listen[each] for each in numbers], datacenter=datacenter, timeout=30)


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
        create_keyspace(east, "shop", replication={"east": 3, "west": 2})
        create_table(east, "shop.t", {"id": "int", "v": "text"}, tablets=4)
        here, there = east.table("shop.t"), west.table("shop.t")

        both = [{"id": id, "v": "both"} for id in range(100)]
        patiently(lambda: here.put_many(both, consistency="EACH_QUORUM"))
        some = [{"id": id} for id in range(0, 100, 20)]
        found = patiently(lambda: there.get_many(some, consistency="LOCAL_QUORUM"))
        assert found == [{**each, "v": "both"} for each in some]
        patiently(lambda: there.put({"id": 100, "v": "from the west"}, consistency="LOCAL_QUORUM"))

        async def has_crossed() -> bool:
            """The west alone was waited for; before it goes, the east has to have it, too."""
            return patiently(lambda: here.get(id=100, consistency="LOCAL_QUORUM")) is not None

        await cluster.wait_for(has_crossed, "what was written in the west arrives in the east")

        cluster.kill(*WEST)
        for number in WEST:
            await cluster.wait_for(partial(cluster.is_now, number, Grade.OFFLINE), f"i{number} is Offline")

        patiently(lambda: here.put({"id": 101, "v": "from the east"}, consistency="LOCAL_QUORUM"))
        found = patiently(lambda: here.get_many([{"id": 100}, {"id": 101}], consistency="LOCAL_QUORUM"))
        assert found == [{"id": 100, "v": "from the west"}, {"id": 101, "v": "from the east"}]
        patiently(lambda: here.put({"id": 102, "v": "three of five"}, consistency="QUORUM"))
        with pytest.raises(trimtab.Unavailable, match="in data centre west") as refused:
            here.put({"id": 103, "v": "nowhere"}, consistency="EACH_QUORUM")
        assert (refused.value.consistency, refused.value.required, refused.value.alive) == ("EACH_QUORUM", 2, 0)
        with pytest.raises(trimtab.Unavailable) as refused:
            here.put({"id": 103, "v": "nowhere"}, consistency="ALL")
        assert (refused.value.required, refused.value.alive) == (5, 3)
        assert patiently(lambda: here.get(id=103)) is None

        start(cluster, *WEST)
        await cluster.online(*WEST)
        patiently(lambda: here.put({"id": 104, "v": "both again"}, consistency="EACH_QUORUM"))
        rows = {row["id"]: row for row in scanned(here, consistency="QUORUM")}
        assert rows.keys() == {*range(103), 104}
        for number in (*EAST, *WEST):
            await await_rows(cluster, number, "shop.t", rows)
        east.close()
        west.close()

    run(tell())
