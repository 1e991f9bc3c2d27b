"""The stories that a governed cluster has to live through, each on whole simulated machines with production code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sim.governed_world import cut, governed, grade, leader, others, request, row, rows, told, view
from trimtab.net.errors import NetError, RpcError
from trimtab.node.errors import Expelled, JoinRejected
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.topology import protocol
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import BarrierCall, DiscoverRequest, JoinRequest, Level, SyncCall
from trimtab.topology.records import JoinTicket, RequestKind, RequestState
from trimtab.topology.states import NodeState


def ask(cluster: GovernedCluster, machine: Machine, method: str, body: Any) -> bytes:
    asking = cluster.ask(machine, method, protocol.encode(body), cluster.world.rng("asking"), 2.0)
    answer: bytes = cluster.do(asking)
    return answer


def run_for(cluster: GovernedCluster, seconds: float) -> None:
    cluster.world.run(cluster.world.now + seconds)


# Discovery


def test_discovery_asked_of_an_ex_leader_names_the_current_one() -> None:
    with governed(3) as cluster:
        former = leader(cluster)
        former.kill_child()
        now = cluster.until(lambda: (found := cluster.leader()) is not former and found, what="another leader")
        cluster.settle()
        asked = DiscoverRequest("trimtab", "10.0.9.9:3301", former.settings.address, [])
        reply = protocol.decode_discover_reply(ask(cluster, former, protocol.DISCOVER, asked))
        assert reply.leader == now.settings.address != former.settings.address


def test_the_first_listed_peer_is_dead_and_the_join_goes_via_another() -> None:
    with governed(3) as cluster:
        dead = cluster.machines["m0"]
        dead.crash(power=False)
        cluster.until(lambda: cluster.leader(), what="a leader")
        newcomer = cluster.add([0, 2])
        newcomer.start()
        cluster.until(lambda: rows(cluster, "i3") and grade(cluster, "i3") is Grade.ONLINE, what="i3 Online")
        assert not dead.alive


@pytest.mark.parametrize("after_ms", [1, 4, 6, 8, 10, 12, 100, 204, 210, 216, 225, 400])
def test_all_instances_restarted_mid_bootstrap_still_form_one_cluster(after_ms: int) -> None:
    with governed() as cluster:
        for _ in range(3):
            cluster.add([0, 1, 2]).start()
        cluster.world.run(after_ms / 1000)
        for machine in cluster.machines.values():
            machine.crash(power=True)
            machine.start()
        cluster.settle()
        assert {machine.identity.genesis for machine in cluster.machines.values() if machine.identity} == {
            leader(cluster).identity.genesis  # type: ignore[union-attr]
        }
        assert len(view(cluster).members()) == 3


# Joining


def test_the_same_join_three_times_makes_one_row() -> None:
    with governed(3) as cluster:
        ticket = JoinTicket("i9", "ab" * 16, "cd" * 16, "10.0.9.9:3301", release=view(cluster).instances[1].release)
        for machine in cluster.machines.values():
            ask(cluster, machine, protocol.JOIN_REQUEST, JoinRequest("trimtab", ticket))
            run_for(cluster, 0.3)
        assert len(rows(cluster, "i9")) == 1
        assert sum(each.join == ticket for each in cluster.topology.committed.requests.values()) == 1


def test_a_joiner_killed_after_the_rpc_then_after_the_rebootstrap_has_the_same_uuid_and_joins() -> None:
    with governed(2) as cluster:
        joiner = cluster.add([0, 1])
        deaths = [
            cluster.kill_at(place, joiner)
            for place in ("join.requested", "join.persisted", "join.acknowledged", "join.started")
        ]
        joiner.start()
        cluster.until(lambda: deaths[0], what="death after the request")
        uuid = joiner.identity.uuid  # type: ignore[union-attr]
        cluster.until(lambda: deaths[3], what="death after the start")
        cluster.settle()
        assert deaths[0] == deaths[3] == [joiner]
        assert row(cluster, "i2").uuid == uuid
        assert len(rows(cluster, "i2")) == 1


@pytest.mark.parametrize("place", ["join.requested", "join.persisted", "join.acknowledged", "join.started"])
def test_a_joiner_killed_in_the_handshake_joins_with_the_id_it_was_given(place: str) -> None:
    with governed(3) as cluster:
        joiner = cluster.add([0, 1, 2])
        death = cluster.kill_at(place, joiner)
        joiner.start()
        cluster.until(lambda: death, what=f"death at {place}")
        cluster.settle()
        assert len(rows(cluster, "i3")) == 1


def test_a_coordinator_killed_before_its_answer_leaves_the_joiner_to_the_next_one() -> None:
    with governed(3) as cluster:
        death = cluster.kill_at("join.answered")
        cluster.add([0, 1, 2]).start()
        cluster.until(lambda: death, what="the death of the coordinator")
        cluster.settle()
        assert len(rows(cluster, "i3")) == 1


def test_a_joiner_without_a_failure_domain_key_is_rejected_and_says_why() -> None:
    with governed() as cluster:
        cluster.add([0], failure_domain={"rack": "r1"}).start()
        cluster.settle()
        newcomer = cluster.add([0], failure_domain={"zone": "z1"})
        newcomer.start()
        cluster.until(lambda: newcomer.exit, what="the end of the newcomer")
        assert isinstance(newcomer.ended_by, JoinRejected)
        assert newcomer.exit.code == 1 and "lacks rack" in newcomer.exit.text  # type: ignore[union-attr]
        assert rows(cluster, "i1") == []
        newcomer = cluster.add([0], failure_domain={"RACK": "r2"}, instance_id="i7")
        newcomer.start()
        cluster.until(lambda: rows(cluster, "i7") and grade(cluster, "i7") is Grade.ONLINE, what="i7 Online")


# Leaving


def test_the_leader_is_expelled_and_voters_shrink_and_its_process_exits_and_a_restart_is_refused() -> None:
    with governed(5) as cluster:
        goner = leader(cluster)
        assert len(goner.group.raw.raft.tracker.config.voters.ids()) == 5  # type: ignore[union-attr]
        name = goner.settings.instance_id
        asked = cluster.do(cluster.create(others(cluster, goner)[0], RequestKind.LEAVE, name, expel=True))
        cluster.until(lambda: goner.exit, what="the end of the leader")
        cluster.settle()
        assert request(cluster, asked.number).state is RequestState.DONE
        assert row(cluster, name).state is NodeState.LEFT and grade(cluster, name) is Grade.EXPELLED
        assert len(leader(cluster).group.raw.raft.tracker.config.voters.ids()) == 3  # type: ignore[union-attr]
        assert goner.exit.code == 1  # type: ignore[union-attr]
        goner.start()
        cluster.until(lambda: goner.exit, what="the restarted one to be refused")
        assert isinstance(goner.ended_by, Expelled)
        assert "was expelled" in goner.exit.text  # type: ignore[union-attr]
        cluster.settle()


def test_the_raft_id_after_an_expel_is_strictly_greater() -> None:
    with governed(3) as cluster:
        ids = dict(sorted(cluster.topology.committed.rows.items()))
        highest = max(ids)
        goner = cluster.of_raft_id(highest)
        assert goner is not None
        cluster.do(cluster.create(others(cluster, goner)[0], RequestKind.LEAVE, goner.settings.instance_id, expel=True))
        cluster.until(lambda: goner.exit, what="its end")
        newcomer = cluster.add([0, 1, 2])
        newcomer.start()
        cluster.settle()
        assert newcomer.raft_id > highest


def test_a_dead_instance_is_replaced_and_its_machine_is_refused_when_it_returns() -> None:
    with governed(3) as cluster:
        dead = others(cluster, leader(cluster))[0]
        name = dead.settings.instance_id
        dead.crash(power=True)
        cluster.until(lambda: grade(cluster, name) is Grade.OFFLINE, what="it to be found silent")
        newcomer = cluster.add([0, 1, 2], replace=name)
        newcomer.start()
        cluster.until(lambda: rows(cluster, "i3") and grade(cluster, "i3") is Grade.ONLINE, what="i3 Online")
        assert row(cluster, name).state is NodeState.LEFT
        assert row(cluster, "i3").replaces == dead.raft_id
        dead.start()
        cluster.until(lambda: dead.exit, what="the replaced one to end")
        assert isinstance(dead.ended_by, Expelled)
        cluster.settle()


def test_a_decommission_is_cancelled_and_the_instance_stays() -> None:
    with governed(4) as cluster:
        # A request that is open on another router keeps the transition where it can still be taken back.
        gate = hold(cluster, cluster.machines["m1"])
        goner = next(machine for machine in others(cluster, leader(cluster)) if machine is not cluster.machines["m1"])
        name = goner.settings.instance_id
        probing = cluster.operator.spawn(cluster.probe(cluster.machines["m1"], level=Level.ONE, timeout_s=30.0))
        run_for(cluster, 0.2)
        asked = cluster.do(cluster.create(leader(cluster), RequestKind.LEAVE, name))
        cluster.until(lambda: row(cluster, name).state is NodeState.DECOMMISSIONING, what="it to leave")
        cluster.do(cluster.cancel(leader(cluster), asked.number))
        cluster.until(lambda: request(cluster, asked.number).state is RequestState.CANCELLED, what="the cancellation")
        assert row(cluster, name).state is NodeState.NORMAL
        gate.set_result(None)
        cluster.world.run_until_done(probing, cluster.world.now + 5)
        cluster.settle()
        assert len(view(cluster).members()) == 4


def test_of_two_instances_one_shuts_down_and_the_other_decides_alone() -> None:
    with governed(2) as cluster:
        goner = leader(cluster)
        (stays,) = others(cluster, goner)
        goner.stop()
        began = cluster.world.now
        cluster.until(lambda: goner.exit, what="its end")
        assert goner.exit.code == 0 and cluster.world.now - began < 3.5  # type: ignore[union-attr]
        assert not told(cluster, goner, "without the cluster having taken note")
        cluster.until(lambda: stays.leads, what="the other to lead")
        assert leader(cluster).group.raw.raft.tracker.config.voters.ids() == {stays.raft_id}  # type: ignore[union-attr]
        assert cluster.do(cluster.probe(stays)).raft_id == stays.raft_id
        goner.start()
        cluster.settle()


def test_an_instance_that_stops_after_the_majority_was_lost_ends_anyway_and_says_so() -> None:
    with governed(3) as cluster:
        last = leader(cluster)
        for machine in others(cluster, last):
            machine.crash(power=False)
        run_for(cluster, 0.5)
        last.stop()
        began = cluster.world.now
        cluster.until(lambda: last.exit, what="its end")
        assert last.exit.code == 0 and cluster.world.now - began < 3.7  # type: ignore[union-attr]
        assert told(cluster, last, "stopping without the cluster having taken note")


# Entries


@pytest.mark.parametrize("when", ["persist", "commit", "apply"])
def test_a_crash_after_persist_or_commit_or_apply_leaves_the_entry_applied_once(when: str) -> None:
    with governed(3) as cluster:
        victim = leader(cluster)
        assert victim.instance is not None and victim.group is not None
        writes, group = victim.instance.control.writes, victim.group  # type: ignore[union-attr]
        raft, index = group.raw.raft, group.raw.raft.log.last_index() + 1

        async def write() -> None:
            from trimtab.governor.steps import Write

            await writes.write(Write({}), [writes.event("story", "once upon a time")])

        victim.process.spawn(write())
        reached = {
            "persist": lambda: raft.log.unstable.offset > index,
            "commit": lambda: raft.log.committed >= index,
            "apply": lambda: group.machine.applied_index >= index,
        }[when]
        assert cluster.world.run(cluster.world.now + 2.0, stop=reached)
        victim.crash(power=True)
        cluster.until(lambda: cluster.leader(), what="another leader")
        victim.start()
        cluster.settle()
        for machine in cluster.machines.values():
            assert machine.instance is not None
            told_events = [e.text for e in machine.instance.watching.view.events.values() if e.kind == "story"]
            assert told_events == ["once upon a time"] or (when == "persist" and told_events == [])


def test_an_isolated_leaders_uncommitted_entry_is_rolled_back() -> None:
    with governed(3) as cluster:
        isolated = leader(cluster)
        assert isolated.instance is not None and isolated.group is not None
        writes, log = isolated.instance.control.writes, isolated.group.raw.raft.log  # type: ignore[union-attr]
        cut(cluster, isolated)

        async def write() -> None:
            from trimtab.governor.steps import Write

            await writes.write(Write({}), [writes.event("story", "never")])

        before = log.last_index()
        isolated.process.spawn(write())
        cluster.until(lambda: log.last_index() > before, what="the entry in its log")
        cluster.until(lambda: any(machine.leads for machine in others(cluster, isolated)), what="another leader")
        cluster.world.network.heal()
        cluster.settle()
        for machine in cluster.machines.values():
            assert machine.instance is not None
            assert all(event.text != "never" for event in machine.instance.watching.view.events.values())


# Failure detection and leases


def test_a_slow_apply_under_the_timeout_is_not_marked_offline() -> None:
    with governed(3) as cluster:
        slow = others(cluster, leader(cluster))[0]
        slow.disk.slow_rate, slow.disk.slow_s = 1.0, 1.0
        version = view(cluster).version
        for _ in range(8):
            cluster.do(cluster.create(leader(cluster), RequestKind.BARRIER))
            run_for(cluster, 1.5)
        assert all("should be Offline" not in event.text for event in view(cluster).events.values())
        assert view(cluster).version == version
        slow.disk.heal()
        cluster.settle()


def test_an_instance_stopped_for_longer_than_its_lease_serves_nothing_stale_above_one_and_comes_back() -> None:
    with governed(3) as cluster:
        stopped = others(cluster, leader(cluster))[0]
        name = stopped.settings.instance_id
        stopped.process.pause()
        cluster.until(lambda: grade(cluster, name) is Grade.OFFLINE, what="it to be marked")
        # Nothing of the cluster gets to it: it wakes up, and knows nothing of what happened.
        cut(cluster, stopped)
        stopped.process.resume()
        with pytest.raises(RpcError, match="no_lease"):
            cluster.do(cluster.probe(stopped, level=Level.QUORUM))
        assert cluster.do(cluster.probe(stopped, level=Level.ONE)).stale
        cluster.world.network.heal()
        cluster.settle()
        assert not cluster.do(cluster.probe(stopped, level=Level.QUORUM)).stale


def test_an_instance_that_is_heard_but_hears_nobody_loses_its_lease_before_it_is_marked() -> None:
    with governed(3) as cluster:
        deaf = others(cluster, leader(cluster))[0]
        for other in others(cluster, deaf):
            cluster.world.network.block(other.host, deaf.host)
        cluster.until(lambda: grade(cluster, deaf.settings.instance_id) is Grade.OFFLINE, what="it to be marked")
        assert deaf.instance is not None and deaf.instance.control.lease_left_ms() == 0  # type: ignore[union-attr]
        cluster.world.network.heal()
        cluster.settle()


# Orders


def test_an_order_of_a_stale_governor_is_refused() -> None:
    with governed(3) as cluster:
        former = leader(cluster)
        term = former.group.raw.raft.term  # type: ignore[union-attr]
        former.kill_child()
        cluster.until(lambda: (found := cluster.leader()) is not former and found, what="another leader")
        cluster.settle()
        for machine in cluster.machines.values():
            for method, order in (
                (protocol.SYNC, SyncCall(term, 1)),
                (protocol.REPLICAS, SyncCall(term, 1)),
                (protocol.BARRIER, BarrierCall(term, 1, 1)),
            ):
                with pytest.raises(RpcError, match="stale_term"):
                    ask(cluster, machine, method, order)


def test_the_order_of_a_leader_that_was_replaced_meanwhile_is_refused_when_it_arrives() -> None:
    with governed(5) as cluster:
        former = leader(cluster)
        receiver = others(cluster, former)[0]
        cluster.world.network.clog(former.host, receiver.host)
        cluster.do(cluster.create(former, RequestKind.BARRIER))
        run_for(cluster, 0.3)
        cut(cluster, former)
        cluster.until(lambda: any(machine.leads for machine in others(cluster, former)), what="another leader")
        run_for(cluster, 0.5)
        # What the former leader had ordered arrives only now. That it is not obeyed is what the checks see to.
        cluster.world.network.unclog(former.host, receiver.host)
        run_for(cluster, 0.5)
        cluster.world.network.heal()
        cluster.settle()


# Barriers


def hold(cluster: GovernedCluster, where: Machine) -> asyncio.Future[None]:
    """Keep what comes to this replica open until the future is done."""
    assert where.instance is not None and where.process.loop is not None
    gate: asyncio.Future[None] = where.process.loop.create_future()

    async def wait() -> None:
        await asyncio.shield(gate)

    where.instance.control.serving.hold = wait  # type: ignore[union-attr]
    return gate


def test_a_barrier_does_not_pass_while_a_request_of_an_older_version_is_held_open() -> None:
    with governed(3) as cluster:
        router = others(cluster, leader(cluster))[0]
        gate = hold(cluster, router)
        probing = cluster.operator.spawn(cluster.probe(router, timeout_s=30.0))
        run_for(cluster, 0.2)
        rebuilt = leader(cluster).settings.instance_id
        asked = cluster.do(cluster.create(leader(cluster), RequestKind.REBUILD, rebuilt))
        run_for(cluster, 8.0)
        assert row(cluster, rebuilt).state is NodeState.REBUILDING
        assert request(cluster, asked.number).state is RequestState.RUNNING
        version = view(cluster).version
        assert view(cluster).fence < version
        gate.set_result(None)
        assert not cluster.world.run_until_done(probing, cluster.world.now + 2).stale
        cluster.until(lambda: request(cluster, asked.number).state is RequestState.DONE, 15, "the rebuild")
        assert view(cluster).fence == version, "every barrier ends with the fence"
        cluster.settle()


def test_a_barrier_passes_a_dead_node_behind_the_fence() -> None:
    with governed(3) as cluster:
        router = others(cluster, leader(cluster))[0]
        hold(cluster, router)
        cluster.operator.spawn(cluster.probe(router, timeout_s=30.0))
        run_for(cluster, 0.2)
        rebuilt = leader(cluster).settings.instance_id
        asked = cluster.do(cluster.create(leader(cluster), RequestKind.REBUILD, rebuilt))
        run_for(cluster, 1.0)
        assert request(cluster, asked.number).state is RequestState.RUNNING
        router.crash(power=True)
        cluster.until(lambda: request(cluster, asked.number).state is RequestState.DONE, what="the rebuild")
        assert grade(cluster, router.settings.instance_id) is Grade.OFFLINE
        assert view(cluster).fence > 0
        router.start()
        cluster.settle()


# Every step of the governor


STEPS = ("transfer", "voters", "down", "fence", "request", "answer", "sync", "replicate", "shard", "online")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("place", ["before", "after-deed", "after"])
def test_a_new_leader_takes_over_when_the_leader_dies_in_a_step(step: str, place: str) -> None:
    """A life with every kind of step in it; the leader dies when it first comes to one of them."""
    with governed(3) as cluster:
        death = cluster.kill_at(f"governor.{step}.{place}")
        cluster.add([0, 1, 2]).start()
        run_for(cluster, 2.0)
        cluster.settle()
        gone = others(cluster, leader(cluster))[0]
        gone.crash(power=False)
        cluster.until(lambda: grade(cluster, gone.settings.instance_id) is Grade.OFFLINE, what="it to be marked")
        run_for(cluster, 1.0)
        gone.start()
        cluster.settle()
        for _ in range(3):
            goner = leader(cluster)
            asking = cluster.create(
                others(cluster, goner)[0], RequestKind.LEAVE, goner.settings.instance_id, expel=True
            )
            try:
                cluster.do(asking)
                break
            except NetError:
                cluster.settle()
        cluster.until(lambda: goner.exit, what="the end of the expelled one")
        cluster.settle()
        assert death, f"nobody came to governor.{step}.{place}"
        assert len(view(cluster).members()) == 3
