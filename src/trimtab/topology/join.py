"""Letting instances in: JOIN_NODE_REQUEST and what becomes of it.

    joiner                     any member                       leader (coordinator)
      │── join.request ──────────▶│ door_refusal                    │
      │                           │── join.request, forwarded ─────▶│ find_attempt, else a new request (asked_to_join)
      │◀─ wait, or the decision ──│◀────────────────────────────────│
      │                                                             │ coordinator_refusal → rejected, or admitted:
      │                                                             │ raft id and row in one write; learner added
      │◀─────────────────────────── join.response ──────────────────│ decision

The same uuid and nonce is the same attempt: asked again, it gets the same request, the same raft id, the same answer;
so an instance that was refused takes a new nonce before it tries again. Anything else is a new attempt, and one data
directory (uuid) gets in at most once: a row that left keeps its uuid for ever. Raft ids are given in the write that
makes the row, greater than any before, so none is ever used twice.

What can be judged by the receiving member is judged there, so that a hopeless joiner hears why at once; it is judged
again by the coordinator, because a member's view may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from trimtab.topology import names
from trimtab.topology.grades import Grades
from trimtab.topology.protocol import Address, JoinRequest, JoinResponse
from trimtab.topology.records import (
    InstanceRecord,
    JoinTicket,
    RequestKind,
    RequestRecord,
    RequestState,
)
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

Alive = Callable[[int], bool]
JOINING = frozenset((RequestKind.JOIN, RequestKind.REPLACE))


@dataclass(frozen=True)
class Admission:
    """What one write makes of an accepted request: the row under its new raft id, and the request that has it."""

    raft_id: int
    instance: InstanceRecord
    request: RequestRecord


# At the door of any member


def door_refusal(view: View, cluster_id: str, release: str, alive: Alive, asked: JoinRequest) -> str | None:
    """Why an instance can't even ask, in a sentence for its operator; None: the coordinator shall decide.

    `release` is the one of the member at whose door it stands.
    """
    ticket = asked.ticket
    if asked.cluster_id != cluster_id:
        return (
            f"this is the cluster '{cluster_id}', not '{asked.cluster_id[: names.MAX_TEXT_CHARACTERS]}'; "
            "correct --cluster-id or --peer"
        )
    if find_attempt(view, ticket.uuid, ticket.nonce) is not None:
        return None
    return (
        _malformed(ticket)
        or names.apart(ticket.release, release)
        or uuid_refusal(view, ticket)
        or _id_refusal(view, ticket, alive)
        or _twin_refusal(view, ticket, None)
    )


def uuid_refusal(view: View, ticket: JoinTicket) -> str | None:
    """Why this data directory can't get in: it is in, or it was."""
    for raft_id, record in view.instances.items():
        if record.uuid != ticket.uuid:
            continue
        if record.left:
            return (
                f"this data directory belonged to {record.instance_id} (raft id {raft_id}), which has left the cluster"
                f"{f': {record.reason}' if record.reason else ''}; start with an empty data directory"
            )
        return (
            f"this data directory is {record.instance_id} (raft id {raft_id}) already, by an earlier attempt to join; "
            f"start with an empty data directory and --replace {record.instance_id}, or another --instance-id"
        )
    return None


def find_attempt(view: View, uuid: str, nonce: str) -> int | None:
    """The number of the request that this very attempt has made before."""
    for number in sorted(view.requests, reverse=True):
        ticket = view.requests[number].join
        if ticket is not None and (ticket.uuid, ticket.nonce) == (uuid, nonce):
            return number
    return None


def asked_to_join(asked: JoinRequest, now_ms: int, deadline_ms: int) -> RequestRecord:
    """The request the leader writes for a new attempt. `deadline_ms`: when it fails if it is not done."""
    ticket = msgspec.structs.replace(
        asked.ticket, failure_domain=names.plain_failure_domain(asked.ticket.failure_domain)
    )
    kind = RequestKind.REPLACE if ticket.replaces else RequestKind.JOIN
    return RequestRecord(kind, asked_ms=now_ms, deadline_ms=deadline_ms, join=ticket)


# At the coordinator


