r"""How the metastore's data lies in an ordered store, and nothing else.

    m format                          format version
    m state                           applied index and term, revision, checksums, replicated time (see `State`)
    m conf, m meta                    opaque to the metastore, written by its host
    m purged                          how far this member has physically removed compacted history
    m import                          only while a snapshot is being received: the store is not complete
    k <key>                           the newest version of a key, or its tombstone
    h <key, escaped> 00 01 <rev>      an older version, with the revision that superseded it
    i <command id>                    the result of a command
    r <rev>                           the checksum of a revision and the keys it changed

The newest version has a record of its own, so that a get is one look-up and compaction, which only ever touches `h`,
`r` and tombstones, can't remove a live value. Numbers are big-endian, so that bytes sort as numbers do. In `h` a key
is followed by a revision, so its end must be marked: 00 inside a key becomes 00 FF, and the end is 00 01. Then
"a" < "a\0" < "a\x01" holds for the escaped forms too, and no key's history mixes with another's.

An older version carries the revision that superseded it because a tombstone may already be forgotten: put at 1,
deleted at 3, compacted at 5, put again at 7. A read at 5 must not find the version of 1 just because it has not been
purged yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import NamedTuple

from trimtab.metastore.errors import DamagedStore, UnknownFormat
from trimtab.metastore.limits import MAX_KEY_BYTES
from trimtab.metastore.store import OrderedStore

FORMAT = b"trimtab metastore\x01"
FORMAT_KEY = b"m format"
STATE_KEY = b"m state"
CONF_KEY = b"m conf"
META_KEY = b"m meta"
PURGED_KEY = b"m purged"
IMPORT_KEY = b"m import"

LATEST = b"k"
LATEST_END = b"l"
HISTORY = b"h"
RESULT = b"i"
RESULT_END = b"j"
REVISION = b"r"

LIVE = 0
TOMBSTONE = 1

CHECKSUM_BYTES = 8
NO_CHECKSUM = bytes(CHECKSUM_BYTES)
NO_ID = b""
ID_BYTES = 32

NUMBER = Struct(">Q")
# create revision, mod revision, version, live or tombstone; then the value
RECORD = Struct(">QQQB")
RECORD_BYTES = RECORD.size
_CHANGE = Struct(">QH")
_STATE = Struct(f">8Q{CHECKSUM_BYTES}s{CHECKSUM_BYTES}sB{ID_BYTES}s")


class Entry(NamedTuple):
    """A live version of a key. A deleted or absent key has no entry."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int


class State(NamedTuple):
    """Everything small that must move together with the data."""

    applied_index: int = 0
    applied_term: int = 0
    revision: int = 0
    compacted_revision: int = 0
    time_ms: int = 0
    results: int = 0
    chain: bytes = NO_CHECKSUM  # covers every effect so far
    checksum: bytes = NO_CHECKSUM  # the chain as it was when the revision was made
    horizon: bytes = NO_ID  # the newest command id whose result was forgotten


def pack_state(state: State) -> bytes:
    horizon = state.horizon
    return _STATE.pack(*state[:6], 0, 0, state.chain, state.checksum, len(horizon), horizon)


def unpack_state(data: bytes) -> State:
    try:
        *numbers, _, _, chain, checksum, horizon_bytes, horizon = _STATE.unpack(data)
    except error as reason:
        raise DamagedStore(f"the state record has {len(data)} bytes ({reason})") from None
    index, term, revision, compacted, time_ms, results = numbers
    return State(index, term, revision, compacted, time_ms, results, chain, checksum, horizon[:horizon_bytes])


def history_prefix(key: bytes) -> bytes:
    return HISTORY + key.replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def history_key(key: bytes, mod_revision: int) -> bytes:
    return HISTORY + key.replace(b"\x00", b"\x00\xff") + b"\x00\x01" + NUMBER.pack(mod_revision)


def split_history_key(stored: bytes) -> tuple[bytes, int]:
    """The user's key and the mod revision of a stored history key."""
    return stored[1:-10].replace(b"\x00\xff", b"\x00"), NUMBER.unpack_from(stored, len(stored) - 8)[0]


def revision_key(revision: int) -> bytes:
    return REVISION + NUMBER.pack(revision)


def pack_revision(checksum: bytes, changes: Iterable[tuple[bytes, int]]) -> bytes:
    """A revision's record. `changes` are pairs of key and the mod revision of the version before it, or 0."""
    parts = [checksum]
    for key, previous in changes:
        parts.append(_CHANGE.pack(previous, len(key)))
        parts.append(key)
    return b"".join(parts)


def unpack_revision(data: bytes) -> tuple[bytes, list[tuple[bytes, int]]]:
    changes: list[tuple[bytes, int]] = []
    at, end = CHECKSUM_BYTES, len(data)
    while at < end:
        previous, length = _CHANGE.unpack_from(data, at)
        at += _CHANGE.size
        changes.append((data[at : at + length], previous))
        at += length
    if at != end:
        raise DamagedStore("a revision record ends in the middle of a change")
    return data[:CHECKSUM_BYTES], changes


def entry_of(key: bytes, record: bytes | None) -> Entry | None:
    """What a reader sees of a record: nothing where there is none, or a tombstone."""
    if record is None:
        return None
    create, mod, version, kind = RECORD.unpack_from(record)
    return None if kind else Entry(key, record[RECORD_BYTES:], create, mod, version)


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys with this prefix; None when there is no such key."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def check_key(key: object) -> str | None:
    """Why this can't be a key, or None."""
    if type(key) is not bytes:
        return f"a key must be bytes, not {type(key).__name__}"
    if not key:
        return "a key must not be empty"
    if len(key) > MAX_KEY_BYTES:
        return f"a key of {len(key)} bytes is over the limit of {MAX_KEY_BYTES}"
    return None


def check_format(store: OrderedStore) -> bool:
    """Whether the store holds a metastore of this format; False for an empty store, else an error that says why."""
    found = store.get(FORMAT_KEY)
    if store.get(IMPORT_KEY) is not None:
        raise UnknownFormat(
            "this store holds a snapshot that was not received completely; go on with the import, or remove the store"
        )
    if found == FORMAT:
        return True
    if found is None:
        for _ in store.scan(b"", None):
            raise UnknownFormat("this store holds data but no metastore; check the name of the store")
        return False
    if found[:-1] == FORMAT[:-1]:
        raise UnknownFormat(
            f"the metastore's data has format {found[-1]}, this version reads format {FORMAT[-1]}; "
            "run the version that wrote it, or remove the member, empty its directory, and add it under a new raft id"
        )
    raise UnknownFormat(f"the metastore's data has an unknown format {found[:32]!r}; check the name of the store")
