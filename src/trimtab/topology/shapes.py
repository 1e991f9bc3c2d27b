"""What people and scripts are shown of the cluster: the JSON of `status`, `topology`, `tasks` and `events`.

The command line and the HTTP door print these and nothing else, so the two never differ. Fields may be added, not
renamed. Times are ISO 8601 in UTC; null means that there is none, or that whoever was asked does not know.

`topology` has every column of the table `system.topology` that ScyllaDB's topology state machine keeps: those of a node
under `nodes`, the static ones beside it. Where a column has no meaning here it says so by its value: this system has
tablets instead of a node's own tokens (`tokens` and `num_tokens` are null), takes a token as it is (`ignore_msb` is 0),
and runs one shard a process (`shard_count` is 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from trimtab.topology.protocol import InstanceView, MovingView, ViewReply
from trimtab.topology.records import GLOBAL_KINDS, EventRecord, RequestKind, RequestRecord, RequestState

Shape = dict[str, Any]
# The same for every key of a failure domain: how the state machine's table calls it.
_DATACENTER, _RACK = "dc", "rack"
_DRAINED = (RequestKind.LEAVE, RequestKind.REMOVE)
# What only jobs and tablets under way have, so that all tasks have the same fields.
NOT_OF_REQUESTS: Shape = {
    "progress_rows": 0,
    "total_rows": 0,
    "phase": None,
    "attempts": None,
    "waits_for": [],
    "pausing": False,
    "parameters": None,
    "result": None,
    "undoes": None,
    "undone_by": [],
    "driver_term": None,
    "progress_tablets": 0,
    "total_tablets": 0,
    "move": None,
}


def status(reply: ViewReply) -> Shape:
    """The cluster at a glance. Instances that left are in it, as `left`."""
    names = _names(reply)
    return {
        "cluster_id": reply.cluster_id,
        "leader": names.get(reply.leader),
        "topology_version": reply.version,
        "instances": [_instance(shown) for shown in reply.instances],
        "genesis": reply.genesis,
        "term": reply.term,
        "fence": reply.fence,
        "transition_state": reply.transition.state.value if reply.transition else None,
        "asked": names.get(reply.asked),
        "lease_ms": reply.lease_ms,
        "unreadable": list(reply.unreadable),
        "waiting": list(reply.waiting),
        "bulk_rate_bytes_s": reply.bulk_rate_bytes_s,
        "moving": _moving(reply.moving),
    }


def topology(reply: ViewReply) -> Shape:
    """The topology as data: 004's table, and the records as they are."""
    uuids = {shown.raft_id: shown.record.uuid for shown in reply.instances}
    wanted = {
        request.raft_id: request for _, request in sorted(reply.requests) if request.raft_id and not request.state.final
    }
    asked_globally = [
        request.kind.value
        for _, request in sorted(reply.requests)
        if request.kind in GLOBAL_KINDS and not request.state.final
    ]
    return {
        "key": "topology",
        "cluster_id": reply.cluster_id,
        "version": reply.version,
        "fence_version": reply.fence,
        "transition_state": reply.transition.state.value if reply.transition else None,
        "transition_kind": reply.transition.kind.value if reply.transition else None,
        "transition_requests": list(reply.transition.requests) if reply.transition else [],
        "current_cdc_generation_timestamp": None,
        "current_cdc_generation_uuid": None,
        "unpublished_cdc_generations": [],
        "global_topology_request": asked_globally[0] if asked_globally else None,
        "new_cdc_generation_data_uuid": None,
        "nodes": [_node(shown, wanted.get(shown.raft_id), uuids) for shown in reply.instances],
    }


def tasks(reply: ViewReply) -> list[Shape]:
    """Everything asked for, by number."""
    return [task(number, request, reply) for number, request in sorted(reply.requests)]


def task(number: int, request: RequestRecord, reply: ViewReply) -> Shape:
    """One request. What it moves are tablets, which are tasks of their own; here is how many of them are left."""
    names = _names(reply)
    subject = names.get(request.raft_id) or (request.join.instance_id if request.join else None)
    failed = request.state in (RequestState.FAILED, RequestState.CANCELLED)
    return {
        "id": number,
        "kind": request.kind.value,
        "state": request.state.value,
        "why": _why(request, subject, names),
        "progress_bytes": 0,
        "total_bytes": 0,
        "rate_bytes_s": None,
        "eta_s": None,
        "started": moment(request.started_ms),
        "error": (request.reason or request.state.value) if failed else None,
        "instance_id": subject,
        "raft_id": request.raft_id or None,
        "asked": moment(request.asked_ms),
        "ended": moment(request.ended_ms),
        "deadline": moment(request.deadline_ms),
        "cancelling": request.cancel or None,
        "reason": request.reason or None,
        **NOT_OF_REQUESTS,
        **_tablets(request, reply),
    }


def events(reply: ViewReply) -> Shape:
    """A page of events, oldest first; `last_event` is the newest number there is."""
    return {"events": [event(number, record) for number, record in reply.events], "last_event": reply.last_event}


