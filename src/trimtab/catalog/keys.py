"""Where the metastore keeps the catalog.

    catalog/version             a number: the newest version there is; changed only by compare-and-set
    catalog/update/<n>          Update: how version n came out of version n-1
    catalog/snapshot/<chunk>    the whole catalog as of some version, in pieces that fit one value each

Numbers in keys are zero-padded: keys sort like numbers. A snapshot stands for all updates up to its own version.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.catalog.limits import MAX_SNAPSHOT_BYTES, SNAPSHOT_CHUNK_BYTES

CATALOG = b"catalog/"
VERSION_KEY = CATALOG + b"version"
UPDATES = CATALOG + b"update/"
SNAPSHOT = CATALOG + b"snapshot/"
MAX_VERSION = (1 << 63) - 1


def update_key(version: int) -> bytes:
    return UPDATES + b"%020d" % version


def version_of(key: bytes) -> int:
    """The version in an update's key; ValueError where there is none."""
    digits = key.removeprefix(UPDATES)
    version = int(digits) if len(digits) == 20 and digits.isdigit() else 0
    if not key.startswith(UPDATES) or not 0 < version <= MAX_VERSION:
        raise ValueError(f"the metastore key {key!r} holds no catalog version")
    return version


def version_value(version: int) -> bytes:
    return b"%d" % version


def parse_version(value: bytes) -> int:
    version = int(value) if 0 < len(value) <= 19 and value.isdigit() else -1
    if not 0 <= version <= MAX_VERSION:
        raise ValueError(f"the metastore key {VERSION_KEY!r} holds {value[:40]!r}, not a number")
    return version


def snapshot_key(chunk: int) -> bytes:
    return SNAPSHOT + b"%06d" % chunk


def snapshot_entries(snapshot: bytes) -> dict[bytes, bytes]:
    """A snapshot by keys, each value small enough for the metastore. Old keys beyond these have to go with it."""
    if len(snapshot) > MAX_SNAPSHOT_BYTES:
        raise ValueError(f"a catalog of {len(snapshot)} bytes is over the limit of {MAX_SNAPSHOT_BYTES}; drop tables")
    starts = range(0, max(1, len(snapshot)), SNAPSHOT_CHUNK_BYTES)
    return {snapshot_key(chunk): snapshot[start : start + SNAPSHOT_CHUNK_BYTES] for chunk, start in enumerate(starts)}


def joined_snapshot(entries: Mapping[bytes, bytes]) -> bytes:
    """The way back; ValueError where a piece is missing. No entries: no snapshot, which is empty."""
    wanted = [snapshot_key(chunk) for chunk in range(len(entries))]
    if missing := [key for key in wanted if key not in entries]:
        raise ValueError(f"the catalog's snapshot lacks the metastore key {missing[0]!r}")
    return b"".join(entries[key] for key in wanted)
