"""Tablets that nobody has any more: reads of them are errors, and nobody makes an empty one up.

Document 003's defect is that a missing shard silently returns a part of the rows. Here whoever scans a table gets all
of its rows, or an error; what other tablets have can still be read by key.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.governed_world import leader, others
from tests.sim.moving_world import MovingCluster, moving
from tests.sim.test_moves_recovered import ROWS, recover, tables_of
from tests.sim.test_rows import Shop, instance, shop
from trimtab.net.errors import RpcError
from trimtab.rows import protocol
from trimtab.rows.protocol import ScanRequest
from trimtab.sim.machines import Machine
from trimtab.storage.port import Corrupt
from trimtab.tablets.consistency import Level

IDS = range(40)
LEVELS = [Level.ONE, Level.QUORUM, Level.ALL]


def scan(rows: Shop, machine: Machine, level: Level) -> list[Any]:
    """All rows that pages give before the scan ends; RpcError: it did not come to its end."""
    return rows.pages(machine, ScanRequest(rows.users.id, rows.users.version, [1], limit=5, level=level))


@pytest.mark.parametrize("how", ["its only holder is down", "its only replica was damaged"])
def test_a_scan_over_a_table_with_a_lost_tablet_raises_and_never_leaves_rows_out(how: str) -> None:
    with shop(3, 1, tablets=8) as rows:
        first = leader(rows.cluster)
        victim, reader = others(rows.cluster, first)
        for id in IDS:
            rows.put(reader, id, f"name {id}")
        place = next(place for place in instance(victim).watching.tables.held_by(victim.raft_id)[rows.users.id])
        gone = [id for id in IDS if rows.tablet(rows.users, id) in _tablets(victim, rows, how, place)]
        kept = [id for id in IDS if id not in gone]
        assert gone and kept
        for level in LEVELS:
            assert len(scan(rows, reader, level)) == len(IDS)
        if how == "its only holder is down":
            victim.crash(power=True)
            parcels = instance(reader).control.router.parcels  # type: ignore[union-attr]
            rows.cluster.until(lambda: not parcels.connected(victim.raft_id), 10.0, "it is known that it is down")
        else:
            shelf = instance(victim).holdings.shelf
            replica = shelf.get(rows.users.id, place)
            assert replica is not None
            shelf.damaged(replica, Corrupt(replica.name, "a story damaged it"))
            rows.cluster.world.run(rows.cluster.world.now + 5.0)
        for level in LEVELS:
            with pytest.raises(RpcError) as refused:
                scan(rows, reader, level)
            assert refused.value.code in ("unavailable", "read_failed", "read_timeout"), refused.value
            with pytest.raises(RpcError):
                rows.get(reader, gone[0], level)
            assert [rows.get(reader, id, level) for id in kept] == [f"name {id}" for id in kept]


def _tablets(victim: Machine, rows: Shop, how: str, place: int) -> set[int]:
    held = instance(victim).watching.tables.held_by(victim.raft_id)[rows.users.id]
    return set(held) if how == "its only holder is down" else {place}


def test_a_tablet_that_was_lost_with_all_three_replicas_is_not_made_anew_by_those_who_join() -> None:
    """Reset after a lost majority: the survivor and two newcomers have room for it, and nothing to make it of."""
    with moving(4, 3, tablets=2, heal_after_ms=1_000) as world:
        for id in ROWS:
            world.put(id, f"value {id}")
        place = world.place_of(7)
        stable = world.tablets[place].stable
        survivor = world.of(world.somebody_else(place))
        kept = [id for id in ROWS if survivor.raft_id in world.tablets[world.place_of(id)].stable]
        assert 7 not in kept
        for machine in list(world.cluster.machines.values()):
            machine.crash(power=True)
        recover(world, survivor)
        survivor.start()
        world.until(lambda: survivor.leads and survivor.instance is not None, "the survivor leads")
        newcomers = world.join(2)
        world.until(lambda: all(machine.raft_id for machine in newcomers), "others join")
        members = {survivor.raft_id, *(machine.raft_id for machine in newcomers)}
        healed = {world.place_of(id)[1] for id in kept}

        def is_healed() -> bool:
            places = tables_of(survivor).maps[place[0]]
            return all(set(places.replicas(tablet)) == members for tablet in healed)

        world.until(is_healed, "what the survivor had is on three again")
        world.pass_time(5.0)
        places = tables_of(survivor).maps[place[0]]
        assert places.replicas(place[1]) == stable and not tables_of(survivor).transitions
        assert not any(world.directories(machine, place) for machine in (survivor, *newcomers))
        for work in (lambda: world.get(7), lambda: world.get(7, Level.ONE), lambda: world.put(7, "empty")):
            with pytest.raises(RpcError):
                work()
        assert [world.get(id) for id in kept] == [f"value {id}" for id in kept]
        for level in LEVELS:
            with pytest.raises(RpcError):
                _scan_all(world, level)


def _scan_all(world: MovingCluster, level: Level) -> list[Any]:
    found: list[Any] = []
    page = b""
    while True:
        request = ScanRequest(world.table.id, world.table.version, [1], limit=100, page=page, level=level)
        reply = protocol.decode_rows(world._rows(protocol.SCAN, request))
        found += reply.rows
        if not (page := reply.page):
            return found
