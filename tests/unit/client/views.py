"""Clusters as a member would show them, made up in a line."""

from __future__ import annotations

from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import InstanceView, MovingView, ViewReply
from trimtab.topology.records import EventRecord, InstanceRecord, RequestRecord, TransitionRecord
from trimtab.topology.states import NodeState


def instance(
    number: int,
    current: Grade = Grade.ONLINE,
    target: Grade = Grade.ONLINE,
    *,
    state: NodeState = NodeState.NORMAL,
    voter: bool = True,
    heard_ms: int | None = 100,
    reason: str = "",
    name: str = "",
    release: str = "0.1.0",
    applied: int = 10,
) -> InstanceView:
    """Instance i<number> at 10.0.0.<number>:3301."""
    grades = Grades(Standing(current, 1), Standing(target, 1))
    domain = {"host": f"h{number}"}
    address = f"10.0.0.{number}:3301"
    uuid = f"uuid-{number}"
    record = InstanceRecord(
        name or f"i{number}",
        address,
        uuid=uuid,
        state=state,
        grades=grades,
        failure_domain=domain,
        reason=reason,
        release=release,
    )
    return InstanceView(number, record, voter, not voter, heard_ms, applied)


def view(
    *instances: InstanceView,
    leader: int = 1,
    asked: int = 1,
    requests: dict[int, RequestRecord] | None = None,
    transition: TransitionRecord | None = None,
    events: dict[int, EventRecord] | None = None,
    last_event: int = 0,
    lease_ms: int = 2_000,
    revision: int = 7,
    unreadable: list[str] | None = None,
    wall_ms: int = 0,
    moving: MovingView | None = None,
) -> ViewReply:
    """A view of these instances; without any, of three that are well."""
    return ViewReply(
        cluster_id="shop",
        genesis="g",
        asked=asked,
        leader=leader,
        term=3,
        revision=revision,
        version=12,
        fence=0,
        transition=transition,
        instances=list(instances) or [instance(1), instance(2), instance(3)],
        requests=sorted((requests or {}).items()),
        events=sorted((events or {}).items()),
        last_event=last_event,
        lease_ms=lease_ms,
        unreadable=unreadable or [],
        wall_ms=wall_ms,
        moving=moving or MovingView(),
    )
