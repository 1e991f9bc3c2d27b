"""Replicas that miss writes while they are away, and what it takes before they answer again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.governed_world import TIMING, grade, told
from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, CreateKeyspace, CreateTable
from trimtab.catalog.schema import Table
from trimtab.net.errors import RpcError
from trimtab.node import failpoints
from trimtab.node.answering import Refused
from trimtab.node.control import ClusterControl
from trimtab.node.replicas.missed_writes import MissedWrites
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.settings import Limits, Timing
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeRequest, DeleteRequest, GetRequest, PutRequest
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.world import World
from trimtab.storage.port import Corrupt
from trimtab.tablets.consistency import Level
from trimtab.topology.grades import Grade

IDS = range(40)


def big(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


class Rows:
    """A cluster with the tables shop.users and shop.others (id bigint, name text)."""

    def __init__(self, cluster: GovernedCluster, replication: int, tablets: int) -> None:
        self.cluster = cluster
        self.machines = list(cluster.machines.values())
        self._change(CreateKeyspace("shop", replication))
        columns = [ColumnSpec("id", "bigint"), ColumnSpec("name", "text")]
        for name in ("users", "others"):
            self._change(CreateTable("shop", name, columns, ["id"], tablets=tablets))
        instance = self.machines[0].instance
        assert instance is not None
        self.users: Table = instance.watching.tables.catalog.table("shop.users")

    def _change(self, command: CreateKeyspace | CreateTable) -> None:
        asked = ChangeRequest(commands.encode(command), f"c{self.cluster.world.events}")
        self.ask(self.machines[0], protocol.CHANGE, protocol.encode(asked))

    def ask(self, machine: Machine, method: str, body: bytes) -> bytes:
        rng = self.cluster.world.rng(f"client/{self.cluster.world.events}")
        return self.cluster.do(self.cluster.ask(machine, method, body, rng, 5.0))  # type: ignore[no-any-return]

    def put(self, machine: Machine, id: int, name: str) -> None:
        request = PutRequest(self.users.id, self.users.version, [1, 2], [[big(id), name.encode()]])
        self.ask(machine, protocol.PUT, protocol.encode(request))

    def get(self, machine: Machine, id: int, level: Level = Level.QUORUM) -> str | None:
        request = GetRequest(self.users.id, self.users.version, [[big(id)]], [2], level)
        row = protocol.decode_rows(self.ask(machine, protocol.GET, protocol.encode(request))).rows[0]
        return row[0].decode() if row is not None else None


@contextmanager
def cluster_of(
    machines: int = 3, *, replication: int = 3, tablets: int = 4, timing: Timing = TIMING, **limits: Any
) -> Iterator[Rows]:
    failpoints.disarm()
    with World(3) as world:
        cluster = GovernedCluster(world, timing, Limits(disk_reserve_bytes=0, **limits))
        for _ in range(machines):
            cluster.add(list(range(machines))).start()
        cluster.settle()
        rows = Rows(cluster, replication, tablets)
        cluster.until(lambda: all(len(replicas(each)) == 2 * tablets for each in rows.machines), 30)
        yield rows


def _control(machine: Machine) -> ClusterControl:
    assert machine.instance is not None and machine.instance.control is not None
    return machine.instance.control


def missed(machine: Machine) -> MissedWrites:
    return _control(machine).missed


def contents(rows: Rows, machine: Machine) -> dict[tuple[int, int], list[bytes]]:
    """What its replicas hold, merged, by table and tablet."""

    async def read() -> dict[tuple[int, int], list[bytes]]:
        return {
            (each.table, each.tablet): (await each.walk(0, gentle=False).page(each.low, each.high, 1 << 40))[0]
            for each in missed(machine).kept()
        }

    return rows.cluster.do(read())  # type: ignore[no-any-return]


def assert_equal_and_new(rows: Rows, value: str = "new") -> None:
    """Everybody serves what was written last, and all replicas hold the same."""
    wanted = contents(rows, rows.machines[0])
    for machine in rows.machines:
        assert own_rows(rows, machine) == dict.fromkeys(IDS, value)
        assert contents(rows, machine) == wanted


def replicas(machine: Machine) -> list[Replica]:
    assert machine.instance is not None
    return list(machine.instance.holdings.shelf.held())


def away(rows: Rows, machine: Machine, *, power: bool = False) -> None:
    """It dies, and the cluster notices."""
    name = machine.settings.instance_id
    machine.crash(power=power)
    rows.cluster.until(lambda: grade(rows.cluster, name) is Grade.OFFLINE, 30)


def back(rows: Rows, machine: Machine) -> None:
    machine.start()
    rows.cluster.settle(60)


def write_all(rows: Rows, machine: Machine, value: str) -> None:
    for id in IDS:
        rows.put(machine, id, value)


def own_rows(rows: Rows, machine: Machine) -> dict[int, str | None]:
    """What this machine's replicas hold, asked for at ONE, which it answers itself."""
    return {id: rows.get(machine, id, Level.ONE) for id in IDS}


