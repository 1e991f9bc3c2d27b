"""Changing the members, as an operator does who retries, mistypes, and is not alone."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trimtab.client.errors import Error, InvalidRequest, Timeout, Unavailable
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.requests import MEMBERS, MembersChange, MembersReply, MembersRequest
from trimtab.net.server import Request
from trimtab.node.settings import Limits, Timing
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import World
from trimtab.topology.records import INSTANCES, instance_key

ADD, PROMOTE, DEMOTE, REMOVE, TRANSFER = MembersChange


class Operator:
    """Three members, and somebody who changes that."""

    def __init__(self, world: World) -> None:
        calm = draw(1, "calm")
        plan = dataclasses.replace(calm, members=3, limits=Limits(), timing=Timing(tick_ms=20))
        self.world = world
        self.cluster = SimCluster(world, plan)
        for member in self.cluster.members.values():
            self.cluster.start(member)
        self._client = world.process("operator", "10.0.1.1")
        self._client.start()
        world.run(world.now + 3)

    def do(self, work: Callable[[MetastoreClient], Awaitable[Any]], timeout_s: float = 5) -> Any:
        """What a client gets, or the error it raises."""

        async def run() -> Any:
            addresses = [member.address for member in self.cluster.current_members() if member.alive]
            client = await MetastoreClient.connect(
                addresses, rng=self.world.rng("operator"), wall_ms=self._client.wall_ms, timeout_s=timeout_s
            )
            try:
                return await work(client)
            except Error as error:
                return error
            finally:
                await client.close()

        return self.world.run_until_done(self._client.spawn(run()), self.world.now + 60)

    def change(self, what: MembersChange, raft_id: int, address: str = "", timeout_s: float = 5) -> Any:
        return self.do(lambda client: client.change_members(MembersRequest([(what, raft_id)], address)), timeout_s)

    def record(self, raft_id: int) -> Any:
        return self.do(lambda client: client.get(instance_key(raft_id)))

    @property
    def leader(self) -> Any:
        leader = self.cluster.leader()
        assert leader is not None and leader.instance is not None
        return leader

    def lose_next_answer(self) -> None:
        """The leader carries out the next change of members, and its answer gets lost."""
        handlers = self.leader.instance.server.handlers
        real = handlers[MEMBERS]

        def deaf(request: Request) -> None:
            handlers[MEMBERS] = real
            real(request)
            request.cancelled("its answer was lost")

        handlers[MEMBERS] = deaf


@pytest.fixture
def operator() -> Any:
    with World(11) as world:
        yield Operator(world)


@pytest.mark.parametrize("address", ["::1:3331", "x:0", "nowhere", "", "[::1]"])
def test_an_address_that_is_none_is_refused_before_anything_is_written(operator: Operator, address: str) -> None:
    refused = operator.change(ADD, 4, address)
    assert isinstance(refused, InvalidRequest) and "is not an address" in str(refused)
    assert operator.record(4) is None


def test_an_add_that_succeeded_succeeds_again_and_another_address_does_not(operator: Operator) -> None:
    assert operator.change(ADD, 4, "10.0.0.4:3301") == MembersReply([1, 2, 3], [4])
    assert operator.change(ADD, 4, "10.0.0.4:3301") == MembersReply([1, 2, 3], [4])
    refused = operator.change(ADD, 4, "10.0.0.5:3301")
    assert isinstance(refused, InvalidRequest) and "in the cluster already, at 10.0.0.4:3301" in str(refused)
    taken = operator.change(ADD, 5, "10.0.0.2:3301")
    assert isinstance(taken, InvalidRequest) and "is the address of member 2" in str(taken)
    assert operator.record(5) is None


@pytest.mark.parametrize(
    ("prepare", "change"),
    [
        ([], (ADD, 4, "10.0.0.4:3301")),
        ([(DEMOTE, 3, "")], (PROMOTE, 3, "")),
        ([], (DEMOTE, 3, "")),
        ([(ADD, 4, "10.0.0.4:3301")], (REMOVE, 4, "")),
        ([], (REMOVE, 3, "")),
    ],
)
def test_a_change_whose_answer_was_lost_succeeds_when_it_is_asked_for_again(
    operator: Operator, prepare: list[Any], change: Any
) -> None:
    if change[1] == operator.leader.raft_id:
        operator.change(TRANSFER, 1)
        operator.world.run(operator.world.now + 1)
    for before in prepare:
        assert isinstance(operator.change(*before), MembersReply)
    operator.lose_next_answer()
    done = operator.change(*change)
    assert isinstance(done, MembersReply), done
    assert operator.change(*change) == done


def test_the_id_of_a_member_that_was_removed_is_never_used_again(operator: Operator) -> None:
    operator.change(ADD, 4, "10.0.0.4:3301")
    assert operator.change(REMOVE, 4) == MembersReply([1, 2, 3], [])
    refused = operator.change(ADD, 4, "10.0.0.4:3301")
    assert isinstance(refused, InvalidRequest) and "was used before" in str(refused)
    founder = next(number for number in (1, 2, 3) if number != operator.leader.raft_id)
    operator.change(REMOVE, founder)
    refused = operator.change(ADD, founder, f"10.0.0.{founder}:3301")
    assert isinstance(refused, InvalidRequest) and "was used before" in str(refused)


def test_an_id_that_was_never_in_a_configuration_may_be_added_as_it_was_asked_for(operator: Operator) -> None:
    """The record was written, then the leader refused the change, for instance because it was handing over."""
    leader = operator.leader.instance
    real = leader.host.propose_conf_change
    leader.host.propose_conf_change = lambda group, change, done: done(None, RuntimeError("lost on the way"))
    assert isinstance(operator.change(ADD, 4, "10.0.0.4:3301"), Error)
    leader.host.propose_conf_change = real
    assert operator.record(4) is not None
    other = operator.change(ADD, 4, "10.0.0.5:3301")
    assert isinstance(other, InvalidRequest) and "is kept for i4 at 10.0.0.4:3301" in str(other)
    assert operator.change(ADD, 4, "10.0.0.4:3301") == MembersReply([1, 2, 3], [4])


def test_adds_at_the_same_time_all_succeed_one_after_the_other(operator: Operator) -> None:
    async def all_at_once(client: MetastoreClient) -> list[Any]:
        asked = [MembersRequest([(ADD, number)], f"10.0.0.{number}:3301") for number in (4, 5, 6, 6)]
        return await asyncio.gather(*(client.change_members(each) for each in asked))

    replies = operator.do(all_at_once)
    assert {4, 5, 6} == {number for reply in replies for number in reply.learners}


def test_what_can_not_be_done_is_refused_before_a_record_is_written(operator: Operator) -> None:
    pending = operator.leader.instance.cluster.raw.raft
    refused = operator.change(REMOVE, 9)
    assert isinstance(refused, InvalidRequest) and "is not in the cluster" in str(refused)
    # While another change is under way, for longer than the operator waits.
    pending.pending_conf_index = pending.log.applied + 1_000
    refused = operator.change(ADD, 4, "10.0.0.4:3301", timeout_s=1)
    assert isinstance(refused, Unavailable) and "another change of the members is under way" in str(refused)
    pending.pending_conf_index = 0
    assert operator.record(4) is None
    assert operator.change(ADD, 4, "10.0.0.4:3301") == MembersReply([1, 2, 3], [4])


def test_leadership_is_handed_over_before_the_answer_comes(operator: Operator) -> None:
    for to in (1, 2, 3, 3):
        assert operator.change(TRANSFER, to) == MembersReply([1, 2, 3], [])
        assert operator.do(lambda client: client.status()).leader == to
    operator.change(ADD, 4, "10.0.0.4:3301")
    unknown, learner = operator.change(TRANSFER, 99), operator.change(TRANSFER, 4)
    assert isinstance(unknown, InvalidRequest) and "member 99 is not in the cluster" in str(unknown)
    assert isinstance(learner, InvalidRequest) and "member 4 does not vote" in str(learner)


def test_a_handover_that_fails_is_told(operator: Operator) -> None:
    dead = next(member for member in operator.cluster.members.values() if not member.leads)
    leader = operator.leader.raft_id
    operator.cluster.kill(dead, False)
    failed = operator.change(TRANSFER, dead.raft_id, timeout_s=1.5)
    assert isinstance(failed, Unavailable | Timeout)
    assert "did not take over within an election timeout" in str(failed) or "has not taken over yet" in str(failed)
    assert operator.leader.raft_id == leader


def test_clients_may_read_and_watch_the_instances_but_not_change_them(operator: Operator) -> None:
    async def watch_one(client: MetastoreClient) -> bytes:
        async for item in client.watch(INSTANCES, from_revision=1):
            return item.changes[0].key
        raise AssertionError

    operator.change(ADD, 4, "10.0.0.4:3301")
    key = instance_key(4)
    assert operator.do(lambda client: client.get(key)) is not None
    assert operator.do(watch_one) == key
    for work in (
        lambda client: client.put(key, b"x"),
        lambda client: client.delete(key),
        lambda client: client.put_all({b"a": b"1", INSTANCES + b"x": b"2"}),
    ):
        refused = operator.do(work)
        assert isinstance(refused, InvalidRequest) and "is the system's" in str(refused)
    assert isinstance(operator.do(lambda client: client.put(b"instances", b"x")), int)


def test_a_leader_that_is_removed_leaves_the_others_to_answer_for_it(operator: Operator) -> None:
    gone = operator.leader.raft_id
    done = operator.change(REMOVE, gone)
    assert isinstance(done, MembersReply) and gone not in done.voters, done
    operator.world.run(operator.world.now + 3)
    assert operator.leader.raft_id != gone
    assert operator.change(REMOVE, gone) == done


def test_a_member_that_was_never_heard_from_does_not_get_a_vote() -> None:
    """In a young cluster it is within the allowed lag without ever having been there."""
    with World(77) as world:
        operator = Operator(world)
        assert isinstance(operator.change(ADD, 9, "10.0.0.9:3301"), MembersReply)
        refused = operator.change(PROMOTE, 9)
        assert isinstance(refused, InvalidRequest) and "has not been heard from" in str(refused)


def test_of_two_voters_the_leader_can_not_be_taken_out_before_it_has_handed_over() -> None:
    with World(78) as world:
        operator = Operator(world)
        follower = next(number for number in (1, 2, 3) if number != operator.leader.raft_id)
        assert isinstance(operator.change(REMOVE, follower), MembersReply)
        leader = operator.leader.raft_id
        for what in (DEMOTE, REMOVE):
            refused = operator.change(what, leader)
            assert isinstance(refused, InvalidRequest) and "transfer leadership" in str(refused)
        other = next(number for number in (1, 2, 3) if number not in (leader, follower))
        assert isinstance(operator.change(TRANSFER, other), MembersReply)
        assert isinstance(operator.change(REMOVE, leader), MembersReply)
