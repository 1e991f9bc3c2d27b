"""The doors of loads, by themselves: what is passed on, decided, answered, and remembered of drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.loads.ledger import USERS, Ledger

from trimtab.loads import protocol
from trimtab.loads.generations import withdraw
from trimtab.loads.protocol import (
    AbortRequest,
    BeginRequest,
    CommitRequest,
    LoadReply,
    LoadsReply,
    RenewRequest,
    RollbackReply,
    RollbackRequest,
    ShowRequest,
)
from trimtab.loads.records import LoadKind, LoadState
from trimtab.net.hello import Hello
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Refused
from trimtab.node.leader_door import Decision
from trimtab.node.load_service import LoadService
from trimtab.node.router.stamping import Stamping
from trimtab.node.waits import Waits
from trimtab.tablets.clock import HybridClock
from trimtab.topology.grades import Grade


class Desk(Ledger):
    """A leader with the service, whose door writes into a ledger at once; others may be asked instead (`elsewhere`)."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: bytes | None = None
        self.passed: list[tuple[str, bytes]] = []
        self.events: list[str] = []
        self.barriers = 0
        self.told: list[tuple[int, ...]] = []
        self.deaf: dict[int, str] = {}
        self.while_told: Callable[[], object] = lambda: None
        self.clock_s = 100.0
        self.office = SimpleNamespace(term=1, in_office_ms=10**9)
        self.waits = Waits()
        self.service = LoadService(
            SimpleNamespace(view=self.view, tables=self.tables, loads=self.loads),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.office,  # type: ignore[arg-type]
            self.waits,
            Stamping(HybridClock(), lambda: self.now_ms),
            name="i1",
            alive=lambda raft_id: raft_id not in self.silent,
            barrier=self._barrier,
            behind=self._behind,
            clock_s=lambda: self.clock_s,
        )

    async def _barrier(self, _timeout_s: float) -> None:
        self.barriers += 1

    async def _behind(self, raft_ids: Iterable[int], _timeout_s: float) -> dict[int, str]:
        assert self.loads.swapping(USERS), "writes are confirmed by a majority from now on"
        self.told.append(tuple(sorted(raft_ids)))
        self.while_told()
        return {raft_id: why for raft_id, why in self.deaf.items() if raft_id in self.told[-1]}

    # As the leader's door

    def left_s(self, deadline: float) -> float:
        return deadline - asyncio.get_running_loop().time()

    async def pass_on(self, method: str, body: bytes, _deadline: float, *, forwarded: bool) -> bytes | None:
        self.passed.append((method, body))
        return None if forwarded else self.elsewhere

    async def decide(self, look: Callable[[], Decision], kind: str, _names: object) -> None:
        assert kind == "load"
        decided = look()
        if decided is not None:
            write, texts = decided
            assert all(self.store.get(key, (b"", 0))[1] == at for key, at in write.expect.items())
            self.put(write.puts, write.deletes)
            self.events += texts
            self.waits.look()

    async def ask(self, method: str, request: Any, within_s: float = 5.0) -> bytes:
        asked = Asked(protocol.encode(request), asyncio.get_running_loop().time() + within_s, Hello())
        return await self.service.methods()[method](asked)

    async def said(self, method: str, request: Any) -> Any:
        reply: LoadReply = protocol.decode_load_reply(await self.ask(method, request))
        return reply.load


