"""A cluster forms, governs itself and loses members, from the first start on: the whole instance, simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sim.forming import Forming, Machine
from trimtab.net.errors import RpcError
from trimtab.node.errors import Expelled, JoinRejected
from trimtab.node.instance import Instance
from trimtab.sim.world import World
from trimtab.topology import protocol
from trimtab.topology.grades import Grade, Standing
from trimtab.topology.protocol import (
    BarrierCall,
    CreateRequest,
    Level,
    ProbeRequest,
    SyncCall,
    decode_discover_reply,
    decode_probe_reply,
    decode_request_reply,
)
from trimtab.topology.records import RequestKind, RequestState

FORMED_S = 6.0


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


@pytest.fixture
def formed(world: World) -> Forming:
    cluster = Forming(world)
    cluster.start()
    cluster.until(cluster.all_online, FORMED_S, "three Online")
    cluster.until(lambda: cluster.voters() == [1, 2, 3], 5, "three voters")
    world.run(world.now + 2)
    return cluster


def leader_of(cluster: Forming) -> Machine:
    leader = cluster.leader()
    assert leader is not None
    return leader


def instance_of(machine: Machine) -> Instance:
    assert machine.instance is not None
    return machine.instance


def another(cluster: Forming, *but: Machine) -> Machine:
    return next(machine for machine in cluster.machines.values() if machine not in but)


def online(cluster: Forming, machine: Machine, incarnation: int) -> bool:
    record = cluster.record(machine.name)
    return record is not None and record.grades.current == Standing(Grade.ONLINE, incarnation)


def probe(cluster: Forming, at: Machine, target: int = 0, level: Level = Level.QUORUM) -> str:
    """`fresh`, `stale`, or the code of the refusal."""
    answer = cluster.ask(at.name, protocol.PROBE, protocol.encode(ProbeRequest(target, level)))
    if isinstance(answer, RpcError):
        return answer.code
    assert isinstance(answer, bytes), answer
    return "stale" if decode_probe_reply(answer).stale else "fresh"


def test_three_instances_form_one_cluster_and_an_idle_one_writes_nothing(formed: Forming) -> None:
    geneses = {instance_of(machine).identity.genesis for machine in formed.machines.values()}
    assert len(geneses) == 1
    before = instance_of(leader_of(formed)).machine.metastore.revision
    formed.world.run(formed.world.now + 60)
    assert instance_of(leader_of(formed)).machine.metastore.revision == before
    assert not any("marked this instance Offline" in text for _, _, text in formed.world.story)


def test_every_instance_answers_probes_of_every_other(formed: Forming) -> None:
    for machine in formed.machines.values():
        for target in (1, 2, 3):
            assert probe(formed, machine, target) == "fresh"


def test_discovery_asked_of_a_former_leader_names_the_current_one(formed: Forming) -> None:
    old = leader_of(formed)
    old.kill()
    formed.until(lambda: formed.leader() is not None, 5, "another leader")
    old.start()
    formed.until(lambda: online(formed, old, incarnation=2), 20, "the old one back")
    request = protocol.encode(protocol.DiscoverRequest("trimtab", "10.0.0.9:3301", old.address, []))
    reply = decode_discover_reply(formed.ask(old.name, protocol.DISCOVER, request))
    assert reply.leader == leader_of(formed).address
    wrong = protocol.encode(protocol.DiscoverRequest("other", "10.0.0.9:3301", old.address, []))
    assert formed.ask(old.name, protocol.DISCOVER, wrong).code == "wrong_cluster"


def test_a_killed_leader_is_replaced_marked_offline_and_comes_back(formed: Forming) -> None:
    old = leader_of(formed)
    old.kill()
    assert formed.until(lambda: formed.leader() not in (None, old), 5, "another leader") < 3
    took_s = formed.until(lambda: formed.grade(old.name) == "Offline", 15, "the dead one Offline")
    assert took_s >= 5
    fence = instance_of(leader_of(formed)).watching.view
    formed.until(lambda: fence.fence == fence.version, 10, "the fence to be raised")
    old.start()
    formed.until(lambda: formed.grade(old.name) == "Online", 15, "the dead one back")
    record = formed.record(old.name)
    assert record is not None and record.grades.current.incarnation == 2


def test_a_killed_follower_is_offline_only_after_its_lease_and_its_return_raises_the_incarnation(
    formed: Forming,
) -> None:
    down = another(formed, leader_of(formed))
    down.kill()
    assert formed.until(lambda: formed.grade(down.name) == "Offline", 15, "Offline") > 5.5
    down.start()
    formed.until(formed.all_online, 15, "all Online again")
    assert any(f"{down.name} is Offline" in text for text in formed.events())


def test_a_stopped_process_serves_nothing_stale_above_one_and_returns_by_itself(formed: Forming) -> None:
    stopped = another(formed, leader_of(formed))
    stopped.process.pause()
    formed.until(lambda: formed.grade(stopped.name) == "Offline", 15, "the stopped one Offline")
    held = [formed.asking(stopped.name, protocol.PROBE, protocol.encode(ProbeRequest())) for _ in range(3)]
    formed.world.run(formed.world.now + 1)
    stopped.process.resume()
    for task in held:
        answer = formed.world.run_until_done(task, formed.world.now + 20)
        assert isinstance(answer, RpcError) and answer.code in ("no_lease", "not_ready", "fenced"), answer
    formed.until(lambda: formed.grade(stopped.name) == "Online", 20, "it to come back by itself")
    formed.until(lambda: probe(formed, stopped) == "fresh", 5, "fresh answers")
    record = formed.record(stopped.name)
    assert record is not None and record.grades.current.incarnation == 2


def test_an_instance_that_is_cut_off_answers_at_one_marked_stale_and_nothing_above(formed: Forming) -> None:
    alone = another(formed, leader_of(formed))
    for machine in formed.machines.values():
        if machine is not alone:
            formed.world.network.block(alone.process.host, machine.process.host)
            formed.world.network.block(machine.process.host, alone.process.host)
    formed.world.run(formed.world.now + 4)
    assert probe(formed, alone) == "no_lease"
    assert probe(formed, alone, level=Level.ONE) == "stale"


def test_a_leader_that_was_stopped_marks_nobody_offline_for_what_it_could_not_hear(world: World) -> None:
    cluster = Forming(world, 1)
    cluster.peers = ("10.0.0.1:3301",)
    cluster.start()
    cluster.until(cluster.all_online, FORMED_S, "the founder Online")
    leader = leader_of(cluster)
    second = cluster.machine(2)
    second.start()
    cluster.until(cluster.all_online, 10, "two Online")
    world.run(world.now + 10)
    leader.process.pause()
    world.run(world.now + 20)
    leader.process.resume()
    world.run(world.now + 20)
    cluster.until(cluster.all_online, 20, "two Online")
    assert not any("should be Offline: not heard" in text for text in cluster.events())


def test_an_expelled_instance_stops_for_good_and_its_raft_id_is_never_used_again(formed: Forming) -> None:
    gone = another(formed, leader_of(formed))
    answer = formed.ask(gone.name, protocol.CREATE, protocol.encode(CreateRequest(RequestKind.LEAVE, gone.name, True)))
    number = decode_request_reply(answer).number
    formed.until(lambda: isinstance(gone.over, Expelled), 20, "it to stop")
    view = instance_of(leader_of(formed)).watching.view
    formed.until(lambda: view.requests[number].state is RequestState.DONE, 5, "the request to be done")
    gone.over = None
    gone.restart()
    formed.until(lambda: gone.over is not None, 20, "the restart to be refused")
    fourth = formed.machine(4)
    fourth.start()
    formed.until(lambda: formed.grade("i4") == "Online", 20, "the fourth Online")
    assert view.named("i4") is not None and max(view.instances) == 4


def test_an_expelled_leader_hands_over_first(formed: Forming) -> None:
    old = leader_of(formed)
    body = protocol.encode(CreateRequest(RequestKind.LEAVE, old.name, True))
    assert isinstance(formed.ask(another(formed, old).name, protocol.CREATE, body), bytes)
    formed.until(lambda: isinstance(old.over, Expelled), 30, "it to stop")
    formed.until(lambda: formed.leader() is not None and len(formed.voters()) == 2, 10, "two voters")
    assert any("hands leadership to" in text for text in formed.events())


def test_a_barrier_waits_for_a_request_of_an_older_version_that_is_held_open(formed: Forming) -> None:
    leader = leader_of(formed)
    router = another(formed, leader)
    control = instance_of(router).control
    assert control is not None
    loop = router.process.loop
    assert loop is not None
    released = loop.create_future()

    async def hold() -> None:
        await released

    control.serving.hold = hold
    held = formed.asking(router.name, protocol.PROBE, protocol.encode(ProbeRequest()), timeout_s=60)
    formed.until(lambda: len(control.open_requests) == 1, 5, "the request to be open")
    old_version = control.view.version
    fourth = formed.machine(4)
    fourth.start()
    view = instance_of(leader).watching.view
    formed.until(lambda: view.version > old_version, 10, "a newer version")
    formed.world.run(formed.world.now + 30)
    assert view.version == old_version + 1 and formed.grade("i4") != "Online" and not held.done()
    loop.call_soon_threadsafe(released.set_result, None)
    formed.until(lambda: formed.grade("i4") == "Online", 30, "the fourth Online")
    assert held.done()


def test_a_barrier_passes_an_instance_that_dies_meanwhile_and_raises_the_fence(formed: Forming) -> None:
    leader = leader_of(formed)
    dead = another(formed, leader)
    dead.kill()
    fourth = formed.machine(4)
    fourth.start()
    view = instance_of(leader).watching.view
    formed.until(lambda: formed.grade("i4") == "Online", 30, "the fourth Online without the dead one")
    assert view.fence > 0
    request = protocol.encode(ProbeRequest(leader_id(formed, leader), Level.QUORUM, view.fence - 1))
    assert formed.ask(leader.name, protocol.PROBE, request).code == "fenced"


def leader_id(cluster: Forming, leader: Machine) -> int:
    return instance_of(leader).raft_id


@pytest.mark.parametrize(("method", "call"), [(protocol.SYNC, SyncCall), (protocol.BARRIER, BarrierCall)])
def test_an_order_of_a_term_that_is_over_is_refused(formed: Forming, method: str, call: type) -> None:
    follower = another(formed, leader_of(formed))
    term = instance_of(follower).cluster.raw.raft.term
    numbers = (1,) if call is SyncCall else (1, 1)
    assert formed.ask(follower.name, method, protocol.encode(call(term - 1, *numbers))).code == "stale_term"
    assert formed.ask(follower.name, method, protocol.encode(call(term, *numbers))) == b""


def test_a_leader_that_shuts_down_hands_over_and_is_offline_within_three_seconds(formed: Forming) -> None:
    old = leader_of(formed)

    async def leave() -> str:
        return await instance_of(old).leave(3.0)

    began = formed.world.now
    why = formed.world.run_until_done(old.process.spawn(leave()), formed.world.now + 10)
    assert why == "" and formed.world.now - began < 2
    new = leader_of(formed)
    assert new is not old and formed.grade(old.name) == "Offline"
    old.restart()
    formed.until(formed.all_online, 15, "all Online again")


def test_one_of_two_that_shuts_down_leaves_the_other_able_to_decide(world: World) -> None:
    cluster = Forming(world, 2)
    cluster.start()
    cluster.until(cluster.all_online, FORMED_S, "two Online")
    cluster.until(lambda: cluster.voters() == [1, 2], 5, "two voters")
    world.run(world.now + 2)
    leaving = leader_of(cluster)

    async def leave() -> str:
        return await instance_of(leaving).leave(3.0)

    assert world.run_until_done(leaving.process.spawn(leave()), world.now + 10) == ""
    leaving.kill()
    cluster.until(lambda: cluster.leader() is not None and len(cluster.voters()) == 1, 5, "one voter that leads")


def test_without_a_majority_an_instance_says_so_and_goes_anyway(formed: Forming) -> None:
    leaving = another(formed, leader_of(formed))
    for machine in formed.machines.values():
        if machine is not leaving:
            machine.kill()

    async def leave() -> tuple[str, float]:
        began = asyncio.get_running_loop().time()
        why = await instance_of(leaving).leave(3.0)
        return why, asyncio.get_running_loop().time() - began

    why, took_s = formed.world.run_until_done(leaving.process.spawn(leave()), formed.world.now + 10)
    assert why == "no leader is known yet" and took_s < 3.2


def test_an_instance_without_a_majority_says_so_once_and_when_there_is_a_leader_again(formed: Forming) -> None:
    alone = another(formed, leader_of(formed))
    gone = [machine for machine in formed.machines.values() if machine is not alone]
    for machine in gone:
        machine.kill()

    def told(text: str) -> list[str]:
        return [line for _, who, line in formed.world.story if who == alone.name and text in line]

    formed.world.run(formed.world.now + 60)
    names = ", ".join(machine.name for machine in gone)
    assert told("no leader") == [
        f"no leader is known: writes are refused, reads only at ONE; connected to 0 of 2 other voters, not to {names}"
    ]
    assert told("a leader again") == []
    gone[0].start()
    formed.until(lambda: told("a leader again"), 20, "the end of it to be told")
    formed.world.run(formed.world.now + 10)
    assert len(told("no leader")) == len(told("a leader again")) == 1


def test_the_id_of_a_living_instance_is_refused_with_the_reason(formed: Forming) -> None:
    twin = formed.machine(4, instance_id="i2")
    twin.start()
    formed.until(lambda: twin.over is not None, 15, "it to be refused")
    assert isinstance(twin.over, JoinRejected) and "'i2' is in use" in str(twin.over)
