"""Views for tests: a cluster in one line."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import JoinRequest
from trimtab.topology.records import (
    FENCE_KEY,
    TRANSITION_KEY,
    VERSION_KEY,
    InstanceRecord,
    JoinTicket,
    RequestRecord,
    TransitionRecord,
    encode,
    instance_key,
    request_key,
)
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

RELEASE = "0.1.0"
ONLINE = Grades(Standing(Grade.ONLINE, 1), Standing(Grade.ONLINE, 1))


def member(raft_id: int, **fields: object) -> InstanceRecord:
    """Instance i<raft_id>, normal and Online, unless told otherwise."""
    wanted: dict[str, object] = {
        "instance_id": f"i{raft_id}",
        "address": f"127.0.0.1:{3291 + 10 * raft_id}",
        "uuid": f"uuid-{raft_id}",
        "grades": ONLINE,
        "weight": 1.0,
        "release": RELEASE,
    }
    return InstanceRecord(**(wanted | fields))  # type: ignore[arg-type]


def gone(raft_id: int, **fields: object) -> InstanceRecord:
    """One that has left."""
    expelled = Standing(Grade.EXPELLED, 1)
    return member(raft_id, **({"state": NodeState.LEFT, "grades": Grades(expelled, expelled)} | fields))


def view_of(
    *records: InstanceRecord,
    requests: Mapping[int, RequestRecord] | None = None,
    transition: TransitionRecord | None = None,
    version: int = 1,
    fence: int = 0,
) -> View:
    """A view of these instances, raft ids from 1 on, read as the metastore would give it."""
    entries = [(instance_key(raft_id), encode(record), raft_id) for raft_id, record in enumerate(records, 1)]
    entries += [(request_key(number), encode(record), 100 + number) for number, record in (requests or {}).items()]
    entries += [(VERSION_KEY, b"%d" % version, 200), (FENCE_KEY, b"%d" % fence, 201)]
    if transition is not None:
        entries.append((TRANSITION_KEY, encode(transition), 202))
    view = View()
    view.load(entries)
    assert not view.unreadable
    return view


def ticket(**fields: object) -> JoinTicket:
    """Of a fresh instance i9."""
    wanted: dict[str, object] = {
        "instance_id": "i9",
        "uuid": "uuid-9",
        "nonce": "nonce-9",
        "address": "127.0.0.1:3999",
        "release": RELEASE,
    }
    return JoinTicket(**(wanted | fields))  # type: ignore[arg-type]


def join_request(cluster_id: str = "demo", **fields: object) -> JoinRequest:
    return JoinRequest(cluster_id, ticket(**fields))


def everybody(_raft_id: int) -> bool:
    return True


def nobody(_raft_id: int) -> bool:
    return False
