"""Physical removal of compacted history, in slices.

The compaction *command* moves the compacted revision, on every member at the same place of the log; from then on reads
below it fail and tombstones up to it count as absent. What is done here is only housekeeping and may differ between
members: nothing that is removed could be read any more.

What can go is found through revision records, oldest first, without scanning the data. A record of revision N up to the
compacted one says which keys N changed and which version each of them replaced:

- the version that N replaced was visible only before N: remove it;
- if N deleted the key and nothing came after, the tombstone itself is forgotten: remove it;
- the record of N stays until N + 1 is done, because the checksum of the compacted revision is still asked for.

The newest live version of a key is never touched. How far this has come is written with each slice, so a restart goes
on.
"""

from __future__ import annotations

from trimtab.metastore.history import revision_record
from trimtab.metastore.layout import (
    LATEST,
    NUMBER,
    PURGED_KEY,
    RECORD,
    TOMBSTONE,
    history_key,
    revision_key,
)
from trimtab.metastore.store import OrderedStore


def purged_revision(store: OrderedStore) -> int:
    """Up to which revision this member has removed what the revisions replaced."""
    found = store.get(PURGED_KEY)
    return 0 if found is None else int(NUMBER.unpack(found)[0])


def purge(store: OrderedStore, purged: int, compacted: int, limit: int) -> int:
    """Remove one slice: about `limit` versions, at least one whole revision. Returns the new purged revision."""
    if purged >= compacted:
        return purged
    batch = store.batch()
    removed = 0
    while purged < compacted and removed < limit:
        revision = purged + 1
        for key, previous in revision_record(store, revision)[1]:
            removed += 1
            if previous:
                batch.delete(history_key(key, previous))
            latest = store.get(LATEST + key)
            if latest is not None:
                _, mod, _, kind = RECORD.unpack_from(latest)
                if kind == TOMBSTONE and mod == revision:
                    batch.delete(LATEST + key)
        if purged:
            batch.delete(revision_key(purged))
        purged = revision
    batch.put(PURGED_KEY, NUMBER.pack(purged))
    store.write(batch)
    return purged
