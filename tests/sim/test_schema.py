"""Changes of the schema in a whole cluster: one after the other, once each, by whichever leader, and seen by all."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.sim.governed_world import governed, grade, leader, others, view
from trimtab.catalog import commands, keys
from trimtab.catalog.commands import Bulk, ColumnSpec, Command, CreateKeyspace, CreateTable, DropTable
from trimtab.net.errors import NetError, RpcError
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeReply, ChangeRequest, SchemaReply, SchemaRequest
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.tablets.tablet_map import TabletMap
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind

SHOP = CreateKeyspace("shop", 3)


def table(name: str = "users", tablets: int = 8) -> CreateTable:
    return CreateTable("shop", name, [ColumnSpec("id", "bigint"), ColumnSpec("name", "text")], ["id"], tablets=tablets)


async def ask(cluster: GovernedCluster, machine: Machine, method: str, body: bytes, timeout_s: float = 10.0) -> bytes:
    return await cluster.ask(machine, method, body, cluster.world.rng(f"client/{cluster.world.events}"), timeout_s)


async def change(cluster: GovernedCluster, machine: Machine, command: Command, id: str) -> ChangeReply:
    body = protocol.encode(ChangeRequest(commands.encode(command), id))
    reply: ChangeReply = protocol.decode_change_reply(await ask(cluster, machine, protocol.CHANGE, body))
    return reply


async def until_changed(cluster: GovernedCluster, command: Command, id: str) -> ChangeReply:
    """As a careful client does it: the same id again, at another member, until there is an answer."""
    for attempt in range(200):
        running = cluster.running()
        try:
            return await change(cluster, running[attempt % len(running)], command, id)
        except RpcError as error:
            if error.code in ("schema", "invalid", "not_found"):
                raise
        except (NetError, TimeoutError):
            pass
        await asyncio.sleep(0.2)
    raise AssertionError("nobody answered")


def tables_of(machine: Machine) -> TableView:
    assert machine.instance is not None
    return machine.instance.watching.tables


def told(cluster: GovernedCluster, text: str) -> int:
    return sum(text in event.text for event in view(cluster).events.values())


def metastore_keys(machine: Machine, prefix: bytes) -> list[bytes]:
    assert machine.instance is not None
    page = machine.instance.machine.metastore.range(prefix, prefix + b"\xff", limit=1000)
    return [entry.key for entry in page.entries]


def test_a_table_is_made_through_any_member_and_all_know_it_when_the_answer_comes() -> None:
    with governed(3) as cluster:
        follower = others(cluster, leader(cluster))[0]
        assert cluster.do(change(cluster, follower, SHOP, "1")) == ChangeReply(1, [])
        assert cluster.do(change(cluster, follower, table(), "2")) == ChangeReply(2, [])
        for machine in cluster.machines.values():
            tables = tables_of(machine)
            assert tables.catalog.version == 2 and tables.waits_for == ""
            made = tables.catalog.table("shop.users")
            assert made.tablets == 8 and tables.maps[made.id].count == 8
            assert all(sorted(replicas) == [1, 2, 3] for _, replicas in tables.maps[made.id])
        assert told(cluster, "table shop.users created (8 tablets, 3 replicas) at version 2") == 1
        assert told(cluster, "keyspace shop created (dc1: 3) at version 1") == 1


def test_of_two_who_create_the_same_table_at_once_one_is_told_that_it_is_there() -> None:
    with governed(3) as cluster:
        one, other = others(cluster, leader(cluster))
        cluster.do(change(cluster, one, SHOP, "1"))

        async def both() -> list[Any]:
            asked = (change(cluster, machine, table(), f"by {machine.name}") for machine in (one, other))
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = cluster.do(both())
        made = [answer for answer in answers if isinstance(answer, ChangeReply)]
        refused = [answer for answer in answers if isinstance(answer, RpcError)]
        assert len(made) == 1 and len(refused) == 1, answers
        assert refused[0].code == "schema" and "users is there already" in refused[0].text
        assert tables_of(one).catalog.version == 2
        assert told(cluster, "table shop.users created") == 1


def test_changes_at_the_same_time_all_happen() -> None:
    with governed(3) as cluster:
        cluster.do(change(cluster, leader(cluster), SHOP, "1"))
        machines = list(cluster.machines.values())

        async def many() -> list[ChangeReply]:
            return await asyncio.gather(
                *(change(cluster, machines[n % 3], table(f"t{n}"), f"change {n}") for n in range(12))
            )

        replies = cluster.do(many())
        assert sorted(reply.catalog_version for reply in replies) == list(range(2, 14))
        assert all(not reply.waiting for reply in replies)
        assert {len(tables_of(machine).catalog.tables) for machine in machines} == {12}


@pytest.mark.parametrize("place", ["schema.planned", "schema.written"])
def test_a_leader_killed_in_the_middle_of_a_change_leaves_it_done_once(place: str) -> None:
    with governed(3) as cluster:
        cluster.do(change(cluster, leader(cluster), SHOP, "1"))
        fallen = cluster.kill_at(place)
        reply = cluster.do(until_changed(cluster, table(), "2"), 60.0)
        assert len(fallen) == 1
        assert reply.catalog_version == 2
        again = cluster.do(until_changed(cluster, table(), "2"), 60.0)
        assert again.catalog_version == 2
        fallen[0].start()
        cluster.settle()
        assert [tables_of(machine).catalog.version for machine in cluster.machines.values()] == [2, 2, 2]
        assert told(cluster, "table shop.users created") == 1
        assert len(metastore_keys(leader(cluster), keys.UPDATES)) == 2
        assert len(metastore_keys(leader(cluster), b"tablets/")) == 1


@pytest.mark.parametrize("after_ms", [1, 3, 5, 8, 12])
def test_a_leader_killed_at_any_moment_of_a_change_leaves_it_done_once(after_ms: int) -> None:
    with governed(3, seed=after_ms) as cluster:
        first = leader(cluster)
        cluster.do(change(cluster, first, SHOP, "1"))

        async def kill_soon() -> None:
            await asyncio.sleep(after_ms / 1000)
            first.crash(power=True)

        async def both() -> ChangeReply:
            reply, _ = await asyncio.gather(until_changed(cluster, table(), "2"), kill_soon())
            return reply

        assert cluster.do(both(), 60.0).catalog_version == 2
        first.start()
        cluster.settle()
        assert told(cluster, "table shop.users created") == 1
        assert {tables_of(machine).catalog.version for machine in cluster.machines.values()} == {2}


def test_who_has_not_applied_the_change_is_named() -> None:
    with governed(3) as cluster:
        away = others(cluster, leader(cluster))[0]
        cluster.do(change(cluster, leader(cluster), SHOP, "1"))
        for other in others(cluster, away):
            cluster.world.network.block(other.host, away.host)
        reply = cluster.do(change(cluster, leader(cluster), CreateKeyspace("other", 1), "2"))
        assert reply == ChangeReply(2, [away.settings.instance_id])


def test_an_instance_that_is_down_for_a_while_gets_replicas_only_where_there_is_no_other() -> None:
    with governed(4) as cluster:
        cluster.do(change(cluster, leader(cluster), SHOP, "1"))
        cluster.do(change(cluster, leader(cluster), CreateKeyspace("wide", 4), "2"))
        down = others(cluster, leader(cluster))[0]
        down.crash(power=False)
        cluster.until(lambda: grade(cluster, down.settings.instance_id) is Grade.OFFLINE)
        cluster.do(change(cluster, leader(cluster), table(), "3"))
        cluster.do(change(cluster, leader(cluster), msgspec.structs.replace(table(), keyspace="wide"), "4"))
        down.start()
        cluster.settle()
        tables = tables_of(down)
        assert tables.maps[1].of(down.raft_id) == [] and tables.maps[2].of(down.raft_id) == list(range(8))


def test_more_replicas_than_hosts_are_refused_with_the_numbers_and_leave_nothing() -> None:
    with governed(3) as cluster:
        cluster.do(change(cluster, leader(cluster), CreateKeyspace("shop", 4), "1"))
        with pytest.raises(RpcError) as refused:
            cluster.do(change(cluster, leader(cluster), Bulk([CreateKeyspace("more", 3), table()]), "2"))
        assert refused.value.code == "schema"
        assert "data centre dc1 needs 4 distinct hosts for 4 replicas and has 3: i0, i1, i2" in refused.value.text
        assert tables_of(leader(cluster)).catalog.version == 1
        assert metastore_keys(leader(cluster), b"tablets/") == []


def test_clients_get_the_schema_once_and_the_rest_when_it_changes() -> None:
    with governed(3) as cluster:
        cluster.do(change(cluster, leader(cluster), SHOP, "1"))
        cluster.do(change(cluster, leader(cluster), table(), "2"))

        def shown(*known: int) -> SchemaReply:
            request = protocol.encode(SchemaRequest((known[0], known[1])))
            machine = others(cluster, leader(cluster))[0]
            reply: SchemaReply = protocol.decode_schema_reply(
                cluster.do(ask(cluster, machine, protocol.SCHEMA, request))
            )
            return reply

        whole = shown(0, 0)
        topology = whole.topology_version
        assert whole.catalog_version == 2 and whole.catalog
        assert TabletMap.unpacked(whole.tablets[1]).count == 8
        assert {name for name, _, _, _ in whole.instances.values()} == {"i0", "i1", "i2"}
        assert all(dc == "dc1" and online for _, _, dc, online in whole.instances.values())
        assert shown(2, topology) == SchemaReply(2, topology)
        moved = shown(2, topology - 1)
        assert moved.catalog == b"" and moved.tablets == {} and len(moved.instances) == 3
        assert shown(1, topology).catalog


def test_who_holds_what_others_can_not_stays_and_newcomers_may_come_and_go() -> None:
    with governed(3) as cluster:
        cluster.do(change(cluster, leader(cluster), SHOP, "1"))
        cluster.do(change(cluster, leader(cluster), table(), "2"))
        with pytest.raises(RpcError) as refused:
            cluster.do(cluster.create(leader(cluster), RequestKind.LEAVE, "i0"))
        assert refused.value.code == "conflict"
        assert "i0 holds 8 tablet replicas of shop.users (8) and can't go" in refused.value.text
        assert "data centre dc1 needs 3 distinct hosts for 3 replicas and has 2" in refused.value.text
        cluster.add([0, 1, 2]).start()
        cluster.settle()
        # Nobody copies anything here, so what was on its way to it is given up.
        cluster.do(cluster.create(leader(cluster), RequestKind.LEAVE, "i3"))
        cluster.until(lambda: cluster.trouble() is None)
        cluster.do(change(cluster, leader(cluster), DropTable("shop", "users"), "3"))
        cluster.do(cluster.create(leader(cluster), RequestKind.LEAVE, "i0"))
        cluster.until(lambda: cluster.trouble() is None)
        assert metastore_keys(leader(cluster), b"tablets/") == []


def test_a_dead_owner_of_the_only_copies_is_not_replaced() -> None:
    with governed(3) as cluster:
        cluster.do(change(cluster, leader(cluster), CreateKeyspace("shop", 1), "1"))
        cluster.do(change(cluster, leader(cluster), table(), "2"))
        dead = others(cluster, leader(cluster))[0]
        dead.crash(power=True)
        cluster.until(lambda: grade(cluster, dead.settings.instance_id) is Grade.OFFLINE)
        newcomer = cluster.add([0, 1, 2], replace=dead.settings.instance_id, instance_id="new")
        newcomer.start()
        cluster.until(lambda: newcomer.ended_by is not None)
        assert "has the only copy of" in str(newcomer.ended_by)
        assert "nobody can make those anew" in str(newcomer.ended_by)
        dead.start()
        cluster.until(lambda: cluster.trouble() is None)


def test_bad_requests_are_refused_where_they_arrive() -> None:
    with governed(3) as cluster:
        follower = others(cluster, leader(cluster))[0]
        for body, text in (
            (protocol.encode(ChangeRequest(b"nonsense", "1")), "not a command to change the schema"),
            (protocol.encode(ChangeRequest(commands.encode(SHOP), "")), "needs an id"),
            (protocol.encode(ChangeRequest(commands.encode(SHOP), "x" * 65)), "needs an id"),
            (b"\x00", "can't be read"),
        ):
            with pytest.raises(RpcError, match=text) as refused:
                cluster.do(ask(cluster, follower, protocol.CHANGE, body))
            assert refused.value.code == "invalid"
