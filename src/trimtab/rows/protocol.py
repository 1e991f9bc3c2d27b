"""What is said about rows: by clients to the instance they ask, and by that instance to the replicas.

    method           from -> to              body            answer
    data.schema      client -> anyone        SchemaRequest   SchemaReply
    schema.change    client -> any -> leader ChangeRequest   ChangeReply
    data.put         client -> coordinator   PutRequest      WriteReply
    data.delete      client -> coordinator   DeleteRequest   WriteReply
    data.batch       client -> coordinator   BatchRequest    WriteReply
    data.get         client -> coordinator   GetRequest      RowsReply
    data.slice       client -> coordinator   SliceRequest    RowsReply
    data.scan        client -> coordinator   ScanRequest     RowsReply
    replica.write    coordinator -> replica  ReplicaWrites   ReplicaWritten
    replica.read     coordinator -> replica  ReplicaRead     ReplicaRows

A cell is the bytes of CQL's own serialisation, None where there is no value. Columns are named by id. Times that order
writes are microseconds since 1970; 0 means "not said". Arrays on the wire; fields are only ever added at the end, with
a default.

Between instances rows travel as *pairs*: key and value exactly as a replica stores them, so that writing, repairing,
hinting and merging are one and the same: a set of pairs that is put.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from trimtab.tablets.consistency import Level

SCHEMA = "data.schema"
CHANGE = "schema.change"
PUT = "data.put"
DELETE = "data.delete"
BATCH = "data.batch"
GET = "data.get"
SLICE = "data.slice"
SCAN = "data.scan"
REPLICA_WRITE = "replica.write"
REPLICA_READ = "replica.read"

# Codes of parts of a request that can be asked for again, each row alone.
UNFINISHED = "unfinished"  # it is still under way
ALONE = "alone"  # nothing was done; another row may be the reason

Cell = bytes | None
Pairs = list[bytes]  # key, value, key, value, ...


class SchemaRequest(msgspec.Struct, array_like=True, frozen=True):
    """`known`: (catalog version, topology version) that the client has; nothing is sent twice.

    `placed`: the `placed` of the newest reply that told where tablets are; negative: only with a new catalog.
    """

    known: tuple[int, int] = (0, 0)
    placed: int = -1


class SchemaReply(msgspec.Struct, array_like=True, frozen=True):
    """`catalog` is the encoded catalog, `tablets` the packed replicas by table id; both empty if `known` is current.

    Replicas move while the catalog stays: without a catalog, `tablets` has only the tables that have changed since
    `placed`, a number that grows with every change. Of tables whose tablets are given other replicas there are also
    `held` (everybody who has a replica, or should: that is where files are loaded) and `reading` (those who answer
    reads). `instances`: raft id -> (instance id, address, data centre, whether
    it is Online).
    """

    catalog_version: int
    topology_version: int
    catalog: bytes = b""
    tablets: dict[int, list[bytes]] = {}
    instances: dict[int, tuple[str, str, str, bool]] = {}
    placed: int = 0
    held: dict[int, list[bytes]] = {}
    reading: dict[int, list[bytes]] = {}


class ChangeRequest(msgspec.Struct, array_like=True, frozen=True):
    """`command` is an encoded catalog command. `id` makes asking again harmless."""

    command: bytes
    id: str
    forwarded: bool = False


class ChangeReply(msgspec.Struct, array_like=True, frozen=True):
    """`waiting`: instances that had not taken note of the version when the answer left; empty: the schema agrees."""

    catalog_version: int
    waiting: list[str] = []


class Way(enum.IntEnum):
    """How a cell of a multi-cell collection is written: in place of what is there, or element by element.

    ADD: to a set or map, or to the end of a list. REMOVE: the elements of a set, or the keys (as a set) of a map.
    PREPEND: to the beginning of a list.
    """

    WHOLE = 0
    ADD = 1
    REMOVE = 2
    PREPEND = 3


class PutRequest(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Rows with the cells of the same `columns`, key columns among them; None deletes a cell.

    `timestamp_us` set by the client orders the write; else the coordinator stamps it, later than `after_us`. `update`:
    the cells alone are written, and the row does not exist without them (CQL's UPDATE; else INSERT). `ways` in step
    with the columns; empty: all WHOLE. `ttl_s` 0: the cells never expire; None: the table says when. `apart`: the rows
    are puts of their own that travel together; what becomes of those of one tablet says nothing about the others.
    """

    table: int
    version: int
    columns: list[int]
    rows: list[list[Cell]]
    level: Level = Level.QUORUM
    timestamp_us: int = 0
    after_us: int = 0
    ttl_s: int | None = None
    update: bool = False
    ways: list[Way] = []
    apart: bool = False


