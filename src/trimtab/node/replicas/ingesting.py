"""Taking over tables that were written elsewhere: into one replica, all of them or none.

The files hold rows only, no position and no record. While they are taken over, what is synced for the replica waits: a
write would have to wait inside RocksDB, and the loop with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.waiting import off_loop, outcome
from trimtab.storage.port import Corrupt, Disk, StorageError


async def ingest(disk: Disk, replica: Replica, names: Sequence[str]) -> None:
    """Returns when the rows are visible and durable. Refused: nothing was taken."""
    if replica.closed or replica.held:
        raise Refused("not_ready", f"the replica of {replica.title} can't take over files now; try again")
    await outcome(replica.flush)
    if replica.closed or replica.held:
        raise Refused("not_ready", f"the replica of {replica.title} can't take over files now; try again")
    replica.hold()
    try:
        await off_loop(disk, partial(replica.store.ingest, tuple(names)))
    except Corrupt as error:
        # The files that were brought are damaged; those of the replica are not touched.
        raise Refused("corrupt", f"{error.where}: {error.what}") from error
    except StorageError as error:
        raise Refused("failed", f"the files could not be taken over: {error}") from error
    finally:
        replica.release()
