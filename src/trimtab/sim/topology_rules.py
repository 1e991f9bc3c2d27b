"""What a committed write may do to the topology: the rules of grades, states, requests and versions, written again.

Deliberately nothing is imported from `topology.grades` or `topology.states` but the words themselves: a mistake in a
table there must not excuse itself. Each committed command is judged as a whole, on the records before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from trimtab.sim.checks import Violation
from trimtab.topology.grades import Grade, Standing
from trimtab.topology.records import (
    EVENTS,
    FENCE_KEY,
    INSTANCES,
    REQUESTS,
    TRANSITION_KEY,
    VERSION_KEY,
    InstanceRecord,
    RequestKind,
    RequestRecord,
    RequestState,
    TransitionRecord,
    decode_event,
    decode_instance,
    decode_request,
    decode_transition,
    number_of,
)
from trimtab.topology.states import NodeState, TransitionState

_RUNGS = ("Offline", "RaftSynced", "Replicated", "ShardingInitialized", "Online")
_STATES = {
    "none": "bootstrapping replacing left",
    "bootstrapping": "normal left",
    "replacing": "normal left",
    "normal": "rebuilding decommissioning removing left",
    "rebuilding": "normal decommissioning removing left",
    "decommissioning": "normal removing left",
    "removing": "normal left",
    "left": "",
}
_IN_PLACE = ("normal", "rebuilding", "decommissioning", "removing")
_FINAL = ("done", "failed", "cancelled")
_NEVER_CHANGES = ("instance_id", "uuid", "nonce", "joined_ms", "replaces")
_DOWN = (Grade.OFFLINE, Grade.EXPELLED)


@dataclass
class Committed:
    """The topology as everything that was committed so far makes it."""

    rows: dict[int, InstanceRecord] = field(default_factory=dict)
    requests: dict[int, RequestRecord] = field(default_factory=dict)
    version: int = 0
    fence: int = 0
    transition: TransitionRecord | None = None
    highest_id: int = 0
    highest_request: int = 0
    highest_event: int = 0
    uuids: dict[str, int] = field(default_factory=dict)
    # The highest version at which a barrier was passed; and the version that the barrier at the end of each global
    # request, or rebuild, is not below.
    passed: int = 0
    barriers: dict[int, int] = field(default_factory=dict)
    writes: int = 0

    def down(self, raft_id: int) -> bool:
        row = self.rows.get(raft_id)
        return row is not None and row.grades.current.grade in _DOWN

    def apply(self, index: int, term: int, changes: Mapping[bytes, bytes | None]) -> None:
        """Judge one command, and take it over. Raises Violation."""
        self.writes += 1
        founding = not self.rows
        rows: dict[int, InstanceRecord] = {}
        requests: dict[int, RequestRecord | None] = {}
        version, fence, transition = self.version, self.fence, self.transition
        for key, value in changes.items():
            if key.startswith(INSTANCES):
                if value is None:
                    raise Violation(f"the row {key!r} was deleted at index {index}; rows are kept for ever")
                rows[number_of(key, INSTANCES)] = decode_instance(value)
            elif key.startswith(REQUESTS):
                requests[number_of(key, REQUESTS)] = None if value is None else decode_request(value)
            elif key.startswith(EVENTS):
                self._event(index, term, key, value, founding)
            elif key == VERSION_KEY:
                version = int(value or 0)
            elif key == FENCE_KEY:
                fence = int(value or 0)
            elif key == TRANSITION_KEY:
                transition = None if value is None else decode_transition(value)
        for raft_id, row in sorted(rows.items()):
            before = self.rows.get(raft_id)
            if before is None:
                self._new_row(raft_id, row, founding)
            elif wrong := _wrong_change(before, row):
                raise Violation(
                    f"{row.instance_id} (raft id {raft_id}) was changed against the rules at index {index}: {wrong}",
                    f"before: {_short(before)}\nafter:  {_short(row)}",
                )
        for number, request in sorted(requests.items()):
            self._request(number, request, version)
        self._versions(index, version, fence, rows, transition)
        self._transition(index, transition, requests)
        if fence < self.passed:
            # Every barrier ends with the fence: requests that nobody waits for any more are nobody's to end.
            raise Violation(f"a barrier at version {self.passed} was passed at index {index}, but the fence is {fence}")
        self.rows.update(rows)
        for number, request in requests.items():
            if request is None:
                del self.requests[number]
            else:
                self.requests[number] = request
        self.version, self.fence, self.transition = version, fence, transition

    def _event(self, index: int, term: int, key: bytes, value: bytes | None, founding: bool) -> None:
        if value is None:
            return
        number = number_of(key, EVENTS)
        if number <= self.highest_event:
            raise Violation(f"event {number} was written at index {index}, after event {self.highest_event}")
        self.highest_event = number
        event = decode_event(value)
        if not founding and event.term != term:
            raise Violation(
                f"a decision of term {event.term} was written in term {term}, at index {index}: {event.text}"
            )

    # -- rows ------------------------------------------------------------------------------------------------------

    def _new_row(self, raft_id: int, row: InstanceRecord, founding: bool) -> None:
        if raft_id <= self.highest_id:
            raise Violation(
                f"raft id {raft_id} was given to {row.instance_id}, though {self.highest_id} had been given before"
            )
        self.highest_id = raft_id
        other = self.uuids.setdefault(row.uuid, raft_id)
        if other != raft_id:
            raise Violation(f"raft ids {other} and {raft_id} were given to the same data directory {row.uuid}")
        state = NodeState.NORMAL if founding else NodeState.NONE
        if row.state is not state or row.weight or row.grades.current != Standing() or row.grades.target != Standing():
            raise Violation(f"the new instance {row.instance_id} (raft id {raft_id}) does not begin at the foot")

    # -- versions --------------------------------------------------------------------------------------------------

    def _versions(
        self,
        index: int,
        version: int,
        fence: int,
        rows: Mapping[int, InstanceRecord],
        transition: TransitionRecord | None,
    ) -> None:
        if version < self.version or fence < self.fence:
            raise Violation(
                f"the topology went back at index {index}: version {self.version} to {version}, fence {self.fence} "
                f"to {fence}"
            )
        if fence > version:
            raise Violation(f"the fence {fence} is ahead of the version {version} at index {index}")
        if version > self.version:
            return
        for raft_id, row in rows.items():
            before = self.rows.get(raft_id)
            if before is not None and _concerns_routing(before, row):
                raise Violation(
                    f"routing is not told of a change of {row.instance_id} at index {index}: the version stays "
                    f"{version}",
                    f"before: {_short(before)}\nafter:  {_short(row)}",
                )
        if transition != self.transition:
            raise Violation(f"routing is not told of a transition at index {index}: the version stays {version}")

    # -- requests and transitions ----------------------------------------------------------------------------------

    def _request(self, number: int, request: RequestRecord | None, version: int) -> None:
        before = self.requests.get(number)
        if request is None:
            if before is None or before.state.value not in _FINAL:
                raise Violation(f"request {number} was forgotten before its end")
            return
        if before is None:
            if number <= self.highest_request:
                raise Violation(f"the number {number} of a request was used again")
            self.highest_request = number
            if request.kind is RequestKind.BARRIER:
                self.barriers[number] = self.version
            if request.state is not RequestState.PENDING:
                raise Violation(f"request {number} began as {request.state.value}")
            return
        if before.state.value in _FINAL:
            if msgspec.structs.replace(before, answered=request.answered) != request:
                raise Violation(f"request {number} was changed after its end ({before.state.value})")
            return
        if before.state is RequestState.RUNNING and request.state is RequestState.PENDING:
            raise Violation(f"request {number} went from running to pending")
        if before.kind is not request.kind or before.join != request.join:
            raise Violation(f"request {number} became another request")
        if before.raft_id and before.raft_id != request.raft_id:
            raise Violation(f"request {number} went from raft id {before.raft_id} to {request.raft_id}")
        if request.kind is RequestKind.REBUILD and request.state is RequestState.RUNNING:
            self.barriers.setdefault(number, version)
        if request.state is RequestState.DONE and number in self.barriers:
            self.passed = max(self.passed, self.barriers[number])

    def _transition(
        self, index: int, after: TransitionRecord | None, requests: Mapping[int, RequestRecord | None]
    ) -> None:
        before = self.transition
        if before == after:
            return
        if before is None:
            assert after is not None
            if after.state is not TransitionState.WRITE_BOTH_READ_OLD or not after.requests:
                raise Violation(f"a transition began as {after.state.value} at index {index}")
            return
        ended = {n for n in before.requests if (r := requests.get(n)) is not None and r.state.value in _FINAL}
        done = {n for n in ended if (r := requests[n]) is not None and r.state is RequestState.DONE}
        if after is None:
            if ended != set(before.requests):
                raise Violation(f"a transition ended at index {index} before its requests {before.requests} did")
            if before.state is TransitionState.WRITE_BOTH_READ_NEW:
                if done != ended:
                    raise Violation(f"a request was undone at index {index}, after reads had gone to the new topology")
                self.passed = max(self.passed, before.version)
            elif done and before.kind not in (RequestKind.LEAVE, RequestKind.REMOVE):
                raise Violation(f"a request was done at index {index} out of {before.state.value}")
            return
        if after.kind is not before.kind:
            raise Violation(f"the transition of {before.kind.value} became one of {after.kind.value} at index {index}")
        if after.state is before.state:
            if set(after.requests) != set(before.requests) - ended:
                raise Violation(f"the transition changed its requests at index {index} without their end")
            return
        forward = (before.state, after.state) == (
            TransitionState.WRITE_BOTH_READ_OLD,
            TransitionState.WRITE_BOTH_READ_NEW,
        )
        if not forward or after.requests != before.requests:
            raise Violation(f"the transition went from {before.state.value} to {after.state.value} at index {index}")
        self.passed = max(self.passed, before.version)


def _wrong_change(before: InstanceRecord, after: InstanceRecord) -> str:
    """Why a row may not change like that; empty if it may."""
    if before.state is NodeState.LEFT:
        return "" if before == after else "it has left, and its row must stay as it was"
    for name in _NEVER_CHANGES:
        if getattr(before, name) != getattr(after, name):
            return f"{name} must never change"
    if before.state is not after.state and after.state.value not in _STATES[before.state.value].split():
        return f"{after.state.value} does not follow {before.state.value}"
    current, target = after.grades.current, after.grades.target
    if (after.state is NodeState.LEFT) != (current.grade is Grade.EXPELLED):
        return f"it is {after.state.value}, but {current.grade.value}"
    if (after.weight > 0) != (current.grade is Grade.ONLINE):
        return f"its weight is {after.weight}, but it is {current.grade.value}"
    return _wrong_target(before, target) or _wrong_current(before, after)


def _wrong_target(before: InstanceRecord, target: Standing) -> str:
    was = before.grades.target
    if target == was:
        return ""
    if was.grade is Grade.EXPELLED:
        return "it was to be Expelled, for good"
    if target.grade is Grade.ONLINE:
        right = was.incarnation + 1
    elif target.grade in _DOWN:
        right = before.grades.current.incarnation
    else:
        return f"{target.grade.value} is no target"
    return "" if target.incarnation == right else f"its target has incarnation {target.incarnation}, not {right}"


def _wrong_current(before: InstanceRecord, after: InstanceRecord) -> str:
    was, current, target = before.grades.current, after.grades.current, after.grades.target
    if current == was:
        return ""
    if current.incarnation != target.incarnation:
        return f"its current grade has incarnation {current.incarnation}, not {target.incarnation}"
    if current.grade in _DOWN:
        return "" if target.grade is current.grade else f"it should be {target.grade.value}"
    if target.grade is not Grade.ONLINE:
        return f"it climbs, though it should be {target.grade.value}"
    if current.grade is Grade.RAFT_SYNCED:
        fresh = was.grade is Grade.OFFLINE or was.incarnation < target.incarnation
        return "" if fresh else "it begins to climb again without having been away"
    if was.incarnation != target.incarnation:
        return "it has been away, and does not begin at the foot"
    if _RUNGS.index(current.grade.value) != _RUNGS.index(was.grade.value) + 1:
        return f"no step leads from {was.grade.value} to {current.grade.value}"
    if current.grade in (Grade.SHARDING_INITIALIZED, Grade.ONLINE) and after.state.value not in _IN_PLACE:
        return f"it becomes {current.grade.value} while its state is {after.state.value}"
    return ""


def _concerns_routing(before: InstanceRecord, after: InstanceRecord) -> bool:
    """Whether routers have to know: its state, whether it has a weight, whether it went down."""
    was, now = before.grades.current.grade, after.grades.current.grade
    if before.state is not after.state or (was is Grade.ONLINE) != (now is Grade.ONLINE):
        return True
    return now in _DOWN and was not in _DOWN


def _short(row: InstanceRecord) -> str:
    current, target = row.grades.current, row.grades.target
    return (
        f"{row.state.value}, {current.grade.value}/{current.incarnation} → {target.grade.value}/{target.incarnation}, "
        f"weight {row.weight:g}, since version {row.since_version} ({row.reason})"
    )