def test_a_replica_that_was_away_for_a_while_takes_hints_and_is_not_repaired() -> None:
    with cluster_of() as rows:
        first, second, third = rows.machines
        write_all(rows, first, "old")
        away(rows, third)
        write_all(rows, second, "new")
        held = missed(second).hints.held_for(third.raft_id)[0]
        assert held == len(IDS)
        began = rows.cluster.world.now
        back(rows, third)
        assert_equal_and_new(rows)
        assert missed(third).catching_up.repairs == 0
        assert missed(second).hints.held_for(third.raft_id) == (0, 0)
        assert rows.cluster.world.now - began < 10


def test_one_that_was_away_for_longer_than_hints_are_kept_is_repaired_and_answers_nothing_before() -> None:
    with cluster_of(hint_count=5) as rows:
        first, second, third = rows.machines
        write_all(rows, first, "old")
        away(rows, third)
        write_all(rows, second, "new")
        assert missed(second).hints.marked() and missed(second).hints.held_count == 0
        third.start()
        # As long as its peers can't repair it, it stays where it is.
        for machine in (first, second):
            missed(machine).service._synced = lambda: False
        rows.cluster.world.run(rows.cluster.world.now + 15)
        assert grade(rows.cluster, third.settings.instance_id) is Grade.RAFT_SYNCED
        assert own_rows(rows, third) == dict.fromkeys(IDS, "new"), "others answer in its place"
        with pytest.raises(Refused, match="catching up and answers nothing yet"):
            _control(third).serving.admit_read(_control(third).view.version, may_be_stale=True)
        assert any("catches up" in line for line in _waiting(rows))
        for machine in (first, second):
            missed(machine).service._synced = lambda: True
        rows.cluster.settle(60)
        assert_equal_and_new(rows)
        assert missed(third).catching_up.repairs >= 1
        assert missed(second).hints.mark_of(third.raft_id)[0] == 0, "it was told that the mark is repaired"


def _waiting(rows: Rows) -> tuple[str, ...]:
    leader = rows.cluster.leader()
    assert leader is not None
    return _control(leader).outlook.waiting()


def test_after_a_full_restart_all_get_online_by_repairing_each_other() -> None:
    with cluster_of() as rows:
        first, _, third = rows.machines
        write_all(rows, first, "old")
        away(rows, third, power=True)
        write_all(rows, first, "new")
        for machine in rows.machines[:2]:
            machine.crash(power=True)
        for machine in rows.machines:
            machine.start()
        rows.cluster.settle(60)
        assert_equal_and_new(rows)
        for machine in rows.machines:
            assert told(rows.cluster, machine, "had not ended in an orderly way")


def test_with_one_of_three_missing_after_a_full_restart_the_others_get_online() -> None:
    with cluster_of() as rows:
        first, second, third = rows.machines
        write_all(rows, first, "new")
        for machine in rows.machines:
            machine.crash(power=True)
        for machine in (first, second):
            machine.start()
        names = [machine.settings.instance_id for machine in (first, second)]
        rows.cluster.until(lambda: all(_stands(each) for each in (first, second)), 60)
        rows.cluster.until(lambda: all(grade(rows.cluster, name) is Grade.ONLINE for name in names), 60)
        assert own_rows(rows, second) == dict.fromkeys(IDS, "new")
        rows.put(first, 1, "newer")
        back(rows, third)
        assert rows.get(third, 1, Level.ONE) == "newer"


