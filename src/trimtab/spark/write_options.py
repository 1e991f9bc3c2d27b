"""The options of a write, checked before anything is begun: each error names the option and what it may be.

peer, table, timeout, tls…  as for reading
primaryKey                  "a,b" (partition key a, clustering b) or "(a,b),c desc": a missing table is made with it
replication, tablets        of what is made: "3" or "dc1:3,dc2:2"; a power of two
static                      static columns of what is made
onError, rejected           fail (default), or reject: bad rows go to Parquet files below the path `rejected`
timestamp, ttl              of all rows: ISO 8601 or microseconds (not of a stream); seconds
loadId                      the same id again is the same load: a job that is tried again loads once. Not of a stream
lease                       seconds that a load lives when nobody works on it
chunkRows, chunkBytes       what a task encodes at a time: more is faster, and takes more memory
directRows                  of a stream: micro batches up to so many rows are written without files
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.client.errors import InvalidRequest
from trimtab.loads.attempts import MAX_BASE_CHARACTERS
from trimtab.rows.mutations import MAX_TTL_S
from trimtab.spark.load_plan import FAIL, REJECT
from trimtab.spark.options import CONNECTION, Connection, Options, time_us

NAMES = (
    *CONNECTION,
    *("primaryKey", "static", "replication", "tablets", "onError", "rejected", "timestamp", "ttl", "loadId"),
    *("lease", "chunkRows", "chunkBytes", "directRows"),
    # Spark's own, which it hands on.
    *("path", "checkpointLocation", "queryName"),
)
DIRECT_ROWS = 10_000
MAX_DIRECT_ROWS = 1_000_000
LEASE_S = 300
_MIB = 1 << 20
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_BASE_CHARACTERS - 1}}}")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*|\"[^\"]+\""
_COLUMN = re.compile(rf"({_NAME})(?:\s+(asc|desc))?", re.IGNORECASE)


@dataclass(frozen=True)
class Creation:
    """How a missing table is made. `clustering`: with whether it descends."""

    partition: tuple[str, ...]
    clustering: tuple[tuple[str, bool], ...] = ()
    static: tuple[str, ...] = ()
    replication: Mapping[str, int] | int | None = None
    tablets: int | None = None


@dataclass(frozen=True)
class WriteOptions:
    """`create` None: the table has to be there."""

    connection: Connection
    table: str
    create: Creation | None = None
    on_error: str = FAIL
    rejected: str = ""
    timestamp_us: int = 0
    ttl_s: int = 0
    load_id: str = ""
    lease_ms: int = LEASE_S * 1000
    chunk_rows: int = 0
    chunk_bytes: int = 0
    direct_rows: int = DIRECT_ROWS
    given: Mapping[str, str] = field(default_factory=dict)


def write_options(given: Mapping[str, str], default_peer: str = "") -> WriteOptions:
    """The options of a write; InvalidRequest names the one that is wrong."""
    options = Options(given, NAMES, "writing", default_peer)
    on_error = options.one_of("onError", (FAIL, REJECT), FAIL)
    rejected = options.text("rejected")
    if (on_error == REJECT) != bool(rejected):
        raise InvalidRequest(
            "options onError=reject and rejected=PATH go together: bad rows are written to Parquet files there"
        )
    load_id = options.text("loadId")
    if load_id and not _ID.fullmatch(load_id):
        raise InvalidRequest(
            f"option loadId: up to {MAX_BASE_CHARACTERS} letters, digits, - and _ are expected, a letter or digit "
            f"first, not {load_id!r}"
        )
    timestamp = options.text("timestamp")
    return WriteOptions(
        options.connection(),
        options.table(),
        create=_creation(options),
        on_error=on_error,
        rejected=rejected,
        timestamp_us=time_us(timestamp, "timestamp") if timestamp else 0,
        ttl_s=options.whole("ttl", 0, 1, MAX_TTL_S),
        load_id=load_id,
        lease_ms=1000 * options.whole("lease", LEASE_S, 1, 3600),
        chunk_rows=options.whole("chunkRows", 0, 1000, 100_000_000),
        chunk_bytes=options.whole("chunkBytes", 0, _MIB, 64 * 1024 * _MIB),
        direct_rows=options.whole("directRows", DIRECT_ROWS, 0, MAX_DIRECT_ROWS),
        given=dict(given),
    )


def stream_options(given: Mapping[str, str], default_peer: str = "") -> WriteOptions:
    """Those of a stream, whose every micro batch is a load: what only one load can have is refused."""
    options = write_options(given, default_peer)
    if options.load_id:
        raise InvalidRequest(
            "option loadId is not for streams: each micro batch is a load, named by the query in checkpointLocation "
            "and the batch's number; leave it out"
        )
    if options.timestamp_us:
        raise InvalidRequest(
            "option timestamp is not for streams: each micro batch is a load, and no two loads of a table may have "
            "the same timestamp; leave it out, and each is stamped when it begins"
        )
    return options


def _creation(options: Options) -> Creation | None:
    text = options.text("primaryKey")
    if not text:
        for name in ("replication", "tablets", "static"):
            if options.text(name):
                raise InvalidRequest(f"option {name} is for a table that is made, which needs primaryKey, too")
        return None
    partition, clustering = primary_key(text)
    return Creation(
        partition,
        clustering,
        static=options.names("static") or (),
        replication=_replication(options.text("replication")),
        tablets=options.whole("tablets", 0, 1, 1 << 14) or None,
    )


def primary_key(text: str) -> tuple[tuple[str, ...], tuple[tuple[str, bool], ...]]:
    """Partition columns, and clustering ones with whether they descend: "a,b", or "(a,b),c desc"."""
    wrong = InvalidRequest(f'option primaryKey: "a,b" or "(a,b),c desc" is expected, not {text!r}')
    found = re.fullmatch(r"\(([^()]*)\)\s*(?:,(.*))?", text)
    first = found.group(1).split(",") if found else text.split(",")[:1]
    rest = ((found.group(2) or "").split(",") if found.group(2) else []) if found else text.split(",")[1:]
    partition, clustering = [], []
    for part in first:
        column = _COLUMN.fullmatch(part.strip())
        if column is None or column.group(2):
            raise wrong
        partition.append(column.group(1).strip('"'))
    for part in rest:
        column = _COLUMN.fullmatch(part.strip())
        if column is None:
            raise wrong
        clustering.append((column.group(1).strip('"'), (column.group(2) or "").lower() == "desc"))
    names = [*partition, *(name for name, _ in clustering)]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"option primaryKey: a column is named twice in {text!r}")
    return tuple(partition), tuple(clustering)


def _replication(text: str) -> Mapping[str, int] | int | None:
    """ "3", or "dc1:3,dc2:2"."""
    if not text:
        return None
    if text.isdigit():
        return int(text)
    found: dict[str, int] = {}
    for part in text.split(","):
        dc, colon, count = (each.strip() for each in part.partition(":"))
        if not (dc and colon and count.isdigit()):
            raise InvalidRequest(f'option replication: "3" or "dc1:3,dc2:2" is expected, not {text!r}')
        found[dc] = int(count)
    return found
