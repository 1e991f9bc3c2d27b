"""What goes in and what comes out, as /openapi.json describes it.

Bodies that come in are checked against these models: strictly typed, no unknown fields. What goes out is made by
`topology.shapes`, as the command line shows it; these models only describe it, and tests compare the two. Fields may be
added, not renamed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic.json_schema import SkipJsonSchema

from trimtab.jobs.records import JobKind, JobState
from trimtab.loads.bulk_settings import MAX_RATE_BYTES_S, MIN_RATE_BYTES_S
from trimtab.tablets.rebalance_settings import MAX_HEAL_AFTER_MS, MIN_HEAL_AFTER_MS
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, Outcome, RebalanceState, TransitionKind
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind, RequestState
from trimtab.topology.states import NodeState, TransitionState

_MAX_TIMEOUT_MS = 366 * 24 * 3_600_000
_MAX_IGNORED = 64


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is the integer 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(value: Any) -> Any:
    """JSON has one kind of number: 5 is 5.0."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


_WINDOW = r"^(always|([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9])$"
_RATE = {"type": "integer", "anyOf": [{"const": 0}, {"minimum": MIN_RATE_BYTES_S, "maximum": MAX_RATE_BYTES_S}]}
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


class Move(BaseModel):
    """A replica of a tablet, from one instance to another."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=False)

    source: _Name = Field(alias="from", description="The instance that gives its replica up.")
    to: _Name = Field(description="The instance that gets it.")
    force: bool = Field(False, description="Although hosts, racks or space speak against it.")
    why: str = Field("", max_length=200, description="For those who read the events later.")


class Undo(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    why: str = Field("", max_length=200, description="For those who read the events later.")


class SetRebalance(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(strict=True, extra="forbid")

    enabled: bool | SkipJsonSchema[None] = Field(None, description="Whether moves are begun for balance.")
    window: Annotated[str, Field(pattern=_WINDOW)] | SkipJsonSchema[None] = Field(
        None, description="HH:MM-HH:MM (UTC), within which such moves may begin; it may cross midnight. Or `always`."
    )
    heal_after_s: (
        Annotated[float, Field(ge=MIN_HEAL_AFTER_MS / 1000, le=MAX_HEAL_AFTER_MS / 1000), BeforeValidator(_number)]
        | SkipJsonSchema[None]
    ) = Field(None, description="How long an instance that is down is waited for.")
    moving: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)] | SkipJsonSchema[None] = Field(
        None, description="Tablets that move at a time, in the whole cluster."
    )
    moving_bytes: Annotated[int, Field(ge=1, le=1 << 53), BeforeValidator(_whole)] | SkipJsonSchema[None] = Field(
        None, description="Bytes that move at a time to or from one instance."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("leave it out, to leave it as it is")
        return value


class SetLimit(BaseModel):
    """What all bulk transfers together may move."""

    model_config = ConfigDict(strict=True, extra="forbid")

    # How small or large it may be is told as the command line tells it (`bulk_settings.wrong_rate`).
    rate_bytes_s: Annotated[int, BeforeValidator(_whole), WithJsonSchema(_RATE)] = Field(
        description="Bytes a second of the whole cluster; 0: no limit."
    )


class Steer(BaseModel):
    """An order to a task that needs no words."""

    model_config = ConfigDict(strict=True, extra="forbid")


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
    bulk_address: str | None
    release: str | None
    reason: str | None = Field(description="Why the target grade is what it is.")
    heard_ms: int | None = Field(description="How long ago the leader heard of it; null if a member was asked.")
    applied: int | None
    uuid: str | None
    joined: str | None
    left: str | None
    disk_full: bool = Field(description="Whether it takes no writes, because less space is free than its reserve.")
    stays: str | None = Field(description="Why it may not be expelled, though it is down; null: it is up, or may.")


class Moving(BaseModel):
    """The tablets under way at a glance. Bytes are known where the leader answers."""

    tablets: int
    progress_bytes: int
    total_bytes: int
    rate_bytes_s: float | None
    eta_s: float | None
    upcoming_tablets: int = Field(description="Tablets that the leader means to move next.")
    upcoming_bytes: int
    stages: dict[str, int] = Field(description="Tablets by stage.")
    says: list[str]
    problems: list[str] = Field(description="What keeps tablets from where they should be.")
    still: str | None = Field(description="Why balancing begins nothing now; null: it may.")
    unserved_tablets: int = Field(description="Tablets that can't be read or written, at QUORUM or at all.")


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
    bulk_rate_bytes_s: int = Field(description="What all bulk transfers together may move; 0: no limit.")
    moving: Moving


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


class TabletMove(BaseModel):
    """What is under way with a tablet."""

    kind: TransitionKind
    cause: Cause
    why: str
    leaving: list[str] = Field(alias="from", description="Instance ids of those that give their replica up.")
    to: list[str] = Field(description="Of those that get one.")
    leftovers: list[str] = Field(description="Of earlier targets that have yet to drop what they got.")
    locked: bool = Field(description="Whether the copy is taken: then the target can't change any more.")
    job: int | None
    state: Literal["running", "paused", "undoing"]
    progress_bytes: int
    total_bytes: int
    eta_s: float | None
    attempts: int
    error: str | None
    planned_why: str | None
    began: str | None
    stage_since: str | None


class TaskMove(TabletMove):
    table: str
    tablet: int
    replicas: list[str]
    pending: list[str]
    planned: list[str] | None
    stage: Stage
    session: str | None


class Moved(BaseModel):
    """What became of a move that was asked for."""

    id: str = Field(description="The task that it is, as long as it is under way.")
    outcome: Outcome
    replicas: list[str] = Field(description="Instance ids of those that the tablet goes to.")


class Rebalance(BaseModel):
    """How balancing is set."""

    enabled: bool
    window: str | None = Field(description="HH:MM-HH:MM (UTC); null: always.")
    heal_after_s: float
    moving: int
    moving_bytes: int
    set: str | None = Field(description="When it was last changed.")
    active: bool = Field(description="Whether it may begin moves now.")
    still: str | None
    problems: list[str]


class Limit(BaseModel):
    """What bulk transfers may move; 0: no limit."""

    rate_bytes_s: int = Field(description="All together, in bytes a second.")
    share_bytes_s: int = Field(description="Each instance that is Online.")
    online: int = Field(description="How many those are.")


class Task(BaseModel):
    """Something the cluster does: a request, a job, a tablet under way, or all those of a table."""

    id: int | str = Field(description="A number; KEYSPACE.TABLE:TABLET; or KEYSPACE.TABLE.")
    kind: RequestKind | JobKind | TransitionKind | Literal["rebalance"]
    state: RequestState | JobState | RebalanceState | Literal["undoing"]
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
    progress_rows: int
    total_rows: int
    phase: str | None = Field(description="What a running job is at, in its own words.")
    attempts: int | None = Field(description="How often a job was begun; null: it is a request.")
    waits_for: list[int] = Field(description="The jobs that must have succeeded before this one begins.")
    pausing: bool = Field(description="Whether a running job is about to pause.")
    parameters: dict[str, Any] | None
    result: dict[str, Any] | None
    undoes: int | None = Field(description="The job that this one takes back.")
    undone_by: list[int]
    driver_term: int | None = Field(description="The term of the driver that runs it, or ran it last.")
    progress_tablets: int
    total_tablets: int
    move: TaskMove | None = Field(description="Of a tablet under way.")


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
    move: TabletMove | None = Field(description="What is under way with it.")


class Load(BaseModel):
    """A load: rows that appear in a table at once."""

    id: str
    table: str
    kind: str = Field(description="append, overwrite or direct.")
    state: str = Field(description="staging, committed, published, aborted or rolled_back.")
    epoch: int | None = Field(description="Readers from this epoch of the table on see it.")
    generation: int
    rows: int
    bytes: int
    rejected: int
    timestamp: int = Field(description="Microseconds since 1970, of all its rows.")
    who: str
    reason: str | None
    begun: str | None
    committed: str | None
    published: str | None
    ended: str | None
    sealed: list[str] = Field(description="Instance ids of those that held all its files when it was committed.")
    adopted: list[str] = Field(description="Of those that have taken them over.")
    missed: list[str] = Field(description="Of those that were down, and get its rows when they are back.")


class Served(BaseModel):
    """What can be seen of a table."""

    table: str
    epoch: int
    generation: int


class Loads(BaseModel):
    """Loads in the order of beginning, and what is served of their tables."""

    loads: list[Load]
    tables: list[Served]
