"""Steps: what the governor wants done next, as values with a why.

The executor knows only these shapes, not the rules behind them. It carries a step out in this order: hand over
leadership, or change the members, or make the calls, or run the barrier; then write. Whatever fails is planned again
from the state as it then is, by this leader or the next. So every step is idempotent, and its write is conditional on
the records it was decided on.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, field

from trimtab.tablets.move_protocol import MovingTablet
from trimtab.topology.protocol import JoinResponse


class StepKind(enum.Enum):
    """In the order of urgency; the value is the kind of the event it leaves behind."""

    TRANSFER = "transfer"
    VOTERS = "voters"
    DOWN = "down"
    FENCE = "fence"
    REQUEST = "request"
    ANSWER = "answer"
    SYNC = "sync"
    REPLICATE = "replicate"
    SHARD = "shard"
    ONLINE = "online"
    MOVE_PREPARE = "move_prepare"
    MOVE_ADOPT = "move_adopt"
    MOVE_CLEAN = "move_clean"
    MOVE = "move"
    MOVE_CROSS = "move_cross"
    MOVE_BEGIN = "move_begin"
    REBALANCE = "rebalance"
    JOB = "job"
    ADOPT = "adopt"
    LOAD = "load"
    LOAD_END = "load_end"


# How many steps of a kind may be in flight at once: a stuck one never starves the rest.
SLOTS: dict[StepKind, int] = {
    StepKind.TRANSFER: 1,
    StepKind.VOTERS: 1,
    StepKind.DOWN: 1,
    # Apart from DOWN: its barrier may wait for long, and the next one that dies must not wait with it.
    StepKind.FENCE: 1,
    # A barrier of a transition may wait for long; joins are admitted and requests ended meanwhile.
    StepKind.REQUEST: 4,
    StepKind.ANSWER: 8,
    StepKind.SYNC: 2,
    StepKind.REPLICATE: 2,
    StepKind.SHARD: 1,
    StepKind.ONLINE: 1,
    # Of one instance at a time; one that is slow holds up no other.
    StepKind.MOVE_PREPARE: 16,
    StepKind.MOVE_ADOPT: 16,
    StepKind.MOVE_CLEAN: 16,
    # One write and one barrier for all tablets that are ready for it.
    StepKind.MOVE: 1,
    StepKind.MOVE_CROSS: 1,
    StepKind.MOVE_BEGIN: 1,
    StepKind.REBALANCE: 1,
    StepKind.JOB: 4,
    # Of one table at a time; an instance that is slow to take a load over holds up no other table.
    StepKind.ADOPT: 8,
    StepKind.LOAD: 8,
    StepKind.LOAD_END: 1,
}


@dataclass(frozen=True)
class StepKey:
    """What a step is about, to know it again while it is in flight."""

    kind: StepKind
    subjects: tuple[int, ...]  # raft ids; numbers of requests (REQUEST, ANSWER), of jobs (JOB), of tables (of loads)


# What one write may hold, encoded: a quarter of what a command may. Steps are cut accordingly.
MAX_WRITE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Told:
    """An event to be: a sentence, and the instance ids of those whom that sentence is about."""

    text: str
    instances: tuple[str, ...] = ()


@dataclass(frozen=True)
class Write:
    """A conditional change of the metastore: `puts` if every key in `expect` is at that revision (0: absent).

    `events` are appended to the log of events by the executor, in the same command. Where only the topology's version
    or fence has moved, the write takes the next numbers (`rebasing`).
    """

    expect: dict[bytes, int]
    puts: dict[bytes, bytes] = field(default_factory=dict)
    deletes: tuple[bytes, ...] = ()
    events: tuple[Told, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The first events, for a step that has no other why."""
        return tuple(told.text for told in self.events)

    @property
    def size_bytes(self) -> int:
        """About what it takes in a command."""
        records = sum(len(key) + len(value) for key, value in self.puts.items()) + sum(map(len, self.expect))
        return records + sum(len(told.text) + sum(map(len, told.instances)) for told in self.events)

    @property
    def empty(self) -> bool:
        return not self.puts and not self.deletes


