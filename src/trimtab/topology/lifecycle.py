"""Requests of operators, from the asking to the end: what may be asked, in which order it is done, what may be undone.

    request    of                        refused if
    leave      a living instance         it is dead (remove it), the last member, or the others can't hold what it has
    remove     a dead instance           it lives (decommission it, or stop it first), is the last member, has the only
                                         copy of a tablet, or the others can't hold what it has
    expel      either of these           also while it has replicas, unless they are to be moved away (`drain`)
    rebuild    a normal instance         it is anything else
    barrier    the whole cluster         never

`join` and `replace` are asked by the instances themselves (see `join`). An instance has one request at a time. Requests
are taken by urgency (replace > join > remove > leave > rebuild, then the global ones), and in order of asking within
one kind. Whoever is to go keeps its place until its replicas are elsewhere (`tablets.departures` knows which can be). A
request can be taken back until reads go to the new topology: from then on it only goes forward. All ended requests keep
their reason.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trimtab.topology.names import MAX_TEXT_CHARACTERS
from trimtab.topology.protocol import CreateRequest
from trimtab.topology.records import (
    GLOBAL_KINDS,
    PRIORITY,
    REQUESTS,
    InstanceRecord,
    RequestKind,
    RequestRecord,
    RequestState,
)
from trimtab.topology.states import NodeState, TransitionState
from trimtab.topology.view import View

Alive = Callable[[int], bool]
MAX_OPEN_REQUESTS = 1_000
MAX_ENDED_REQUESTS = 1_000
MAX_TIMEOUT_MS = 366 * 24 * 3_600_000
OPERATORS_KINDS = frozenset((RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.REBUILD, RequestKind.BARRIER))


class RequestRefused(ValueError):
    """The request is not made, or not taken back; the text says why and what to do. `code` is for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


INVALID = "invalid"
NOT_FOUND = "not_found"
CONFLICT = "conflict"


# Asking


def create(
    view: View,
    asked: CreateRequest,
    alive: Alive,
    now_ms: int,
    *,
    holds: Callable[[int], str] = lambda _raft_id: "",
    keeps: Callable[[int, RequestKind], str | None] = lambda _raft_id, _kind: None,
    timeout_ms: int = 0,
) -> RequestRecord:
    """The record of a new request; RequestRefused where it can't be.

    `holds` says in words which replicas an instance holds (empty: none), and `keeps` why the others can't do without it
    (None: they can); `timeout_ms` is for requests that bring none of their own (0: for ever).
    """
    if not 0 <= asked.timeout_ms <= MAX_TIMEOUT_MS:
        raise RequestRefused(INVALID, f"timeout_ms must be from 0 to {MAX_TIMEOUT_MS}, not {asked.timeout_ms}")
    limit_ms = asked.timeout_ms or timeout_ms
    deadline_ms = now_ms + limit_ms if limit_ms else 0
    if len(open_requests(view)) >= MAX_OPEN_REQUESTS:
        raise RequestRefused(
            CONFLICT, f"{MAX_OPEN_REQUESTS} requests wait already; wait for some to end, or cancel some: trimtab tasks"
        )
    if asked.kind in GLOBAL_KINDS and not asked.expel:
        return RequestRecord(asked.kind, asked_ms=now_ms, deadline_ms=deadline_ms)
    raft_id, record = _subject(view, asked.instance_id)
    kind = asked.kind
    if asked.expel:
        kind = RequestKind.LEAVE if alive(raft_id) else RequestKind.REMOVE
    if kind not in OPERATORS_KINDS:
        raise RequestRefused(
            INVALID, f"an instance asks to {kind.value} by itself when it starts: trimtab run; nobody else can"
        )
    _check_free(view, raft_id, record)
    if kind is RequestKind.REBUILD:
        _check_rebuild(raft_id, record, alive)
    else:
        _check_going(view, raft_id, record, kind, alive)
        held = holds(raft_id)
        if why := keeps(raft_id, kind):
            holding = f"{record.instance_id} holds {held} and" if held else record.instance_id
            raise RequestRefused(CONFLICT, f"{holding} can't go: {why}")
        if held and asked.expel and not asked.drain:
            raise RequestRefused(CONFLICT, _undrained(record.instance_id, held))
    return RequestRecord(
        kind,
        raft_id=raft_id,
        asked_ms=now_ms,
        deadline_ms=deadline_ms,
        ignore=[_ignored(view, name, raft_id, alive) for name in dict.fromkeys(asked.ignore)],
        source=asked.source[:MAX_TEXT_CHARACTERS],
    )


