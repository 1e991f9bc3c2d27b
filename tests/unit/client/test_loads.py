"""Clients of loads: what is asked again, of whom, and what refusals become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails, ignores
from tests.unit.client.playing import address, fake, play
from tests.unit.client.served import served

from trimtab.client.database import Database
from trimtab.client.errors import NotFound, Unavailable
from trimtab.client.loads import BlockingLoads, LoadClient, LoadRefused
from trimtab.loads import protocol
from trimtab.loads.protocol import (
    BeginRequest,
    CommitRequest,
    LoadReply,
    LoadsReply,
    MovedDetails,
    RollbackReply,
    SealReply,
    SealRequest,
    ShowRequest,
    SnapshotReply,
    SnapshotRequest,
    StagedFile,
    TicketReply,
)
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.net.server import Handler, Request

LOAD = LoadRecord("a", 1, LoadKind.APPEND, LoadState.STAGING, 999)
PUBLISHED = LoadRecord("a", 1, LoadKind.APPEND, LoadState.PUBLISHED, 999, epoch=4)
SNAPSHOT = SnapshotReply("n", "/data", "proof", [], [], "b:1", b"t")
ANSWERS: dict[str, Any] = {
    **dict.fromkeys((protocol.BEGIN, protocol.RENEW, protocol.COMMIT, protocol.ABORT), LoadReply(LOAD)),
    protocol.SHOW: LoadsReply([PUBLISHED], {1: (4, 2)}),
    protocol.ROLLBACK: RollbackReply(PUBLISHED, generation=1),
    protocol.TICKET: TicketReply(b"ticket", 5, {1: "b:1"}),
    protocol.SEAL: SealReply([(3, "x")]),
    protocol.SNAPSHOT: SNAPSHOT,
    protocol.SNAPSHOT_RENEW: None,
    protocol.SNAPSHOT_RELEASE: None,
}


def with_loads(cluster: FakeCluster) -> FakeCluster:
    """Members that answer for loads as ANSWERS says, after what is scripted; `asked` has who was asked what."""
    plain = cluster.handlers

    def handlers(number: int) -> dict[str, Handler]:
        def handler(method: str) -> Handler:
            def handle(request: Request) -> None:
                cluster.asked.append((number, method, request.body))
                if script := cluster.scripts.get((number, method)):
                    script.pop(0)(request)
                    return
                answer = ANSWERS[method]
                request.reply(b"" if answer is None else protocol.encode(answer))

            return handle

        return plain(number) | {method: handler(method) for method in ANSWERS}

    cluster.handlers = handlers  # type: ignore[method-assign]
    return cluster


def asked(cluster: FakeCluster, method: str) -> list[int]:
    return [number for number, name, _ in cluster.asked if name == method]


def test_a_load_is_asked_for_again_until_somebody_answers() -> None:
    cluster = with_loads(fake())
    cluster.script(protocol.BEGIN, fails("not_leader"), ignores, fails("leadership_lost"))

    async def work(db: Database, _stage: Any) -> LoadRecord:
        return await LoadClient.on(db).begin(BeginRequest("a", 1, 1))

    assert play(cluster, work) == LOAD and len(asked(cluster, protocol.BEGIN)) >= 3


def test_refusals_have_their_code_and_moved_ones_the_instances_that_are_missing() -> None:
    cluster = with_loads(fake())
    details = protocol.encode(MovedDetails((2, 3)))
    cluster.script(protocol.COMMIT, lambda request: request.fail("moved", "not complete", details))
    cluster.script(protocol.BEGIN, fails("too_many_loads", "16 loads are open"))

    async def work(db: Database, _stage: Any) -> None:
        client = LoadClient.on(db)
        with pytest.raises(LoadRefused, match="not complete") as refused:
            await client.commit(CommitRequest(1, "a"))
        assert refused.value.code == "moved" and refused.value.missing == (2, 3)
        with pytest.raises(LoadRefused, match="16 loads are open") as refused:
            await client.begin(BeginRequest("a", 1, 1))
        assert refused.value.code == "too_many_loads" and refused.value.missing == ()

    play(cluster, work)


def test_what_concerns_replicas_is_asked_of_their_instance() -> None:
    cluster = with_loads(fake())
    cluster.script(protocol.SEAL, fails("not_ready", "still looking"), fails("starting"), members=(2,))
    seal = SealRequest("a", 1, [StagedFile(3, "x", 10, 1)])

    async def work(db: Database, _stage: Any) -> None:
        client = LoadClient.on(db)
        assert await client.seal(2, seal) == SealReply([(3, "x")])
        assert await client.snapshot(3, SnapshotRequest(1, [0], 4)) == SNAPSHOT
        await client.renew_snapshot(3, "n")
        await client.release_snapshot(3, "n")

    play(cluster, work)
    assert asked(cluster, protocol.SEAL) == [2, 2, 2]
    for method in (protocol.SNAPSHOT, protocol.SNAPSHOT_RENEW, protocol.SNAPSHOT_RELEASE):
        assert asked(cluster, method) == [3]
    (body,) = cluster.of(protocol.SNAPSHOT)
    assert protocol.decode_snapshot(body).name.startswith("read-"), "asked again, it would be the same one"


def test_an_instance_that_says_no_is_believed_and_one_that_does_not_answer_is_named() -> None:
    cluster = with_loads(fake())
    cluster.script(protocol.SEAL, fails("session_closed", "it was aborted"), members=(2,))

    async def work(db: Database, stage: Any) -> None:
        client = LoadClient.on(db)
        with pytest.raises(LoadRefused, match="it was aborted") as refused:
            await client.seal(2, SealRequest("a", 1, []))
        assert refused.value.code == "session_closed"
        stage.kill(3)
        with pytest.raises(Unavailable, match=r"i3 does not answer load\.seal in time"):
            await client.seal(3, SealRequest("a", 1, []), timeout_s=3)
        with pytest.raises(Unavailable, match="instance 9 does not answer"):
            await client.seal(9, SealRequest("a", 1, []), timeout_s=1)

    play(cluster, work)


def test_an_instance_that_came_back_elsewhere_is_found() -> None:
    cluster = with_loads(fake(4))
    cluster.addresses[3] = "10.0.0.77:3301"

    async def work(db: Database, _stage: Any) -> SealReply:
        cluster.addresses[3] = address(3)
        cluster.topology += 1
        return await LoadClient.on(db).seal(3, SealRequest("a", 1, []), timeout_s=30)

    assert play(cluster, work) == SealReply([(3, "x")])


def test_waiting_for_a_load_ends_with_its_end_or_the_time() -> None:
    cluster = with_loads(fake())
    staging = protocol.encode(LoadsReply([LOAD]))
    cluster.script(protocol.SHOW, *([lambda request: request.reply(staging)] * 2))

    async def work(db: Database, _stage: Any) -> None:
        client = LoadClient.on(db)
        found = await client.wait_ended(1, "a", 30)
        assert found is not None and found.state is LoadState.PUBLISHED
        cluster.script(protocol.SHOW, *([lambda request: request.reply(staging)] * 50))
        found = await client.wait_ended(1, "a", 0)
        assert found is not None and found.state is LoadState.STAGING
        cluster.scripts.clear()
        assert await client.visible(1) == (4, 2) and await client.get(1, "a") == PUBLISHED

    play(cluster, work)
    assert any(protocol.decode_show(body).wait_ms for body in cluster.of(protocol.SHOW))
    assert protocol.decode_show(cluster.of(protocol.SHOW)[-1]) == ShowRequest(1, "a")


def test_everybody_has_heard_of_a_load_that_is_called_visible_and_of_a_rollback_that_is_called_done() -> None:
    cluster = with_loads(fake())
    applied = protocol.encode(RollbackReply(PUBLISHED, generation=1, applied=True))

    async def work(db: Database, stage: Any) -> None:
        client = LoadClient.on(db)
        assert await client.wait_ended(1, "a", 30) == PUBLISHED
        assert {1, 2, 3} <= set(asked(cluster, protocol.SHOW))
        cluster.asked.clear()
        await client.rollback(1, "a")
        assert asked(cluster, protocol.SHOW) == [], "it was only asked what it would do"
        cluster.script(protocol.ROLLBACK, lambda request: request.reply(applied))
        stage.kill(3)
        assert (await client.rollback(1, "a", apply=True)).applied
        assert set(asked(cluster, protocol.SHOW)) == {1, 2}, "who is gone is not waited for"

    play(cluster, work)


def test_the_blocking_client_has_the_same_names(free_ports: Callable[[int], list[int]]) -> None:
    with served(free_ports(1)) as plain:
        plain.create("shop.users", "id bigint, name text", "id")
        with BlockingLoads(list(plain.addresses.values()), timeout_s=5) as loads:
            assert loads.catalog.table("shop.users").id in loads.catalog.tables
            loads.refresh()
            assert loads.tablets(1).count == 8 and loads.instances[1].instance_id == "i1"
            with pytest.raises(NotFound, match="was it dropped"):
                loads.tablets(99)
    names = {name for name in vars(LoadClient) if not name.startswith("_")} - {"on"}
    assert names <= {name for name in vars(BlockingLoads) if not name.startswith("_")}