def on_desk(story: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        await story(Desk())

    asyncio.run(tell())


def test_a_load_is_begun_renewed_and_committed_and_each_may_be_asked_again() -> None:
    async def story(desk: Desk) -> None:
        begin = BeginRequest("a", USERS, 2, who="tests")
        first = await desk.said(protocol.BEGIN, begin)
        assert first.state is LoadState.STAGING and await desk.said(protocol.BEGIN, begin) == first
        assert await desk.said(protocol.RENEW, RenewRequest(USERS, "a")) == first
        commit = CommitRequest(USERS, "a", (1, 2, 3), rows=7)
        done = await desk.said(protocol.COMMIT, commit)
        assert (done.state, done.rows, done.epoch) == (LoadState.COMMITTED, 7, 1)
        assert await desk.said(protocol.COMMIT, commit) == done
        assert [each.split(":")[0] for each in desk.events] == [
            "load a of shop.users begins",
            "load a of shop.users is committed as epoch 1",
        ]

    on_desk(story)


def test_a_member_passes_everything_but_looking_on_to_the_leader_once() -> None:
    async def story(desk: Desk) -> None:
        load = (await desk.said(protocol.BEGIN, BeginRequest("a", USERS, 2)),)[0]
        desk.elsewhere = protocol.encode(LoadReply(load))
        requests = {
            protocol.BEGIN: BeginRequest("b", USERS, 2),
            protocol.RENEW: RenewRequest(USERS, "b"),
            protocol.COMMIT: CommitRequest(USERS, "b"),
            protocol.ABORT: AbortRequest(USERS, "b"),
            protocol.ROLLBACK: RollbackRequest(USERS, "b"),
        }
        for method, request in requests.items():
            assert await desk.ask(method, request) == desk.elsewhere
            passed = desk.passed[-1]
            assert passed[0] == method and getattr(protocol, f"decode_{method[5:]}")(passed[1]).forwarded
        assert list(desk.loads.loads) == [(USERS, "a")]

    on_desk(story)


def test_refusals_have_a_code_and_those_of_a_commit_the_instances_to_stage_on() -> None:
    async def story(desk: Desk) -> None:
        await desk.ask(protocol.BEGIN, BeginRequest("a", USERS, 2))
        with pytest.raises(Refused) as refused:
            await desk.ask(protocol.COMMIT, CommitRequest(USERS, "a", (1,)))
        assert refused.value.code == "moved" and protocol.decode_moved(refused.value.details).missing == (2, 3)
        for method, request, code in (
            (protocol.BEGIN, BeginRequest("b", 9, 1), "not_found"),
            (protocol.BEGIN, BeginRequest("b", USERS, 1), "version_mismatch"),
            (protocol.RENEW, RenewRequest(USERS, "b"), "not_found"),
            (protocol.ROLLBACK, RollbackRequest(USERS, "a"), "conflict"),
        ):
            with pytest.raises(Refused) as refused:
                await desk.ask(method, request)
            assert refused.value.code == code
        future_us = (desk.now_ms + 60_000) * 1000
        with pytest.raises(Refused, match="ahead of this instance's clock"):
            await desk.ask(protocol.BEGIN, BeginRequest("b", USERS, 2, timestamp_us=future_us))

    on_desk(story)


def test_the_leader_remembers_in_its_term_when_it_heard_from_drivers() -> None:
    async def story(desk: Desk) -> None:
        await desk.ask(protocol.BEGIN, BeginRequest("a", USERS, 2))
        await desk.ask(protocol.BEGIN, BeginRequest("b", USERS, 2))
        desk.clock_s += 3
        await desk.ask(protocol.RENEW, RenewRequest(USERS, "b"))
        desk.clock_s += 1
        assert desk.service.renewed_ms() == {(USERS, "a"): 4000, (USERS, "b"): 1000}
        await desk.ask(protocol.ABORT, AbortRequest(USERS, "a", "enough"))
        assert desk.service.renewed_ms() == {(USERS, "b"): 1000}

    on_desk(story)


def test_a_new_leader_grants_every_driver_a_whole_lease() -> None:
    async def story(desk: Desk) -> None:
        await desk.ask(protocol.BEGIN, BeginRequest("a", USERS, 2))
        desk.clock_s += 50
        assert desk.service.renewed_ms() == {(USERS, "a"): 50_000}
        desk.office.term = 2
        assert desk.service.renewed_ms() == {(USERS, "a"): 0}
        desk.clock_s += 20
        assert desk.service.renewed_ms() == {(USERS, "a"): 20_000}

    on_desk(story)


def test_a_leader_that_stood_still_grants_every_driver_a_whole_lease() -> None:
    async def story(desk: Desk) -> None:
        await desk.ask(protocol.BEGIN, BeginRequest("a", USERS, 2))
        desk.clock_s += 3600
        desk.office.in_office_ms = 0  # it noticed
        assert desk.service.renewed_ms() == {(USERS, "a"): 0}
        desk.clock_s += 20
        desk.office.in_office_ms = 20_000
        assert desk.service.renewed_ms() == {(USERS, "a"): 20_000}

    on_desk(story)


def test_a_load_that_is_seen_before_its_driver_is_answered_has_a_whole_lease() -> None:
    async def story(desk: Desk) -> None:
        desk.service.renewed_ms()
        desk.clock_s += 600
        desk.begin("a")  # the leader applies it; `begin` has yet to answer
        assert desk.service.renewed_ms() == {(USERS, "a"): 0}

    on_desk(story)


def test_looking_is_current_unless_it_need_not_be() -> None:
    async def story(desk: Desk) -> None:
        desk.publish("a")
        desk.begin("b")
        reply: LoadsReply = protocol.decode_loads_reply(await desk.ask(protocol.SHOW, ShowRequest()))
        assert [load.id for load in reply.loads] == ["a", "b"] and reply.epochs == {USERS: (1, 1)}
        assert desk.barriers == 1
        one = protocol.decode_loads_reply(await desk.ask(protocol.SHOW, ShowRequest(USERS, "b", local=True)))
        assert [load.id for load in one.loads] == ["b"] and desk.barriers == 1
        none = protocol.decode_loads_reply(await desk.ask(protocol.SHOW, ShowRequest(77)))
        assert none.loads == [] and none.epochs == {77: (0, 1)}

    on_desk(story)


def test_who_waits_for_a_load_is_answered_when_it_can_be_seen_or_the_time_is_up() -> None:
    async def story(desk: Desk) -> None:
        desk.begin("a")
        desk.commit("a", 1, 2, 3)
        early = protocol.decode_loads_reply(await desk.ask(protocol.SHOW, ShowRequest(USERS, "a", wait_ms=10)))
        assert early.loads[0].state is LoadState.COMMITTED
        waiting = asyncio.ensure_future(desk.ask(protocol.SHOW, ShowRequest(USERS, "a", wait_ms=4_000)))
        await asyncio.sleep(0)
        desk.adopt("a", 1, 2, 3)
        desk.waits.look()
        reply = protocol.decode_loads_reply(await waiting)
        assert reply.loads[0].state is LoadState.PUBLISHED and reply.epochs == {USERS: (1, 1)}

    on_desk(story)


def test_a_rollback_says_what_it_drops_before_it_does_and_once_done_it_stays_so() -> None:
    async def story(desk: Desk) -> None:
        desk.publish("a", LoadKind.OVERWRITE)
        desk.publish("b")
        said: RollbackReply = protocol.decode_rollback_reply(
            await desk.ask(protocol.ROLLBACK, RollbackRequest(USERS, "a"))
        )
        assert [each.id for each in said.also] == ["b"] and not said.applied and desk.loads.generation(USERS) == 2
        apply = RollbackRequest(USERS, "a", apply=True)
        done: RollbackReply = protocol.decode_rollback_reply(await desk.ask(protocol.ROLLBACK, apply))
        assert done.applied and done.generation == 1 and done.load.state is LoadState.ROLLED_BACK
        assert [each.id for each in done.also] == ["b"]
        revision = desk.revision
        again: RollbackReply = protocol.decode_rollback_reply(await desk.ask(protocol.ROLLBACK, apply))
        assert again.applied and desk.revision == revision
        assert desk.told == [(1, 2, 3, 4)] and not desk.loads.swapping(USERS)

    on_desk(story)


def test_nothing_is_rolled_back_before_everybody_who_may_take_writes_knows_that_it_is_coming() -> None:
    async def story(desk: Desk) -> None:
        desk.publish("a", LoadKind.OVERWRITE)
        apply = RollbackRequest(USERS, "a", apply=True)
        desk.deaf = {3: "no answer"}
        with pytest.raises(Refused, match=r"could not be told .*\(no answer\); nothing was done") as refused:
            await desk.ask(protocol.ROLLBACK, apply)
        assert refused.value.code == "not_ready"
        assert desk.load("a").state is LoadState.PUBLISHED and not desk.loads.swapping(USERS), "it was withdrawn"
        desk.grade(3, Grade.OFFLINE)
        done: RollbackReply = protocol.decode_rollback_reply(await desk.ask(protocol.ROLLBACK, apply))
        assert done.applied and desk.told == [(1, 2, 3, 4), (1, 2, 4)]

    on_desk(story)


def test_a_rollback_is_announced_again_when_the_announcement_was_withdrawn_or_changed_before_it_was_written() -> None:
    async def story(desk: Desk) -> None:
        desk.publish("a", LoadKind.OVERWRITE)

        def tidied() -> None:
            change = withdraw(desk.situation(), USERS)
            assert change is not None and desk.write(change)
            desk.while_told = lambda: (desk.begin("b", LoadKind.OVERWRITE), setattr(desk, "while_told", lambda: None))

        desk.while_told = tidied
        done = protocol.decode_rollback_reply(
            await desk.ask(protocol.ROLLBACK, RollbackRequest(USERS, "a", apply=True))
        )
        assert done.applied and len(desk.told) == 3
        assert desk.load("a").state is LoadState.ROLLED_BACK and not desk.loads.swapping(USERS)

    on_desk(story)


def test_small_loads_of_a_stream_are_no_events() -> None:
    async def story(desk: Desk) -> None:
        await desk.ask(protocol.BEGIN, BeginRequest("a", USERS, 2, direct=True))
        done = await desk.said(protocol.COMMIT, CommitRequest(USERS, "a", rows=3))
        assert done.state is LoadState.PUBLISHED and desk.events == []
        states = {sample.labels[0][1]: sample.value for sample in desk.service.figures()}  # type: ignore[union-attr]
        assert states["published"] == 1 and states["staging"] == 0

    on_desk(story)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("what", ["begin", "commit", "abort", "rollback"])
def test_failpoints_stand_before_and_after_every_decision(what: str, place: str) -> None:
    async def story(desk: Desk) -> None:
        desk.publish("over", LoadKind.OVERWRITE)
        desk.begin("a")
        requests = {
            "begin": BeginRequest("b", USERS, 2),
            "commit": CommitRequest(USERS, "a", (1, 2, 3)),
            "abort": AbortRequest(USERS, "a"),
            "rollback": RollbackRequest(USERS, "over", apply=True),
        }
        failpoints.arm(f"load.{what}.{place}", failpoints._raise)
        revision = desk.revision
        first = 1 if what == "rollback" else 0  # it is announced
        with pytest.raises(failpoints.FailpointError):
            await desk.ask(f"load.{what}", requests[what])
        assert desk.revision == revision + first + (place == "after")
        failpoints.disarm()
        await desk.ask(f"load.{what}", requests[what])
        assert desk.revision == revision + first + 1, "asked again, it is done once"

    try:
        on_desk(story)
    finally:
        failpoints.disarm()
