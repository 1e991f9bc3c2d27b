"""What holds in every state, whatever happened before: tests and the simulator check it after every write.

`check_view` is about what is written; `check` adds what the leader knows. Both give the sentences of what is wrong.
Nothing here is needed to govern: it is the rules' promise, written a second time and independently of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.governor.state import ClusterState
from trimtab.topology.grades import TARGETS, Grade
from trimtab.topology.records import InstanceRecord, RequestKind, RequestState
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

_STATE_OF = {
    RequestKind.JOIN: NodeState.BOOTSTRAPPING,
    RequestKind.REPLACE: NodeState.REPLACING,
    RequestKind.LEAVE: NodeState.DECOMMISSIONING,
    RequestKind.REMOVE: NodeState.REMOVING,
}
_NOT_PLACED = (NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING)
_HIGH = (Grade.SHARDING_INITIALIZED, Grade.ONLINE)


def check(state: ClusterState) -> tuple[str, ...]:
    """Everything that is wrong with a state; nothing, if the rules keep their promise."""
    return (*check_view(state.view), *_raft(state))


def check_view(view: View) -> tuple[str, ...]:
    """Everything that is wrong with what is written."""
    rows = [wrong for raft_id, record in view.instances.items() for wrong in _row(raft_id, record)]
    return (*rows, *_unique(view), *_requests(view), *_topology(view))


def _row(raft_id: int, record: InstanceRecord) -> Iterator[str]:
    who = f"{record.instance_id} (raft id {raft_id})"
    current, target = record.grades.current, record.grades.target
    if target.grade not in TARGETS:
        yield f"{who} has the target {target.grade.value}, which is none"
    if current.incarnation > target.incarnation:
        yield f"{who} stands at incarnation {current.incarnation}, ahead of its target's {target.incarnation}"
    if record.weight and current.grade is not Grade.ONLINE:
        yield f"{who} has the weight {record.weight}, though it is {current.grade.value}"
    if current.grade is Grade.ONLINE and record.weight <= 0:
        yield f"{who} is Online without weight"
    if record.left != (current.grade is Grade.EXPELLED):
        yield f"{who} is {record.state.value}, but {current.grade.value}"
    if current.grade is Grade.EXPELLED and target.grade is not Grade.EXPELLED:
        yield f"{who} is Expelled, but should be {target.grade.value}"
    if record.state in _NOT_PLACED and current.grade in _HIGH:
        yield f"{who} is {current.grade.value}, though its state is {record.state.value}"


def _unique(view: View) -> Iterator[str]:
    uuids: dict[str, int] = {}
    named: dict[str, int] = {}
    for raft_id, record in sorted(view.instances.items()):
        if record.uuid and uuids.setdefault(record.uuid, raft_id) != raft_id:
            yield f"raft ids {uuids[record.uuid]} and {raft_id} have the same uuid"
        if record.left:
            continue
        other = named.setdefault(record.instance_id, raft_id)
        # A replacement may have the name of the one it replaces.
        if other != raft_id and record.replaces != other:
            yield f"raft ids {other} and {raft_id} are both called {record.instance_id}"


def _requests(view: View) -> Iterator[str]:
    running_joins = set()
    for number, request in sorted(view.requests.items()):
        about = f"request {number} ({request.kind.value}, {request.state.value})"
        joining = request.kind in (RequestKind.JOIN, RequestKind.REPLACE)
        if request.state.final:
            if not request.ended_ms and request.asked_ms:
                yield f"{about} has no time of its end"
            continue
        if joining and (request.raft_id != 0) != (request.state is RequestState.RUNNING):
            yield f"{about} has the raft id {request.raft_id}"
        record = view.instances.get(request.raft_id)
        if request.state is RequestState.RUNNING and request.raft_id and (record is None or record.left):
            yield f"{about} runs for an instance that is not in the cluster"
        if joining:
            running_joins.add(request.raft_id)
    for raft_id, record in sorted(view.instances.items()):
        if record.state in _NOT_PLACED and raft_id not in running_joins:
            yield f"{record.instance_id} (raft id {raft_id}) is {record.state.value}, but no request brings it in"


def _topology(view: View) -> Iterator[str]:
    if view.fence > view.version:
        yield f"the fence {view.fence} is ahead of the version {view.version}"
    transition = view.transition
    on_the_way: set[int] = set()
    if transition is not None:
        if transition.version > view.version:
            yield f"the transition's version {transition.version} is ahead of the topology's {view.version}"
        if not transition.requests:
            yield "the transition is of no request"
        for number in transition.requests:
            request = view.requests.get(number)
            if request is None or request.kind is not transition.kind or request.state is not RequestState.RUNNING:
                yield f"the transition is of request {number}, which is no running {transition.kind.value}"
                continue
            on_the_way.add(request.raft_id)
            record = view.instances.get(request.raft_id)
            if record is None or record.state is not _STATE_OF.get(transition.kind):
                yield f"raft id {request.raft_id} goes through the transition, but is not in its state"
    for raft_id, record in sorted(view.instances.items()):
        if record.state in _STATE_OF.values() and raft_id not in on_the_way:
            yield f"{record.instance_id} (raft id {raft_id}) is {record.state.value} without a transition"


def _raft(state: ClusterState) -> Iterator[str]:
    if not state.voters:
        yield "nobody votes"
    if both := state.voters & state.learners:
        yield f"raft ids {sorted(both)} are voters and learners"
    for raft_id in sorted(state.voters):
        record = state.view.instances.get(raft_id)
        if record is not None and record.state in _NOT_PLACED:
            yield f"{record.instance_id} (raft id {raft_id}) votes, though its state is {record.state.value}"
        if record is not None and record.left:
            yield f"{record.instance_id} (raft id {raft_id}) votes, though it has left"
