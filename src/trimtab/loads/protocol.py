"""What is said about loads: by whoever loads to the leader, and to the instances that hold the replicas.

    method         from -> to                  body            answer
    load.begin     driver -> any -> leader     BeginRequest    LoadReply
    load.renew     driver -> any -> leader     RenewRequest    LoadReply     its lease
    load.commit    driver -> any -> leader     CommitRequest   LoadReply     `moved`: stage the missing, try again
    load.abort     driver -> any -> leader     AbortRequest    LoadReply
    load.show      anyone -> any               ShowRequest     LoadsReply
    load.rollback  operator -> any -> leader   RollbackRequest RollbackReply
    load.seal      driver -> instance          SealRequest     SealReply     the files are there, durable
    load.adopt     leader -> instance          AdoptCall       b""           the files have been taken over
    bulk.state     bulk child -> its node      BulkReport      BulkState
    bulk.snapshot  task -> instance            SnapshotRequest SnapshotReply
    bulk.renew     task -> instance            RenewSnapshot   b""
    bulk.release   task -> instance            ReleaseSnapshot b""
    bulk.ticket    driver -> any               TicketRequest   TicketReply   for staging under a session
    bulk.tickets   driver -> any               TicketsRequest  TicketsReply  the same for many
    bulk.limit     operator -> any -> leader   LimitRequest    LimitReply    one rate for all bulk transfers
    bulk.key       instance -> leader          KeyCall         b""           there is a key for tickets
    bulk.time      driver -> any               b""             TimeReply     the cluster's time, as this member has it

Arrays on the wire; fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab.loads.records import LoadKind, LoadRecord

BEGIN = "load.begin"
RENEW = "load.renew"
COMMIT = "load.commit"
ABORT = "load.abort"
SHOW = "load.show"
ROLLBACK = "load.rollback"
SEAL = "load.seal"
ADOPT = "load.adopt"
BULK_STATE = "bulk.state"
SNAPSHOT = "bulk.snapshot"
SNAPSHOT_RENEW = "bulk.renew"
SNAPSHOT_RELEASE = "bulk.release"
TICKET = "bulk.ticket"
TICKETS = "bulk.tickets"
LIMIT = "bulk.limit"
BULK_KEY = "bulk.key"
TIME = "bulk.time"


class BeginRequest(msgspec.Struct, array_like=True, frozen=True):
    """The same id again is the same load: its record is the answer. `timestamp_us` 0: the leader stamps it.

    `direct`: the rows are going to be written as ordinary writes with the stamp.
    """

    id: str
    table: int
    version: int
    kind: LoadKind = LoadKind.APPEND
    timestamp_us: int = 0
    lease_ms: int = 60_000
    who: str = ""
    direct: bool = False
    forwarded: bool = False


class LoadReply(msgspec.Struct, array_like=True, frozen=True):
    load: LoadRecord


class RenewRequest(msgspec.Struct, array_like=True, frozen=True):
    table: int
    id: str
    forwarded: bool = False


class CommitRequest(msgspec.Struct, array_like=True, frozen=True):
    """`sealed`: raft ids of instances that answered load.seal for all their replicas, pending ones included.

    `places`: the digest of where the replicas were when they were sealed (`TableView.held`). An instance may have
    sealed all that it held then, and hold more by now. `nonce`: that of the lists they sealed.
    """

    table: int
    id: str
    sealed: tuple[int, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    rejected: int = 0
    forwarded: bool = False
    places: bytes = b""
    nonce: str = ""


class AbortRequest(msgspec.Struct, array_like=True, frozen=True):
    table: int
    id: str
    reason: str = ""
    forwarded: bool = False


class ShowRequest(msgspec.Struct, array_like=True, frozen=True):
    """`table` 0: of all tables. `id` empty: all of it.

    `wait_ms`: answer when this load can be seen, or has ended otherwise, at the latest after so long. `local`: as the
    member that is asked has it, which may be old, but needs no majority.
    """

    table: int = 0
    id: str = ""
    wait_ms: int = 0
    local: bool = False


class LoadsReply(msgspec.Struct, array_like=True, frozen=True):
    """`visible` epoch and served generation by table; `committed`: the newest epoch that was given, by table."""

    loads: list[LoadRecord]
    epochs: dict[int, tuple[int, int]] = {}
    committed: dict[int, int] = {}


class RollbackRequest(msgspec.Struct, array_like=True, frozen=True):
    """`id` names the newest overwrite. `apply` False: only say what it would drop."""

    table: int
    id: str
    apply: bool = False
    forwarded: bool = False


class RollbackReply(msgspec.Struct, array_like=True, frozen=True):
    """What goes: the load, loads published after it, and every write made since it was published."""

    load: LoadRecord
    also: list[LoadRecord] = []
    published_ms: int = 0
    generation: int = 0  # the one that is served afterwards
    applied: bool = False


class StagedFile(msgspec.Struct, array_like=True, frozen=True):
    """`name` below staging/<session>/<tablet>/; `checksum` of the whole file."""

    tablet: int
    name: str
    size_bytes: int
    checksum: int
    rows: int = 0


class SealRequest(msgspec.Struct, array_like=True, frozen=True):
    """Everything this instance should hold for the load: it has it, durably, or says which file is missing.

    A load with many files is sealed in `parts`; the last one says so. `nonce` is what the sender's list is called: the
    parts of one list, on all instances, have the same, and another list has another. The commit says which one counts.
    """

    session: str
    table: int
    files: list[StagedFile]
    part: int = 0
    last: bool = True
    nonce: str = ""


class SealReply(msgspec.Struct, array_like=True, frozen=True):
    missing: list[tuple[int, str]] = []


class AdoptCall(msgspec.Struct, array_like=True, frozen=True):
    """Take over the sealed files of a committed load; `index`: apply the metastore up to there first."""

    term: int
    index: int
    table: int
    id: str


class BulkReport(msgspec.Struct, array_like=True, frozen=True):
    """What a bulk child says of itself. `token` is what its supervisor gave to it and to the node, and nobody else."""

    token: bytes = b""
    pid: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    files_in: int = 0
    files_out: int = 0
    refused: int = 0
    connections: int = 0  # open now


class BulkState(msgspec.Struct, array_like=True, frozen=True):
    """What the bulk child works by. `rate_bytes_s` 0: no limit. `free_bytes` beyond the reserve."""

    instance_id: str
    key: bytes
    rate_bytes_s: int
    sessions: list[str]
    free_bytes: int
    now_ms: int


class SnapshotRequest(msgspec.Struct, array_like=True, frozen=True):
    """Copies (hard links) of this instance's replicas of these tablets, as they are when it answers.

    `epoch`: readers want to see that much at least; refused `not_ready` until it is here. The copy may hold more:
    `hidden` stamps of the answer are to be left out.

    `copying`: it is not for reading, but for replicas elsewhere: of the generation that is served, with all loads up to
    `epoch`, whether they can be seen yet or not. `partial`: who can't be copied now is named in `refused` of the
    answer, instead of all being refused. `through`: for each tablet how far its replica was repaired when that was
    looked at last; one that has been repaired further since is not copied. `only_tell`: copy nothing, just say how
    they stand.

    `reading`: for each tablet the members that whoever asks believes to answer its reads. Refused `moved` where others
    do by now: a quorum of the wrong set may lack what was written to the right one.
    """

    table: int
    tablets: list[int]
    epoch: int
    lease_ms: int = 60_000
    name: str = ""  # the same name again is the same snapshot
    as_of_us: int = 0  # the time that will be read at; 0: the newest
    copying: bool = False
    partial: bool = False
    through: list[int] = []
    only_tell: bool = False
    reading: list[list[int]] = []


class SnapshotTablet(msgspec.Struct, array_like=True, frozen=True):
    """`path` is relative to the instance's data directory; files are (name, bytes).

    As they were when it was copied: `adopted` is the epoch up to which it has taken over loads, `repaired_through_ms`
    how far it was repaired, `forgot_us` the time up to which versions were folded.
    """

    tablet: int
    path: str
    files: list[tuple[str, int]]
    adopted: int = 0
    repaired_through_ms: int = 0
    forgot_us: int = 0
    generation: int = 0


class SnapshotReply(msgspec.Struct, array_like=True, frozen=True):
    """`directory`: the data directory, for whoever is on the same host; `proof`: the content of the file `proof` in the
    snapshot, by which a reader knows that it sees the same files. `ticket` opens them at the bulk address.

    `refused`: tablets that are not in it, with code and text. `found`: it was made by an earlier request of that name.
    """

    name: str
    directory: str
    proof: str
    tablets: list[SnapshotTablet]
    hidden: list[int]
    bulk_address: str
    ticket: bytes
    generation: int = 1
    now_ms: int = 0
    refused: list[tuple[int, str, str]] = []
    found: bool = False


class RenewSnapshot(msgspec.Struct, array_like=True, frozen=True):
    name: str
    lease_ms: int = 60_000


class ReleaseSnapshot(msgspec.Struct, array_like=True, frozen=True):
    name: str


class TicketRequest(msgspec.Struct, array_like=True, frozen=True):
    """Leave to stage files under an open session, on every instance, for so long."""

    session: str
    life_ms: int = 3_600_000


class TicketReply(msgspec.Struct, array_like=True, frozen=True):
    """Bulk addresses by raft id."""

    ticket: bytes
    expires_ms: int
    bulk: dict[int, str] = {}


class TicketsRequest(msgspec.Struct, array_like=True, frozen=True):
    """As TicketRequest, for many sessions at once; one that is not open gets none, and that is no refusal."""

    sessions: list[str]
    life_ms: int = 3_600_000


class TicketsReply(msgspec.Struct, array_like=True, frozen=True):
    """`tickets` by session. Bulk addresses by raft id."""

    tickets: dict[str, bytes]
    expires_ms: int
    bulk: dict[int, str] = {}


class MovedDetails(msgspec.Struct, array_like=True, frozen=True):
    """With the refusal `moved` of a commit: raft ids of replica holders that are up and have not sealed."""

    missing: tuple[int, ...] = ()


class LimitRequest(msgspec.Struct, array_like=True, frozen=True):
    """`rate_bytes_s` for the whole cluster; 0: no limit; below 0: only tell."""

    rate_bytes_s: int = -1
    forwarded: bool = False


class LimitReply(msgspec.Struct, array_like=True, frozen=True):
    """The limit as it is now, and what that is for each of the instances that are Online."""

    rate_bytes_s: int
    share_bytes_s: int
    instances: int


class KeyCall(msgspec.Struct, array_like=True, frozen=True):
    forwarded: bool = False


class TimeReply(msgspec.Struct, array_like=True, frozen=True):
    """By the member's hybrid clock: nothing that it has stamped, or taken from others, is later."""

    now_us: int


encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[Any]) -> Any:
    return msgspec.msgpack.Decoder(kind).decode


decode_begin = decoder(BeginRequest)
decode_load_reply = decoder(LoadReply)
decode_renew = decoder(RenewRequest)
decode_commit = decoder(CommitRequest)
decode_moved = decoder(MovedDetails)
decode_abort = decoder(AbortRequest)
decode_show = decoder(ShowRequest)
decode_loads_reply = decoder(LoadsReply)
decode_rollback = decoder(RollbackRequest)
decode_rollback_reply = decoder(RollbackReply)
decode_seal = decoder(SealRequest)
decode_seal_reply = decoder(SealReply)
decode_adopt = decoder(AdoptCall)
decode_bulk_state = decoder(BulkState)
decode_snapshot = decoder(SnapshotRequest)
decode_snapshot_reply = decoder(SnapshotReply)
decode_renew_snapshot = decoder(RenewSnapshot)
decode_release_snapshot = decoder(ReleaseSnapshot)
decode_ticket = decoder(TicketRequest)
decode_ticket_reply = decoder(TicketReply)
decode_tickets = decoder(TicketsRequest)
decode_tickets_reply = decoder(TicketsReply)
decode_bulk_report = decoder(BulkReport)
decode_limit = decoder(LimitRequest)
decode_limit_reply = decoder(LimitReply)
decode_key_call = decoder(KeyCall)
decode_time_reply = decoder(TimeReply)
