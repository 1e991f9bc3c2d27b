"""What instances say to each other about the cluster: the bodies of its RPC methods.

    method              from -> to               body               answer
    discover            starting -> anyone       DiscoverRequest    DiscoverReply
    join.request        joiner -> any member     JoinRequest        JoinReply      (asked again until it is decided)
    join.response       coordinator -> joiner    JoinResponse       (empty: taken)
    instance.update     member -> any -> leader  UpdateRequest      UpdateReply
    lease.renew         member -> leader         Heartbeat          Grant
    governor.sync       leader -> member         SyncCall           (empty: applied that far)
    governor.replicas   leader -> member         SyncCall           (empty: every replica it should hold is open)
    governor.barrier    leader -> member         BarrierCall        (empty: seen, and older requests have ended)
    request.create      anyone -> leader         CreateRequest      RequestReply
    request.cancel      anyone -> leader         CancelRequest      RequestReply
    cluster.view        anyone -> any member     ViewRequest        ViewReply
    probe               anyone -> any member     ProbeRequest       ProbeReply

Everything the leader orders carries its term; a receiver that knows a newer term refuses it (`stale_term`). Arrays on
the wire; fields are only ever added at the end, with a default.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from trimtab.topology.grades import Grade, Grades
from trimtab.topology.records import (
    EventRecord,
    InstanceRecord,
    JoinTicket,
    RequestKind,
    RequestRecord,
    TransitionRecord,
)

DISCOVER = "discover"
JOIN_REQUEST = "join.request"
JOIN_RESPONSE = "join.response"
UPDATE = "instance.update"
RENEW = "lease.renew"
SYNC = "governor.sync"
REPLICAS = "governor.replicas"
BARRIER = "governor.barrier"
CREATE = "request.create"
CANCEL = "request.cancel"
VIEW = "cluster.view"
PROBE = "probe"


class DiscoverRequest(msgspec.Struct, array_like=True, frozen=True):
    """A starting instance tells whom it knows. `address` is its own; `called` is the name it called the receiver by.

    `listed` are the addresses of the peers its operator listed, once it knows all of them; empty before. `uuid` is that
    of its data directory: two directories behind one address are a mistake to be told.
    """

    cluster_id: str
    address: str
    called: str
    peers: list[str]
    listed: list[str] = []
    uuid: str = ""


class DiscoverReply(msgspec.Struct, array_like=True, frozen=True):
    """The receiver's own address and whom it knows; `leader` (an address) once there is a cluster to join."""

    address: str
    peers: list[str]
    leader: str = ""
    uuid: str = ""


class JoinRequest(msgspec.Struct, array_like=True, frozen=True):
    """JOIN_NODE_REQUEST."""

    cluster_id: str
    ticket: JoinTicket
    forwarded: bool = False


class Address(msgspec.Struct, array_like=True, frozen=True):
    """Where a member is, as of a commit index: what is older must not overwrite it."""

    raft_id: int
    address: str
    commit_index: int


class JoinResponse(msgspec.Struct, array_like=True, frozen=True):
    """JOIN_NODE_RESPONSE: the coordinator's decision about one attempt.

    `again`: this attempt is over, but one of an empty data directory (a new uuid) may succeed.
    """

    uuid: str
    nonce: str
    accepted: bool
    reason: str = ""
    cluster_id: str = ""
    genesis: str = ""
    raft_id: int = 0
    members: list[Address] = []
    term: int = 0  # of the coordinator that sends it; 0 where it is the answer to a join request
    again: bool = False


class JoinReply(msgspec.Struct, array_like=True, frozen=True):
    """What a member answers a join request with: wait for the response, or (asked again) the decision itself."""

    decided: JoinResponse | None = None
    waiting_for: str = ""


