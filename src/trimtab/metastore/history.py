"""Reading versions: of one key or a range of keys, now or at an older revision, and what a revision changed.

Nothing here decides whether a revision may be read; the machine does that before it asks. All work is bounded by a
limit that the caller gives and a cap on keys looked at, so a range full of deleted keys can't hold up the node: a
page may be short, and says from which key to go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trimtab.metastore.errors import DamagedStore
from trimtab.metastore.layout import (
    LATEST,
    LATEST_END,
    NUMBER,
    RECORD,
    RECORD_BYTES,
    TOMBSTONE,
    Entry,
    entry_of,
    history_key,
    history_prefix,
    revision_key,
    unpack_revision,
)
from trimtab.metastore.limits import MAX_RANGE_SCANNED
from trimtab.metastore.store import OrderedStore


class Change(NamedTuple):
    """One key's change in one revision. No old entry: it was absent; no new entry: it was deleted."""

    key: bytes
    old: Entry | None
    new: Entry | None


class Page(NamedTuple):
    """Part of a range. `next_key` continues it; None at its end. Later pages ask for the same `revision`."""

    entries: list[Entry]
    revision: int
    next_key: bytes | None

    @property
    def more(self) -> bool:
        return self.next_key is not None


class Count(NamedTuple):
    """How many live keys were counted, up to `next_key` if there is more to count."""

    keys: int
    revision: int
    next_key: bytes | None

    @property
    def more(self) -> bool:
        return self.next_key is not None


def record_at(store: OrderedStore, key: bytes, revision: int) -> bytes | None:
    """The record of a key as of a revision; None or a tombstone where it had no value."""
    latest = store.get(LATEST + key)
    return None if latest is None else _as_of(store, key, latest, revision)


def _as_of(store: OrderedStore, key: bytes, latest: bytes, revision: int) -> bytes | None:
    if RECORD.unpack_from(latest)[1] <= revision:
        return latest
    # A key that has history has a latest record, so looking there first loses nothing.
    prefix = history_prefix(key)
    for _, found in store.scan(prefix, prefix + NUMBER.pack(revision + 1), reverse=True):
        until: int = NUMBER.unpack_from(found)[0]
        return found[NUMBER.size :] if revision < until else None
    return None


def _live(
    store: OrderedStore, low: bytes, high: bytes | None, revision: int, current: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys of the range with their record at the revision, or None for a key without a value then."""
    now = revision >= current
    for stored, latest in store.scan(LATEST + low, LATEST_END if high is None else LATEST + high):
        key = stored[1:]
        record = latest if now else _as_of(store, key, latest, revision)
        yield key, (None if record is None or record[RECORD_BYTES - 1] == TOMBSTONE else record)


def read_range(
    store: OrderedStore,
    low: bytes,
    high: bytes | None,
    *,
    revision: int,
    current: int,
    limit: int,
    max_bytes: int,
    keys_only: bool,
) -> Page:
    entries: list[Entry] = []
    used_bytes = scanned = 0
    for key, record in _live(store, low, high, revision, current):
        # At least one entry goes out whatever its size, and every page gets past at least one key.
        if len(entries) >= limit or scanned >= MAX_RANGE_SCANNED or (entries and used_bytes >= max_bytes):
            return Page(entries, revision, key)
        scanned += 1
        if record is None:
            continue
        create, mod, version, _ = RECORD.unpack_from(record)
        value = b"" if keys_only else record[RECORD_BYTES:]
        size = len(key) + len(value)
        if entries and used_bytes + size > max_bytes:
            return Page(entries, revision, key)
        used_bytes += size
        entries.append(Entry(key, value, create, mod, version))
    return Page(entries, revision, None)


def count_range(
    store: OrderedStore, low: bytes, high: bytes | None, *, revision: int, current: int, limit: int
) -> Count:
    count = 0
    for scanned, (key, record) in enumerate(_live(store, low, high, revision, current)):
        if count >= limit or scanned >= MAX_RANGE_SCANNED:
            return Count(count, revision, key)
        count += record is not None
    return Count(count, revision, None)


def revision_record(store: OrderedStore, revision: int) -> tuple[bytes, list[tuple[bytes, int]]]:
    """The checksum of a revision, and its keys with the mod revision of what they replaced (0: nothing)."""
    found = store.get(revision_key(revision))
    if found is None:
        raise DamagedStore(f"the record of revision {revision} is missing")
    return unpack_revision(found)


def change_of(store: OrderedStore, key: bytes, revision: int, previous: int) -> Change:
    """A key's change in a revision above the compacted one: exact look-ups, no search."""
    latest = store.get(LATEST + key)
    if latest is not None and RECORD.unpack_from(latest)[1] == revision:
        new: bytes | None = latest
    else:
        new = _superseded(store, key, revision)
    old = _superseded(store, key, previous) if previous else None
    return Change(key, entry_of(key, old), entry_of(key, new))


def _superseded(store: OrderedStore, key: bytes, mod_revision: int) -> bytes:
    found = store.get(history_key(key, mod_revision))
    if found is None:
        raise DamagedStore(f"the version of key {key[:64]!r} at revision {mod_revision} is missing")
    return found[NUMBER.size :]
