"""A log without space: it is tried again until there is some, and whatever else is wrong ends the instance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.node.host import Host
from trimtab.storage.port import DiskFull, StorageError

FULL = DiskFull("log", free_bytes=0, reserve_bytes=0, detail="no space")


class Stalled:
    """What a host is while it waits for space, as far as trying again is concerned."""

    def __init__(self, *fails: Exception) -> None:
        self.fails = list(fails)
        self.stalled: Exception | None = FULL
        self.ended_by: list[Exception] = []
        self.later: list[Any] = []
        self.went_on = False
        self._stopped = False
        self.log = SimpleNamespace(reopen=self._reopen, write=lambda: None)
        self._loop = SimpleNamespace(call_later=lambda _seconds, work: self.later.append(work))
        self._timing = SimpleNamespace(disk_retry_ms=1)
        self._fatal = self.ended_by.append
        self._retry_write: Any = lambda: Host._retry_write(self)  # type: ignore[arg-type]

    def _reopen(self) -> None:
        if self.fails:
            raise self.fails.pop(0)

    def _write(self) -> None:
        self.went_on = True

    def _pump(self) -> None:
        pass


def test_it_is_tried_again_until_there_is_space() -> None:
    host = Stalled(FULL)
    host._retry_write()
    assert not host.went_on and host.stalled is FULL
    (again,) = host.later
    again()
    assert host.went_on and host.stalled is None and not host.ended_by


@pytest.mark.parametrize("error", [StorageError("it is gone"), FileNotFoundError("MANIFEST-000001")])
def test_whatever_else_is_wrong_ends_the_instance(error: Exception) -> None:
    """Anything that was no error of the storage left the member stalled for ever, and nobody tried again."""
    host = Stalled(error)
    host._retry_write()
    assert host.ended_by == [error] and not host.later and not host.went_on
