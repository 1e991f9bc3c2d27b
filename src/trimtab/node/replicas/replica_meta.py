"""What a replica's store says about itself: whose rows these are, how far it got, and what it lacks.

    b"\\x00"              position: up to where of its log the store reaches
    b"\\x00\\x00"         record (`ReplicaMeta`)
    b"\\x00\\x00\\x00"    marker: the epoch up to which it has taken over the loads of its table

All sort below the keys of rows, which begin with 8 bytes of a token. In files that were copied from another instance
they speak of that one, and mean nothing here.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from trimtab.storage.port import Corrupt, StorageError, Store

FORMAT = 1
POSITION_KEY = b"\x00"
META_KEY = b"\x00\x00"
ADOPTED_KEY = b"\x00\x00\x00"
# Everything below is the replica's own. No token is that small: the smallest stands for the greatest.
FIRST_KEY = bytes(8)

_u64 = struct.Struct(">Q")


class ReplicaState(enum.Enum):
    OPEN = "open"
    REBUILDING = "rebuilding"
    ARRIVING = "arriving"


class ReplicaMeta(msgspec.Struct, frozen=True, array_like=True):
    """What a replica's store says about itself.

    `session`: the move that it came here by; kept when it is OPEN. While it is ARRIVING, `floor` is the newest epoch
    that was committed when it was made: loads up to there come with the copy, later ones it takes over itself. And
    `lost`: what it had taken for that session before is gone, and no copy of the session is sure to have it.
    """

    format: int
    table: int
    tablet: int
    generation: int
    incarnation: int
    log_id: int
    state: ReplicaState = ReplicaState.OPEN
    repaired_through_ms: int = 0
    forgot_us: int = 0  # reads as of a time up to this one are not exact: versions that young were folded, or lost
    session: str = ""
    floor: int = 0
    lost: bool = False


encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(ReplicaMeta).decode


def read_meta(store: Store, name: str) -> ReplicaMeta | None:
    """The record of a store; None when it has none. Corrupt when it can't be understood."""
    value = store.get(META_KEY)
    return None if value is None else decode_meta(value, name)


def decode_meta(value: bytes, name: str) -> ReplicaMeta:
    """The record, which was found in `name`. Corrupt when it can't be understood."""
    try:
        meta = _decode_meta(value)
    except msgspec.DecodeError as error:
        raise Corrupt(name, f"the replica's record can't be decoded: {error}") from error
    if meta.format != FORMAT:
        raise StorageError(
            f"{name} has format {meta.format}; this program knows format {FORMAT}. "
            "Start it with the program that wrote it, or upgrade in steps of one minor version"
        )
    return meta


def read_position(store: Store, name: str) -> int:
    return _number(store, name, POSITION_KEY, "position")


def read_adopted(store: Store, name: str) -> int:
    """The marker: the epoch up to which it has taken over loads."""
    return _number(store, name, ADOPTED_KEY, "marker")


def _number(store: Store, name: str, key: bytes, what: str) -> int:
    value = store.get(key)
    if value is None:
        return 0
    if len(value) != 8:
        raise Corrupt(name, f"the replica's {what} has {len(value)} bytes instead of 8")
    return int(_u64.unpack(value)[0])


def adopted_pair(epoch: int) -> tuple[bytes, bytes]:
    """The marker as a pair of a store."""
    return ADOPTED_KEY, _u64.pack(epoch)


def pack_position(position: int) -> bytes:
    return _u64.pack(position)


def meta_pairs(meta: ReplicaMeta, position: int) -> list[tuple[bytes, bytes]]:
    return [(POSITION_KEY, pack_position(position)), (META_KEY, encode_meta(meta))]


def write_meta(store: Store, meta: ReplicaMeta, position: int) -> None:
    batch = store.batch()
    for key, value in meta_pairs(meta, position):
        batch.put(key, value)
    store.write(batch)