class UpdateRequest(msgspec.Struct, array_like=True, frozen=True):
    """An instance (or failure detection, or an operator) changes what the cluster wants of it, or where it is.

    None, 0 or empty: leave it as it is. `lease_ms` and `election_max_ms` count with a target Online: they are settings
    of the life that begins with it.
    """

    raft_id: int
    uuid: str
    target: Grade | None = None
    reason: str = ""
    address: str = ""
    http_address: str = ""
    release: str = ""
    forwarded: bool = False
    lease_ms: int = 0
    election_max_ms: int = 0
    bulk_address: str = ""
    capacity_bytes: int = 0


class UpdateReply(msgspec.Struct, array_like=True, frozen=True):
    """The grades after the change, which is committed. `term` is that of the leader who wrote it."""

    grades: Grades
    term: int = 0


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An instance asks the leader to renew its lease. `number` grows from heartbeat to heartbeat and life to life.

    `surrendered`: it uses no lease that was granted before this heartbeat, and asks for none. `clock_low_ms` and
    `clock_high_ms`: how far its wall clock is ahead of the leader's steady clock, between these; 0: it does not know.
    """

    raft_id: int
    uuid: str
    number: int
    term: int
    applied: int
    version: int  # of the topology it routes by
    surrendered: bool = False
    clock_low_ms: int = 0
    clock_high_ms: int = 0


class Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The leader's answer. `lease_ms` 0: not granted, for `reason`. `commit` is the leader's commit index.

    `steady_ms` is the leader's steady clock; the cluster's time lies between `time_low_ms` and `time_high_ms`, both as
    this leaves (`common_time`). 0: unknown.
    """

    number: int
    term: int
    lease_ms: int
    commit: int
    reason: str = ""
    steady_ms: int = 0
    time_low_ms: int = 0
    time_high_ms: int = 0