@dataclass(frozen=True)
class Step:
    """The base of all steps. `why` is a sentence an operator reads in `trimtab events`."""

    kind: StepKind
    why: str
    subjects: tuple[int, ...]

    @property
    def key(self) -> StepKey:
        return StepKey(self.kind, self.subjects)


@dataclass(frozen=True)
class Transfer(Step):
    """Hand leadership to another voter. Nothing is written: the next leader goes on."""

    to: int = 0


@dataclass(frozen=True)
class ChangeMembers(Step):
    """One (joint) change of the cluster group's members, then the write."""

    promote: tuple[int, ...] = ()
    demote: tuple[int, ...] = ()
    add: tuple[int, ...] = ()  # as learners
    remove: tuple[int, ...] = ()
    write: Write | None = None


@dataclass(frozen=True)
class Commit(Step):
    """Only a write."""

    write: Write = field(default_factory=lambda: Write({}))


class CallKind(enum.Enum):
    """What an instance is asked to do; the value is the RPC method."""

    SYNC = "governor.sync"
    REPLICAS = "governor.replicas"


@dataclass(frozen=True)
class Call(Step):
    """Ask several instances at once, then write for those that answered. The others back off, each by itself."""

    call: CallKind = CallKind.SYNC
    index: int = 0
    writes: dict[int, Write] = field(default_factory=dict)

    def writes_for(self, answered: Collection[int], max_bytes: int = MAX_WRITE_BYTES) -> list[Write]:
        """One write for all that answered; several where one would be too large."""
        batches: list[list[Write]] = []
        room = 0
        for raft_id in sorted(answered):
            write = self.writes[raft_id]
            if write.size_bytes > room:
                batches.append([])
                room = max_bytes
            batches[-1].append(write)
            room -= write.size_bytes
        return [_merged(batch) for batch in batches]


@dataclass(frozen=True)
class Barrier(Step):
    """Wait until every instance in `nodes` routes by `version` and has ended what it began before; then write.

    The write raises `topology/fence` to `version`. A node that is marked Offline while the barrier waits is skipped;
    then, and when one began anew, the executor raises the fence before that and asks the others once more.
    """

    version: int = 0
    nodes: tuple[int, ...] = ()
    write: Write = field(default_factory=lambda: Write({}))


@dataclass(frozen=True)
class Answer(Step):
    """Send JOIN_NODE_RESPONSE to an instance that wants to join; the write notes that it has taken it.

    The executor fills in `members` and the commit index of an accepted response.
    """

    address: str = ""
    response: JoinResponse = field(default_factory=lambda: JoinResponse("", "", False))
    write: Write = field(default_factory=lambda: Write({}))


@dataclass(frozen=True)
class Adopt(Step):
    """Ask instances to take over the files of a committed load; then write who has, and what follows from that.

    What follows is decided on the state as it then is (`loads.publishing`): a load does not change once it is
    committed.
    """

    table: int = 0
    id: str = ""
    nodes: tuple[int, ...] = ()
    index: int = 0


@dataclass(frozen=True)
class AskMoves(Step):
    """Ask one instance to do its part in the moves of tablets. Nothing is written: the leader keeps what it hears.

    `jobs` are those that copied the tablets, in the same order; 0: none.
    """

    method: str = ""
    tablets: tuple[MovingTablet, ...] = ()
    jobs: tuple[int, ...] = ()
    index: int = 0

    @property
    def node(self) -> int:
        return self.subjects[0]


@dataclass(frozen=True)
class CrossMoves(Barrier):
    """A barrier for all tablets that wait for one; what may then be written is decided on the state as it then is."""


@dataclass(frozen=True)
class CommitMoves(Commit):
    """A write about moves. `entered`: the stages (or `done`) that it takes tablets to, for those who test."""

    entered: tuple[str, ...] = ()


def _merged(writes: list[Write]) -> Write:
    expect: dict[bytes, int] = {}
    puts: dict[bytes, bytes] = {}
    for write in writes:
        expect.update(write.expect)
        puts.update(write.puts)
    return Write(expect, puts, events=tuple(told for write in writes for told in write.events))