class Bound(msgspec.Struct, array_like=True, frozen=True):
    """The end of a range of clustering keys: the first cells of one. No cells: the partition's own end.

    A range starts and ends in the table's own order: in a descending column it starts at the greater value.
    """

    cells: list[bytes] = []
    inclusive: bool = True


class DeleteRequest(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """`partition` alone: all of it. With a whole `row`: that row, or only its `columns`. With bounds: a range."""

    table: int
    version: int
    partition: list[bytes]
    row: list[bytes] | None = None
    columns: list[int] = []
    start: Bound | None = None
    end: Bound | None = None
    level: Level = Level.QUORUM
    timestamp_us: int = 0
    after_us: int = 0


class BatchRequest(msgspec.Struct, array_like=True, frozen=True):
    """Writes of one stamp. Atomic within a partition; `logged`: all of them happen, or none, whoever dies."""

    writes: list[PutRequest | DeleteRequest]
    logged: bool = True
    level: Level = Level.QUORUM
    timestamp_us: int = 0
    after_us: int = 0


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """Why a part of a request was not carried out, as the refusal of a whole one says it."""

    code: str
    text: str
    details: bytes = b""


class WriteReply(msgspec.Struct, array_like=True, frozen=True):
    """The stamp that was used, and how many replicas had synced the write when the answer left.

    `refused`: of a put whose rows are `apart`, the tablets whose rows were not written, or may not be. Those that
    are UNFINISHED can be put again with this stamp, those that should go ALONE without.
    """

    timestamp_us: int
    acknowledged: int = 0
    refused: dict[int, Refusal] = {}


class GetRequest(msgspec.Struct, array_like=True, frozen=True):
    """Whole primary keys, each the cells of partition and clustering columns; and the columns wanted."""

    table: int
    version: int
    keys: list[list[bytes]]
    columns: list[int]
    level: Level = Level.QUORUM
    as_of_us: int = 0
    with_meta: bool = False


class SliceRequest(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one partition between two bounds. `page`: where the page before ended."""

    table: int
    version: int
    partition: list[bytes]
    columns: list[int]
    start: Bound | None = None
    end: Bound | None = None
    reverse: bool = False
    limit: int = 1000
    page: bytes = b""
    level: Level = Level.QUORUM
    as_of_us: int = 0
    with_meta: bool = False


class ScanRequest(msgspec.Struct, array_like=True, frozen=True):
    """Rows in order of token, first_token exclusive (None: from the beginning), last_token inclusive.

    `epoch`: the one that another part of the same scan was read at (see RowsReply), so that all parts show the same
    loads; -1: the newest. A page that goes on with another is read at that one's.
    """

    table: int
    version: int
    columns: list[int]
    first_token: int | None = None
    last_token: int | None = None
    limit: int = 1000
    page: bytes = b""
    level: Level = Level.QUORUM
    as_of_us: int = 0
    with_meta: bool = False
    epoch: int = -1


class CellMeta(msgspec.Struct, array_like=True, frozen=True):
    writetime_us: int
    ttl_s: int | None = None  # what is left


class RowsReply(msgspec.Struct, array_like=True, frozen=True):
    """Cells in the order of the columns asked for. For a get: one per key, None where there is no row.

    `page` empty: nothing follows. `metas` only where asked for, in step with the rows. `epoch`: of a slice or a scan,
    the one it was read at; -1: not said. `stamp_us`: nothing that was read is stamped later; what is written because of
    it has to be (`after_us`).
    """

    rows: Sequence[Sequence[Cell] | None]
    page: bytes = b""
    stale: bool = False
    metas: list[list[CellMeta | None] | None] = []
    epoch: int = -1
    stamp_us: int = 0


class WriteKind(enum.IntEnum):
    FRESH = 0
    HINT = 1
    REPAIR = 2


class ReplicaWrite(msgspec.Struct, array_like=True, frozen=True):
    """Pairs for one tablet. `written_ms` is the coordinator's clock when the write began, whatever its stamp.

    `generation` of the table is the one it is meant for. `epoch`: the replica has to know of this one first. Of a fresh
    write it is the one since which the generation is served; what a repair brings was read at it, so there may be rows
    in it of the loads up to there.
    """

    table: int
    tablet: int
    pairs: Pairs
    written_ms: int
    kind: WriteKind = WriteKind.FRESH
    generation: int = 1
    epoch: int = 0


class ReplicaWrites(msgspec.Struct, array_like=True, frozen=True):
    """What goes to one replica in one message. `topology` is the version it was routed by, `catalog` likewise."""

    topology: int
    catalog: int
    writes: list[ReplicaWrite]


class Failed(msgspec.Struct, array_like=True, frozen=True):
    code: str
    text: str


class ReplicaWritten(msgspec.Struct, array_like=True, frozen=True):
    """In step with the writes: None where it is synced and applied. `now_ms`: the replica's wall clock; 0: not said."""

    results: list[Failed | None]
    now_ms: int = 0


class RangeRead(msgspec.Struct, array_like=True, frozen=True):
    """Rows with low <= row key < high of one tablet, together with what deletes in them; `limit` counts live rows.

    A point read is a range of one row key with `point` set: the partition's own deletions are looked at beside it.
    """

    low: bytes
    high: bytes
    limit: int = 1
    reverse: bool = False
    point: bool = False


class ReplicaRead(msgspec.Struct, array_like=True, frozen=True):
    """Several ranges of one tablet, for one request. `digest`: only their digests are wanted.

    `epoch`: rows of loads that became visible later are left out; -1: it was not said, so the newest is meant. `apart`:
    stamps of loads that some reader may still have to leave out. Versions with these are not merged with others.
    """

    topology: int
    catalog: int
    table: int
    tablet: int
    level: Level
    ranges: list[RangeRead]
    digest: bool = False
    now_s: int = 0
    as_of_us: int = 0
    epoch: int = -1
    apart: list[int] = []


class RangeRows(msgspec.Struct, array_like=True, frozen=True):
    """Pairs in key order, merged; `more`: the limit (of rows or bytes) ended it, not the range.

    `end` says where, if there is more: all rows below it were looked at, and none from it on (in reverse: all rows
    from it on, and none below).
    """

    pairs: Pairs = []
    digest: bytes = b""
    more: bool = False
    end: bytes = b""


class ReplicaRows(msgspec.Struct, array_like=True, frozen=True):
    ranges: list[RangeRows]
    stale: bool = False


encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[Any]) -> Any:
    return msgspec.msgpack.Decoder(kind).decode


decode_schema_request = decoder(SchemaRequest)
decode_schema_reply = decoder(SchemaReply)
decode_change = decoder(ChangeRequest)
decode_change_reply = decoder(ChangeReply)
decode_put = decoder(PutRequest)
decode_delete = decoder(DeleteRequest)
decode_batch = decoder(BatchRequest)
decode_write_reply = decoder(WriteReply)
decode_get = decoder(GetRequest)
decode_slice = decoder(SliceRequest)
decode_scan = decoder(ScanRequest)
decode_rows = decoder(RowsReply)
decode_replica_writes = decoder(ReplicaWrites)
decode_replica_written = decoder(ReplicaWritten)
decode_replica_read = decoder(ReplicaRead)
decode_replica_rows = decoder(ReplicaRows)