class SyncCall(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Answer when everything up to `index` is applied."""

    term: int
    index: int


class BarrierCall(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Answer when the topology is at `version` here, and no request that was stamped with an older one is open."""

    term: int
    version: int
    index: int


class CreateRequest(msgspec.Struct, array_like=True, frozen=True):
    """An operator asks for a change of the topology. `instance_id` is empty for global kinds.

    `expel`: leave when the instance is alive, remove when it is dead; `kind` is then ignored.
    """

    kind: RequestKind
    instance_id: str = ""
    expel: bool = False
    drain: bool = False
    timeout_ms: int = 0
    ignore: list[str] = []
    source: str = ""
    forwarded: bool = False


class CancelRequest(msgspec.Struct, array_like=True, frozen=True):
    number: int
    reason: str = ""
    forwarded: bool = False


class RequestReply(msgspec.Struct, array_like=True, frozen=True):
    """The request as it is in the metastore now."""

    number: int
    record: RequestRecord


class ViewRequest(msgspec.Struct, array_like=True, frozen=True):
    """The cluster as the asked member sees it (`linearizable`: after a read barrier), and events if asked.

    Of instances that have left, the newest `left_limit` are shown; with `left_before` those with smaller raft ids.
    """

    linearizable: bool = True
    events_after: int = -1  # -1: no events
    events_limit: int = 100
    left_limit: int = 200
    left_before: int = 0  # 0: the newest


class InstanceView(msgspec.Struct, array_like=True, frozen=True):
    """An instance as shown: its record, and what the leader knows of it right now (None: the asked one does not lead).

    `heard_ms` is how long ago the leader heard from it; `tablets` how many replicas it should hold, `bytes` what those
    take on disk and in memory as it last reported (0: not yet). `disk_full`: it takes no writes, as it last told the
    asked one, because less space is free than its reserve. `stays`: why it may not be expelled, though it is down.
    """

    raft_id: int
    record: InstanceRecord
    voter: bool
    learner: bool
    heard_ms: int | None = None
    applied: int | None = None
    tablets: int = 0
    bytes: int = 0
    disk_full: bool = False
    stays: str = ""


class MovingView(msgspec.Struct, array_like=True, frozen=True):
    """The tablets under way at a glance; bytes and times only where the leader answers. `eta_s` < 0: not known.

    `upcoming` are tablets that the leader means to move next. `sentences` and `problems` are for operators; `still`
    says why balancing begins nothing now. `unserved_tablets` can't be read or written at all.
    """

    tablets: int = 0
    progress_bytes: int = 0
    total_bytes: int = 0
    rate_bytes_s: float = 0.0
    eta_s: float = -1.0
    upcoming_tablets: int = 0
    upcoming_bytes: int = 0
    stages: dict[str, int] = {}
    sentences: list[str] = []
    problems: list[str] = []
    still: str = ""
    unserved_tablets: int = 0


class ViewReply(msgspec.Struct, array_like=True, frozen=True):
    """Everything `status`, `topology`, `tasks` and `events` show."""

    cluster_id: str
    genesis: str
    asked: int  # the raft id of whoever answers
    leader: int
    term: int
    revision: int
    version: int
    fence: int
    transition: TransitionRecord | None
    instances: list[InstanceView]
    requests: list[tuple[int, RequestRecord]]
    events: list[tuple[int, EventRecord]] = []
    last_event: int = 0
    lease_ms: int = 0  # what is left of the asked member's own lease
    unreadable: list[str] = []
    wall_ms: int = 0  # the asked member's wall clock; 0: it does not tell
    left_out: int = 0  # instances that have left and are not shown, with smaller raft ids than those that are
    waiting: list[str] = []  # what the governor waits for, in sentences; only the leader knows
    bulk_rate_bytes_s: int = 0  # what all bulk transfers together may move; 0: no limit
    moving: MovingView = MovingView()


class Level(enum.IntEnum):
    """Consistency a probe is answered at, as far as a lease can tell: ONE may be stale, QUORUM needs a lease."""

    ONE = 0
    QUORUM = 1


class ProbeRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request that does nothing but take the way of every data request: router, stamp, fence, lease, replica.

    The asked member routes it to the instance `target` (0: itself). `version` is 0 from outside; the router stamps it.
    """

    target: int = 0
    level: Level = Level.QUORUM
    version: int = 0


class ProbeReply(msgspec.Struct, array_like=True, frozen=True):
    """Who answered, by which topology version, and whether it may be stale (no lease; only at ONE)."""

    raft_id: int
    version: int
    stale: bool
    applied: int


encode: Any = msgspec.msgpack.Encoder().encode
decode_discover = msgspec.msgpack.Decoder(DiscoverRequest).decode
decode_discover_reply = msgspec.msgpack.Decoder(DiscoverReply).decode
decode_join = msgspec.msgpack.Decoder(JoinRequest).decode
decode_join_reply = msgspec.msgpack.Decoder(JoinReply).decode
decode_join_response = msgspec.msgpack.Decoder(JoinResponse).decode
decode_update = msgspec.msgpack.Decoder(UpdateRequest).decode
decode_update_reply = msgspec.msgpack.Decoder(UpdateReply).decode
decode_heartbeat = msgspec.msgpack.Decoder(Heartbeat).decode
decode_grant = msgspec.msgpack.Decoder(Grant).decode
decode_sync = msgspec.msgpack.Decoder(SyncCall).decode
decode_barrier = msgspec.msgpack.Decoder(BarrierCall).decode
decode_create = msgspec.msgpack.Decoder(CreateRequest).decode
decode_cancel = msgspec.msgpack.Decoder(CancelRequest).decode
decode_request_reply = msgspec.msgpack.Decoder(RequestReply).decode
decode_view = msgspec.msgpack.Decoder(ViewRequest).decode
decode_view_reply = msgspec.msgpack.Decoder(ViewReply).decode
decode_probe = msgspec.msgpack.Decoder(ProbeRequest).decode
decode_probe_reply = msgspec.msgpack.Decoder(ProbeReply).decode