def test_a_clean_stop_marks_nobody_and_an_unclean_one_has_the_others_repaired_at_their_leisure() -> None:
    with cluster_of() as rows:
        first, _, third = rows.machines
        write_all(rows, first, "v")
        third.stop()
        rows.cluster.until(lambda: not third.alive, 30)
        back(rows, third)
        assert missed(third).hints.marked() == []
        away(rows, third)
        back(rows, third)
        assert len(missed(third).hints.marked()) == 2
        rows.cluster.until(lambda: not missed(third).hints.marked(), 60, "the others to look into it")


def test_a_hint_that_comes_after_a_newer_deletion_changes_nothing() -> None:
    with cluster_of() as rows:
        first, second, third = rows.machines
        away(rows, third)
        rows.put(first, 1, "deleted later")
        assert missed(first).hints.held_for(third.raft_id)[0] == 1
        first.crash(power=False)
        third.start()
        rows.cluster.until(lambda: third.alive and third.instance is not None and _stands(third), 60)
        assert rows.get(third, 1, Level.ONE) == "deleted later", "it was repaired, because one could not be asked"
        request = DeleteRequest(rows.users.id, rows.users.version, [big(1)], [])
        rows.ask(second, protocol.DELETE, protocol.encode(request))
        back(rows, first)
        rows.cluster.until(lambda: missed(first).hints.held_count == 0, 30)
        for machine in rows.machines:
            assert rows.get(machine, 1, Level.ONE) is None


def _stands(machine: Machine) -> bool:
    instance = machine.instance
    return instance is not None and instance.control is not None and instance.control.missed.stands()


def test_rounds_of_repair_say_how_far_they_reach_but_not_while_one_is_away() -> None:
    timing = replace(TIMING, hint_life_ms=2_000, repair_every_ms=5_000)
    with cluster_of(timing=timing) as rows:
        write_all(rows, rows.machines[0], "v")

        def reached() -> int:
            return min(each.repaired_through_ms for machine in rows.machines for each in replicas(machine))

        assert rows.cluster.until(reached, 60)
        third = rows.machines[2]
        away(rows, third)
        rows.cluster.world.run(rows.cluster.world.now + 2)
        held = {(each.table, each.tablet): each.repaired_through_ms for each in replicas(rows.machines[0])}
        rows.cluster.world.run(rows.cluster.world.now + 15)
        assert held == {(each.table, each.tablet): each.repaired_through_ms for each in replicas(rows.machines[0])}
        back(rows, third)
        before = max(held.values())
        rows.cluster.until(lambda: reached() > before, 60)


def test_a_damaged_replica_is_rebuilt_from_its_peers_and_answers_then() -> None:
    with cluster_of() as rows:
        first, _, third = rows.machines
        write_all(rows, first, "v")
        assert third.instance is not None
        shelf = third.instance.holdings.shelf
        for replica in replicas(third):
            shelf.damaged(replica, Corrupt(replica.name, "a byte was flipped"))
        for id in IDS:
            assert rows.get(third, id) == "v", "at QUORUM the others answer"
        rows.cluster.until(
            lambda: len(replicas(third)) == 8 and all(each.state is ReplicaState.OPEN for each in replicas(third)), 60
        )
        assert missed(third).rebuilding.rebuilt == 8
        assert_equal_and_new(rows, "v")


def test_the_only_replica_of_a_tablet_stays_damaged_and_says_so() -> None:
    with cluster_of(1, replication=1, tablets=1) as rows:
        (only,) = rows.machines
        rows.put(only, 1, "v")
        assert only.instance is not None
        for replica in replicas(only):
            only.instance.holdings.shelf.damaged(replica, Corrupt(replica.name, "a byte was flipped"))
        rows.cluster.until(lambda: len(missed(only).rebuilding.damaged()) == 2, 30)
        assert "has lost its data" in next(iter(missed(only).rebuilding.damaged().values()))
        with pytest.raises(RpcError):
            rows.get(only, 1)
