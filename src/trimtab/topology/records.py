"""What the metastore keeps of the cluster, key by key.

    instances/<raft_id>    InstanceRecord, also of those that left
    requests/<number>      RequestRecord, numbered in the order of asking
    topology/version       a number: raised with every change that routing must know
    topology/fence         a number: replicas refuse requests stamped with a version below it
    topology/transition    TransitionRecord, while instances come or go; absent otherwise
    events/<number>        EventRecord, the newest MAX_EVENTS
    catalog/...            the schema (`trimtab.catalog`)
    tablets/...            where the replicas of its tables are (`trimtab.tablets`)
    transitions/, rebalance/...      tablets that are given other replicas (`trimtab.tablets.transitions`)
    sessions/, loads/, epochs/...    loads of whole files (`trimtab.loads`)
    jobs/, pipeline/...    bulk work and who does it (`trimtab.jobs`)
    settings/...           what operators set for the whole cluster
    secrets/...            keys that members share; nobody else reads them

The values of all but catalog and tablets are JSON, so that `trimtab metastore get` shows them as they are. Unknown
fields are ignored and new ones have defaults: two adjacent minor versions may run side by side. Numbers in keys are
zero-padded: keys sort like numbers.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from trimtab.catalog.keys import CATALOG as CATALOG
from trimtab.topology.grades import Grades
from trimtab.topology.states import NodeState, TransitionState

INSTANCES = b"instances/"
REQUESTS = b"requests/"
TOPOLOGY = b"topology/"
EVENTS = b"events/"
TABLETS = b"tablets/"
TRANSITIONS = b"transitions/"
REBALANCE = b"rebalance/"
SESSIONS = b"sessions/"
LOADS = b"loads/"
EPOCHS = b"epochs/"
JOBS = b"jobs/"
PIPELINE = b"pipeline/"
SETTINGS = b"settings/"
SECRETS = b"secrets/"
VERSION_KEY = TOPOLOGY + b"version"
FENCE_KEY = TOPOLOGY + b"fence"
TRANSITION_KEY = TOPOLOGY + b"transition"
# Prefixes that only the system writes: clients may read and watch them.
SYSTEM_PREFIXES = (
    INSTANCES,
    REQUESTS,
    TOPOLOGY,
    EVENTS,
    CATALOG,
    TABLETS,
    TRANSITIONS,
    REBALANCE,
    SESSIONS,
    LOADS,
    EPOCHS,
    JOBS,
    PIPELINE,
    SETTINGS,
    SECRETS,
)
MAX_RAFT_ID = (1 << 63) - 1
MAX_EVENTS = 10_000


class InstanceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One instance. `uuid` is that of its data directory; `address` is where members and clients reach it.

    `weight` is its share in balancing: 0 until it is Online. `reason` says why the target grade is what it is.
    `lease_ms` and `election_max_ms` are the settings of its newest life: no lease that it holds goes beyond them.
    """

    instance_id: str
    address: str
    uuid: str = ""
    nonce: str = ""  # of the join attempt that brought it in
    state: NodeState = NodeState.NORMAL
    grades: Grades = Grades()
    failure_domain: dict[str, str] = {}
    weight: float = 0.0
    capacity_bytes: int = 0
    release: str = ""  # the version of the software it runs
    http_address: str = ""
    joined_ms: int = 0
    left_ms: int = 0
    replaces: int = 0  # the raft id of the instance it replaces or has replaced
    reason: str = ""
    since_version: int = 0  # the topology version that told of its going down; barriers and the fence look at it
    lease_ms: int = 0  # 0: it has not told; the defaults hold
    election_max_ms: int = 0
    bulk_address: str = ""  # where files go in and out; empty: nowhere
    down_ms: int = 0  # since when it is Offline; 0: it is not, or nobody noted it

    @property
    def left(self) -> bool:
        return self.state is NodeState.LEFT


class RequestKind(enum.Enum):
    """What can be asked of the topology; the order is the order of urgency. The last ones are global."""

    REPLACE = "replace"
    JOIN = "join"
    REMOVE = "remove"
    LEAVE = "leave"
    REBUILD = "rebuild"
    BARRIER = "barrier"


PRIORITY = tuple(RequestKind)
GLOBAL_KINDS = frozenset((RequestKind.BARRIER,))


class RequestState(enum.Enum):
    """Where a request is. The last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED)


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topology or global request, kept after its end with the reason.

    `raft_id` is the instance it is about; 0 for global ones, and for a join until the coordinator has given an id.
    `join` is what a joining or replacing instance said of itself. `cancel` says that an operator thought again.
    """

    kind: RequestKind
    state: RequestState = RequestState.PENDING
    raft_id: int = 0
    reason: str = ""
    asked_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    deadline_ms: int = 0  # 0: none
    cancel: str = ""  # why it should be cancelled; empty: it should not
    join: JoinTicket | None = None
    answered: bool = False  # a join: whether the joiner has acknowledged the response
    ignore: list[int] = []  # raft ids of dead instances that a removal or replacement does not wait for
    source: str = ""  # a rebuild: the data centre to read from
    tablets: int = 0  # replicas that its instance had when they began to be moved away, or to be rebuilt
    jobs: list[int] = []  # a rebuild: those of its jobs that were asked for last
    through: int = 0  # a rebuild: tables up to this id have had their jobs


class JoinTicket(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a joining instance says of itself. The same uuid and nonce is the same attempt; all else is a new one."""

    instance_id: str
    uuid: str
    nonce: str
    address: str
    failure_domain: dict[str, str] = {}
    release: str = ""
    http_address: str = ""
    replaces: str = ""  # the instance id it replaces
    capacity_bytes: int = 0
    bulk_address: str = ""


class TransitionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change of topology under way: its state, and the requests (of one kind) that go through it together."""

    state: TransitionState
    kind: RequestKind
    requests: list[int]
    version: int = 0  # the topology version that announced this state


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of the governor, or something an operator should know, with its why."""

    at_ms: int
    kind: str
    text: str
    term: int = 0
    instances: list[str] = []


def instance_key(raft_id: int) -> bytes:
    return INSTANCES + b"%020d" % raft_id


def request_key(number: int) -> bytes:
    return REQUESTS + b"%020d" % number


def job_key(number: int) -> bytes:
    return JOBS + b"%020d" % number


def event_key(number: int) -> bytes:
    return EVENTS + b"%020d" % number


def number_of(key: bytes, prefix: bytes) -> int:
    """The number in a key; ValueError where there is none."""
    digits = key.removeprefix(prefix)
    number = int(digits) if digits.isdigit() else 0
    if not 0 < number <= MAX_RAFT_ID:
        raise ValueError(f"the metastore key {key!r} holds no number")
    return number


def parse_instance(key: bytes, value: bytes) -> tuple[int, InstanceRecord]:
    """Raft id and record; ValueError on anything that is neither."""
    try:
        return number_of(key, INSTANCES), msgspec.json.decode(value, type=InstanceRecord)
    except ValueError as error:
        raise ValueError(f"the metastore key {key!r} does not hold an instance record: {error}") from error


encode: Any = msgspec.json.Encoder().encode
decode_instance = msgspec.json.Decoder(InstanceRecord).decode
decode_request = msgspec.json.Decoder(RequestRecord).decode
decode_transition = msgspec.json.Decoder(TransitionRecord).decode
decode_event = msgspec.json.Decoder(EventRecord).decode
