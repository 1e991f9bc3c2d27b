"""One instance on its own: who it is, and what it does now and then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.sim.forming import Forming

from trimtab.client.metastore import MetastoreClient
from trimtab.metastore import requests
from trimtab.metastore.requests import MembersChange, MembersRequest
from trimtab.net.errors import RpcError
from trimtab.node import identity as identities
from trimtab.node.errors import Expelled, JoinExpired
from trimtab.node.identity import Identity, Phase
from trimtab.node.instance import Instance
from trimtab.node.members import MAX_ADDRESSES
from trimtab.node.settings import Limits, Timing
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import SimulationFailure, World
from trimtab.topology import protocol
from trimtab.topology.records import instance_key

KEEP_S = 12


class Alone:
    """A cluster of one."""

    def __init__(self, world: World) -> None:
        self.world = world
        limits = Limits(history_keep_ms=KEEP_S * 1000)
        plan = dataclasses.replace(draw(1, "calm"), members=1, limits=limits, timing=Timing(tick_ms=20))
        self.cluster = SimCluster(world, plan)
        self.member = self.cluster.members[1]
        self.client = world.process("client", "10.0.1.1")
        self.client.start()

    def start(self) -> Instance:
        self.cluster.start(self.member)
        self.world.run(self.world.now + 2)
        assert self.member.instance is not None
        return self.member.instance

    def put(self, times: int) -> None:
        async def work() -> None:
            client = await MetastoreClient.connect(
                [self.member.address], rng=self.world.rng("client"), wall_ms=self.client.wall_ms
            )
            for number in range(times):
                await client.put(b"k", b"%d" % number)
            await client.close()

        self.world.run_until_done(self.client.spawn(work()), self.world.now + 20)

    def on_its_loop(self, instance: Instance, key: bytes, value: bytes) -> None:
        loop = self.member.process.loop
        assert loop is not None
        loop.call_soon(instance.learn, key, value)
        self.world.run(self.world.now + 1)

    @property
    def said(self) -> str:
        return "\n".join(text for _, who, text in self.world.story if who == self.member.name)


@pytest.fixture
def alone() -> Iterator[Alone]:
    with World(1) as world:
        yield Alone(world)


def test_a_data_directory_keeps_its_id_across_restarts_and_every_one_has_another(alone: Alone) -> None:
    first = alone.start().data_id
    alone.cluster.kill(alone.member, True)
    assert alone.start().data_id == first
    stored = identities.load(alone.member.disk.model)
    assert stored is not None and stored.uuid == first and stored.raft_id == 1
    with World(2) as other:
        assert Alone(other).start().data_id != first


def record(address: str) -> bytes:
    return msgspec.json.encode({"instance_id": "i", "address": address})


@pytest.mark.parametrize("value", [record("10.0.0.4:0"), record("nowhere"), record("::1:5"), b"", b"[]"])
def test_an_unusable_instance_record_is_told_and_ignored(alone: Alone, value: bytes) -> None:
    instance = alone.start()
    alone.on_its_loop(instance, instance_key(4), value)
    assert "ignored an unusable instance record" in alone.said
    alone.on_its_loop(instance, instance_key(5), record("10.0.0.5:1"))
    assert sorted(instance.members.addresses) == [1, 5]
    assert instance.failure is None


def test_more_records_than_a_cluster_has_members_are_ignored(alone: Alone) -> None:
    instance = alone.start()
    for number in range(2, MAX_ADDRESSES + 10):
        instance.members.addresses[number] = "10.0.0.2:1"
    alone.on_its_loop(instance, instance_key(5_000), record("10.0.0.5:1"))
    assert "one too many" in alone.said and 5_000 not in instance.members.addresses


def test_history_goes_when_it_is_old_enough_and_values_stay(alone: Alone) -> None:
    instance = alone.start()
    alone.put(5)
    alone.world.run(alone.world.now + KEEP_S / 2)
    assert instance.machine.metastore.compacted_revision == 0
    alone.world.run(alone.world.now + KEEP_S)
    assert instance.machine.metastore.compacted_revision == 5
    alone.put(1)
    assert instance.machine.metastore.compacted_revision == 5
    found = instance.machine.metastore.get(b"k")
    assert found is not None and found.value == b"0"


def test_a_metastore_at_rest_writes_nothing_to_its_log(alone: Alone) -> None:
    instance = alone.start()
    alone.put(3)
    alone.world.run(alone.world.now + 2 * KEEP_S)
    before = instance.machine.applied_index
    alone.world.run(alone.world.now + 3 * KEEP_S)
    assert instance.machine.applied_index == before


def identity_of(alone: Alone) -> Identity:
    found = identities.load(alone.member.disk.model)
    assert found is not None
    return found


@pytest.mark.parametrize("changed", [{}, {"founders": {}, "settled": True}])
def test_a_member_whose_log_is_gone_does_not_begin_a_new_one(alone: Alone, changed: dict[str, Any]) -> None:
    """Its votes were in it."""
    alone.start()
    alone.cluster.kill(alone.member, True)
    identities.store(alone.member.disk.model, msgspec.structs.replace(identity_of(alone), **changed))
    alone.member.disk.model.remove("log")
    alone.cluster.start(alone.member)
    with pytest.raises(SimulationFailure, match="its votes are lost"):
        alone.world.run(alone.world.now + 2)


def test_an_instance_that_is_no_member_yet_can_not_be_one(alone: Alone) -> None:
    alone.start()
    alone.cluster.kill(alone.member, True)
    for phase in (Phase.NEW, Phase.BOOT, Phase.JOIN):
        instance = Instance(
            alone.member.settings,
            msgspec.structs.replace(identity_of(alone), phase=phase, raft_id=0),
            disk=alone.member.disk.model,
            rng=alone.world.rng("other"),
            wall_ms=alone.client.wall_ms,
            boot_s=alone.client.boot_s,
        )
        with pytest.raises(ValueError, match="is no member yet"):
            alone.world.run_until_done(alone.client.spawn(instance.start()), alone.world.now + 1)


def test_where_a_governor_decides_nobody_changes_the_members_by_hand() -> None:
    with World(1) as world:
        forming = Forming(world, 1)
        forming.start()
        forming.until(forming.all_online, 20, "one instance Online")
        asked = requests.encode(MembersRequest([(MembersChange.DEMOTE, 1)]))
        refused = forming.ask("i1", requests.MEMBERS, asked)
        assert isinstance(refused, RpcError) and "the governor decides" in refused.text


def test_a_decision_that_is_told_again_to_a_member_is_acknowledged_again() -> None:
    with World(1) as world:
        forming = Forming(world, 1)
        forming.start()
        forming.until(forming.all_online, 20, "one instance Online")
        instance = forming.machines["i1"].instance
        assert instance is not None
        mine = protocol.JoinResponse(instance.data_id, "n", True, raft_id=1, term=9)
        assert forming.ask("i1", protocol.JOIN_RESPONSE, protocol.encode(mine)) == b""
        others = msgspec.structs.replace(mine, uuid="another")
        refused = forming.ask("i1", protocol.JOIN_RESPONSE, protocol.encode(others))
        assert isinstance(refused, RpcError) and refused.code == "not_asked"


@pytest.mark.parametrize(("settled", "ends"), [(True, Expelled), (False, JoinExpired)])
def test_who_is_put_out_ends_for_good_unless_it_never_had_a_place(settled: bool, ends: type[Exception]) -> None:
    with World(1) as world:
        forming = Forming(world, 1)
        forming.start()
        forming.until(forming.all_online, 20, "one instance Online")
        instance = forming.machines["i1"].instance
        loop = forming.machines["i1"].process.loop
        assert instance is not None and instance.identity.settled and loop is not None
        instance.identity = msgspec.structs.replace(instance.identity, settled=settled)
        failures: list[BaseException] = []
        instance.fail = failures.append  # type: ignore[method-assign, assignment]
        loop.call_soon(instance.end_for_good, "somebody said so")
        world.run(world.now + 0.1)
        assert [type(each) for each in failures] == [ends]
