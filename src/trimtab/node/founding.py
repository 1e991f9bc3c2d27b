"""How a cluster's log begins: a configuration all founders agree on, and the first write after it.

The log starts after entry 1 of term 1, which holds the founding configuration. In production that is one instance, and
entry 2 of the same term is the write that puts its row (see `topology.founding`); so whatever reads or applies entries
needs no special case for the beginning. Nothing of it is committed before an election: one voter elects itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from trimtab.node.identity import LOG
from trimtab.raft.messages import ConfState, Entry
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Disk

CLUSTER_GROUP = 0
FOUNDING_INDEX = 1
FOUNDING_TERM = 1
METASTORE = "metastore"


def drop_database(disk: Disk) -> None:
    """Remove what an unfinished founding, or an attempt to join that came to nothing, has left behind."""
    disk.remove(LOG)
    for name in disk.names(METASTORE):
        disk.remove(name)


async def write_log(
    disk: Disk, voters: Collection[int], command: bytes = b"", report: Callable[[str], None] | None = None
) -> None:
    """Write the beginning of the cluster group's log; durable when it returns. `command` is its first write."""
    log = NodeLog.open(disk, LOG, report=report)
    try:
        log.group(CLUSTER_GROUP).bootstrap(
            ConfState(voters=tuple(sorted(voters))), index=FOUNDING_INDEX, term=FOUNDING_TERM
        )
        if command:
            log.stage(CLUSTER_GROUP, entries=[Entry(FOUNDING_TERM, FOUNDING_INDEX + 1, data=command)])
        log.write()
        await synced(log)
    finally:
        log.close()


async def synced(log: NodeLog) -> None:
    """Return when everything written to the log is durable; raises what the sync failed with."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    log.sync(told)
    await done