def coordinator_refusal(
    view: View, number: int, alive: Alive, only_copies: Callable[[int], str] = lambda _raft_id: ""
) -> str | None:
    """Why the request can't be accepted, by the leader's own view; None: admit it.

    `only_copies` says in words of which tablets nobody but an instance has a replica; empty: there are none.
    """
    ticket = _ticket(view, number)
    return (
        _malformed(ticket)
        or _release_refusal(view, ticket)
        or uuid_refusal(view, ticket)
        or _domain_refusal(view, ticket)
        or _replace_refusal(view, number, ticket, alive, only_copies)
        or _id_refusal(view, ticket, alive)
        or _twin_refusal(view, ticket, number)
        or _address_refusal(view, ticket)
    )


def admitted(view: View, number: int, now_ms: int) -> Admission:
    """The row and the request after an acceptance, to be written together."""
    ticket = _ticket(view, number)
    replaced = view.named(ticket.replaces) if ticket.replaces else None
    raft_id = view.next_raft_id()
    instance = InstanceRecord(
        ticket.instance_id,
        ticket.address,
        uuid=ticket.uuid,
        nonce=ticket.nonce,
        state=NodeState.NONE,
        grades=Grades(),
        failure_domain=names.plain_failure_domain(ticket.failure_domain),
        capacity_bytes=ticket.capacity_bytes,
        release=ticket.release,
        http_address=ticket.http_address,
        joined_ms=now_ms,
        replaces=replaced[0] if replaced else 0,
        bulk_address=ticket.bulk_address,
    )
    request = msgspec.structs.replace(
        view.requests[number], state=RequestState.RUNNING, raft_id=raft_id, started_ms=now_ms
    )
    return Admission(raft_id, instance, request)


def rejected(view: View, number: int, reason: str, now_ms: int) -> RequestRecord:
    """The request after a refusal."""
    return msgspec.structs.replace(
        view.requests[number], state=RequestState.FAILED, reason=reason, started_ms=now_ms, ended_ms=now_ms
    )


def decision(
    view: View,
    number: int,
    cluster_id: str,
    genesis: str,
    in_group: Collection[int],
    members: list[Address] | None = None,
    term: int = 0,
) -> JoinResponse | None:
    """What the joiner is told: None while nothing is decided, or it is not in the Raft group yet.

    `in_group` are all voters and learners. `again` tells a joiner whose attempt ran out of time that an empty data
    directory may try anew; one that was refused, or has been a member, should stop and say why.
    """
    request, ticket = view.requests[number], _ticket(view, number)
    if request.state is RequestState.PENDING:
        return None
    row = view.instances.get(request.raft_id)
    if request.state in (RequestState.FAILED, RequestState.CANCELLED) or (row is not None and row.left):
        reason = request.reason or (row.reason if row else "") or f"the request ended as {request.state.value}"
        never_online = row is not None and row.grades.current.incarnation == 0
        again = request.state is RequestState.FAILED and never_online
        return JoinResponse(
            ticket.uuid, ticket.nonce, False, reason, cluster_id, genesis, request.raft_id, term=term, again=again
        )
    if row is None or request.raft_id not in in_group:
        return None
    return JoinResponse(
        ticket.uuid, ticket.nonce, True, "", cluster_id, genesis, request.raft_id, members or [], term=term
    )


# The checks


def _ticket(view: View, number: int) -> JoinTicket:
    ticket = view.requests[number].join
    if ticket is None:
        raise ValueError(f"request {number} is no request to join: {view.requests[number].kind.value}")
    return ticket


def _malformed(ticket: JoinTicket) -> str | None:
    return (
        names.wrong_instance_id(ticket.instance_id)
        or names.wrong_uuid(ticket.uuid)
        or names.wrong_uuid(ticket.nonce)
        or names.unreachable_address(ticket.address)
        or (names.wrong_address(ticket.http_address) if ticket.http_address else None)
        or (names.wrong_address(ticket.bulk_address) if ticket.bulk_address else None)
        or names.wrong_failure_domain(ticket.failure_domain)
        or (names.wrong_instance_id(ticket.replaces) if ticket.replaces else None)
        or (None if ticket.capacity_bytes >= 0 else f"a capacity of {ticket.capacity_bytes} bytes is below zero")
    )


