"""The judgement of scans of tables that are loaded, overwritten and set back: each shows one epoch, all of it.

The loads of an epoch are known from the metastore (`loads_watch`), their rows from their drivers. Each load writes rows
of its own and some that all write, of which the one with the latest stamp shows. So what a scan says about rows of
loads has to be, to the last row, what one epoch holds: not older than the one that the member knew when it was asked
for the first page, not newer than the one that was visible when that came.

Ordinary puts belong to the generation that was served when they were made. One that was acknowledged before a scan
began is in every scan of that generation, and none is in a scan of another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.sim.checks import Violation
from trimtab.sim.loads_history import EpochRead, Key, LoadedPut, LoadsHistory
from trimtab.sim.tables_judge import meets

FIRST_PUT = 1_000_000  # rows from here on are those of ordinary puts
_SHOWN = 6


class EpochJudge:
    """Of one history."""

    def __init__(self, history: LoadsHistory, replication: Mapping[str, int]) -> None:
        self._history = history
        self._replication = replication
        self._expected: dict[tuple[int, int], dict[Key, bytes]] = {}
        self._puts: dict[int, dict[Key, LoadedPut]] = {}
        for put in history.puts:
            self._puts.setdefault(put.table, {})[put.key] = put

    def judge(self) -> None:
        """Violation: a scan shows what can't be."""
        for read in self._history.reads:
            self.judge_read(read)

    def expected(self, table: int, epoch: int) -> dict[Key, bytes]:
        """The rows of loads that an epoch shows."""
        known = self._expected.get((table, epoch))
        if known is None:
            loads = [self._history.loads[id] for id in self._history.at(table, epoch)[1]]
            known = self._expected[table, epoch] = {}
            for load in sorted(loads, key=lambda each: each.stamp_us):
                known.update(load.rows)
        return known

    def judge_read(self, read: EpochRead) -> None:
        loaded = {key: value for key, value in read.rows.items() if key[1] < FIRST_PUT}
        epochs = [
            epoch
            for epoch in range(read.first_epoch, read.last_epoch + 1)
            if self.expected(read.table, epoch) == loaded
        ]
        if not epochs:
            raise self._of_no_epoch(read, loaded)
        wrong = ""
        for epoch in epochs:
            wrong = self._wrong_puts(read, epoch)
            if not wrong:
                return
        raise Violation(f"{read} shows epoch {epochs[-1]}, but {wrong}", self._told(read))

    def _wrong_puts(self, read: EpochRead, epoch: int) -> str:
        """What is wrong about ordinary puts if the scan is of this epoch; empty: nothing."""
        puts = self._puts.get(read.table, {})
        generation = self._history.at(read.table, epoch)[0]
        for key, value in read.rows.items():
            if key[1] < FIRST_PUT:
                continue
            put = puts.get(key)
            if put is None or put.value != value or put.refused or put.invoked_s > read.returned_s:
                return f"nobody had put {key} = {value.decode()}"
            if generation not in self._generations(put):
                return f"generation {generation} can't have the {put}"
        for key, put in puts.items():
            if (
                put.acked
                and put.returned_s < read.invoked_s
                and self._generations(put) == {generation}
                and key not in read.rows
                and meets(put.level, read.level, self._replication, "dc1", "dc1")
            ):
                return f"lacks the {put}, of generation {generation}"
        return ""

    def _generations(self, put: LoadedPut) -> set[int]:
        return {self._history.at(put.table, epoch)[0] for epoch in range(put.first_epoch, put.last_epoch + 1)}

    def _of_no_epoch(self, read: EpochRead, loaded: Mapping[Key, bytes]) -> Violation:
        nearest = min(
            range(read.first_epoch, read.last_epoch + 1),
            key=lambda epoch: len(self.expected(read.table, epoch).items() ^ loaded.items()),
        )
        expected = self.expected(read.table, nearest)
        lacking = sorted(key for key, value in expected.items() if loaded.get(key) != value)
        beyond = sorted(key for key, value in loaded.items() if expected.get(key) != value)
        parts = []
        if lacking:
            shown = ", ".join(f"{key}={expected[key].decode()}" for key in lacking[:_SHOWN])
            parts.append(f"{len(lacking)} rows are not as they should be: {shown}")
        if beyond:
            shown = ", ".join(f"{key}={loaded[key].decode()}" for key in beyond[:_SHOWN])
            parts.append(f"{len(beyond)} are shown that are not of it: {shown}")
        return Violation(f"{read} shows no epoch; nearest is {nearest}, but {'; '.join(parts)}", self._told(read))

    def _told(self, read: EpochRead) -> str:
        lines = []
        for epoch in range(max(read.first_epoch - 2, 0), read.last_epoch + 2):
            generation, loads = self._history.at(read.table, epoch)
            lines.append(f"epoch {epoch}: generation {generation}, loads {', '.join(loads) or 'none'}")
        return "\n".join(lines)
