"""A wire that broke in one direction, between machines of their own: a cluster must not stand still over it.

Each machine is a network namespace. The one that is cut hears the others but is not heard, or is heard but does not
hear; it is marked Offline, the others go on, and when the wire is mended it comes back by itself.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.instances import BRISK, Instances, number_of
from tests.cluster.networks import network
from tests.conftest import Processes
from trimtab.client.cluster import ClusterClient
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import ViewReply

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_one_way_cut_puts_one_instance_offline_and_the_others_go_on(processes: Processes, tmp_path: Path) -> None:
    with network(3) as wires:
        addresses = [f"{wires.address(machine)}:3301" for machine in (1, 2, 3)]
        three = Instances(processes, tmp_path, addresses, options=BRISK, inside=wires.enter)

        async def story() -> None:
            three.start(1, 2, 3)
            await three.online()
            # With fewer votes than three, those that are left may be no majority.
            await three.vote(1, 2, 3)
            await cut_off(await follower(), "hears and is not heard")
            await cut_off(await follower(), "is heard and does not hear")
            await cut_off(await three.leader(), "hears and is not heard")

        async def follower() -> int:
            leader = await three.leader()
            return next(number for number in three.running if number != leader)

        async def cut_off(number: int, how: str) -> None:
            others = [each for each in three.running if each != number]
            wires_cut = [(number, *others)] if how.startswith("hears") else [(each, number) for each in others]
            before = await three.view()
            began = time.monotonic()
            for sender, *receivers in wires_cut:
                wires.cut(sender, *receivers)
            async with three.client(*others) as client:
                await three.wait_for(lambda: _writes(client), "the others go on")
                went_on_s = time.monotonic() - began

                async def marked_offline() -> bool:
                    view = await client.view()
                    row = next(each.record for each in view.instances if number_of(each) == number)
                    return row.grades.current.grade is Grade.OFFLINE

                await three.wait_for(marked_offline, f"i{number}, which {how}, is marked Offline")
                marked_s = time.monotonic() - began
                await three.wait_for(lambda: _writes(client), "the others still go on")
            for sender, *receivers in wires_cut:
                wires.heal(sender, *receivers)
            began = time.monotonic()
            await three.online(number)
            after = await three.view()
            role = "the leader" if before.leader == _raft_id(before, number) else "a follower"
            print(
                f"\n{role} that {how}: writes went on after {went_on_s:.1f} s, Offline after {marked_s:.1f} s, Online "
                f"{time.monotonic() - began:.1f} s after the wire was mended, terms {before.term} to {after.term}"
            )

        wires.look_on(story)


async def _writes(client: ClusterClient) -> bool:
    await client.metastore.put(b"test/key", b"value", timeout_s=1)
    return True


def _raft_id(view: ViewReply, number: int) -> int:
    return next(each.raft_id for each in view.instances if number_of(each) == number)