def same_request(view: View, asked: CreateRequest) -> int | None:
    """The open request that an operator asks for a second time, so that asking again is no mistake."""
    found = view.named(asked.instance_id) if asked.instance_id else None
    if found is None:
        return None
    kinds = (RequestKind.LEAVE, RequestKind.REMOVE) if asked.expel else (asked.kind,)
    for number, request in open_requests(view).items():
        if request.raft_id == found[0] and request.kind in kinds and not request.cancel:
            return number
    return None


# Looking


def open_requests(view: View) -> dict[int, RequestRecord]:
    """All that have not ended, by number; not those that can't be read any more, which are left alone."""
    unread = view.unread(REQUESTS)
    numbers = sorted(number for number, request in view.requests.items() if not request.state.final)
    return {number: view.requests[number] for number in numbers if number not in unread}


def queue(view: View) -> list[int]:
    """The open requests in the order they should be taken: by urgency, then by age."""
    opened = open_requests(view)
    return sorted(opened, key=lambda number: (PRIORITY.index(opened[number].kind), number))


def expired(view: View, now_ms: int) -> list[int]:
    """The open requests whose deadline has passed, and that can still be given up."""
    return [
        number
        for number, request in open_requests(view).items()
        if 0 < request.deadline_ms <= now_ms and too_late(view, number) is None
    ]


def too_late(view: View, number: int) -> str | None:
    """Why a request can't be taken back any more; None if it can."""
    transition = view.transition
    if transition is None or number not in transition.requests:
        return None
    if transition.state is TransitionState.WRITE_BOTH_READ_NEW:
        return "reads go to the new topology already, so it only goes forward; it is done in a moment"
    return None


def blocked(view: View, number: int, alive: Alive) -> str | None:
    """Why a request can't proceed as things are; None if it can. Where no request can, all are cancelled."""
    request = view.requests[number]
    record = view.instances.get(request.raft_id)
    if request.kind in GLOBAL_KINDS or record is None:
        return None
    name, raft_id = record.instance_id, request.raft_id
    if request.kind is RequestKind.REMOVE and alive(raft_id) and record.state is not NodeState.REMOVING:
        return f"{name} is alive again, and only a dead instance is removed; use: trimtab decommission {name}"
    if request.kind is RequestKind.LEAVE and not alive(raft_id):
        return f"{name} is dead, so it can't hand over what it has; start it again, or use: trimtab remove {name}"
    if request.kind is RequestKind.REBUILD and not alive(raft_id):
        return f"{name} is dead, so it can't be rebuilt"
    if request.kind is RequestKind.REPLACE and record.replaces and alive(record.replaces):
        replaced = view.instances.get(record.replaces)
        return (
            f"{replaced.instance_id if replaced else record.replaces} is alive again, and only a dead one is replaced"
        )
    if request.kind is not RequestKind.JOIN and not _another(view, raft_id, alive):
        return f"no other member is alive to take over from {name}; start one first"
    return None


def all_blocked(view: View, alive: Alive) -> dict[int, str]:
    """The reasons of all open requests if not one of them can proceed; empty if one can, or there are none."""
    reasons: dict[int, str] = {}
    for number in open_requests(view):
        reason = blocked(view, number, alive)
        if reason is None:
            return {}
        reasons[number] = reason
    return reasons


def prunable(view: View, keep: int = MAX_ENDED_REQUESTS) -> list[int]:
    """The oldest ended requests, beyond those that are kept; never the newest: numbers are not used twice."""
    ended = [number for number in sorted(view.requests) if view.requests[number].state.final]
    return [number for number in ended[: max(0, len(ended) - keep)] if number != max(view.requests)]


# Ending


def cancel(view: View, number: int, reason: str, now_ms: int) -> RequestRecord:
    """The request after somebody thought again; RequestRefused if it is over, or too late.

    One that nothing was done for yet ends at once; another is marked, and undone by the governor.
    """
    request = view.requests.get(number)
    if request is None:
        raise RequestRefused(NOT_FOUND, f"there is no task {number}; `trimtab tasks list` shows those there are")
    if request.state.final:
        raise RequestRefused(CONFLICT, f"request {number} ({request.kind.value}) is {request.state.value} already")
    if late := too_late(view, number):
        raise RequestRefused(CONFLICT, f"request {number} ({request.kind.value}) can't be cancelled: {late}")
    if request.cancel:
        return request
    why = reason[:MAX_TEXT_CHARACTERS] or "an operator cancelled it"
    if request.state is RequestState.PENDING:
        return ended(request, RequestState.CANCELLED, why, now_ms)
    return msgspec.structs.replace(request, cancel=why)


