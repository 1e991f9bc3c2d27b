"""What goes in and what comes out, as /openapi.json describes it.

Bodies that come in are checked against these models: strictly typed, no unknown fields. What goes out is made by
`topology.shapes`, as the command line shows it; these models only describe it, and tests compare the two. Fields may be
added, not renamed.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind, RequestState
from trimtab.topology.states import NodeState, TransitionState

_MAX_TIMEOUT_MS = 366 * 24 * 3_600_000
_MAX_IGNORED = 64


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is the integer 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Milliseconds = Annotated[int, Field(ge=0, le=_MAX_TIMEOUT_MS), BeforeValidator(_whole)]
_Name = Annotated[str, Field(min_length=1, max_length=255)]


# In


class Change(BaseModel):
    """A request to the topology."""

    model_config = ConfigDict(strict=True, extra="forbid")

    timeout_ms: _Milliseconds = Field(0, description="Give up after this; 0: never.")


class Expel(Change):
    drain: bool = Field(False, description="Move what it owns first; without this, an owner of data is not expelled.")


class Remove(Change):
    ignore: list[_Name] = Field([], max_length=_MAX_IGNORED, description="Other dead instances, not to wait for.")


class Rebuild(Change):
    source: str = Field("", max_length=255, description="The data centre to read from; empty: any.")


class Cancel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    reason: str = Field("", max_length=1_000, description="Why, for those who read the task later.")


# Out


class ProblemModel(BaseModel):
    """An error."""

    error: str
    code: str
    what_to_do: str


class Standing(BaseModel):
    """How this instance stands."""

    cluster_id: str
    instance_id: str
    raft_id: int
    release: str
    role: str
    term: int
    leader: str | None = Field(description="An instance id; null if no leader is known.")
    current_grade: Grade
    target_grade: Grade
    incarnation: int
    lease_ms: int = Field(description="What is left of its lease.")
    disk_full: str | None = Field(description="Why it takes no writes; null while it does.")


class Health(Standing):
    status: str


class Ready(Standing):
    ready: bool
    reason: str


class Probe(BaseModel):
    instance_id: str
    raft_id: int
    topology_version: int
    stale: bool
    applied: int


class Instance(BaseModel):
    """One instance, as the cluster knows it."""

    instance_id: str
    raft_id: int
    address: str
    failure_domain: dict[str, str]
    state: NodeState
    current_grade: Grade
    target_grade: Grade
    incarnation: int
    voter: bool
    weight: float
    tablets: int = Field(description="Replicas that it should hold.")
    bytes: int = Field(description="What they take on disk and in memory, as last reported; 0: not known yet.")
    target_incarnation: int
    learner: bool
    http_address: str | None
    release: str | None
    reason: str | None = Field(description="Why the target grade is what it is.")
    heard_ms: int | None = Field(description="How long ago the leader heard of it; null if a member was asked.")
    applied: int | None
    uuid: str | None
    joined: str | None
    left: str | None


class Status(BaseModel):
    """The cluster at a glance."""

    cluster_id: str
    leader: str | None = Field(description="An instance id; null if there is none.")
    topology_version: int
    instances: list[Instance]
    genesis: str
    term: int
    fence: int
    transition_state: TransitionState | None
    asked: str | None = Field(description="The instance id of whoever answers.")
    lease_ms: int
    unreadable: list[str] = Field(description="Records that this release can't read.")
    waiting: list[str] = Field(description="What the governor waits for; empty unless the leader was asked.")


class Node(BaseModel):
    """A row of the topology."""

    host_id: str | None
    datacenter: str | None
    ignore_msb: int
    node_state: NodeState
    num_tokens: int | None
    rack: str | None
    rebuild_option: str | None
    release_version: str | None
    replaced_id: str | None
    ignore_nodes: list[str]
    shard_count: int
    tokens: list[str] | None
    topology_request: RequestKind | None
    instance_id: str
    raft_id: int
    address: str
    failure_domain: dict[str, str]
    current_grade: Grade
    target_grade: Grade
    incarnation: int
    target_incarnation: int
    weight: float
    capacity_bytes: int
    voter: bool
    joined: str | None
    left: str | None
    reason: str | None


class Topology(BaseModel):
    """The topology as data."""

    key: str
    cluster_id: str
    version: int
    fence_version: int
    transition_state: TransitionState | None
    transition_kind: RequestKind | None
    transition_requests: list[int]
    current_cdc_generation_timestamp: str | None
    current_cdc_generation_uuid: str | None
    unpublished_cdc_generations: list[tuple[str, str]]
    global_topology_request: RequestKind | None
    new_cdc_generation_data_uuid: str | None
    nodes: list[Node]


class Task(BaseModel):
    """Something the cluster was asked to do."""

    id: int
    kind: RequestKind
    state: RequestState
    why: str
    progress_bytes: int
    total_bytes: int
    rate_bytes_s: float | None
    eta_s: float | None
    started: str | None
    error: str | None
    instance_id: str | None
    raft_id: int | None
    asked: str | None
    ended: str | None
    deadline: str | None
    cancelling: str | None = Field(description="Why it should be cancelled; null: it should not.")
    reason: str | None


class Event(BaseModel):
    """A step of the governor, with its why."""

    number: int
    at: str | None
    kind: str
    text: str
    term: int
    instances: list[str]


class Events(BaseModel):
    """A page of events, oldest first."""

    events: list[Event]
    last_event: int = Field(description="The newest number there is.")


class TypeField(BaseModel):
    name: str
    type: str


class UserType(BaseModel):
    """A user type of a keyspace."""

    keyspace: str
    type: str
    fields: list[TypeField]
    version: int


class Keyspace(BaseModel):
    """Tables that are replicated in the same way."""

    keyspace: str
    replication: dict[str, int] = Field(description="Replicas by data centre.")
    mode: str
    version: int
    tables: list[str]
    types: list[UserType]


class Column(BaseModel):
    id: int
    name: str
    type: str
    kind: str
    position: int
    order: str | SkipJsonSchema[None] = Field(None, description="asc or desc; only of clustering columns.")


class TableOptions(BaseModel):
    comment: str
    default_ttl_s: int
    gc_grace_s: int
    history_s: int
    speculative_retry: str
    extensions: dict[str, str]


class Table(BaseModel):
    """A table as it is declared."""

    keyspace: str
    table: str
    id: int
    version: int
    tablets: int
    columns: list[Column]
    partition_key: list[str]
    clustering_key: list[str]
    options: TableOptions


class Tablet(BaseModel):
    """A tablet: the tokens above the first, up to the last, and who holds its replicas."""

    keyspace: str
    table: str
    tablet: int
    first_token: int
    last_token: int
    replicas: list[str] = Field(description="Instance ids.")
    pending: list[str] | None
    planned: list[str] | None
    stage: str | None
    session: str | None
    bytes: int | None = Field(description="Of its largest replica, as last reported; null: not known yet.")
    generation: int
