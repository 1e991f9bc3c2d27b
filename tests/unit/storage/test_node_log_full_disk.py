"""A disk that is full for a moment, and syncs that were under way then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trimtab.raft.messages import Entry
from trimtab.storage.model import ModelDisk
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import DiskFull


def test_a_sync_that_began_on_a_full_disk_and_ends_after_space_came_back_is_done_again() -> None:
    """Found by simulation: the log took itself for full for ever, and the member refused all appends."""
    pending: list[Callable[[], None]] = []
    disk = ModelDisk(call_later=lambda _seconds, callback: pending.append(callback))
    log = NodeLog.open(disk)
    done: list[tuple[str, BaseException | None]] = []

    def write(index: int) -> None:
        log.stage(0, [Entry(1, index, data=b"x")])
        log.write()

    write(1)
    log.sync(lambda error: done.append(("first", error)))
    write(2)
    log.sync(lambda error: done.append(("second", error)))
    disk.full = True
    with pytest.raises(DiskFull):
        write(3)
    pending.pop(0)()  # the first sync ends; the one for the second begins on a full disk
    assert done == [("first", None)]
    disk.full = False
    log.write()
    pending.pop(0)()
    assert log.has_space()
    pending.pop(0)()
    assert done == [("first", None), ("second", None)]