def started(request: RequestRecord, now_ms: int) -> RequestRecord:
    """The request when something is first done for it."""
    if request.state is not RequestState.PENDING:
        return request
    return msgspec.structs.replace(request, state=RequestState.RUNNING, started_ms=now_ms)


def ended(request: RequestRecord, state: RequestState, reason: str, now_ms: int) -> RequestRecord:
    """The request at its end, with the reason."""
    assert state.final, f"{state.value} is no end"
    return msgspec.structs.replace(request, state=state, reason=reason, ended_ms=now_ms)


# The checks


def _subject(view: View, instance_id: str) -> tuple[int, InstanceRecord]:
    if not instance_id:
        raise RequestRefused(INVALID, "the request names no instance")
    found = view.named(instance_id)
    if found is None:
        known = ", ".join(sorted(record.instance_id for record in view.members().values())[:10])
        raise RequestRefused(NOT_FOUND, f"there is no instance '{instance_id[:80]}'; there are: {known}")
    if found[1].left:
        raise RequestRefused(CONFLICT, f"'{instance_id}' (raft id {found[0]}) has left the cluster already")
    return found


def _check_free(view: View, raft_id: int, record: InstanceRecord) -> None:
    for number, request in open_requests(view).items():
        busy = request.raft_id == raft_id
        if request.join is not None and request.join.replaces == record.instance_id:
            busy = True
        if busy:
            raise RequestRefused(
                CONFLICT,
                f"{record.instance_id} has a request under way: {request.kind.value} (request {number}); wait for its "
                f"end, or: trimtab tasks cancel {number}",
            )


def _undrained(name: str, held: str) -> str:
    return f"{name} holds {held}; to have them moved to others first, use: trimtab expel {name} --drain"


def _check_rebuild(raft_id: int, record: InstanceRecord, alive: Alive) -> None:
    if record.state is not NodeState.NORMAL:
        raise RequestRefused(CONFLICT, f"{record.instance_id} is {record.state.value}; only a normal one is rebuilt")
    if not alive(raft_id):
        raise RequestRefused(CONFLICT, f"{record.instance_id} is dead; start it first, or replace it")


def _check_going(view: View, raft_id: int, record: InstanceRecord, kind: RequestKind, alive: Alive) -> None:
    name = record.instance_id
    staying = (
        set(view.members()) - {raft_id} - {request.raft_id for request in open_requests(view).values() if _out(request)}
    )
    if not staying:
        raise RequestRefused(
            CONFLICT,
            f"{name} is the last member of the cluster, and a cluster needs one; add another first, or just stop it",
        )
    if not any(view.instances[other].state is NodeState.NORMAL for other in staying):
        raise RequestRefused(CONFLICT, f"{name} is the last normal member; wait until another has finished joining")
    if kind is RequestKind.REMOVE and alive(raft_id):
        raise RequestRefused(
            CONFLICT,
            f"{name} is alive, and only a dead instance is removed; use: trimtab decommission {name}, or stop it first",
        )
    if kind is RequestKind.LEAVE and not alive(raft_id):
        raise RequestRefused(CONFLICT, f"{name} is dead, so it can't leave by itself; use: trimtab remove {name}")


def _out(request: RequestRecord) -> bool:
    return request.kind in (RequestKind.LEAVE, RequestKind.REMOVE)


def _ignored(view: View, instance_id: str, raft_id: int, alive: Alive) -> int:
    other, record = _subject(view, instance_id)
    if other == raft_id or alive(other):
        why = "the request is about it" if other == raft_id else "it is alive"
        raise RequestRefused(INVALID, f"{record.instance_id} can't be ignored: {why}")
    return other


def _another(view: View, raft_id: int, alive: Alive) -> bool:
    """Whether some other member is normal and alive."""
    return any(
        other != raft_id and record.state is NodeState.NORMAL and alive(other)
        for other, record in view.instances.items()
    )