def _release_refusal(view: View, ticket: JoinTicket) -> str | None:
    for record in view.members().values():
        if record.release and (wrong := names.apart(ticket.release, record.release)):
            return f"{wrong} ({record.instance_id} runs {record.release}); upgrade one minor version at a time"
    return None


def _id_refusal(view: View, ticket: JoinTicket, alive: Alive) -> str | None:
    for raft_id, record in view.members().items():
        if record.instance_id != ticket.instance_id or ticket.replaces == ticket.instance_id:
            continue
        how = "is alive" if alive(raft_id) else "has not left the cluster"
        mend = "use another --instance-id"
        if not alive(raft_id):
            mend += f", or --replace {ticket.instance_id} to take its place"
        return f"the instance id '{ticket.instance_id}' is in use: raft id {raft_id} at {record.address} {how}; {mend}"
    return None


def _twin_refusal(view: View, ticket: JoinTicket, own: int | None) -> str | None:
    """Of two that ask for the same name, the same replacement or from the same directory, the first is served."""
    for number, request in _open_joins(view):
        other = request.join
        if other is None or number == own or (own is not None and number > own):
            continue
        if other.uuid == ticket.uuid:
            return f"this data directory is joining already, by another attempt (request {number}); wait for its end"
        if other.instance_id == ticket.instance_id:
            return (
                f"another instance at {other.address} is joining as '{ticket.instance_id}' (request {number}); "
                "use another --instance-id"
            )
        if ticket.replaces and other.replaces == ticket.replaces:
            return f"'{ticket.replaces}' is being replaced by '{other.instance_id}' already (request {number})"
        if other.address == ticket.address:
            return f"'{other.instance_id}' is joining from {ticket.address} (request {number}); use another --listen"
    return None


def _address_refusal(view: View, ticket: JoinTicket) -> str | None:
    for raft_id, record in view.members().items():
        if record.address == ticket.address and record.instance_id != ticket.replaces:
            return (
                f"{ticket.address} is the address of {record.instance_id} (raft id {raft_id}); use another --listen, "
                f"or --replace {record.instance_id} if that one is dead"
            )
    return None


def _domain_refusal(view: View, ticket: JoinTicket) -> str | None:
    given = {key.lower() for key in ticket.failure_domain}
    users: dict[str, str] = {}
    for record in view.members().values():
        for key in record.failure_domain:
            users.setdefault(key.lower(), record.instance_id)
    missing = sorted(set(users) - given)
    if not missing:
        return None
    flags = " ".join(f"--failure-domain {key}=VALUE" for key in missing)
    return (
        f"its failure domain lacks {', '.join(missing)}, which members have (such as {users[missing[0]]}); add {flags}"
    )


def _replace_refusal(
    view: View, number: int, ticket: JoinTicket, alive: Alive, only_copies: Callable[[int], str]
) -> str | None:
    if not ticket.replaces:
        return None
    found = view.named(ticket.replaces)
    if found is None:
        return f"there is no instance '{ticket.replaces}' to replace; leave --replace out to join as a new one"
    raft_id, record = found
    if record.left:
        return f"'{ticket.replaces}' (raft id {raft_id}) has left already; leave --replace out to join as a new one"
    if alive(raft_id):
        return (
            f"'{ticket.replaces}' (raft id {raft_id}) is alive, and only a dead instance can be replaced; stop it "
            f"first, or join as a new one and then: trimtab decommission {ticket.replaces}"
        )
    if held := only_copies(raft_id):
        # With it they would be gone for good, and nobody would look for them any more.
        return (
            f"'{ticket.replaces}' has {held}, and nobody can make those anew; start '{ticket.replaces}' again, or join "
            "as a new one without --replace, or drop those tables first"
        )
    for other, request in view.requests.items():
        if other != number and not request.state.final and request.raft_id == raft_id:
            return f"'{ticket.replaces}' has a request to {request.kind.value} under way (request {other})"
    for newcomer in view.members().values():
        if newcomer.replaces == raft_id and newcomer.state in (NodeState.NONE, NodeState.REPLACING):
            return f"'{ticket.replaces}' is being replaced by '{newcomer.instance_id}' already"
    return None


def _open_joins(view: View) -> Iterator[tuple[int, RequestRecord]]:
    for number in sorted(view.requests):
        request = view.requests[number]
        if request.kind in JOINING and not request.state.final:
            yield number, request
