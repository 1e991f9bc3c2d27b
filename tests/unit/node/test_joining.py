"""The joiner's side of the handshake, with members who answer late, wrongly, twice, or never."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.unit.node.starting import Machine, Stranger, address

from trimtab.net.client import Channel
from trimtab.net.errors import RpcError
from trimtab.net.hello import Hello
from trimtab.net.server import Request
from trimtab.node import failpoints, supervision
from trimtab.node import identity as identities
from trimtab.node.discovering import Memory, remember, remembered
from trimtab.node.errors import JoinRejected
from trimtab.node.identity import FORMAT, Identity, Phase
from trimtab.node.supervision import Rebootstrap
from trimtab.sim.world import World
from trimtab.topology import protocol
from trimtab.topology.protocol import Address, JoinReply, JoinRequest, JoinResponse

MEMBERS = [Address(1, address(1), 40), Address(2, address(2), 40)]
ATTEMPT = {"uuid": "u3", "nonce": "n3"}
ACCEPTED = JoinResponse(**ATTEMPT, accepted=True, cluster_id="c", genesis="g", raft_id=7, members=MEMBERS, term=4)


class Door:
    """A member that joiners knock at."""

    def __init__(self, world: World, number: int = 1) -> None:
        self.asked: list[JoinRequest] = []
        self.answers: Callable[[Request], None] = lambda request: request.reply(
            protocol.encode(JoinReply(None, "request 5"))
        )
        self.world = world
        self.stranger = Stranger(world, number, {protocol.JOIN_REQUEST: self.take})

    def take(self, request: Request) -> None:
        self.asked.append(protocol.decode_join(request.body))
        self.answers(request)

    def decides(self, response: JoinResponse) -> None:
        self.answers = lambda request: request.reply(protocol.encode(JoinReply(response)))

    def push(self, response: JoinResponse) -> str:
        """Send a decision to the joiner: what it answers, empty for yes."""

        async def send() -> str:
            channel = Channel(address(3), Hello(raft_id=1, cluster_id="c"), self.world.rng("push"))
            try:
                await channel.wait_connected(1)
                await channel.call(protocol.JOIN_RESPONSE, protocol.encode(response), 1)
            except RpcError as error:
                return error.code
            finally:
                channel.close()
            return ""

        return str(self.world.run_until_done(self.stranger.process.spawn(send()), self.world.now + 5))


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def joiner(world: World, peers: tuple[int, ...] = (1,), leader: int = 1, **changed: Any) -> Machine:
    machine = Machine(world, 3, peers, **changed)
    identities.store(machine.disk, Identity(FORMAT, "c", "i3", **ATTEMPT, phase=Phase.JOIN))
    remember(machine.disk, Memory(leader=address(leader)))
    machine.start()
    return machine


def test_an_accepted_joiner_writes_down_who_it_is_before_it_says_yes(world: World) -> None:
    door, machine = Door(world), joiner(world, failure_domain={"rack": "r1"}, replace="i0")
    world.run(1)
    ticket = door.asked[0].ticket
    assert (ticket.instance_id, ticket.uuid, ticket.nonce, ticket.address) == ("i3", "u3", "n3", address(3))
    assert (ticket.failure_domain, ticket.replaces) == ({"rack": "r1"}, "i0")
    assert door.push(ACCEPTED) == ""
    assert machine.stored == Identity(FORMAT, "c", "i3", "u3", Phase.MEMBER, "n3", 7, "g", {}, MEMBERS)
    world.run(world.now + 1)
    assert machine.outcome == machine.stored


def test_a_decision_that_was_never_pushed_is_found_by_asking_again(world: World) -> None:
    door, machine = Door(world), joiner(world)
    world.run(1.5)
    assert machine.outcome is None and len(door.asked) == 2
    door.decides(ACCEPTED)
    world.run(3.5)
    assert isinstance(machine.outcome, Identity) and machine.outcome.raft_id == 7


@pytest.mark.parametrize("found", ["pushed", "asked for"])
def test_a_joiner_that_dies_once_both_sides_know_dies_however_it_learned_of_it(world: World, found: str) -> None:
    """A leader that dies before its answer leaves the joiner to ask again; tests that kill it there waited in vain."""
    came: list[str] = []
    failpoints.arm("join.acknowledged", lambda _name, who: came.append(who))
    try:
        door, machine = Door(world), joiner(world)
        world.run(1)
        if found == "pushed":
            assert door.push(ACCEPTED) == ""
        else:
            door.decides(ACCEPTED)
        world.run(world.now + 3)
    finally:
        failpoints.disarm("join.acknowledged")
    assert came == ["i3"]
    assert machine.stored is not None and machine.stored.phase is Phase.MEMBER


@pytest.mark.parametrize("other", [{"uuid": "u9"}, {"nonce": "n9"}])
def test_a_decision_about_another_attempt_is_ignored(world: World, other: dict[str, str]) -> None:
    door, machine = Door(world), joiner(world)
    world.run(1)
    assert door.push(msgspec.structs.replace(ACCEPTED, **other)) == "not_asked"
    rejected = msgspec.structs.replace(ACCEPTED, **other, accepted=False, reason="no")
    door.decides(rejected)
    world.run(world.now + 3)
    assert machine.outcome is None and machine.stored is not None and machine.stored.phase is Phase.JOIN


def test_a_decision_that_comes_before_the_request_was_taken_is_ignored(world: World) -> None:
    """It may be the answer to what this instance asked in an earlier life, and be outdated."""
    door = Door(world)
    door.answers = lambda request: request.fail("not_leader", "no leader is known yet")
    machine = joiner(world)
    world.run(1)
    assert door.push(ACCEPTED) == "not_asked"
    assert machine.outcome is None and machine.stored is not None and machine.stored.raft_id == 0


def test_a_decision_of_a_coordinator_that_was_deposed_is_refused(world: World) -> None:
    door, machine = Door(world), joiner(world)
    world.run(1)
    late = msgspec.structs.replace(ACCEPTED, nonce="n9", term=9)
    assert door.push(late) == "not_asked"
    assert door.push(ACCEPTED) == "stale_term"
    assert machine.outcome is None
    assert door.push(msgspec.structs.replace(ACCEPTED, term=9)) == ""


def test_a_rejected_joiner_says_why_and_once_that_is_mended_its_next_start_is_another_attempt(world: World) -> None:
    door, machine = Door(world), joiner(world)
    world.run(1)
    no = msgspec.structs.replace(ACCEPTED, accepted=False, reason="the failure-domain key 'rack' is missing")
    assert door.push(no) == ""
    world.run(world.now + 1)
    assert isinstance(machine.outcome, JoinRejected) and "'rack' is missing" in str(machine.outcome)
    stored = machine.stored
    assert stored is not None and (stored.phase, stored.uuid, stored.raft_id) == (Phase.JOIN, "u3", 0)
    assert stored.nonce not in ("", "n3"), "or the same refusal would be the answer for ever"
    machine.kill()
    machine.settings = dataclasses.replace(machine.settings, failure_domain={"rack": "r1"})
    machine.start()
    world.run(world.now + 1)
    ticket = door.asked[-1].ticket
    assert (ticket.nonce, ticket.failure_domain) == (stored.nonce, {"rack": "r1"})
    assert door.push(msgspec.structs.replace(ACCEPTED, nonce=stored.nonce)) == ""
    world.run(world.now + 1)
    assert isinstance(machine.outcome, Identity) and machine.outcome.raft_id == 7


def test_a_member_of_another_cluster_ends_the_attempt(world: World) -> None:
    door = Door(world)
    door.answers = lambda request: request.fail("wrong_cluster", "this is the cluster 'other'; correct --peer")
    machine = joiner(world)
    world.run(1)
    assert isinstance(machine.outcome, JoinRejected) and "correct --peer" in str(machine.outcome)


def test_when_the_first_listed_member_is_dead_another_is_asked(world: World) -> None:
    door = Door(world, 2)
    door.decides(ACCEPTED)
    machine = joiner(world, peers=(8, 2), leader=9)
    world.run(9)
    assert isinstance(machine.outcome, Identity)


def test_an_attempt_that_a_crash_interrupted_goes_on_as_the_same(world: World) -> None:
    door, machine = Door(world), joiner(world)
    world.run(1)
    machine.kill()
    machine.start()
    world.run(world.now + 1)
    tickets = [(each.ticket.uuid, each.ticket.nonce) for each in door.asked]
    assert len(tickets) >= 2 and set(tickets) == {("u3", "n3")}


def test_an_attempt_the_cluster_gave_up_on_is_followed_by_one_of_somebody_new(world: World) -> None:
    door, machine = Door(world), joiner(world)
    door.decides(msgspec.structs.replace(ACCEPTED, accepted=False, reason="its time was over", again=True))
    world.run(1)
    assert machine.outcome == Rebootstrap(supervision.Phase.JOIN)
    assert machine.stored is not None and machine.stored.phase is Phase.JOIN and machine.stored.raft_id == 0
    assert machine.stored.uuid != "u3" and machine.stored.nonce != "n3"
    machine.drop()
    machine.start()
    world.run(world.now + 1)
    assert door.asked[-1].ticket.uuid == machine.stored.uuid


def test_what_an_attempt_left_behind_is_dropped_before_the_next(world: World) -> None:
    machine = joiner(world)
    world.run(1)
    machine.kill()
    machine.disk.open("log", wal=True)
    machine.start()
    world.run(world.now + 1)
    assert machine.outcome == Rebootstrap(supervision.Phase.JOIN, drop=True)


def test_an_operator_is_told_when_nobody_takes_the_request(world: World) -> None:
    machine = joiner(world)
    world.run(20)
    assert machine.story().count("no member of c takes the request to join") == 1
    assert "as --peer" in machine.story()


def test_an_instance_on_its_way_in_names_no_leader_that_it_was_not_told_of(world: World) -> None:
    """Its peers are only those who may know; whoever asks would go and look there for good."""
    machine = joiner(world, peers=(1, 2))
    machine.kill()
    remember(machine.disk, Memory())
    machine.start()
    asking = Machine(world, 6, (3,))
    asking.start()
    world.run(3)
    assert asking.outcome is None and remembered(asking.disk).leader == ""
