"""Putting instances out of a real cluster, the leader first, until there is only one left, which stays."""

from __future__ import annotations

import pytest

from tests.cluster.instances import Instances
from tests.cluster.watching import run
from trimtab.client.errors import Error
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind
from trimtab.topology.states import NodeState

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_leader_is_expelled_then_another_and_never_the_last(brisk_three: Instances) -> None:
    three = brisk_three  # whoever goes is waited for until its lease is over

    async def story() -> None:
        three.start(1, 2, 3)
        await three.online()
        async with three.client() as client:
            await client.metastore.put(b"kept", b"yes")
        left = []
        for _ in range(2):
            leader = await three.leader()
            await three.expel(leader)
            three.let_go(leader)
            row = (await three.row(leader)).record
            assert row.state is NodeState.LEFT and row.grades.current.grade is Grade.EXPELLED
            await three.vote(*three.running)
            left.append(leader)

        for number in left:
            assert three.ended(number) == 1
            assert f"i{number} was expelled from the cluster" in three.last_line(number)
            assert "start an instance with an empty data directory" in three.last_line(number)

        (last,) = three.running
        three.start(*left)
        for number in left:
            assert three.ended(number) == 1
            assert f"i{number} was expelled" in three.last_line(number)
        async with three.client() as client:
            with pytest.raises(Error, match=f"i{last} is the last"):
                await client.create(RequestKind.LEAVE, f"i{last}", expel=True)
            kept = await client.metastore.get(b"kept")
            assert kept is not None and kept.value == b"yes"
        assert await three.is_now(last, Grade.ONLINE) and three.stop(last) == 0

    run(story())
