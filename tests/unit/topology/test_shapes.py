"""Shapes: the fields that scripts rely on, with the values they expect."""

from __future__ import annotations

import json

from tests.unit.topology.clusters import gone, join_request, member

from trimtab.topology import shapes
from trimtab.topology.join import asked_to_join
from trimtab.topology.protocol import InstanceView, ViewReply, decode_view_reply, encode
from trimtab.topology.records import (
    EventRecord,
    InstanceRecord,
    RequestKind,
    RequestRecord,
    RequestState,
    TransitionRecord,
)
from trimtab.topology.states import NodeState, TransitionState

# The columns of system.topology: those of a node, and the static ones.
NODE_COLUMNS = {
    "host_id",
    "datacenter",
    "ignore_msb",
    "node_state",
    "num_tokens",
    "rack",
    "rebuild_option",
    "release_version",
    "replaced_id",
    "ignore_nodes",
    "shard_count",
    "tokens",
    "topology_request",
}
STATIC_COLUMNS = {
    "key",
    "transition_state",
    "current_cdc_generation_timestamp",
    "current_cdc_generation_uuid",
    "unpublished_cdc_generations",
    "global_topology_request",
    "new_cdc_generation_data_uuid",
}
STATUS_FIELDS = {"cluster_id", "leader", "topology_version", "instances"}
INSTANCE_FIELDS = {
    "instance_id",
    "raft_id",
    "address",
    "failure_domain",
    "state",
    "current_grade",
    "target_grade",
    "incarnation",
    "voter",
    "weight",
    "tablets",
    "bytes",
}
TASK_FIELDS = {
    "id",
    "kind",
    "state",
    "why",
    "progress_bytes",
    "total_bytes",
    "rate_bytes_s",
    "eta_s",
    "started",
    "error",
}


def reply(
    *records: InstanceRecord,
    requests: dict[int, RequestRecord] | None = None,
    transition: TransitionRecord | None = None,
    events: dict[int, EventRecord] | None = None,
    leader: int = 1,
) -> ViewReply:
    """As it comes over the wire."""
    made = ViewReply(
        "demo",
        "genesis",
        1,
        leader,
        4,
        50,
        12,
        10,
        transition,
        [InstanceView(raft_id, record, raft_id == 1, raft_id != 1) for raft_id, record in enumerate(records, 1)],
        sorted((requests or {}).items()),
        sorted((events or {}).items()),
        9,
    )
    return decode_view_reply(encode(made))


def test_status_has_the_promised_fields() -> None:
    shape = shapes.status(reply(member(1, failure_domain={"rack": "a"}), gone(2)))
    assert set(shape) >= STATUS_FIELDS
    assert (shape["cluster_id"], shape["leader"], shape["topology_version"]) == ("demo", "i1", 12)
    first, second = shape["instances"]
    assert set(first) >= INSTANCE_FIELDS
    assert (first["instance_id"], first["raft_id"], first["address"]) == ("i1", 1, "127.0.0.1:3301")
    assert (first["state"], first["current_grade"], first["target_grade"]) == ("normal", "Online", "Online")
    assert (first["incarnation"], first["voter"], first["weight"]) == (1, True, 1.0)
    assert (first["failure_domain"], first["tablets"], first["bytes"]) == ({"rack": "a"}, 0, 0)
    assert (second["state"], second["current_grade"], second["voter"]) == ("left", "Expelled", False)
    json.dumps(shape)


def test_status_without_a_leader_says_null() -> None:
    assert shapes.status(reply(member(1), leader=0))["leader"] is None


def test_topology_has_every_column_of_the_table() -> None:
    shape = shapes.topology(reply(member(1)))
    assert set(shape) >= STATIC_COLUMNS
    (node,) = shape["nodes"]
    assert set(node) >= NODE_COLUMNS
    assert shape["key"] == "topology"
    assert (shape["transition_state"], shape["global_topology_request"]) == (None, None)
    json.dumps(shape)


