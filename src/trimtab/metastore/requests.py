"""What clients and members of the metastore say to each other: the bodies of its RPC methods.

    method               body            answer
    metastore.invoke     an encoded command (commands.py), sent on to the leader by whoever gets it
    metastore.propose    the same, from member to leader only: never sent on again
    metastore.get        GetRequest      GetReply
    metastore.range      RangeRequest    RangeReply
    metastore.watch      WatchRequest    a stream of WatchItem
    metastore.status     (empty)         StatusReply
    metastore.members    MembersRequest  MembersReply
    metastore.report     MemberReport    one-way, between members

Arrays on the wire; fields are only ever added at the end, with a default.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from trimtab.metastore.history import Change
from trimtab.metastore.layout import Entry

INVOKE = "metastore.invoke"
PROPOSE = "metastore.propose"
GET = "metastore.get"
RANGE = "metastore.range"
WATCH = "metastore.watch"
STATUS = "metastore.status"
MEMBERS = "metastore.members"
REPORT = "metastore.report"


class GetRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One key, now or as of a revision (0: now)."""

    key: bytes
    revision: int = 0
    linearizable: bool = True


class GetReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The key's entry, or None; and the revision the member was at."""

    revision: int
    entry: Entry | None


class RangeRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Keys from `low` up to, but without, `high` (None: to the end)."""

    low: bytes
    high: bytes | None
    revision: int = 0
    limit: int = 1_000
    keys_only: bool = False
    linearizable: bool = True


class RangeReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A page. `next_key` is where the next page begins, or None."""

    revision: int
    entries: list[Entry]
    next_key: bytes | None


class WatchKind(enum.IntEnum):
    """What a watch looks at."""

    EXACT = 0
    PREFIX = 1
    RANGE = 2


class WatchRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Changes from `from_revision` on (0: from the next one)."""

    kind: WatchKind
    low: bytes
    high: bytes | None = None
    from_revision: int = 0


class WatchItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All matching changes of one revision. Without changes: everything up to here has been told.

    A revision too large for one message comes in several; all but the last are marked `partial`.
    """

    revision: int
    changes: list[Change]
    partial: bool = False


class MemberStatus(msgspec.Struct, array_like=True, frozen=True):
    """One member of the cluster group as the asked member sees it; `match` only where that one leads."""

    raft_id: int
    address: str
    voter: bool
    learner: bool
    match: int | None = None


class StatusReply(msgspec.Struct, array_like=True, frozen=True):
    """How the asked member stands."""

    cluster_id: str
    instance_id: str
    raft_id: int
    leader: int
    leader_address: str
    term: int
    committed: int
    applied: int
    first_index: int
    last_index: int
    revision: int
    compacted_revision: int
    checksum: bytes
    disk_full: str
    members: list[MemberStatus]
    removed: str = ""
    last_term: int = 0
    genesis: str = ""


class MembersChange(enum.IntEnum):
    """What to do with a member."""

    ADD_LEARNER = 0
    PROMOTE = 1
    DEMOTE = 2
    REMOVE = 3
    TRANSFER = 4


class MembersRequest(msgspec.Struct, array_like=True, frozen=True):
    """Changes of the cluster group, carried out as one (joint) change. TRANSFER stands alone."""

    changes: list[tuple[MembersChange, int]]
    address: str = ""
    instance_id: str = ""
    forwarded: bool = False


class MembersReply(msgspec.Struct, array_like=True, frozen=True):
    """The voters and learners after the change."""

    voters: list[int]
    learners: list[int]


class MemberReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a member's state sums up to at a revision, and whether its disk is full.

    `ask` wants the receiver's own checksum at that revision in return.
    """

    revision: int
    checksum: bytes
    full: bool
    ask: bool = False


class LeaderHint(msgspec.Struct, array_like=True, frozen=True):
    """Details of a `not_leader` error: whom to ask instead."""

    leader: int
    address: str


def split_changes(changes: Sequence[Change], max_bytes: int) -> Iterator[list[Change]]:
    """The changes in runs of about `max_bytes`, in order; a single change is never split."""
    run: list[Change] = []
    size = 0
    for change in changes:
        this = 64 + len(change.key) * 3
        this += (len(change.old.value) if change.old else 0) + (len(change.new.value) if change.new else 0)
        if run and size + this > max_bytes:
            yield run
            run, size = [], 0
        run.append(change)
        size += this
    yield run


encode = msgspec.msgpack.Encoder().encode
decode_get = msgspec.msgpack.Decoder(GetRequest).decode
decode_get_reply = msgspec.msgpack.Decoder(GetReply).decode
decode_range = msgspec.msgpack.Decoder(RangeRequest).decode
decode_range_reply = msgspec.msgpack.Decoder(RangeReply).decode
decode_watch = msgspec.msgpack.Decoder(WatchRequest).decode
decode_watch_item = msgspec.msgpack.Decoder(WatchItem).decode
decode_status = msgspec.msgpack.Decoder(StatusReply).decode
decode_members = msgspec.msgpack.Decoder(MembersRequest).decode
decode_members_reply = msgspec.msgpack.Decoder(MembersReply).decode
decode_report = msgspec.msgpack.Decoder(MemberReport).decode
decode_leader_hint = msgspec.msgpack.Decoder(LeaderHint).decode
