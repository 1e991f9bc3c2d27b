"""Taking over tables that were written elsewhere: into one replica, all of them or none.

The files hold rows only, no position and no record; with the marker of a load comes one more that holds nothing else
(`marker`), so that the load is here or is not, whenever the power fails. The same goes for the copy that an arriving
replica waits for: its new record comes with it (`meta`). While they are taken over, what is synced for the replica
waits: a write would have to wait inside RocksDB, and the loop with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from trimtab.node.answering import Refused
from trimtab.node.replicas.merging import Merging
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.replica_meta import META_KEY, ReplicaMeta, adopted_pair, encode_meta
from trimtab.node.replicas.waiting import off_loop, outcome
from trimtab.storage.port import Corrupt, Disk, DiskFull, StorageError


def write_marker(disk: Disk, name: str, epoch: int, meta: ReplicaMeta | None = None) -> None:
    """A table that says: everything up to this epoch is here. Blocking: not for the loop."""
    # An earlier life may have left one.
    disk.remove(name)
    record = [] if meta is None else [(META_KEY, encode_meta(meta))]
    disk.write_table(name, [*record, adopted_pair(epoch)])


async def ingest(
    disk: Disk,
    replica: Replica,
    names: Sequence[str],
    *,
    marker: tuple[str, int] | None = None,
    meta: ReplicaMeta | None = None,
    allowed: Callable[[], object] = lambda: None,
    merging: Merging | None = None,
) -> None:
    """Returns when the rows are visible and durable. Refused: nothing was taken.

    `marker`: a name for the file of the marker, and the epoch that the replica has reached with these files; `meta`:
    the record that it has from then on. `allowed` raises Refused if they are not to be taken any more; it is asked at
    the last moment, not on the loop. `merging` says when they are merged with others; else that begins at once.
    """
    if replica.closed or replica.held:
        raise Refused("not_ready", f"the replica of {replica.title} can't take over files now; try again")
    if marker is not None:
        await _refused(off_loop(disk, partial(write_marker, disk, *marker, meta)))
        names = (*names, marker[0])
    await outcome(replica.flush)
    if replica.closed or replica.held:
        raise Refused("not_ready", f"the replica of {replica.title} can't take over files now; try again")
    replica.hold()
    if merging is not None:
        merging.wait(replica)

    def take() -> None:
        # The flush may have taken long, and whoever does this may have waited for its turn.
        allowed()
        if merging is not None:
            # It only spares work: whatever is wrong with the store, ingesting tells.
            with suppress(StorageError):
                replica.store.hold_merging(len(names))
        replica.store.ingest(tuple(names))

    try:
        try:
            await _refused(off_loop(disk, take))
        except Refused as refused:
            if isinstance(refused.__cause__, DiskFull):
                replica.ran_full(refused.__cause__)
            raise
        replica.took_over(marker[1] if marker is not None else 0, meta)
    finally:
        replica.release()


async def _refused(work: Awaitable[None]) -> None:
    try:
        await work
    except Corrupt as error:
        # The files that were brought are damaged; those of the replica are not touched.
        raise Refused("corrupt", f"{error.where}: {error.what}") from error
    except DiskFull as error:
        raise Refused("disk_full", f"the files could not be taken over: {error}") from error
    except StorageError as error:
        raise Refused("failed", f"the files could not be taken over: {error}") from error
