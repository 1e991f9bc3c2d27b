"""The operator's client against members that answer as told: what it asks again, what it raises, what it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.views import instance, view

from trimtab.client.cluster import ClusterClient
from trimtab.client.errors import Error, InvalidRequest, Timeout, Unavailable
from trimtab.metastore import requests
from trimtab.metastore.history import Change
from trimtab.metastore.layout import Entry
from trimtab.metastore.requests import MemberStatus, WatchItem, decode_watch
from trimtab.net.hello import Hello
from trimtab.net.server import Handler, Request, Server
from trimtab.sim.world import World
from trimtab.topology import protocol
from trimtab.topology.protocol import Level, ViewReply
from trimtab.topology.records import EventRecord, RequestKind, RequestRecord, RequestState, event_key
from trimtab.topology.records import encode as encode_record

ADDRESS = "10.0.0.1:3301"


def status(leader: int, *members: int) -> bytes:
    known = [MemberStatus(each, f"10.0.0.{each}:3301", True, False) for each in members]
    address = f"10.0.0.{leader}:3301" if leader else ""
    return requests.encode(requests.StatusReply("c", "i1", 1, leader, address, 1, 1, 1, 1, 1, 0, 0, b"", "", known))


def replies(body: Any) -> Handler:
    return lambda request: request.reply(protocol.encode(body))


def in_turn(*handlers: Handler) -> Handler:
    """Answers by one after the other, the last one for ever."""
    left = list(handlers)
    return lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)


def fails(code: str, text: str = "because") -> Handler:
    return lambda request: request.fail(code, text)


def ignores(_request: Request) -> None:
    """As if the answer was lost."""


def play(
    members: dict[int, dict[str, Handler]],
    work: Callable[[ClusterClient], Awaitable[Any]],
    *,
    leader: int = 1,
    known: tuple[int, ...] = (1,),
    timeout_s: float = 5,
) -> Any:
    """What some work with a client gives, or the Error it raises, while these members serve."""
    with World(1) as world:
        for number, handlers in members.items():
            member = world.process(f"member {number}", f"10.0.0.{number}")
            member.start()
            served = {requests.STATUS: lambda request: request.reply(status(leader, *members))} | handlers

            async def serve(number: int = number, served: dict[str, Handler] = served) -> None:
                await Server(served, Hello(instance_id=f"i{number}")).start(f"10.0.0.{number}", 3301)

            world.run_until_done(member.spawn(serve()), world.now + 1)
        process = world.process("client", "10.0.0.99")
        process.start()

        async def run() -> Any:
            addresses = [f"10.0.0.{number}:3301" for number in known]
            client = ClusterClient.unconnected(addresses, rng=world.rng("client"), timeout_s=timeout_s)
            try:
                return await asyncio.wait_for(work(client), 90)
            except Error as error:
                return error
            finally:
                await client.close()

        return world.run_until_done(process.spawn(run()), world.now + 100)


# Looking


def test_a_view_comes_from_the_leader_once_it_is_known() -> None:
    async def look(client: ClusterClient) -> ViewReply:
        await client.find_leader()
        return await client.view()

    members = {1: {protocol.VIEW: replies(view(asked=1))}, 2: {protocol.VIEW: replies(view(asked=2))}}
    # Both are known from the status; the connection to the leader may come up a moment later.
    assert play(members, look, leader=2, known=(1, 2)).asked == 2


def test_a_member_that_is_only_starting_is_asked_again() -> None:
    seen = in_turn(fails("unknown_method"), fails("starting"), replies(view()))
    assert play({1: {protocol.VIEW: seen}}, lambda client: client.view()).leader == 1


def test_without_an_answer_it_says_why_and_not_that_something_may_have_been_done() -> None:
    error = play({1: {protocol.VIEW: ignores}}, lambda client: client.view())
    assert isinstance(error, Timeout) and "executed" not in str(error)
    nobody = play({}, lambda client: client.view())
    assert isinstance(nobody, Unavailable) and "10.0.0.1" in str(nobody)


def test_a_survey_tells_of_each_member_what_it_sees_or_why_it_does_not_answer() -> None:
    members = {
        1: {protocol.VIEW: replies(view(asked=1, leader=0))},
        2: {protocol.VIEW: fails("removed", "it was removed")},
        3: {protocol.VIEW: ignores},
    }
    addresses = [f"10.0.0.{number}:3301" for number in (1, 2, 3, 4)]
    found = play(members, lambda client: client.survey(addresses, timeout_s=1))
    assert list(found) == addresses
    assert found[addresses[0]].asked == 1
    assert found[addresses[1]] == "it was removed"
    assert "no answer" in found[addresses[2]] and isinstance(found[addresses[3]], str)


def test_the_members_of_a_view_are_asked_when_the_first_ones_are_gone() -> None:
    async def look(client: ClusterClient) -> list[str]:
        await client.view()
        return client.addresses

    members = {1: {protocol.VIEW: replies(view(instance(1), instance(2), instance(3, voter=False)))}}
    assert play(members, look) == [ADDRESS, "10.0.0.2:3301"]


def test_an_answer_of_another_version_is_named_as_such() -> None:
    error = play({1: {protocol.VIEW: lambda request: request.reply(b"\x93\x01")}}, lambda client: client.view())
    assert isinstance(error, Error) and "another version" in str(error)


def test_a_probe_that_is_refused_says_why_and_is_not_repeated() -> None:
    asked = []

    def refuse(request: Request) -> None:
        asked.append(protocol.decode_probe(request.body))
        request.fail("no_lease", "i2 has no lease")

    error = play({1: {protocol.PROBE: refuse}}, lambda client: client.probe(2, Level.QUORUM))
    assert str(error) == "no_lease: i2 has no lease"
    assert [(each.target, each.level) for each in asked] == [(2, Level.QUORUM)]


# Events

EVENTS = {number: EventRecord(1_000 + number, "down", f"event {number}") for number in range(1, 1_201)}


def show_events(request: Request) -> None:
    """As a member does: the oldest after a number, up to a limit."""
    asked = protocol.decode_view(request.body)
    shown = {number: event for number, event in EVENTS.items() if number > asked.events_after >= 0}
    page = dict(list(shown.items())[: min(asked.events_limit, 1_000)])
    request.reply(protocol.encode(view(events=page, last_event=max(EVENTS), revision=50)))


@pytest.mark.parametrize("limit", [3, 700, 5_000])
def test_the_newest_events_come_oldest_first_however_many_pages_it_takes(limit: int) -> None:
    found = play({1: {protocol.VIEW: show_events}}, lambda client: client.events(limit=limit))
    assert [number for number, _ in found] == list(EVENTS)[-limit:]


def test_events_are_followed_from_the_past_into_the_present_without_a_gap() -> None:
    watched = []

    def watch(request: Request) -> None:
        watched.append(decode_watch(request.body))
        for number in (1_201, 1_202):
            value = encode_record(EventRecord(number, "online", f"event {number}"))
            new = Entry(event_key(number), value, 51, 51, 1)
            old = Entry(event_key(number - 1_200), b"{}", 1, 1, 1)
            changes = [Change(new.key, None, new), Change(old.key, old, None)]
            request.push(requests.encode(WatchItem(number, changes)))

    async def follow(client: ClusterClient) -> list[int]:
        found: list[int] = []
        async for number, _ in client.follow_events(1_195):
            found.append(number)
            if number == 1_202:
                break
        return found

    found = play({1: {protocol.VIEW: show_events, requests.WATCH: watch}}, follow)
    assert found == list(range(1_196, 1_203))
    assert watched[0].low == b"events/" and watched[0].from_revision == 51


# Changing

PENDING = RequestRecord(RequestKind.LEAVE, raft_id=2)
MADE = protocol.RequestReply(4, PENDING)


def create(client: ClusterClient) -> Awaitable[Any]:
    return client.create(RequestKind.LEAVE, "i2", expel=True, drain=True, deadline_ms=500)


def test_a_request_is_created_as_it_was_meant() -> None:
    asked = []

    def take(request: Request) -> None:
        asked.append(protocol.decode_create(request.body))
        request.reply(protocol.encode(MADE))

    assert play({1: {protocol.CREATE: take}}, create).number == 4
    only = asked[0]
    assert (only.kind, only.instance_id, only.expel, only.drain, only.timeout_ms) == (
        RequestKind.LEAVE,
        "i2",
        True,
        True,
        500,
    )


@pytest.mark.parametrize("code", ["invalid", "not_found", "conflict"])
def test_a_request_that_makes_no_sense_is_refused_at_once(code: str) -> None:
    error = play({1: {protocol.CREATE: fails(code, "it is the last member")}}, create)
    assert isinstance(error, InvalidRequest) and str(error) == "it is the last member"


def test_a_request_refused_after_a_lost_answer_may_have_been_made() -> None:
    error = play({1: {protocol.CREATE: in_turn(ignores, fails("conflict", "i2 has left already"))}}, create)
    assert isinstance(error, Timeout)
    assert "an earlier attempt may have been carried out" in str(error) and "i2 has left already" in str(error)


def test_a_request_is_made_by_the_next_leader_when_there_is_none_at_first() -> None:
    assert (
        play({1: {protocol.CREATE: in_turn(fails("not_leader"), fails("refused"), replies(MADE))}}, create).number == 4
    )


def test_waiting_for_a_request_tells_each_state_and_ends_with_the_last() -> None:
    states = [RequestState.PENDING, RequestState.RUNNING, RequestState.DONE]
    shown = in_turn(*(replies(view(requests={4: RequestRecord(RequestKind.LEAVE, each)})) for each in states))
    told = []

    async def wait(client: ClusterClient) -> RequestRecord:
        return await client.wait(4, lambda record, _view: told.append(record.state))

    assert play({1: {protocol.VIEW: shown}}, wait).state is RequestState.DONE
    assert told == states


def test_waiting_for_what_was_never_asked_fails() -> None:
    error = play({1: {protocol.VIEW: replies(view())}}, lambda client: client.wait(9))
    assert isinstance(error, InvalidRequest) and str(error).startswith("there is no task 9;")