def event(number: int, record: EventRecord) -> Shape:
    """A step of the governor, with its why."""
    return {
        "number": number,
        "at": moment(record.at_ms),
        "kind": record.kind,
        "text": record.text,
        "term": record.term,
        "instances": list(record.instances),
    }


def moment(at_ms: int) -> str | None:
    """A time of the wall clock as text; None where there is none (0), or none that a calendar knows."""
    if at_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def _tablets(request: RequestRecord, reply: ViewReply) -> Shape:
    """How many replicas an instance had when it began to be drained, and how many of them are elsewhere by now."""
    if request.kind not in _DRAINED or not request.tablets:
        return {}
    left = next((shown.tablets for shown in reply.instances if shown.raft_id == request.raft_id), 0)
    done = request.tablets if request.state is RequestState.DONE else max(request.tablets - left, 0)
    return {"progress_tablets": done, "total_tablets": request.tablets}


def _moving(moving: MovingView) -> Shape:
    return {
        "tablets": moving.tablets,
        "progress_bytes": moving.progress_bytes,
        "total_bytes": moving.total_bytes,
        "rate_bytes_s": moving.rate_bytes_s or None,
        "eta_s": moving.eta_s if moving.eta_s >= 0 else None,
        "upcoming_tablets": moving.upcoming_tablets,
        "upcoming_bytes": moving.upcoming_bytes,
        "stages": dict(moving.stages),
        "says": list(moving.sentences),
        "problems": list(moving.problems),
        "still": moving.still or None,
        "unserved_tablets": moving.unserved_tablets,
    }


def _instance(shown: InstanceView) -> Shape:
    record = shown.record
    return {
        "instance_id": record.instance_id,
        "raft_id": shown.raft_id,
        "address": record.address,
        "failure_domain": dict(record.failure_domain),
        "state": record.state.value,
        "current_grade": record.grades.current.grade.value,
        "target_grade": record.grades.target.grade.value,
        "incarnation": record.grades.current.incarnation,
        "voter": shown.voter,
        "weight": record.weight,
        "tablets": shown.tablets,
        "bytes": shown.bytes,
        "target_incarnation": record.grades.target.incarnation,
        "learner": shown.learner,
        "http_address": record.http_address or None,
        "release": record.release or None,
        "reason": record.reason or None,
        "heard_ms": shown.heard_ms,
        "applied": shown.applied,
        "uuid": record.uuid or None,
        "joined": moment(record.joined_ms),
        "left": moment(record.left_ms),
        "bulk_address": record.bulk_address or None,
        "disk_full": shown.disk_full,
        "stays": shown.stays or None,
    }


def _node(shown: InstanceView, request: RequestRecord | None, uuids: Mapping[int, str]) -> Shape:
    record = shown.record
    rebuilding = request is not None and request.kind is RequestKind.REBUILD
    return {
        "host_id": record.uuid or None,
        "datacenter": record.failure_domain.get(_DATACENTER),
        "ignore_msb": 0,
        "node_state": record.state.value,
        "num_tokens": None,
        "rack": record.failure_domain.get(_RACK),
        "rebuild_option": (request.source or None) if rebuilding and request else None,
        "release_version": record.release or None,
        "replaced_id": uuids.get(record.replaces) or None,
        "ignore_nodes": sorted(uuids.get(raft_id) or str(raft_id) for raft_id in request.ignore) if request else [],
        "shard_count": 1,
        "tokens": None,
        "topology_request": request.kind.value if request else None,
        "instance_id": record.instance_id,
        "raft_id": shown.raft_id,
        "address": record.address,
        "failure_domain": dict(record.failure_domain),
        "current_grade": record.grades.current.grade.value,
        "target_grade": record.grades.target.grade.value,
        "incarnation": record.grades.current.incarnation,
        "target_incarnation": record.grades.target.incarnation,
        "weight": record.weight,
        "capacity_bytes": record.capacity_bytes,
        "voter": shown.voter,
        "joined": moment(record.joined_ms),
        "left": moment(record.left_ms),
        "reason": record.reason or None,
    }


def _names(reply: ViewReply) -> dict[int, str]:
    return {shown.raft_id: shown.record.instance_id for shown in reply.instances}


def _why(request: RequestRecord, subject: str | None, names: Mapping[int, str]) -> str:
    """What the task is for, in a few words."""
    who = subject or "an instance"
    match request.kind:
        case RequestKind.JOIN:
            return f"{who} joins the cluster"
        case RequestKind.REPLACE:
            return f"{who} replaces {request.join.replaces if request.join else 'a dead instance'}"
        case RequestKind.LEAVE:
            return f"{who} leaves the cluster"
        case RequestKind.REMOVE:
            ignored = ", ".join(names.get(raft_id, str(raft_id)) for raft_id in request.ignore)
            return f"{who} is dead and is removed{f', not waiting for {ignored}' if ignored else ''}"
        case RequestKind.REBUILD:
            return f"{who} is rebuilt from {request.source or 'the others'}"
        case RequestKind.BARRIER:
            return "every instance should route by the topology of now"