def test_topology_shows_what_is_asked_and_under_way() -> None:
    shape = shapes.topology(
        reply(
            member(1, failure_domain={"dc": "eu", "rack": "a"}),
            member(2, state=NodeState.REMOVING),
            member(3),
            member(4, state=NodeState.REPLACING, replaces=3),
            member(5, state=NodeState.REBUILDING),
            requests={
                1: RequestRecord(RequestKind.REMOVE, RequestState.DONE, 1),
                2: RequestRecord(RequestKind.REMOVE, RequestState.RUNNING, 2, ignore=[3]),
                3: RequestRecord(RequestKind.REBUILD, RequestState.RUNNING, 5, source="eu"),
                4: RequestRecord(RequestKind.BARRIER),
            },
            transition=TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.REMOVE, [2], 12),
        )
    )
    assert shape["transition_state"] == "write_both_read_old"
    assert shape["global_topology_request"] == "barrier"
    nodes = {node["instance_id"]: node for node in shape["nodes"]}
    assert (nodes["i1"]["datacenter"], nodes["i1"]["rack"], nodes["i1"]["host_id"]) == ("eu", "a", "uuid-1")
    assert nodes["i1"]["topology_request"] is None
    assert (nodes["i2"]["node_state"], nodes["i2"]["topology_request"]) == ("removing", "remove")
    assert nodes["i2"]["ignore_nodes"] == ["uuid-3"]
    assert nodes["i4"]["replaced_id"] == "uuid-3"
    assert (nodes["i5"]["topology_request"], nodes["i5"]["rebuild_option"]) == ("rebuild", "eu")
    assert nodes["i1"]["release_version"] == "0.1.0"


def test_tasks_have_the_promised_fields_and_say_why() -> None:
    requests = {
        1: RequestRecord(RequestKind.LEAVE, RequestState.RUNNING, 1, started_ms=1_700_000_000_123),
        2: asked_to_join(join_request(), 1_700_000_000_000, 0),
        3: RequestRecord(RequestKind.REMOVE, RequestState.CANCELLED, 2, "i2 is alive again", ignore=[1]),
        4: asked_to_join(join_request(replaces="i2"), 0, 0),
        5: RequestRecord(RequestKind.REBUILD, RequestState.DONE, 2, "nothing to copy"),
        6: RequestRecord(RequestKind.BARRIER),
    }
    tasks = shapes.tasks(reply(member(1), member(2), requests=requests))
    assert all(set(task) >= TASK_FIELDS for task in tasks)
    assert [task["id"] for task in tasks] == [1, 2, 3, 4, 5, 6]
    assert [task["why"] for task in tasks] == [
        "i1 leaves the cluster",
        "i9 joins the cluster",
        "i2 is dead and is removed, not waiting for i1",
        "i9 replaces i2",
        "i2 is rebuilt from the others",
        "every instance should route by the topology of now",
    ]
    assert tasks[0]["started"] == "2023-11-14T22:13:20.123Z"
    assert (tasks[1]["started"], tasks[1]["state"], tasks[1]["error"]) == (None, "pending", None)
    assert (tasks[2]["state"], tasks[2]["error"]) == ("cancelled", "i2 is alive again")
    assert (tasks[4]["error"], tasks[4]["reason"]) == (None, "nothing to copy")
    json.dumps(tasks)


def test_events_come_with_their_why() -> None:
    page = shapes.events(
        reply(member(1), events={7: EventRecord(1_700_000_000_000, "down", "i2 is Offline", 4, ["i2"])})
    )
    assert page == {
        "events": [
            {
                "number": 7,
                "at": "2023-11-14T22:13:20.000Z",
                "kind": "down",
                "text": "i2 is Offline",
                "term": 4,
                "instances": ["i2"],
            }
        ],
        "last_event": 9,
    }


def test_times_that_no_calendar_knows_are_null() -> None:
    assert shapes.moment(0) is None
    assert shapes.moment(-5) is None
    assert shapes.moment(1 << 62) is None
