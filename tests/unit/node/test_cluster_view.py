"""What `cluster.view` shows, however long the history is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.unit.topology.clusters import gone, member, view_of

from trimtab.loads.view import LoadView
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked
from trimtab.node.cluster_view import LEFT_SHOWN, MAX_WAITING_SHOWN, ClusterView
from trimtab.node.settings import Limits
from trimtab.tablets.view import TableView
from trimtab.topology import protocol, shapes
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import ViewReply, ViewRequest

DOWN = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))


def show(*requests: ViewRequest) -> list[ViewReply]:
    """The answers of a cluster where 3000 instances have come and gone, and the first and the last are there."""
    domain = {"host": "some.host.example", "rack": "r1"}
    view = view_of(
        member(1), *(gone(raft_id, failure_domain=domain) for raft_id in range(2, 3_002)), member(3_002, grades=DOWN)
    )
    config = SimpleNamespace(voters={1, 3_002}, learners=set(), learners_next=set())
    raft = SimpleNamespace(lead=1, term=1, tracker=SimpleNamespace(config=config))
    group: Any = SimpleNamespace(raw=SimpleNamespace(raft=raft))

    async def ask() -> list[bytes]:
        shown = ClusterView(
            1,
            "c",
            "g",
            group,
            view,
            TableView(),
            LoadView(),
            revision=lambda: 1,
            barrier=lambda _timeout_s: asyncio.sleep(0),
            heard=lambda: None,
            lease_left_ms=lambda: 0,
            wall_ms=lambda: 1,
            waiting=lambda: (f"request {number} waits" for number in range(10**6)),
            full=lambda: {3_002},
            keeps=lambda raft_id: f"{raft_id} has the only copy",
        )
        return [await shown.show(Asked(protocol.encode(request), 1e9, Hello())) for request in requests]

    bodies = asyncio.run(ask())
    assert all(len(body) < Limits().frame_bytes for body in bodies)
    return [protocol.decode_view_reply(body) for body in bodies]


def test_all_members_are_shown_and_the_newest_of_those_that_left() -> None:
    (reply,) = show(ViewRequest())
    ids = [each.raft_id for each in reply.instances]
    assert ids == [1, *range(3_002 - LEFT_SHOWN, 3_003)]
    assert reply.left_out == 3_000 - LEFT_SHOWN


def test_who_asks_for_more_gets_the_older_ones_page_by_page() -> None:
    first, second, none = show(
        ViewRequest(left_limit=10**9), ViewRequest(left_limit=1_000, left_before=2_002), ViewRequest(left_limit=0)
    )
    assert [each.raft_id for each in first.instances] == [1, *range(2_002, 3_003)]
    assert [each.raft_id for each in second.instances] == [1, *range(1_002, 2_002), 3_002]
    assert first.left_out == 2_000 and second.left_out == 1_000
    assert [each.raft_id for each in none.instances] == [1, 3_002] and none.left_out == 3_000


def test_whose_disk_is_full_is_shown() -> None:
    (reply,) = show(ViewRequest())
    assert [each.raft_id for each in reply.instances if each.disk_full] == [3_002]
    assert [each["raft_id"] for each in shapes.status(reply)["instances"] if each["disk_full"]] == [3_002]


def test_what_the_governor_waits_for_is_shown_in_bounds() -> None:
    (reply,) = show(ViewRequest())
    assert reply.waiting[0] == "request 0 waits" and len(reply.waiting) == MAX_WAITING_SHOWN
    assert shapes.status(reply)["waiting"] == reply.waiting


def test_why_one_that_is_down_may_not_be_expelled_is_shown() -> None:
    """It was advised all the same, and refused. Who is up, or has left, is not asked about."""
    (reply,) = show(ViewRequest())
    assert {each.raft_id: each.stays for each in reply.instances if each.stays} == {3_002: "3002 has the only copy"}
    assert shapes.status(reply)["instances"][0]["stays"] is None
