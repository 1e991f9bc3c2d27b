"""Arranges a metastore in one line: a log that numbers its own entries."""

from __future__ import annotations

from tests.unit.metastore.dict_store import DictStore

from trimtab.metastore.commands import Command, encode, stamp
from trimtab.metastore.limits import DEFAULT_MEMORY, Memory
from trimtab.metastore.machine import Metastore
from trimtab.metastore.results import Result


def catch_up(machine: Metastore, max_revisions: int) -> None:
    """Pump until nobody is behind. Bounded: a watch that never catches up is a failure, not a hanging test."""
    for _ in range(2000):
        if not machine.pump(max_revisions):
            return
    raise AssertionError("a watch never catches up")


class Driver:
    """A metastore with its store and its log, so that tests speak of commands only."""

    def __init__(self, store: DictStore | None = None, memory: Memory = DEFAULT_MEMORY) -> None:
        self.store = store or DictStore()
        self.memory = memory
        self.machine = Metastore(self.store, memory=memory)
        self.log: list[tuple[int, int, bytes]] = []

    def raw(self, *datas: bytes) -> list[Result | None]:
        first = self.machine.applied_index + 1
        entries = [(first + n, 1, data) for n, data in enumerate(datas)]
        results = self.machine.apply(entries)
        self.log += entries
        return results

    def many(self, *commands: Command, now_ms: int = 0) -> list[Result | None]:
        return self.raw(*(stamp(encode(command), now_ms) for command in commands))

    def __call__(self, command: Command, now_ms: int = 0) -> Result:
        result = self.many(command, now_ms=now_ms)[0]
        assert result is not None
        return result

    def value(self, key: bytes) -> bytes | None:
        entry = self.machine.get(key)
        return None if entry is None else entry.value

    def reopen(self) -> Driver:
        self.machine = Metastore(self.store, memory=self.memory)
        return self
